"""How far upstream pipelines let this one read: a barrier that goes through the tables between them.

In chained mode a table is read exactly up to the version that published the newest committed checkpoint of the pipeline
that writes it. An interval is read as the checkpoints in force for the same interval have published it. Which they were
is recorded with the checkpoint that reads, and nothing is written to the log of theirs: pipelines do not meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from onceonly.checkpoint.commands import PLAN_AGAIN
from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import SOURCE_WORDS, Interval
from onceonly.checkpoint.sink import RowLocation, VersionedTarget
from onceonly.coordinator import upstream_rules
from onceonly.coordinator.messages import how_to_settle
from onceonly.errors import Busy, InvalidPipeline, OutcomeUnknown
from onceonly.pipeline.definition import Pipeline, find_source
from onceonly.statetable.table import StateTable


@dataclass(frozen=True)
class Barrier:
    """How much of the tables of other pipelines may be read.

    Args:
        epochs: by pipeline: the newest checkpoint of a chain, or those of the interval, oldest first.
        tables: by topic: where the rows of these are. In chained mode the last one, if there is one.
        rewrites: by topic, in chained mode: the versions that repairs have published in place of earlier ones, each
            with that one.
    """

    epochs: Mapping[str, tuple[int, ...]]
    tables: Mapping[str, tuple[RowLocation, ...]]
    rewrites: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)


def find_barrier(state_table: StateTable, parts: Parts, pipeline: Pipeline, interval: Interval | None) -> Barrier:
    """Find the barrier as the pipelines before are now.

    Raises:
        InvalidPipeline: one of them is not known, writes none of the tables, or is after this one.
        Busy: a checkpoint of the interval is not committed yet.
    """
    upstreams = _read_upstreams(state_table, parts, pipeline)
    epochs_read: Mapping[str, tuple[int, ...]] = {}
    if interval is None:
        epochs_read = _epochs_already_read(state_table, pipeline)
    checkpoints: dict[str, list[Checkpoint]] = {}
    epochs: dict[str, tuple[int, ...]] = {}
    for upstream in upstreams:
        to_read = upstream.find_to_read(interval, epochs_read.get(upstream.name, ()))
        checkpoints[upstream.name] = to_read
        epochs[upstream.name] = tuple(checkpoint.epoch for checkpoint in to_read)
    tables: dict[str, tuple[RowLocation, ...]] = {}
    rewrites: dict[str, tuple[tuple[int, int], ...]] = {}
    for upstream in upstreams:
        has_new = epochs[upstream.name] != epochs_read.get(upstream.name)
        for topic in upstream.sink_by_topic:
            tables[topic] = ()
            if has_new:
                tables[topic] = upstream.locate_rows(topic, checkpoints[upstream.name])
            if has_new and interval is None:
                rewrites[topic] = upstream.locate_rewrites(topic, epochs_read.get(upstream.name, ()))
    return Barrier(epochs, tables, rewrites)


def check_upstreams(state_table: StateTable, parts: Parts, pipeline: Pipeline) -> list[str]:
    """Check what of the barrier can be known before any run. Returns notes for people.

    Raises:
        InvalidPipeline: `find_barrier` would refuse it, whatever the interval.
    """
    notes = []
    for upstream in _read_upstreams(state_table, parts, pipeline):
        notes += upstream.check()
    return notes


def _read_upstreams(state_table: StateTable, parts: Parts, pipeline: Pipeline) -> list[_Upstream]:
    upstream_rules.refuse_circle(state_table, pipeline)
    upstreams = [_Upstream(state_table, parts, pipeline, name) for name in pipeline.after]
    upstream_rules.refuse_shared(pipeline, upstreams)
    return upstreams


def _epochs_already_read(state_table: StateTable, pipeline: Pipeline) -> Mapping[str, tuple[int, ...]]:
    """Return by pipeline up to which checkpoint of it a chain has read.

    Until its next one there is nothing to look for.
    """
    view = state_table.view(pipeline.name)
    latest = view.latest
    if latest and latest.state is not State.COMMITTED:  # it is taken over, and reads from where it did
        latest = view.continued_from(latest)
    if latest is None or latest.state is not State.COMMITTED:
        return {}
    return latest.after


def make_closed_barrier(state_table: StateTable, parts: Parts, pipeline: Pipeline) -> Barrier:
    """Make a barrier that lets nothing through: for what a person leaves out, or has read elsewhere.

    Raises:
        InvalidPipeline: as `find_barrier`.
    """
    tables: dict[str, tuple[RowLocation, ...]] = {}
    for name in pipeline.after:
        upstream = _Upstream(state_table, parts, pipeline, name)
        tables.update(dict.fromkeys(upstream.sink_by_topic, ()))
    return Barrier({}, tables)


def find_readers(state_table: StateTable, pipeline: Pipeline, sinks: Iterable[str]) -> list[str]:
    """Find the pipelines that read a target of these sinks up to this pipeline's checkpoints."""
    written: set[str] = set()
    for name in sinks:
        written.update(pipeline.sink(name).asset_uris())
    readers = []
    for name in state_table.pipelines():
        with suppress(OutcomeUnknown):  # its rows are damaged, which it says itself
            latest = state_table.view(name).latest
            if latest and pipeline.name in latest.definition.upstreams:
                tables = latest.definition.pipeline.tables
                if written.intersection(tables.values()):
                    readers.append(name)
    return readers


