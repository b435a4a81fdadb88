"""One pipeline as one snapshot of the state table shows it: what every decision is taken from, and written from.

Questions to a view are answered from that snapshot, whatever has been written since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from onceonly.checkpoint.model import Checkpoint, Event, Handle, Row
from onceonly.checkpoint.offsets import Boundary, Interval, range_of
from onceonly.errors import InvalidPipeline
from onceonly.statetable.row_format import Head
from onceonly.statetable.rows import Rows
from onceonly.statetable.where import (
    PINS,
    Where,
    above,
    ends,
    of_event,
    overlaps,
    owned_by,
    published_to,
    rewinds_after,
    starts,
)

NEAR = timedelta(days=32)  # at most so far are neighbours of an interval looked for first
MANY = 32  # … and at most so many of its own length
Pin = tuple[Interval, int]  # a pinned interval, and the epoch


@dataclass(frozen=True)
class Around:
    """All pinned intervals that overlap a span of time."""

    span: Interval
    pins: list[Pin]


@dataclass(frozen=True)
class View:
    """One pipeline in one snapshot of the table."""

    pipeline: str
    rows: Rows
    head: Head
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)  # those loaded: at least the open and the last
    known: list[Around] = field(default_factory=list, compare=False, repr=False)  # what was asked for before

    @property
    def open(self) -> list[Checkpoint]:
        """Unsettled checkpoints, oldest first."""
        return [self.checkpoints[epoch] for epoch in sorted(self.head.open)]

    @property
    def latest(self) -> Checkpoint | None:
        return self.checkpoints.get(self.head.epoch)

    def checkpoint(self, epoch: int) -> Checkpoint | None:
        """That checkpoint, from this same snapshot; None when the epoch was never issued."""
        if epoch not in self.checkpoints and 0 < epoch <= self.head.epoch:
            self.checkpoints.update(self.rows.checkpoints([epoch]))
        return self.checkpoints.get(epoch)

    def require(self, epoch: int) -> Checkpoint:
        """That checkpoint; raises InvalidPipeline when the epoch was never issued."""
        checkpoint = self.checkpoint(epoch)
        if checkpoint is None:
            raise InvalidPipeline(
                f"{self.pipeline} has no epoch {epoch}.",
                f"The last one planned is {self.head.epoch or 'none'}.",
                f"See what there is: onceonly status {self.pipeline if self.head.epoch else ''}".rstrip(),
            )
        return checkpoint

    def in_force(self, checkpoint: Checkpoint) -> dict[str, Handle]:
        """By sink: the handle whose rows it shows; where it was given up or is missing, those that it has replaced."""
        own = {name: handle for name, handle in checkpoint.handles.items() if checkpoint.is_shown_by(name)}
        if checkpoint.replaces is None or not (checkpoint.given_up or checkpoint.missing):
            return own
        return {**self.in_force(self.require(checkpoint.replaces)), **own}

    def row(self, epoch: int, event: Event, attempt: int, **columns: Any) -> Row:
        """The pipeline's next row: it can be written only while the pipeline is as this view shows it."""
        return Row(self.pipeline, self.head.seq + 1, epoch, event, attempt, **columns)

    def rows_since(self, seq: int) -> list[Row]:
        """All rows above that number, in order."""
        if seq >= self.head.seq:
            return []
        near = self.rows.since(seq + 1)
        return near if near and near[0].seq == seq + 1 else self.rows.find(above(seq))

    def planned_by(self, owner: str) -> list[Checkpoint]:
        """The checkpoints that `owner` planned or took over, oldest first."""
        return self._checkpoints(PINS & owned_by(owner))

    def planned_for(self, interval: Interval) -> list[Checkpoint]:
        """The checkpoints that were pinned for any part of `interval`, oldest first."""
        found = {epoch for pinned, epoch in self._around(interval).pins if pinned.overlaps(interval)}
        return self._of(sorted(found))

    def committed(self, most: int | None = None) -> Iterator[Checkpoint]:
        """Those that were decided and are committed, the last decision first."""
        found = set(self.rows.values(of_event(Event.COMMITTED), "decision", "epoch"))
        for _, epoch in sorted(found, reverse=True)[:most]:
            yield self.require(epoch)

    def published_to(self, sink: str, above: int) -> list[Checkpoint]:
        """The checkpoints that were published to that sink by a later decision, in the order of their decisions."""
        return sorted(self._checkpoints(published_to(sink, above)), key=lambda each: each.decision or 0)

    def missing(self) -> list[Checkpoint]:
        """The checkpoints that a target has lost, by manual resolution, oldest first."""
        return self._checkpoints(of_event(Event.MISSING)) if self.head.missing else []

    def taken_back(self, epoch: int) -> bool:
        """Whether a rewind has removed what that checkpoint published. Once true, it stays true."""
        return any(to is not None and to < epoch for to in (rewind.rewinds_to for rewind in self._rewinds(epoch)))

    def _rewinds(self, since: int) -> list[Checkpoint]:
        """The rewinds that were decided after that epoch."""
        return self._checkpoints(rewinds_after(since))

    def boundaries(self, time: datetime, topic: str) -> tuple[Boundary | None, Boundary | None]:
        """The topic's nearest pinned boundaries at or before, and at or after, `time`.

        One that was pinned before the topic appeared has no topic id and no offsets.
        """
        before, after = self._last_before(time), self._first_after(time)
        return self._boundary(before, topic), self._boundary(after, topic)

    def gap_before(self, interval: Interval) -> Interval | None:
        """The gap between the end of the last pinned interval before `interval` and its start."""
        around = self._around(interval)
        ended = ends(until=interval.start)
        pins = [pin for pin in around.pins if pin[0].end <= interval.start] or self._pins(ended)
        last = max((pinned.end for pinned, _ in pins), default=interval.start)
        return Interval(last, interval.start) if last < interval.start else None

    # Pinned intervals do not overlap: if one of those around a time lies on a side of it, none is closer there.

    def _last_before(self, time: datetime) -> tuple[datetime, int] | None:
        """The last pinned boundary at or before `time`, and its epoch."""
        around = self._around(Interval(time, time))
        found = _until(around.pins, time) or _until(self._pins(ends(until=around.span.start)), time)
        return max(found, default=None)

    def _first_after(self, time: datetime) -> tuple[datetime, int] | None:
        """The first pinned boundary at or after `time`, and its epoch."""
        around = self._around(Interval(time, time))
        found = _since(around.pins, time) or _since(self._pins(starts(since=around.span.end)), time)
        return min(found, default=None)

    def _around(self, interval: Interval) -> Around:
        """The pinned intervals around this one. Those of a step are adjacent, so one query is enough for it."""
        for known in self.known:
            if known.span.start <= interval.start and interval.end <= known.span.end:
                return known
        wide = min(MANY * (interval.end - interval.start), NEAR) or NEAR
        span = Interval(interval.start - wide, interval.end + wide)
        self.known.append(Around(span, self._pins(overlaps(span))))
        return self.known[-1]

    def _pins(self, chosen: Where) -> list[Pin]:
        found = self.rows.values(PINS & chosen, "epoch", "interval_start", "interval_end")
        return [(Interval(start, end), epoch) for epoch, start, end in found]

    def _boundary(self, pair: tuple[datetime, int] | None, topic: str) -> Boundary | None:
        checkpoint = self.checkpoint(pair[1]) if pair else None
        if pair is None or checkpoint is None or checkpoint.interval is None:
            return None
        pinned = range_of(checkpoint.ranges, topic)
        if pinned is None:
            return Boundary(pair[0], "", {})
        offsets = pinned.starts if checkpoint.interval.start == pair[0] else pinned.ends
        return Boundary(pair[0], pinned.topic_id, offsets, pinned)

    def _checkpoints(self, chosen: Where) -> list[Checkpoint]:
        """The checkpoints that have such a row, oldest first."""
        return self._of(sorted({epoch for (epoch,) in self.rows.values(chosen, "epoch")}))

    def _of(self, epochs: list[int]) -> list[Checkpoint]:
        if unknown := [epoch for epoch in epochs if epoch not in self.checkpoints]:
            self.checkpoints.update(self.rows.checkpoints(unknown))
        return [checkpoint for epoch in epochs if (checkpoint := self.checkpoint(epoch))]


def _until(pins: list[Pin], time: datetime) -> list[tuple[datetime, int]]:
    """The boundaries at or before `time`."""
    return [(each, epoch) for pinned, epoch in pins for each in (pinned.start, pinned.end) if each <= time]


def _since(pins: list[Pin], time: datetime) -> list[tuple[datetime, int]]:
    return [(each, epoch) for pinned, epoch in pins for each in (pinned.start, pinned.end) if each >= time]
