"""What the state table records of one pipeline, read once: its checkpoints, and what each sink has published.

Nobody vouches for the table: its rows are compared with each other as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from onceonly.checkpoint.definition import Definition
from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.model import Checkpoint, Event, Handle, Row, State, first
from onceonly.checkpoint.sink import Publication
from onceonly.checkpoint.verification import Finding, Judgement, Published
from onceonly.errors import OutcomeUnknown
from onceonly.json_values.text import canonical
from onceonly.statetable.row_format import Head
from onceonly.statetable.table import StateTable

HEAD_KEYS = ("seq", "epoch", "decision", "latest", "open", "published", "missing")


@dataclass(frozen=True)
class TargetGroup:
    """What a sink has published to one target.

    Args:
        definition: the newest one by which it was published there.
        published: in the order of their decisions.
    """

    sink: str
    definition: Definition
    published: Sequence[Published]


@dataclass(frozen=True)
class Records:
    """All that the state table records of a pipeline.

    Args:
        row_ids: of its rows, by sequence number: by them a later verification knows that this was the same table.
        faults: what contradicts itself in the table.
    """

    pipeline: str
    checkpoints: Mapping[int, Checkpoint]
    groups: Sequence[TargetGroup]
    row_ids: Mapping[int, str]
    faults: Sequence[Finding] = ()
    published_at: Mapping[int, datetime] = field(default_factory=dict)  # by epoch: when its last sink was published

    @property
    def last_seq(self) -> int:
        return max(self.row_ids, default=0)

    @cached_property
    def commits(self) -> list[Checkpoint]:
        """The committed checkpoints, oldest first."""
        return self._select(lambda checkpoint: checkpoint.state is State.COMMITTED)

    @cached_property
    def open(self) -> list[Checkpoint]:
        """The checkpoints that are not settled yet, oldest first."""
        return self._select(lambda checkpoint: not checkpoint.state.is_settled)

    @cached_property
    def rewinds(self) -> list[Checkpoint]:
        """The checkpoints that take others back, which is decided with their first row."""
        return self._select(lambda checkpoint: checkpoint.rewinds_to is not None)

    def _select(self, is_chosen: Callable[[Checkpoint], bool]) -> list[Checkpoint]:
        """Return the chosen checkpoints, oldest first."""
        return sorted(filter(is_chosen, self.checkpoints.values()), key=lambda checkpoint: checkpoint.epoch)

    @cached_property
    def replacements(self) -> Mapping[int, int]:
        """By epoch, the committed checkpoint of all sinks that has taken its place, also over repairs in between."""
        replacements: dict[int, int] = {}
        for checkpoint in self.commits:
            if checkpoint.is_repair:
                continue
            epoch = checkpoint.replaces
            while epoch is not None:
                replacements[epoch] = checkpoint.epoch
                epoch = self.checkpoints[epoch].replaces if epoch in self.checkpoints else None
        return replacements

    def find_rewind_of(self, checkpoint: Checkpoint) -> int | None:
        """Return the epoch of the rewind that has taken back what the checkpoint published; None: there is none."""
        origin = checkpoint.origin
        for rewind in self.rewinds:
            if rewind.epoch > checkpoint.epoch and rewind.rewinds_to is not None and rewind.rewinds_to < origin:
                return rewind.epoch
        return None


def read_records(state_table: StateTable, pipeline: str) -> Records:
    """Read all rows of the pipeline, once.

    Raises:
        OutcomeUnknown: the table cannot be read.
    """
    rows = state_table.history(pipeline)
    checkpoints, faults = _fold(rows)
    times: dict[tuple[int, str], datetime] = {}
    row_ids: dict[int, str] = {}
    for row in rows:
        row_ids[row.seq] = row.id
        if row.event is Event.PUBLISHED:
            times[row.epoch, row.sink or ""] = row.at
    published_at: dict[int, datetime] = {}
    for (epoch, _), at in times.items():
        published_at[epoch] = max(at, published_at.get(epoch, at))
    records = Records(pipeline, checkpoints, (), row_ids)
    groups = _group_by_target(records, times)
    faults += list(_find_unrecorded(records))
    return Records(pipeline, checkpoints, groups, records.row_ids, faults, published_at)


# ---- the rows


def _fold(rows: Sequence[Row]) -> tuple[dict[int, Checkpoint], list[Finding]]:
    """Return the checkpoints by epoch, and where the rows contradict each other."""
    checkpoints: dict[int, Checkpoint] = {}
    faults: list[Finding] = []
    head, last_seq = Head(), 0
    for row in rows:
        if row.seq != last_seq + 1:
            faults.append(_damage(row, f"Row {last_seq + 1} was expected, and row {row.seq} is there."))
        last_seq = row.seq
        checkpoint = checkpoints.get(row.epoch)
        try:
            checkpoint = checkpoint.apply(row) if checkpoint else first(row)
        except OutcomeUnknown as error:
            faults.append(_damage(row, error.why))
            continue
        except (KeyError, TypeError, ValueError) as error:
            faults.append(_damage(row, f"Row {row.seq} ({row.event.value}) cannot be read: {error!r}."))
            continue
        checkpoints[row.epoch] = checkpoint
        head = head.apply(row, checkpoint)
        difference = _find_difference(head, row.head)
        if difference:
            faults.append(_damage(row, f"Row {row.seq} says {difference}, and the rows up to it say otherwise."))
            head = Head.from_json(row.head)
    return checkpoints, faults


def _find_difference(head: Head, recorded: Mapping[str, Any]) -> str:
    """Return the key in which a row's head is not what follows from the rows; empty: there is none."""
    computed = head.to_json()
    for key in HEAD_KEYS:
        if computed.get(key) != recorded.get(key):
            return f"{key} {recorded.get(key)!r}"[:200]
    return ""