class _Upstream:
    """A pipeline that writes tables which this one reads."""

    def __init__(self, state_table: StateTable, parts: Parts, reader: Pipeline, name: str) -> None:
        self.name, self._parts, self._reader = name, parts, reader
        self._view = state_table.view(name)
        latest = self._view.latest
        if latest is None:
            raise upstream_rules.unknown_pipeline_error(state_table, reader, name)
        self._sinks = latest.definition.pipeline.sinks
        self.sink_by_topic: dict[str, str] = {}  # those of its tables that are read
        for topic, uri in reader.tables.items():
            for sink in self._sinks:
                if uri in sink.asset_uris():
                    self.sink_by_topic[topic] = sink.name
        if not self.sink_by_topic:
            raise upstream_rules.unrelated_error(reader, name, self._sinks)
        if reader.mode == "interval" and latest.interval is None:
            raise InvalidPipeline(
                f"{reader.name}: its intervals cannot follow those of '{name}'.",
                f"'{name}' runs in chained mode and has none.",
                "Set Pipeline(mode=…) of both to 'interval', or that of this one to 'chained'. Nothing was written.",
                code="upstream-without-intervals",
            )

    def check(self) -> list[str]:
        """Return a note for each table of it that is read, or refuse what no run could read."""
        by_intervals = self._reader.mode == "interval"
        for sink in self._sinks:
            if by_intervals and sink.name in self.sink_by_topic.values() and sink.merges_changes():
                raise InvalidPipeline(
                    f"{self._reader.name}: no interval of '{self.name}' can be read from sink '{sink.name}'.",
                    "It merges changes: a version of its table has rows of several intervals.",
                    "Read that table in chained mode, or without after. Nothing was written.",
                    code="upstream-merges",
                )
        newest = self.find_newest()
        how = "when its first checkpoint is committed"
        if by_intervals:
            how = "interval by interval"
        elif newest:
            how = f"up to epoch {newest[0].epoch}, the last one committed"
        notes = []
        for topic, sink_name in self.sink_by_topic.items():
            table = self._name_table(topic)
            notes.append(f"after '{self.name}': {table}, which its sink '{sink_name}' writes, is read {how}")
        return notes

    def _name_table(self, topic: str) -> str:
        source = find_source(self._reader, topic)
        kind = "table"
        if source:
            kind = SOURCE_WORDS[source.kind][0]
        return f"{kind} '{topic}'"

    def find_to_read(self, interval: Interval | None, epochs_read: tuple[int, ...]) -> list[Checkpoint]:
        """Find the checkpoints up to which it is read: those of an interval, or the newest of a chain."""
        if interval:
            return self.find_in_force(interval)
        return self.find_newest(epochs_read)

    def find_newest(self, epochs_read: tuple[int, ...] = ()) -> list[Checkpoint]:
        """Find the committed checkpoint with the last decision that is news to the reader; empty: there is none.

        All before it that write what is read are published as well, or given up. A repair is no news if it leaves the
        tables as they are, or only rewrites what was read.

        Args:
            epochs_read: up to which it was read before; empty: nothing was.
        """
        read = self._decision_of(epochs_read)
        undecided = self._first_open_decision()
        for checkpoint in self._view.iterate_committed():
            decision = checkpoint.decision or 0
            if undecided is not None and decision > undecided:
                continue
            if decision <= read or self._is_news(checkpoint, read):
                return [checkpoint]
        return []

    def _decision_of(self, epochs: tuple[int, ...]) -> int:
        return (self._view.require(epochs[-1]).decision or 0) if epochs else 0

    def _first_open_decision(self) -> int | None:
        """Return the first decision that writes what is read and is not carried out in every sink; None: all are.

        A later one that writes other sinks does not wait for it, and may be committed before.
        """
        decisions = []
        for checkpoint in self._view.open:
            if checkpoint.decision is not None and self._list_written(checkpoint):
                decisions.append(checkpoint.decision)
        return min(decisions, default=None)

    def _list_written(self, checkpoint: Checkpoint) -> list[str]:
        """List the sinks by which a checkpoint writes the tables that are read."""
        written = []
        for topic in self.sink_by_topic:
            sink = _find_writing_sink(checkpoint, self._reader.tables[topic])
            if sink:
                written.append(sink)
        return written

    def _is_news(self, checkpoint: Checkpoint, read: int) -> bool:
        """Whether a later checkpoint shows rows to the reader that it has not read in another form.

        Args:
            read: the decision up to which it has read.
        """
        if not checkpoint.requested_by:
            return True
        for topic in self.sink_by_topic:
            sink = _find_writing_sink(checkpoint, self._reader.tables[topic])
            reads_changes = getattr(find_source(self._reader, topic), "changes", False)
            if (
                sink
                and checkpoint.is_shown_by(sink)
                and (reads_changes or not self._only_rewrites(checkpoint, sink, read))
            ):
                return True
        return False

    def _only_rewrites(self, checkpoint: Checkpoint, sink: str, read: int) -> bool:
        """Whether the rows of that checkpoint were read, or are in the place of rows that were."""
        if (checkpoint.decision or 0) <= read:
            return True
        replaced = self._view.find_replaced(checkpoint, sink)
        return replaced is not None and self._only_rewrites(replaced, sink, read)

    def locate_rewrites(self, topic: str, epochs_read: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """Find the versions of a table that repairs have published in place of others, each with that one.

        Args:
            epochs_read: as for `find_newest`; what was decided before is left out.
        Returns:
            Pairs; the second version is 0 where the table's log does not show it any more.
        """
        sink, rewrites = self.sink_by_topic[topic], []
        for checkpoint in self._view.published_to(sink, self._decision_of(epochs_read)):
            replaced = self._view.find_replaced(checkpoint, sink)
            if replaced is None:
                continue
            version = self._locate_checkpoint(checkpoint, sink).version
            if version is not None:
                rewrites.append((version, self._locate_checkpoint(replaced, sink).version or 0))
        return tuple(rewrites)

    def find_in_force(self, interval: Interval) -> list[Checkpoint]:
        """Find the checkpoints that are in force for an interval, oldest first.

        Raises:
            Busy: one of them is not committed, or one that replaces it is not settled.
            InvalidPipeline: one of them covers more than the interval.
        """
        in_force: dict[Interval, Checkpoint] = {}
        for checkpoint in self._view.planned_for(interval):
            if checkpoint.replaces is None or checkpoint.state is not State.ABORTED:
                assert checkpoint.interval is not None
                in_force[checkpoint.interval] = checkpoint
        checkpoints = sorted(in_force.values(), key=_start_time)
        self._check_within(interval, checkpoints)
        self._check_covered(interval, checkpoints)
        writers: list[Checkpoint] = []
        for checkpoint in checkpoints:
            writers += self._find_writers(checkpoint)
        for checkpoint in writers:
            self._check_committed(interval, checkpoint)
        return writers

    def _find_writers(self, last: Checkpoint) -> list[Checkpoint]:
        """Find the checkpoints that wrote the tables that are read, oldest first.

        Args:
            last: of one interval. A repair leaves the tables that it does not write as they are.
        """
        writers: dict[int, Checkpoint] = {}
        for topic in self.sink_by_topic:
            writer = last
            while writer.is_repair and writer.replaces and not _find_writing_sink(writer, self._reader.tables[topic]):
                writer = self._view.require(writer.replaces)
            writers[writer.epoch] = writer
        return [writers[epoch] for epoch in sorted(writers)]

    def locate_rows(self, topic: str, checkpoints: list[Checkpoint]) -> tuple[RowLocation, ...]:
        """Find where the rows are that the table shows of these checkpoints.

        Args:
            checkpoints: each of an interval, or the newest of a chain.

        Raises:
            InvalidPipeline: they are not in one version of it, or in another table.
        """
        uri = self._reader.tables[topic]
        if self._reader.mode == "interval":
            located = []
            for checkpoint in _select_writers(checkpoints, uri):
                location = self._locate_interval(checkpoint, topic, uri)
                if location:
                    located.append(location)
            return tuple(located)
        if not checkpoints:
            return ()
        for checkpoint in self._view.iterate_committed():
            sink = _find_writing_sink(checkpoint, uri)
            if sink and checkpoint.is_shown_by(sink):
                return (self._locate_checkpoint(checkpoint, sink),)
        return ()

    def _locate_interval(self, checkpoint: Checkpoint, topic: str, uri: str) -> RowLocation | None:
        """Find where the rows of one interval are; None: it has none."""
        sink = _find_writing_sink(checkpoint, uri)
        if sink is None and checkpoint.handles:
            raise InvalidPipeline(
                f"{self._reader.name}: an interval of '{self.name}' is not in table '{topic}'.",
                f"Epoch {checkpoint.epoch} was published before '{self.name}' wrote to {uri}.",
                "Process the interval again there (reprocess), or leave it out here. Nothing was written.",
                code="interval-not-in-table",
            )
        if not sink:
            return None
        shown_checkpoint = self._find_shown(checkpoint, sink)
        if shown_checkpoint is None:
            return None
        location = self._locate_checkpoint(shown_checkpoint, sink)
        if not location.is_whole_version:
            raise InvalidPipeline(
                f"{self._reader.name}: an interval of '{self.name}' cannot be read from sink '{sink}'.",
                "It merges changes: a version of its table has rows of other intervals, too.",
                "Read that table in chained mode, or without after. Nothing was written.",
                code="upstream-merges",
            )
        return location

    def _find_shown(self, checkpoint: Checkpoint, sink: str) -> Checkpoint | None:
        """Find the checkpoint whose rows the table shows in place of this one's.

        Where it was given up or is missing, that is the one whose place it takes.
        """
        if checkpoint.is_shown_by(sink):
            return checkpoint
        is_waiting = sink in checkpoint.handles and not (sink in checkpoint.given_up or sink in checkpoint.missing)
        if checkpoint.replaces is None or is_waiting:
            return None
        return self._find_shown(self._view.require(checkpoint.replaces), sink)

    def _locate_checkpoint(self, checkpoint: Checkpoint, sink: str) -> RowLocation:
        """Ask the sink where the rows of one checkpoint are."""
        writer = self._parts.sink(checkpoint.definition.pipeline, sink)
        if not isinstance(writer, VersionedTarget):
            raise InvalidPipeline(
                f"{self._reader.name}: sink '{sink}' of '{self.name}' has no versions.",
                todo="Remove it from after. Nothing was written.",
                code="upstream-without-versions",
            )
        return writer.locate_rows(checkpoint.handles[sink], checkpoint.decision or 0)

    def _check_within(self, interval: Interval, checkpoints: list[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            covered = checkpoint.interval
            if covered and (covered.start < interval.start or covered.end > interval.end):
                raise InvalidPipeline(
                    f"{self._reader.name}: the interval {interval} splits one of '{self.name}'.",
                    f"Epoch {checkpoint.epoch} of it covers {covered}.",
                    "Let intervals begin and end where those do. Nothing was written.",
                    code="interval-split",
                )

    def _check_covered(self, interval: Interval, checkpoints: list[Checkpoint]) -> None:
        covered_to = interval.start
        for checkpoint in checkpoints:
            if checkpoint.interval and checkpoint.interval.start == covered_to:
                covered_to = checkpoint.interval.end
        if covered_to < interval.end:
            raise Busy(
                f"{self._reader.name}: the interval {interval} is not complete yet.",
                f"'{self.name}' has no checkpoint for {_first_gap(covered_to, interval, checkpoints)}, which it reads.",
                f"When it has run: {PLAN_AGAIN}. What is left out on purpose: onceonly skip {self.name} --interval "
                "START "
                "END --reason …. Nothing was written.",
                code="upstream-not-complete",
            )

    def _check_committed(self, interval: Interval, checkpoint: Checkpoint) -> None:
        if checkpoint.state is not State.COMMITTED:
            raise Busy(
                f"{self._reader.name}: the interval {interval} is not complete yet.",
                f"It reads what '{self.name}' publishes, whose epoch {checkpoint.epoch} is {checkpoint.state.value}.",
                f"When that is committed: {PLAN_AGAIN}. If its owner has ended: {how_to_settle(checkpoint)}. "
                "Nothing was written.",
                code="upstream-not-complete",
            )
        if checkpoint.forwarded is not None:
            raise InvalidPipeline(
                f"{self._reader.name}: the interval {interval} cannot be read.",
                f"Epoch {checkpoint.epoch} of '{self.name}' says that it is published ({checkpoint.reason}); which "
                "rows that are is not known here.",
                "Process it again there (reprocess), or read the table without after. Nothing was written.",
                code="publication-not-recorded",
            )


def _find_writing_sink(checkpoint: Checkpoint, uri: str) -> str | None:
    """Find the sink that has written the table for that checkpoint. It may have another name since."""
    for sink in checkpoint.definition.pipeline.sinks:
        if uri in sink.asset_uris() and sink.name in checkpoint.sinks:
            return sink.name
    return None


def _select_writers(checkpoints: list[Checkpoint], uri: str) -> list[Checkpoint]:
    """Select, of those of each interval, the last one that has written the table; else the first of them.

    Args:
        checkpoints: the oldest of each interval first.
    """
    writers: dict[Interval | None, Checkpoint] = {}
    for checkpoint in checkpoints:
        if checkpoint.interval not in writers or _find_writing_sink(checkpoint, uri):
            writers[checkpoint.interval] = checkpoint
    return list(writers.values())


def _start_time(checkpoint: Checkpoint) -> float:
    return checkpoint.interval.start.timestamp() if checkpoint.interval else 0


def _first_gap(start: datetime, interval: Interval, checkpoints: list[Checkpoint]) -> Interval:
    """Return the gap from `start`, which nothing covers, to where a checkpoint begins again."""
    later_starts = []
    for checkpoint in checkpoints:
        if checkpoint.interval and checkpoint.interval.start > start:
            later_starts.append(checkpoint.interval.start)
    return Interval(start, min(later_starts, default=interval.end))
