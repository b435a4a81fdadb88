"""Reading the state table without making one, and checkpoints as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from onceonly.checkpoint.model import Checkpoint, Event, Row, State, fold
from onceonly.checkpoint.offsets import Interval, has_data
from onceonly.errors import InvalidPipeline, OutcomeUnknown
from onceonly.redaction import CREDENTIALS
from onceonly.settings import Settings

if TYPE_CHECKING:
    from onceonly.statetable.table import StateTable

FEW = 1  # checkpoints of each pipeline that are read at first, where all pipelines are shown
KEYS = """\
pipeline, epoch, seen (the number for --seen), state, interval, ranges, attempt, rows_by_sink, rows (the sum),
decision, owner, planned_at, updated_at, waiting, reason,
gate (passed, warning, failed; null: no verdict), held (true: somebody has to
approve or abort it), refused (the "sink" and "code" for which it waits for a
person; null: it does not), stage_again (true: it has to be staged again, and
nobody has begun), skipped (why it is left out on purpose), bad (records that
were dropped or became dead letters; null: it has no such thing),
missing (sinks whose targets have lost it, accepted manually),
replaces, rewinds_to (epochs), after (by pipeline that it comes after:
the epochs on which it stands)"""


def existing(settings: Settings) -> StateTable | None:
    """The state table at this moment, for reading; None when the embedded one is not made yet.

    Raises:
        InvalidPipeline: there is none where ONCEONLY_STATE says.
    """
    from onceonly.statetable.table import Snapshot

    return Snapshot(settings.state) if _exists(settings) or not settings.embedded else None


def snapshot(settings: Settings) -> StateTable | None:
    """The state table at this moment, for reading; None when there is none yet."""
    from onceonly.statetable.table import Snapshot

    return Snapshot(settings.state) if _exists(settings) else None


def _exists(settings: Settings) -> bool:
    from onceonly.statetable.location import check_atomic, exists

    check_atomic(settings.state)
    return exists(settings.state)


def required(settings: Settings) -> StateTable:
    state = existing(settings)
    if state is None:
        raise InvalidPipeline(
            f"there is no state table at {settings.state}.",
            "ONCEONLY_HOME or ONCEONLY_STATE says where to look for it; without the latter, the first run creates it.",
            "Run a pipeline: onceonly run FILE.py:NAME",
        )
    return state


def check_known(state: StateTable, pipeline: str) -> None:
    names = state.pipelines()
    if pipeline not in names:
        raise InvalidPipeline(
            f"there is no pipeline '{pipeline}' in the state table.",
            f"Its pipelines are: {', '.join(names)}." if names else "It has no pipeline yet.",
            "List them: onceonly status",
        )


def checkpoint(state: StateTable, pipeline: str, epoch: int) -> Checkpoint:
    check_known(state, pipeline)
    return state.view(pipeline).require(epoch)


def recent(state: StateTable, pipeline: str, most: int) -> list[Checkpoint]:
    """The last checkpoints, and every one that is unsettled or has to be staged again, newest first."""
    return recent_of(state, [pipeline], most)[pipeline]


def recent_of(state: StateTable, pipelines: Iterable[str], most: int) -> dict[str, list[Checkpoint]]:
    """The same, of several pipelines at the cost of one."""
    return {name: _newest_first(fold(rows)) for name, rows in state.recent(pipelines, most).items()}


def overview(
    state: StateTable, pipelines: Iterable[str], most: int
) -> tuple[dict[str, list[Checkpoint]], dict[str, OutcomeUnknown]]:
    """The last checkpoints of each, the last committed one among them unless it is further back than `most`.

    And why others cannot be read: one whose rows are damaged does not hide the others.
    """
    found: dict[str, list[Checkpoint]] = {}
    damaged: dict[str, OutcomeUnknown] = {}
    for name in pipelines:
        try:
            known = recent(state, name, FEW)
            committed = any(cp.state is State.COMMITTED for cp in known)
            found[name] = known if committed else recent(state, name, most)
        except OutcomeUnknown as error:
            damaged[name] = error
    return found, damaged


def between(state: StateTable, pipeline: str, first: int, last: int) -> list[Checkpoint]:
    """The checkpoints of these epochs, newest first."""
    return _newest_first(fold(state.history(pipeline, first, last)))


def _newest_first(found: Mapping[int, Checkpoint]) -> list[Checkpoint]:
    return [found[epoch] for epoch in sorted(found, reverse=True)]


def gaps(state: StateTable, newest: Iterable[Checkpoint]) -> dict[str, list[Interval]]:
    """What pipelines leave out, by name; `newest`: the last checkpoint of each. Chained ones leave out nothing."""
    by_intervals = [checkpoint.pipeline for checkpoint in newest if checkpoint.interval]
    return state.gaps(by_intervals)


def missing(state: StateTable, pipeline: str) -> Mapping[str, int]:
    """By sink: how many checkpoints its target has lost, as a person has accepted."""
    return state.view(pipeline).head.missing


def rows(checkpoint: Checkpoint) -> int | None:
    """Over all sinks: a record that went to two of them counts twice. A sink that was given up has none."""
    counts = rows_by_sink(checkpoint).values() if checkpoint.handles else ()
    if not _may_have_rows(checkpoint):
        return 0
    return sum(count for count in counts if count is not None) if counts and None not in counts else None


def rows_by_sink(checkpoint: Checkpoint) -> dict[str, int | None]:
    """What is staged, or was published, and 0 where a person gave the rows up; None where a sink does not count.

    Empty before anything is staged.
    """
    if not _may_have_rows(checkpoint):
        return dict.fromkeys(checkpoint.handles or checkpoint.sinks, 0)
    given_up = checkpoint.given_up
    return {sink: 0 if sink in given_up else handle.get("rows") for sink, handle in checkpoint.handles.items()}


def _may_have_rows(checkpoint: Checkpoint) -> bool:
    return has_data(checkpoint.ranges) and checkpoint.skipped is None


def to_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """Keys: see KEYS; times are ISO-8601 in UTC."""
    interval = checkpoint.interval
    return {
        "pipeline": checkpoint.pipeline,
        "epoch": checkpoint.epoch,
        "seen": checkpoint.changed_seq,
        "state": checkpoint.state.value,
        "interval": span(interval) if interval else None,
        "ranges": [range_.to_json() for range_ in checkpoint.ranges],
        "attempt": checkpoint.attempt,
        "rows": rows(checkpoint),
        "rows_by_sink": rows_by_sink(checkpoint),
        "decision": checkpoint.decision,
        "owner": checkpoint.owner,
        "planned_at": iso(checkpoint.planned_at),
        "updated_at": iso(checkpoint.updated_at),
        "missing": sorted(checkpoint.missing),
        "waiting": list(checkpoint.waiting) if not checkpoint.state.settled else [],
        "reason": checkpoint.reason,
        "gate": checkpoint.verdict["outcome"] if checkpoint.verdict else None,
        "held": checkpoint.held,
        "refused": {key: checkpoint.refused[key] for key in ("sink", "code")} if checkpoint.refused else None,
        "stage_again": checkpoint.has_to_be_staged_again,
        "skipped": checkpoint.skipped,
        "bad": checkpoint.bad_records,
        "replaces": checkpoint.replaces,
        "rewinds_to": checkpoint.rewinds_to,
        "after": {name: list(epochs) for name, epochs in checkpoint.after.items()},
    }


def span(interval: Interval) -> dict[str, str]:
    return {"start": iso(interval.start), "end": iso(interval.end)}


def timeline(state: StateTable, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """What was recorded of it, in order: {"at", "event", "attempt", "owner", "sink", "decision", "detail"}."""
    return [_entry(row) for row in state.history(checkpoint.pipeline, checkpoint.epoch, checkpoint.epoch)]


def docs_page(checkpoint: Checkpoint) -> str:
    """Where Airflow serves the Data Docs of its current attempt, below the address of Airflow."""
    return f"/onceonly/pipelines/{checkpoint.pipeline}/{checkpoint.epoch}/docs/{checkpoint.attempt}/index.html"


def verdict(state: StateTable, pipeline: str, epoch: int, attempt: int) -> Mapping[str, Any] | None:
    """What the gate said of that attempt; None where it has not judged it."""
    rows = state.history(pipeline, epoch, epoch)
    return next((row.body for row in rows if row.event is Event.VERDICT and row.attempt == attempt), None)


def _entry(row: Row) -> dict[str, Any]:
    shown_elsewhere = row.event in (Event.PLANNED, Event.EMPTY, Event.CLAIMED, Event.STAGED)
    detail = {} if shown_elsewhere else dict(row.body)
    if row.event is Event.REFUSED:
        detail = {key: row.body[key] for key in ("code", "why")}
    return {
        "at": iso(row.at),
        "event": row.event.value,
        "attempt": row.attempt,
        "owner": row.owner,
        "sink": row.sink,
        "decision": row.decision,
        "detail": detail,
    }


def everything(checkpoint: Checkpoint, timeline: list[dict[str, Any]]) -> dict[str, Any]:
    """All of a checkpoint; an address that a user gave may hold a password: see `without_secrets`."""
    claims = sorted(checkpoint.claims.items())
    return {
        **to_json(checkpoint),
        "owners": list(checkpoint.owners),
        "attempts": [{"attempt": n, "worker": claim.worker, "nonce": claim.nonce} for n, claim in claims],
        "refused": checkpoint.refused and dict(checkpoint.refused),
        "verdict": checkpoint.verdict and dict(checkpoint.verdict),
        "approved": checkpoint.approved and dict(checkpoint.approved),
        "bad_records": dict(checkpoint.bad) or None,
        "handles": dict(checkpoint.handles),
        "published": dict(checkpoint.published),
        "in_doubt": dict(checkpoint.in_doubt),
        "given_up": dict(checkpoint.given_up),
        "missing_by_sink": dict(checkpoint.missing),
        "definition": dict(checkpoint.definition),
        "schemas": dict(checkpoint.schemas),
        "timeline": timeline,
    }


def iso(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


def without_secrets(data: Any) -> Any:
    """Handles hold no secret, but an address that a user gave may carry a password."""
    if isinstance(data, dict):
        return {key: without_secrets(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [without_secrets(value) for value in data]
    return CREDENTIALS.sub("://…@", data) if isinstance(data, str) else data