def _damage(row: Row, why: str) -> Finding:
    advice = f"Was the table edited by hand? Restore it to the version before row {row.seq}."
    return Finding(Judgement.WRONG, FindingCode.STATE_ROWS_DAMAGED, why, row.epoch, advice)


def _find_unrecorded(records: Records) -> Iterator[Finding]:
    """Find what is committed although nothing is recorded of one of its sinks, and decisions that were taken twice."""
    epochs_by_decision: dict[int, int] = {}
    for checkpoint in records.commits:
        for sink in checkpoint.waiting:
            why = f"It is committed, and for sink '{sink}' neither a publication nor its end is recorded."
            yield Finding(Judgement.WRONG, FindingCode.NOT_RECORDED, why, checkpoint.epoch)
        if checkpoint.decision is None or not checkpoint.handles:
            continue
        other = epochs_by_decision.setdefault(checkpoint.decision, checkpoint.epoch)
        if other != checkpoint.epoch:
            why = f"Decision {checkpoint.decision} is that of epoch {other} as well."
            yield Finding(Judgement.WRONG, FindingCode.STATE_ROWS_DAMAGED, why, checkpoint.epoch)


# ---- what was published


def _group_by_target(records: Records, times: Mapping[tuple[int, str], datetime]) -> list[TargetGroup]:
    """Return what was published, by sink and target. A sink may have had several targets, one after the other."""
    by_decision = sorted(records.checkpoints.values(), key=lambda checkpoint: checkpoint.decision or 0)
    ends = _find_replaced_publications(records, by_decision)
    targets: dict[tuple[str, str], str] = {}  # by sink and its definition: where it publishes, as a proof says
    published: dict[tuple[str, str], list[Published]] = {}
    definitions: dict[tuple[str, str], Definition] = {}
    for checkpoint in by_decision:
        for sink in checkpoint.published:
            publication = _to_published(checkpoint, sink, times, ends)
            config = sink, _describe_sink(checkpoint.definition, sink)
            target = str(publication.publication.proof.get("target") or targets.get(config, config[1]))
            targets[config] = target
            published.setdefault((sink, target), []).append(publication)
            definitions[sink, target] = checkpoint.definition
    groups = []
    for key, publications in sorted(published.items()):
        groups.append(TargetGroup(key[0], definitions[key], publications))
    return groups


def _describe_sink(definition: Definition, sink: str) -> str:
    """Return the definition of one sink as text."""
    for sink_json in definition.json["sinks"]:
        if sink_json["name"] == sink:
            return canonical(sink_json)
    return ""


def _to_published(
    checkpoint: Checkpoint,
    sink: str,
    times: Mapping[tuple[int, str], datetime],
    ends: Mapping[tuple[int, str], int],
) -> Published:
    body, key = checkpoint.published[sink], (checkpoint.epoch, sink)
    decision = checkpoint.decision or 0
    return Published(
        epoch=checkpoint.epoch,
        decision=decision,
        handle=checkpoint.handles[sink],
        publication=Publication(checkpoint.epoch, decision, body.get("proof") or {}),
        at=times[key],
        already=bool(body.get("already")),
        taken_out_by=ends.get(key),
        missing=sink in checkpoint.missing,
    )


def _find_replaced_publications(records: Records, by_decision: Sequence[Checkpoint]) -> dict[tuple[int, str], int]:
    """Return by epoch and sink the epoch of the checkpoint that has taken out its rows."""
    ends: dict[tuple[int, str], int] = {}
    for checkpoint in by_decision:
        for sink in checkpoint.published:
            handle = checkpoint.handles[sink]
            if "replaces" in handle:
                replaced = _find_replaced(records, checkpoint, sink, handle["replaces"])
                if replaced is not None:
                    ends.setdefault((replaced, sink), checkpoint.epoch)
            elif "retracts" in handle:
                for epoch in _list_retracted(records, checkpoint, sink):
                    ends.setdefault((epoch, sink), checkpoint.epoch)
    return ends


def _find_replaced(records: Records, checkpoint: Checkpoint, sink: str, old: Handle) -> int | None:
    """Return the epoch whose handle was replaced; of those whose place was taken, the last that was published."""
    last_published: int | None = None
    epoch = checkpoint.replaces
    while epoch is not None and epoch in records.checkpoints:
        earlier = records.checkpoints[epoch]
        if sink in earlier.published:
            last_published = last_published or epoch
            if _without_replaced(earlier.handles[sink]) == dict(old):
                return epoch
        epoch = earlier.replaces
    return last_published


def _without_replaced(handle: Handle) -> dict[str, Any]:
    rest = dict(handle)
    rest.pop("replaces", None)
    return rest


def _list_retracted(records: Records, rewind: Checkpoint, sink: str) -> list[int]:
    """Return the epochs whose rows a rewind has retracted in the sink."""
    epochs = []
    for epoch, earlier in records.checkpoints.items():
        is_after = rewind.rewinds_to is not None and earlier.origin > rewind.rewinds_to and epoch < rewind.epoch
        if is_after and earlier.rewinds_to is None and earlier.is_shown_by(sink):
            epochs.append(epoch)
    return epochs
