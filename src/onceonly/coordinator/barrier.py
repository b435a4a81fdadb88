"""How far the pipelines before this one let it read: a barrier that goes through the tables between them.

In chained mode a table is read exactly up to the version that published the newest committed checkpoint of the pipeline
that writes it. An interval is read as the checkpoints in force for the same interval have published it. Which they were
is recorded with the checkpoint that reads, and nothing is written to the log of theirs: pipelines do not meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import WORDS, Interval
from onceonly.checkpoint.sink import Landed, Versioned
from onceonly.coordinator.messages import how_to_settle
from onceonly.errors import Busy, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.table import StateTable


@dataclass(frozen=True)
class Barrier:
    """What may be read.

    Args:
        epochs: by pipeline: the newest checkpoint of a chain, or those of the interval, oldest first.
        tables: by topic: where the rows of these are. In chained mode the last one, if there is one.
    """

    epochs: Mapping[str, tuple[int, ...]]
    tables: Mapping[str, tuple[Landed, ...]]


def find(state: StateTable, parts: Parts, pipeline: Pipeline, interval: Interval | None) -> Barrier:
    """The barrier as the pipelines before are now.

    Raises:
        InvalidPipeline: one of them is not known, writes none of the tables, or is after this one.
        Busy: a checkpoint of the interval is not committed yet.
    """
    before = _all_before(state, parts, pipeline)
    found = [each.of_interval(interval) if interval else each.newest() for each in before]
    epochs = {each.name: tuple(known.epoch for known in those) for each, those in zip(before, found, strict=True)}
    read = {} if interval else _read_already(state, pipeline)
    return Barrier(
        epochs,
        {
            topic: () if epochs[each.name] == read.get(each.name) else each.landed(topic, those)
            for each, those in zip(before, found, strict=True)
            for topic in each.sinks
        },
    )


def check(state: StateTable, parts: Parts, pipeline: Pipeline) -> list[str]:
    """What of it can be known before any run, for people.

    Raises:
        InvalidPipeline: `find` would refuse it, whatever the interval.
    """
    return [note for each in _all_before(state, parts, pipeline) for note in each.check()]


def _all_before(state: StateTable, parts: Parts, pipeline: Pipeline) -> list[_Before]:
    _refuse_circle(state, pipeline)
    before = [_Before(state, parts, pipeline, name) for name in pipeline.after]
    _refuse_shared(pipeline, before)
    return before


def _read_already(state: StateTable, pipeline: Pipeline) -> Mapping[str, tuple[int, ...]]:
    """By pipeline: up to which checkpoint of it a chain has read. Until its next one there is nothing to look for."""
    latest = state.view(pipeline.name).latest
    return latest.after if latest and latest.state is State.COMMITTED else {}


def closed(state: StateTable, parts: Parts, pipeline: Pipeline) -> Barrier:
    """One that lets nothing through: of what a person leaves out, or has read elsewhere.

    Raises:
        InvalidPipeline: as `find`.
    """
    before = [_Before(state, parts, pipeline, name) for name in pipeline.after]
    return Barrier({}, {topic: () for each in before for topic in each.sinks})


class _Before:
    """A pipeline that writes tables which this one reads."""

    def __init__(self, state: StateTable, parts: Parts, reader: Pipeline, name: str) -> None:
        self.name, self._parts, self._reader = name, parts, reader
        self._view = state.view(name)
        latest = self._view.latest
        if latest is None:
            raise _unknown(state, reader, name)
        self._sinks = sinks = Pipeline.from_json(latest.definition).sinks
        tables = reader.tables.items()
        self.sinks = {topic: sink.name for topic, uri in tables for sink in sinks if uri in sink.asset_uris()}
        if not self.sinks:
            raise _writes_nothing_of_it(reader, name, {uri for sink in sinks for uri in sink.asset_uris()})
        if reader.mode == "interval" and latest.interval is None:
            raise InvalidPipeline(
                f"{reader.name}: its intervals cannot follow those of '{name}'.",
                f"'{name}' runs in chained mode and has none.",
                "Run both by intervals, or this one in chained mode. Nothing was written.",
            )

    def check(self) -> list[str]:
        """A note for each table of it that is read."""
        for sink in self._sinks:
            if self._reader.mode == "interval" and sink.name in self.sinks.values() and getattr(sink, "merge", None):
                raise InvalidPipeline(
                    f"{self._reader.name}: no interval of '{self.name}' can be read from sink '{sink.name}'.",
                    "It merges changes: a version of its table has rows of several intervals.",
                    "Read that table in chained mode, or without after. Nothing was written.",
                )
        newest = next((known.epoch for known in self._view.committed(1)), None)
        upto = f"up to epoch {newest}, the last one committed" if newest else "when its first checkpoint is committed"
        how = "interval by interval" if self._reader.mode == "interval" else upto
        return [
            f"after '{self.name}': {self._called(topic)}, which its sink '{sink}' writes, is read {how}"
            for topic, sink in self.sinks.items()
        ]

    def _called(self, topic: str) -> str:
        source = self._reader.source_of(topic)
        return f"{WORDS[source.kind][0] if source else 'table'} '{topic}'"

    def newest(self) -> list[Checkpoint]:
        """The committed checkpoint with the last decision: all before it are published as well, or given up."""
        return list(self._view.committed(1))

    def of_interval(self, interval: Interval) -> list[Checkpoint]:
        """The checkpoints that are in force for it, oldest first.

        Raises:
            Busy: one of them is not committed, or one that replaces it is not settled.
            InvalidPipeline: one of them covers more than the interval.
        """
        in_force: dict[Interval, Checkpoint] = {}
        for known in self._view.planned_for(interval):
            if known.replaces is None or known.state is not State.ABORTED:
                assert known.interval is not None
                in_force[known.interval] = known
        found = sorted(in_force.values(), key=_start)
        self._check_within(interval, found)
        self._check_covered(interval, found)
        for known in found:
            self._check_committed(interval, known)
        return found

    def landed(self, topic: str, found: list[Checkpoint]) -> tuple[Landed, ...]:
        """Where the rows are that the table shows of these checkpoints, each of an interval, or the newest of a chain.

        Raises:
            InvalidPipeline: they are not in one version of it, or in another table.
        """
        uri = self._reader.tables[topic]
        if self._reader.mode == "interval":
            return tuple(landed for each in found if (landed := self._of_one(each, topic, uri)))
        for known in self._view.committed() if found else ():
            if (sink := _writing(known, uri)) and known.is_shown_by(sink):
                return (self._of(known, sink),)
        return ()

    def _of_one(self, known: Checkpoint, topic: str, uri: str) -> Landed | None:
        """Where the rows of one interval are; None: it has none."""
        sink = _writing(known, uri)
        if sink is None and known.handles:
            raise InvalidPipeline(
                f"{self._reader.name}: an interval of '{self.name}' is not in table '{topic}'.",
                f"Epoch {known.epoch} was published before '{self.name}' wrote to {uri}.",
                "Process the interval again there (reprocess), or leave it out here. Nothing was written.",
            )
        shown = self._shown(known, sink) if sink else None
        landed = self._of(shown, str(sink)) if shown else None
        if landed and not landed.whole:
            raise InvalidPipeline(
                f"{self._reader.name}: an interval of '{self.name}' cannot be read from sink '{sink}'.",
                "It merges changes: a version of its table has rows of other intervals, too.",
                "Read that table in chained mode, or without after. Nothing was written.",
            )
        return landed

    def _shown(self, known: Checkpoint, sink: str) -> Checkpoint | None:
        """The checkpoint whose rows the table shows: where it was given up or is missing, the one that it replaces."""
        if known.is_shown_by(sink):
            return known
        if known.replaces is None or not (sink in known.given_up or sink in known.missing):
            return None
        return self._shown(self._view.require(known.replaces), sink)

    def _of(self, known: Checkpoint, sink: str) -> Landed:
        writer = self._parts.sink(Pipeline.from_json(known.definition), sink)
        if not isinstance(writer, Versioned):
            raise InvalidPipeline(
                f"{self._reader.name}: sink '{sink}' of '{self.name}' has no versions.",
                todo="Remove it from after. Nothing was written.",
            )
        return writer.landed(known.handles[sink], known.decision or 0)

    def _check_within(self, interval: Interval, found: list[Checkpoint]) -> None:
        for known in found:
            covered = known.interval
            if covered and (covered.start < interval.start or covered.end > interval.end):
                raise InvalidPipeline(
                    f"{self._reader.name}: the interval {interval} splits one of '{self.name}'.",
                    f"Epoch {known.epoch} of it covers {covered}.",
                    "Let intervals begin and end where those do. Nothing was written.",
                )

    def _check_covered(self, interval: Interval, found: list[Checkpoint]) -> None:
        at = interval.start
        for known in found:
            if known.interval and known.interval.start == at:
                at = known.interval.end
        if at < interval.end:
            raise Busy(
                f"{self._reader.name}: the interval {interval} is not complete yet.",
                f"'{self.name}' has no checkpoint for {_missing(at, interval, found)}, which it reads.",
                f"Plan again when it has run; what is left out on purpose: onceonly skip {self.name} --interval … "
                "Nothing was written.",
            )

    def _check_committed(self, interval: Interval, known: Checkpoint) -> None:
        if known.state is not State.COMMITTED:
            raise Busy(
                f"{self._reader.name}: the interval {interval} is not complete yet.",
                f"It reads what '{self.name}' publishes, whose epoch {known.epoch} is {known.state.value}.",
                f"Plan again when that is committed. If its owner has ended: {how_to_settle(known)}. "
                "Nothing was written.",
            )
        if known.forwarded is not None:
            raise InvalidPipeline(
                f"{self._reader.name}: the interval {interval} cannot be read.",
                f"Epoch {known.epoch} of '{self.name}' says that it is published ({known.reason}); which rows that are "
                "is not known here.",
                "Process it again there (reprocess), or read the table without after. Nothing was written.",
            )


def _writing(known: Checkpoint, uri: str) -> str | None:
    """The sink that has written the table for that checkpoint. It may have another name since."""
    sinks = Pipeline.from_json(known.definition).sinks
    return next((sink.name for sink in sinks if uri in sink.asset_uris()), None)


def _start(known: Checkpoint) -> float:
    return known.interval.start.timestamp() if known.interval else 0


def _missing(at: datetime, interval: Interval, found: list[Checkpoint]) -> Interval:
    """From where nothing covers it to where something does again."""
    starts = [known.interval.start for known in found if known.interval and known.interval.start > at]
    return Interval(at, min(starts, default=interval.end))


def _refuse_circle(state: StateTable, pipeline: Pipeline) -> None:
    """Refuse a pipeline that comes after itself: each would wait for the other."""
    ways = [[name] for name in pipeline.after]
    seen: set[str] = set()
    while ways:
        way = ways.pop()
        if way[-1] == pipeline.name:
            raise InvalidPipeline(
                f"{pipeline.name}: it comes after itself.",
                f"It is after {' after '.join(repr(name) for name in way)}.",
                "Remove one of these from after. Nothing was written.",
            )
        if way[-1] not in seen:
            seen.add(way[-1])
            latest = state.view(way[-1]).latest
            ways += [[*way, name] for name in (latest.definition.get("after", ()) if latest else ())]


def _refuse_shared(pipeline: Pipeline, before: list[_Before]) -> None:
    """Refuse a table with two writers among them: a version of the one may have rows of any checkpoint of the other."""
    writers: dict[str, list[str]] = {}
    for each in before:
        for topic in each.sinks:
            writers.setdefault(topic, []).append(each.name)
    for topic, names in writers.items():
        if len(names) > 1:
            raise InvalidPipeline(
                f"{pipeline.name}: it cannot be after {names} at once.",
                f"All of them write table '{topic}', and their checkpoints end at different places in it.",
                "Name one of them, or none. Nothing was written.",
            )


def _unknown(state: StateTable, reader: Pipeline, name: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{reader.name}: it is after '{name}', which is not known.",
        f"The pipelines of the state table at {state.uri} are {state.pipelines()}.",
        f"Run '{name}' first, with the same state table, or correct after. Nothing was written.",
    )


def _writes_nothing_of_it(reader: Pipeline, name: str, writes: set[str]) -> InvalidPipeline:
    return InvalidPipeline(
        f"{reader.name}: it is after '{name}', and reads none of its tables.",
        f"It reads {', '.join(sorted(reader.tables.values()))}; '{name}' writes {', '.join(sorted(writes)) or 'none'}.",
        "Read a table that it writes, by the same path, or remove it from after. Nothing was written.",
    )
