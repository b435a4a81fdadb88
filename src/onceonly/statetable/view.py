"""One pipeline as one snapshot of the state table shows it: what every decision is taken from, and written from.

Questions to a view are answered from that snapshot, whatever has been written since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from onceonly.checkpoint.model import Checkpoint, Event, Handle, Row, fold
from onceonly.checkpoint.offsets import Boundary, Interval, range_of
from onceonly.errors import InvalidPipeline
from onceonly.statetable import gaps
from onceonly.statetable.reading import Reading, sql_text, sql_time
from onceonly.statetable.row_format import Head

NEAR = timedelta(days=32)
PINS = f"event IN ('{Event.PLANNED.value}', '{Event.EMPTY.value}')"  # rows that pin offsets


@dataclass(frozen=True)
class View:
    """One pipeline in one snapshot of the table."""

    pipeline: str
    table: Reading
    head: Head
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)  # those loaded: at least the open and the last

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
            self.checkpoints.update(load(self.table, self.pipeline, [epoch], self.head.seq))
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
        """By sink: the handle whose rows it shows; where it was given up, those that were to be replaced."""
        own = {name: handle for name, handle in checkpoint.handles.items() if name in checkpoint.published}
        if checkpoint.replaces is None or not checkpoint.given_up:
            return own
        return {**self.in_force(self.require(checkpoint.replaces)), **own}

    def row(self, epoch: int, event: Event, attempt: int, **columns: Any) -> Row:
        """The pipeline's next row: it can be written only while the pipeline is as this view shows it."""
        return Row(self.pipeline, self.head.seq + 1, epoch, event, attempt, **columns)

    def planned_by(self, owner: str) -> list[Checkpoint]:
        """The checkpoints that `owner` planned or took over, oldest first."""
        return self._planned(f"owner = {sql_text(owner)}")

    def planned_for(self, interval: Interval) -> list[Checkpoint]:
        """The checkpoints that were pinned for any part of `interval`, oldest first."""
        return self._planned(f"interval_start < {sql_time(interval.end)} AND interval_end > {sql_time(interval.start)}")

    def taken_back(self, epoch: int) -> bool:
        """Whether a rewind has removed what that checkpoint published. Once true, it stays true."""
        return any(to is not None and to < epoch for to in (rewind.rewinds_to for rewind in self._rewinds(epoch)))

    def _rewinds(self, since: int) -> list[Checkpoint]:
        """The rewinds that were decided after that epoch."""
        chosen = f"event = '{Event.REWOUND.value}' AND epoch > {since} AND seq <= {self.head.seq}"
        epochs = self.table.scan({self.pipeline: chosen}, ["epoch"])["epoch"].to_pylist()
        return [checkpoint for epoch in epochs if (checkpoint := self.checkpoint(epoch))]

    def boundaries(self, time: datetime, topic: str) -> tuple[Boundary | None, Boundary | None]:
        """The topic's nearest pinned boundaries at or before, and at or after, `time`."""
        at, low, high = sql_time(time), sql_time(time - NEAR), sql_time(time + NEAR)
        before = self._pinned_at(f"interval_start <= {at} AND interval_end > {low}", f"interval_end <= {low}")
        after = self._pinned_at(f"interval_end >= {at} AND interval_start < {high}", f"interval_start >= {high}")
        return (
            self._boundary(max((pair for pair in before if pair[0] <= time), default=None), topic),
            self._boundary(min((pair for pair in after if pair[0] >= time), default=None), topic),
        )

    def gap_before(self, interval: Interval) -> Interval | None:
        """The gap between the end of the last pinned interval before `interval` and its start."""
        at, low = sql_time(interval.start), sql_time(interval.start - NEAR)
        before = self._pinned_at(f"interval_end <= {at} AND interval_end > {low}", f"interval_end <= {low}")
        last = max((time for time, _ in before), default=interval.start)
        return Interval(last, interval.start) if last < interval.start else None

    def _pinned_at(self, near: str, far: str) -> list[tuple[datetime, int]]:
        """Boundaries as (time, epoch): the near ones, which file statistics find fast; without any, the far ones.

        Pinned intervals do not overlap. So if one is found near, no far one is closer.
        """
        for chosen in (near, far):
            found = self._pinned(chosen, ["epoch", *gaps.COLUMNS]).to_pylist()
            if found:
                return [(row[name], row["epoch"]) for row in found for name in gaps.COLUMNS]
        return []

    def _boundary(self, pair: tuple[datetime, int] | None, topic: str) -> Boundary | None:
        checkpoint = self.checkpoint(pair[1]) if pair else None
        if pair is None or checkpoint is None or checkpoint.interval is None:
            return None
        pinned = range_of(checkpoint.ranges, topic)
        if pinned is None:
            return None
        offsets = pinned.starts if checkpoint.interval.start == pair[0] else pinned.ends
        return Boundary(pair[0], pinned.topic_id, offsets)

    def _planned(self, chosen: str) -> list[Checkpoint]:
        epochs = sorted(set(self._pinned(chosen, ["epoch"])["epoch"].to_pylist()))
        found = (self.checkpoint(epoch) for epoch in epochs)
        return [checkpoint for checkpoint in found if checkpoint]

    def _pinned(self, chosen: str, columns: Sequence[str]) -> pa.Table:
        return self.table.scan({self.pipeline: f"{PINS} AND {chosen} AND seq <= {self.head.seq}"}, columns)


def load(table: Reading, pipeline: str, epochs: Sequence[int], until: int) -> dict[int, Checkpoint]:
    chosen = f"epoch IN ({', '.join(map(str, epochs))}) AND seq <= {until}"
    return fold(table.rows({pipeline: chosen})) if epochs else {}
