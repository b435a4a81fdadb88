"""One pipeline as one snapshot of the state table shows it: what every decision is taken from, and written from.

Questions to a view are answered from that snapshot, whatever has been written since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from onceonly.checkpoint.model import Checkpoint, Event, Handle, Row, State
from onceonly.checkpoint.offsets import Boundary, Interval, find_range
from onceonly.errors import InvalidPipeline
from onceonly.statetable.gaps import read_coverage
from onceonly.statetable.predicates import (
    PINS,
    REPLACES,
    Where,
    above_seq,
    ends_until,
    from_epoch,
    of_event,
    overlaps,
    owned_by,
    published_to,
    rewinds_after,
    starts_since,
)
from onceonly.statetable.row_format import Head
from onceonly.statetable.rows import Rows

# How far from an interval its neighbours are looked for first: so many times its length, and never further than this
MARGIN_LENGTHS, MAX_MARGIN = 32, timedelta(days=32)
PinnedInterval = tuple[Interval, int]  # with the epoch of its checkpoint


@dataclass(frozen=True)
class Neighbourhood:
    """All pinned intervals that overlap a span of time."""

    span: Interval
    pins: list[PinnedInterval]


@dataclass(frozen=True)
class View:
    """One pipeline in one snapshot of the table."""

    pipeline: str
    rows: Rows
    head: Head
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)  # those loaded: at least the open and the last
    neighbourhoods: list[Neighbourhood] = field(default_factory=list, compare=False, repr=False)  # those read so far

    @property
    def open(self) -> list[Checkpoint]:
        """The unsettled checkpoints, oldest first."""
        return [self.checkpoints[epoch] for epoch in sorted(self.head.open)]

    @property
    def latest(self) -> Checkpoint | None:
        """The last checkpoint that is no repair, from which the next one continues; None: there is no checkpoint."""
        return self.checkpoint(self.head.chain)

    @property
    def newest(self) -> Checkpoint | None:
        """The checkpoint that was planned last, whatever it is: its definition is the pipeline as it is now."""
        return self.checkpoint(self.head.epoch)

    def checkpoint(self, epoch: int) -> Checkpoint | None:
        """Return the checkpoint, from this same snapshot; None when the epoch was never issued."""
        if epoch not in self.checkpoints and 0 < epoch <= self.head.epoch:
            self.checkpoints.update(self.rows.checkpoints([epoch]))
        return self.checkpoints.get(epoch)

    def require(self, epoch: int) -> Checkpoint:
        """Return the checkpoint; raises InvalidPipeline when the epoch was never issued."""
        checkpoint = self.checkpoint(epoch)
        if checkpoint is None:
            raise InvalidPipeline(
                f"{self.pipeline} has no epoch {epoch}.",
                f"The last one planned is {self.head.epoch or 'none'}.",
                f"See what there is: onceonly status {self.pipeline if self.head.epoch else ''}".rstrip(),
                code="no-such-epoch",
            )
        return checkpoint

    def handles_in_force(self, checkpoint: Checkpoint) -> dict[str, Handle]:
        """Return by sink the handle whose rows it shows.

        Where the checkpoint was given up or is missing, the handles of the one that it replaces are in force.
        """
        own = {name: handle for name, handle in checkpoint.handles.items() if checkpoint.is_shown_by(name)}
        if checkpoint.replaces is None:
            return own
        return {**self.handles_in_force(self.require(checkpoint.replaces)), **own}

    def handles_to_replace(self, checkpoint: Checkpoint) -> dict[str, Handle]:
        """Return by sink the handle whose rows go when this checkpoint is published, as things stand.

        It is without what that one had replaced itself.
        """
        handles: dict[str, Handle] = {}
        if checkpoint.replaces is None:
            return handles
        for name, handle in self.handles_in_force(self.require(checkpoint.replaces)).items():
            if name in checkpoint.sinks and name not in checkpoint.again:
                handles[name] = _without_replaced(handle)
        return handles

    def last_written(self, checkpoint: Checkpoint, sink: str) -> Checkpoint | None:
        """Return the last checkpoint that has written that sink, of this one and those whose place it took; None: none.

        Whether its rows are in force is another question.
        """
        while sink not in checkpoint.handles:
            if checkpoint.replaces is None:
                return None
            checkpoint = self.require(checkpoint.replaces)
        return checkpoint

    def find_replaced(self, repair: Checkpoint, sink: str) -> Checkpoint | None:
        """Find the checkpoint whose rows were replaced in the sink on request for some sinks; None: there is none."""
        replaced = repair.handles.get(sink, {}).get("replaces")
        if not repair.requested_by or not replaced:
            return None
        earlier = repair
        while earlier.replaces is not None:
            earlier = self.require(earlier.replaces)
            if _without_replaced(earlier.handles.get(sink, {})) == replaced:
                return earlier
        return None

    def continued_from(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Return the checkpoint from which one continues: the last before it that is no repair; None: it is the first.

        A rewind continues from the one to which it goes back, a repair from where the one that it repairs does.
        """
        origin = self.require(checkpoint.origin)
        epoch = origin.rewinds_to or origin.epoch - 1
        while epoch:
            earlier = self.checkpoint(epoch)  # None: the epochs before `onceonly state forward`
            if earlier is None or not earlier.is_repair:
                return earlier
            epoch -= 1
        return None

    def repairs_of(self, epoch: int) -> list[Checkpoint]:
        """Return the repairs of that checkpoint, and of its repairs, oldest first."""
        return [checkpoint for checkpoint in self._replacements(epoch) if checkpoint.repairs == epoch]

    def successors(self, since: int) -> dict[int, Checkpoint]:
        """Return by epoch the committed checkpoint that has taken its place, of those planned after that epoch."""
        done = [later for later in self._replacements(since) if later.state is State.COMMITTED]
        return {later.replaces: later for later in done if later.replaces is not None}

    def _replacements(self, since: int) -> list[Checkpoint]:
        """Return the checkpoints that were planned after that epoch in place of another."""
        return self._checkpoints(REPLACES & from_epoch(since + 1))

    def row(self, epoch: int, event: Event, attempt: int, **columns: Any) -> Row:
        """Return the pipeline's next row: it can be written only while the pipeline is as this view shows it."""
        return Row(self.pipeline, self.head.seq + 1, epoch, event, attempt, **columns)

    def rows_since(self, seq: int) -> list[Row]:
        """Return all rows above that number, in order."""
        if seq >= self.head.seq:
            return []
        rows = self.rows.read_since(seq + 1)
        if rows and rows[0].seq == seq + 1:
            return rows
        return self.rows.find(above_seq(seq))  # the log's entries do not go back as far

    def planned_by(self, owner: str) -> list[Checkpoint]:
        """Return the checkpoints that `owner` planned or took over, oldest first."""
        return self._checkpoints(PINS & owned_by(owner))

    def planned_for(self, interval: Interval) -> list[Checkpoint]:
        """Return the checkpoints that were pinned for any part of `interval`, oldest first."""
        pins = self._neighbourhood_of(interval).pins
        epochs = {epoch for pinned, epoch in pins if pinned.overlaps(interval)}
        return self._checkpoints_of(sorted(epochs))

    def iterate_committed(self, most: int | None = None) -> Iterator[Checkpoint]:
        """Yield the checkpoints that were decided and are committed, the last decision first."""
        committed = set(self.rows.values(of_event(Event.COMMITTED), "decision", "epoch"))
        for _, epoch in sorted(committed, reverse=True)[:most]:
            yield self.require(epoch)

    def published_to(self, sink: str, above: int) -> list[Checkpoint]:
        """Return the checkpoints that were published to that sink by a decision above that number, by decision."""
        checkpoints = self._checkpoints(published_to(sink, above))
        return sorted(checkpoints, key=lambda checkpoint: checkpoint.decision or 0)

    def missing(self) -> list[Checkpoint]:
        """Return the checkpoints that a target has lost, by manual resolution, oldest first."""
        if not self.head.missing:
            return []
        return self._checkpoints(of_event(Event.MISSING))

    def given_up(self, sink: str) -> list[Checkpoint]:
        """Return the checkpoints that a person has given up in that sink, oldest first."""
        given_up = self._checkpoints(of_event(Event.GIVEN_UP))
        return [checkpoint for checkpoint in given_up if sink in checkpoint.given_up]

    def was_in_doubt(self, epoch: int, sink: str) -> bool:
        """Return whether nothing showed the outcome in that sink when a person settled it otherwise."""
        events = of_event(Event.IN_DOUBT, Event.REPLACED) & from_epoch(epoch, epoch)
        rows = sorted((row for row in self.rows.find(events) if row.sink == sink), key=lambda row: row.seq)
        return bool(rows) and rows[-1].event is Event.IN_DOUBT

    def is_rewound(self, epoch: int) -> bool:
        """Return whether a rewind has removed what that checkpoint published. Once true, it stays true."""
        return self.find_rewind_of(epoch) is not None

    def find_rewind_of(self, epoch: int) -> int | None:
        """Return the epoch of the rewind that has removed what that checkpoint published; None: there is none."""
        origin = self.require(epoch).origin
        for rewind in self._rewinds(epoch):
            last_left = rewind.rewinds_to  # the last epoch whose rows it has left
            if last_left is not None and last_left < origin:
                return rewind.epoch
        return None

    def _rewinds(self, since: int) -> list[Checkpoint]:
        """Return the rewinds that were decided after that epoch."""
        return self._checkpoints(rewinds_after(since))

    def boundaries(self, time: datetime, topic: str) -> tuple[Boundary | None, Boundary | None]:
        """Return the topic's nearest pinned boundaries at or before, and at or after, `time`.

        One that was pinned before the topic appeared has no topic id and no offsets.
        """
        before, after = self._last_before(time), self._first_after(time)
        return self._boundary(before, topic), self._boundary(after, topic)

    def gaps_before(self, interval: Interval) -> list[Interval]:
        """Return the missing intervals that end where `interval` begins, or before, oldest first: see `gaps`."""
        coverage = read_coverage(self.rows, self.head.open, [interval])
        return [gap for gap in coverage.gaps if gap.end <= interval.start]

    def checkpoints_ending_last(self, time: datetime) -> list[Checkpoint]:
        """Return the checkpoints of the pinned interval that ends last at or before `time`, oldest first."""
        pins = self._read_pins(ends_until(time))
        last_end = max((interval.end for interval, _ in pins), default=None)
        return self._checkpoints_of(sorted({epoch for interval, epoch in pins if interval.end == last_end}))

    # Pinned intervals do not overlap: if one of those around a time lies on a side of it, none is closer there.

    def _last_before(self, time: datetime) -> tuple[datetime, int] | None:
        """Return the last pinned boundary at or before `time`, and its epoch."""
        neighbourhood = self._neighbourhood_of(Interval(time, time))
        earlier = _select_boundaries(neighbourhood.pins, lambda boundary: boundary <= time)
        if not earlier:
            pins = self._read_pins(ends_until(neighbourhood.span.start))
            earlier = _select_boundaries(pins, lambda boundary: boundary <= time)
        return max(earlier, default=None)

    def _first_after(self, time: datetime) -> tuple[datetime, int] | None:
        """Return the first pinned boundary at or after `time`, and its epoch."""
        neighbourhood = self._neighbourhood_of(Interval(time, time))
        later = _select_boundaries(neighbourhood.pins, lambda boundary: boundary >= time)
        if not later:
            pins = self._read_pins(starts_since(neighbourhood.span.end))
            later = _select_boundaries(pins, lambda boundary: boundary >= time)
        return min(later, default=None)

    def _neighbourhood_of(self, interval: Interval) -> Neighbourhood:
        """Return the pinned intervals around this one, by one query for all that is asked in a step."""
        for neighbourhood in self.neighbourhoods:
            if neighbourhood.span.start <= interval.start and interval.end <= neighbourhood.span.end:
                return neighbourhood
        # A single time has no length, so that its margin is the largest one.
        margin = min(MARGIN_LENGTHS * (interval.end - interval.start), MAX_MARGIN) or MAX_MARGIN
        span = Interval(interval.start - margin, interval.end + margin)
        neighbourhood = Neighbourhood(span, self._read_pins(overlaps(span)))
        self.neighbourhoods.append(neighbourhood)
        return neighbourhood

    def _read_pins(self, where: Where) -> list[PinnedInterval]:
        pins = self.rows.values(PINS & where, "epoch", "interval_start", "interval_end")
        return [(Interval(start, end), epoch) for epoch, start, end in pins]

    def _boundary(self, pin: tuple[datetime, int] | None, topic: str) -> Boundary | None:
        """Return the topic's boundary at that time, which is the start or the end of that epoch's interval."""
        if pin is None:
            return None
        time, epoch = pin
        checkpoint = self.checkpoint(epoch)
        if checkpoint is None or checkpoint.interval is None:
            return None
        pinned = find_range(checkpoint.ranges, topic)
        if pinned is None:
            return Boundary(time, "", {})
        offsets = pinned.starts if checkpoint.interval.start == time else pinned.ends
        return Boundary(time, pinned.topic_id, offsets, pinned)

    def _checkpoints(self, where: Where) -> list[Checkpoint]:
        """Return the checkpoints that have such a row, oldest first."""
        return self._checkpoints_of(sorted(self.rows.distinct(where, "epoch")))

    def _checkpoints_of(self, epochs: list[int]) -> list[Checkpoint]:
        """Return the checkpoints of these epochs, in their order; those that are not loaded are read at once."""
        unloaded = [epoch for epoch in epochs if epoch not in self.checkpoints]
        if unloaded:
            self.checkpoints.update(self.rows.checkpoints(unloaded))
        checkpoints = []
        for epoch in epochs:
            checkpoint = self.checkpoint(epoch)
            if checkpoint:
                checkpoints.append(checkpoint)
        return checkpoints


def _without_replaced(handle: Handle) -> Handle:
    """Return a handle without that of the rows that it has replaced itself."""
    rest = dict(handle)
    rest.pop("replaces", None)
    return rest


def _select_boundaries(pins: list[PinnedInterval], is_wanted: Callable[[datetime], bool]) -> list[tuple[datetime, int]]:
    """Return the starts and ends of these intervals that are wanted, each with its epoch."""
    boundaries = []
    for interval, epoch in pins:
        for time in (interval.start, interval.end):
            if is_wanted(time):
                boundaries.append((time, epoch))
    return boundaries
