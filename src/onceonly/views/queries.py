"""Reading the state table without making one, and checkpoints as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from onceonly.checkpoint.data_docs import find_page
from onceonly.checkpoint.model import Checkpoint, Event, Row, State, fold
from onceonly.checkpoint.offsets import Interval, has_data
from onceonly.errors import InvalidPipeline, OutcomeUnknown
from onceonly.settings import Settings

if TYPE_CHECKING:
    from onceonly.statetable.gaps import Coverage
    from onceonly.statetable.table import StateTable

RECENT_INTERVALS = 20  # checkpoints whose intervals tell how long they usually are
MIN_RECENT = 1  # checkpoints of each pipeline that are read at first, where all pipelines are shown
KEYS = """\
pipeline, epoch, seen (the number for --seen), state, interval, ranges, attempt, rows_by_sink, rows (the sum),
decision, owner, planned_at, updated_at, waiting, reason,
gate (passed, warning, failed; null: no verdict), held (true: somebody has to
approve or abort it), refused (the "sink" and "code" for which it waits for a
person; null: it does not), stage_again (true: it has to be staged again, and
nobody has begun), skipped (why it is left out on purpose), bad (records that
were dropped or became dead letters; null: it has no such thing),
missing (sinks whose targets have lost it, accepted manually),
replaces, rewinds_to (epochs), only (of a repair: the sinks that it writes; null:
it is none, and writes all), repairs (the epoch of all sinks whose records these
are), again (sinks in which the rows come once more), requested_by (the "who" and
"reason" of such a request; null: there is none), continued_by (those of the
requests that went on with it after an abort), after (by pipeline that it
comes after: the epochs on which it stands)"""


def find_state_table(settings: Settings) -> StateTable | None:
    """Return the state table at this moment, for reading; None when the embedded one is not made yet.

    Raises:
        InvalidPipeline: there is none where ONCEONLY_STATE says.
    """
    from onceonly.statetable.table import Snapshot

    if not _exists(settings) and settings.embedded:
        return None
    return Snapshot(settings.state)


def find_snapshot(settings: Settings) -> StateTable | None:
    """Return the state table at this moment, for reading; None when there is none yet."""
    from onceonly.statetable.table import Snapshot

    if not _exists(settings):
        return None
    return Snapshot(settings.state)


def _exists(settings: Settings) -> bool:
    from onceonly.statetable.location import check_atomic, exists

    check_atomic(settings.state)
    return exists(settings.state)


def require_state_table(settings: Settings) -> StateTable:
    """Return the state table at this moment, for reading.

    Raises:
        InvalidPipeline: there is none.
    """
    state = find_state_table(settings)
    if state is None:
        raise InvalidPipeline(
            f"there is no state table at {settings.state}.",
            "ONCEONLY_HOME or ONCEONLY_STATE says where to look for it; without the latter, the first run creates it.",
            "Run a pipeline: onceonly run FILE.py:NAME",
            code="state-table-missing",
        )
    return state


def describe_state_table(settings: Settings) -> str:
    """Return which state table is shown, and why it is that one."""
    why = f"{settings.state_setting} says so" if settings.state_setting else "of this folder: no ONCEONLY_STATE is set"
    return f"State table: {settings.state} ({why})"


def state_table_json(settings: Settings) -> dict[str, Any]:
    """Return the keys that say which state table is shown, and the variable that names it, if any."""
    return {"state_table": settings.state, "state_table_from": settings.state_setting}


def check_pipeline_exists(state_table: StateTable, pipeline: str) -> None:
    """Raise InvalidPipeline unless the state table has that pipeline."""
    names = state_table.pipelines()
    if pipeline not in names:
        why = "It has no pipeline yet."
        if names:
            why = f"Its pipelines are: {', '.join(names)}."
        raise InvalidPipeline(
            f"there is no pipeline '{pipeline}' in the state table at {state_table.uri}.",
            why,
            "List them: onceonly status",
            code="no-such-pipeline",
        )


def require_checkpoint(state_table: StateTable, pipeline: str, epoch: int) -> Checkpoint:
    """Return a checkpoint by its epoch.

    Raises:
        InvalidPipeline: there is no such pipeline.
    """
    check_pipeline_exists(state_table, pipeline)
    return state_table.view(pipeline).require(epoch)


def list_recent(state_table: StateTable, pipeline: str, most: int) -> list[Checkpoint]:
    """Return the last checkpoints, and every one that is unsettled or has to be staged again, newest first."""
    return _newest_first(fold(state_table.recent([pipeline], most)[pipeline]))


def read_overview(
    state_table: StateTable, pipelines: Iterable[str], most: int
) -> tuple[dict[str, list[Checkpoint]], dict[str, OutcomeUnknown]]:
    """Return by name the last checkpoints of each, and by name why other pipelines cannot be read.

    The last committed checkpoint that is no repair is among them unless it is further back than `most`. A pipeline
    whose rows are damaged does not hide the others.
    """
    recent_by_name: dict[str, list[Checkpoint]] = {}
    damaged: dict[str, OutcomeUnknown] = {}
    for name in pipelines:
        try:
            checkpoints = list_recent(state_table, name, MIN_RECENT)
            if not any(map(is_progress, checkpoints)):
                checkpoints = list_recent(state_table, name, most)
            recent_by_name[name] = checkpoints
        except OutcomeUnknown as error:
            damaged[name] = error
    return recent_by_name, damaged


def is_progress(checkpoint: Checkpoint) -> bool:
    """Whether it has brought the pipeline further.

    It is committed, and neither a repair of what an earlier one has read, nor an interval that was left out.
    """
    is_left_out = checkpoint.interval is not None and checkpoint.skipped is not None
    return checkpoint.state is State.COMMITTED and not checkpoint.is_repair and not is_left_out


def list_checkpoints(state_table: StateTable, pipeline: str, first: int, last: int) -> list[Checkpoint]:
    """Return the checkpoints of the epochs `first` to `last`, newest first."""
    return _newest_first(fold(state_table.history(pipeline, first, last)))


def _newest_first(by_epoch: Mapping[int, Checkpoint]) -> list[Checkpoint]:
    return [by_epoch[epoch] for epoch in sorted(by_epoch, reverse=True)]


def read_coverage(state_table: StateTable, newest: Iterable[Checkpoint]) -> dict[str, Coverage]:
    """Return by name what the intervals of pipelines cover, and which are missing. Chained pipelines are left out.

    Args:
        newest: the last checkpoint of each pipeline.
    """
    return state_table.coverage([checkpoint.pipeline for checkpoint in newest if checkpoint.interval])


def list_gaps(state_table: StateTable, newest: Iterable[Checkpoint]) -> dict[str, list[Interval]]:
    """Return by name the intervals of pipelines that are missing. For `newest` see `read_coverage`."""
    gaps = {}
    for name, coverage in read_coverage(state_table, newest).items():
        gaps[name] = list(coverage.gaps)
    return gaps


def read_usual_width(state_table: StateTable, pipeline: str) -> timedelta | None:
    """Return the width that more than half of the newest intervals have; None: they have no such width."""
    widths: Counter[timedelta] = Counter()
    for checkpoint in list_recent(state_table, pipeline, RECENT_INTERVALS):
        if checkpoint.interval:
            widths[checkpoint.interval.end - checkpoint.interval.start] += 1
    for width, number in widths.most_common(1):
        if 2 * number > widths.total():
            return width
    return None


def missing_by_sink(state_table: StateTable, pipeline: str) -> Mapping[str, int]:
    """Return by sink how many checkpoints its target has lost, as a person has accepted."""
    return state_table.view(pipeline).head.missing


def total_rows(checkpoint: Checkpoint) -> int | None:
    """Return the rows of all sinks: a record that went to two of them counts twice.

    A sink that was given up has none. None if nothing is staged yet, or a sink does not count.
    """
    if not _may_have_rows(checkpoint):
        return 0
    if not checkpoint.handles:
        return None
    return sum_rows(rows_by_sink(checkpoint))


def sum_rows(by_sink: Mapping[str, int | None]) -> int | None:
    """Return the rows of all sinks; None if a sink does not count."""
    total = 0
    for count in by_sink.values():
        if count is None:
            return None
        total += count
    return total


def rows_by_sink(checkpoint: Checkpoint) -> dict[str, int | None]:
    """Return the rows that are staged or published, 0 where a person gave them up, None where a sink does not count.

    Empty before anything is staged.
    """
    if not _may_have_rows(checkpoint):
        return dict.fromkeys(checkpoint.handles or checkpoint.sinks, 0)
    by_sink: dict[str, int | None] = {}
    for sink, handle in checkpoint.handles.items():
        by_sink[sink] = 0 if sink in checkpoint.given_up else handle.get("rows")
    return by_sink


def _may_have_rows(checkpoint: Checkpoint) -> bool:
    return has_data(checkpoint.ranges) and checkpoint.skipped is None


def to_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the summary of a checkpoint as JSON. Keys: see KEYS; times are ISO-8601 in UTC."""
    refusal = checkpoint.refused
    return {
        "pipeline": checkpoint.pipeline,
        "epoch": checkpoint.epoch,
        "seen": checkpoint.changed_seq,
        "state": checkpoint.state.value,
        "interval": interval_json(checkpoint.interval),
        "ranges": [range_.to_json() for range_ in checkpoint.ranges],
        "attempt": checkpoint.attempt,
        "rows": total_rows(checkpoint),
        "rows_by_sink": rows_by_sink(checkpoint),
        "decision": checkpoint.decision,
        "owner": checkpoint.owner,
        "planned_at": iso(checkpoint.planned_at),
        "updated_at": iso(checkpoint.updated_at),
        "missing": sorted(checkpoint.missing),
        "waiting": list(checkpoint.waiting) if not checkpoint.state.is_settled else [],
        "reason": checkpoint.reason,
        "gate": checkpoint.verdict["outcome"] if checkpoint.verdict else None,
        "held": checkpoint.is_held,
        "refused": {"sink": refusal["sink"], "code": refusal["code"]} if refusal else None,
        "stage_again": checkpoint.has_to_be_staged_again,
        "skipped": checkpoint.skipped,
        "bad": checkpoint.bad_records,
        "replaces": checkpoint.replaces,
        "rewinds_to": checkpoint.rewinds_to,
        "only": list(checkpoint.only) if checkpoint.only is not None else None,
        "repairs": checkpoint.repairs,
        "again": list(checkpoint.again),
        "requested_by": dict(checkpoint.requested_by) or None,
        "continued_by": list(map(dict, checkpoint.continued_by)),
        "after": {name: list(epochs) for name, epochs in checkpoint.after.items()},
    }


def interval_json(interval: Interval | None) -> dict[str, str] | None:
    """Return an interval as JSON: its "start" and "end"; null where there is none."""
    if interval is None:
        return None
    return {"start": iso(interval.start), "end": iso(interval.end)}


def gaps_json(gaps: Iterable[Interval]) -> dict[str, Any]:
    """Return the key "gaps" of an answer in JSON, with these intervals."""
    return {"gaps": list(map(interval_json, gaps))}


def timeline(state_table: StateTable, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Return the rows of a checkpoint, in order: {"at", "event", "attempt", "owner", "sink", "decision", "detail"}."""
    return [_event_json(row) for row in state_table.history(checkpoint.pipeline, checkpoint.epoch, checkpoint.epoch)]


def docs_page(checkpoint: Checkpoint) -> str:
    """Return where Airflow serves what its current attempt failed by in Data Docs, below the address of Airflow."""
    page = find_page(checkpoint, checkpoint.verdict or {})
    return f"/onceonly/pipelines/{checkpoint.pipeline}/{checkpoint.epoch}/docs/{checkpoint.attempt}/{page}"


def find_verdict(state_table: StateTable, pipeline: str, epoch: int, attempt: int) -> Mapping[str, Any] | None:
    """Return the verdict of that attempt; None where its gate has not judged it."""
    for row in state_table.history(pipeline, epoch, epoch):
        if row.event is Event.VERDICT and row.attempt == attempt:
            return row.body
    return None


def _event_json(row: Row) -> dict[str, Any]:
    """Return one event of a timeline. Its "detail" leaves out what other parts of the same page or JSON show."""
    detail = dict(row.body)
    if row.event in (Event.PLANNED, Event.EMPTY, Event.CLAIMED, Event.STAGED):
        detail = {}
    elif row.event is Event.REFUSED:
        detail = {"code": row.body["code"], "why": row.body["why"]}
    return {
        "at": iso(row.at),
        "event": row.event.value,
        "attempt": row.attempt,
        "owner": row.owner,
        "sink": row.sink,
        "decision": row.decision,
        "detail": detail,
    }


def full_json(checkpoint: Checkpoint, timeline: list[dict[str, Any]]) -> dict[str, Any]:
    """Return all of a checkpoint as JSON.

    An address that a user gave may hold a password: see `redaction.hide_credentials`.
    """
    attempts = []
    for attempt, claim in sorted(checkpoint.claims.items()):
        code = dict(claim.code) if claim.code else None
        attempts.append({"attempt": attempt, "worker": claim.worker, "nonce": claim.nonce, "code": code})
    return {
        **to_json(checkpoint),
        "owners": list(checkpoint.owners),
        "attempts": attempts,
        "refused": checkpoint.refused and dict(checkpoint.refused),
        "verdict": checkpoint.verdict and dict(checkpoint.verdict),
        "approved": checkpoint.approved and dict(checkpoint.approved),
        "bad_records": dict(checkpoint.bad) or None,
        "handles": dict(checkpoint.handles),
        "published": dict(checkpoint.published),
        "in_doubt": dict(checkpoint.in_doubt),
        "given_up": dict(checkpoint.given_up),
        "missing_by_sink": dict(checkpoint.missing),
        "definition": dict(checkpoint.definition.json),
        "schemas": dict(checkpoint.schemas),
        "timeline": timeline,
    }


def iso(time: datetime) -> str:
    """Return a time in UTC as ISO-8601, with a Z."""
    return time.isoformat().replace("+00:00", "Z")
