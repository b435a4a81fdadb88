"""The state table in memory: the same contract as the real one (tests/unit/statetable/test_state_contract.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from explore.steps import EITHER, Steps
from onceonly.checkpoint.model import Checkpoint, Event, Row, State, first
from onceonly.checkpoint.offsets import Boundary, Interval, find_range
from onceonly.errors import OutcomeUnknown
from onceonly.json_values.text import canonical
from onceonly.statetable.gaps import Coverage, find_coverage
from onceonly.statetable.row_format import Head
from onceonly.statetable.table import Conflict
from onceonly.statetable.view import View

PINS = (Event.PLANNED, Event.EMPTY)


@dataclass(frozen=True)
class Chain:
    """The rows of one pipeline up to one of them; each is made once, whichever schedule leads to it."""

    number: int = 0
    rows: tuple[Row, ...] = ()
    head: Head = field(default_factory=Head)
    checkpoints: Mapping[int, Checkpoint] = field(default_factory=dict)

    def then(self, row: Row) -> Chain:
        known = self.checkpoints.get(row.epoch)
        checkpoint = known.apply(row) if known else first(row)
        head = self.head.apply(row, checkpoint)
        rows = (*self.rows, replace(row, head=head.to_json()))
        return Chain(len(_CHAINS) + 1, rows, head, {**self.checkpoints, row.epoch: checkpoint})


_CHAINS: dict[tuple[int, str], Chain] = {}
EMPTY = Chain()


def _next(chain: Chain, row: Row) -> Chain:
    at = (chain.number, _content(row))
    if at not in _CHAINS:
        _CHAINS[at] = chain.then(row)
    return _CHAINS[at]


def _content(row: Row) -> str:
    """Everything that another process may decide by."""
    columns = (row.seq, row.epoch, row.event.value, row.attempt, row.owner, row.sink, row.decision, str(row.interval))
    return f"{row.pipeline}{columns}{canonical(row.body)}"


class MemoryView(View):
    """A pipeline as one look at the table shows it; `rows` is the chain of its rows."""

    @classmethod
    def of(cls, pipeline: str, chain: Any) -> MemoryView:
        return cls(pipeline, chain, chain.head, dict(chain.checkpoints))

    def checkpoint(self, epoch: int) -> Checkpoint | None:
        return self.checkpoints.get(epoch)

    def rows_since(self, seq: int) -> list[Row]:
        chain: Any = self.rows
        return [row for row in chain.rows if row.seq > seq]

    def planned_by(self, owner: str) -> list[Checkpoint]:
        return self._pinning(lambda row: row.owner == owner)

    def planned_for(self, interval: Interval) -> list[Checkpoint]:
        return self._pinning(
            lambda row: row.interval and row.interval.start < interval.end and row.interval.end > interval.start
        )

    def _rewinds(self, since: int) -> list[Checkpoint]:
        chain: Any = self.rows
        return [self.checkpoints[row.epoch] for row in chain.rows if row.event is Event.REWOUND and row.epoch > since]

    def _replacements(self, since: int) -> list[Checkpoint]:
        return [self.checkpoints[epoch] for epoch in sorted(self.checkpoints) if self._is_in_place(epoch, since)]

    def _is_in_place(self, epoch: int, since: int) -> bool:
        return epoch > since and self.checkpoints[epoch].replaces is not None

    def published_to(self, sink: str, above: int) -> list[Checkpoint]:
        later = [each for each in self.checkpoints.values() if sink in each.published and (each.decision or 0) > above]
        return sorted(later, key=lambda each: each.decision or 0)

    def missing(self) -> list[Checkpoint]:
        return [self.checkpoints[epoch] for epoch in sorted(self.checkpoints) if self.checkpoints[epoch].missing]

    def given_up(self, sink: str) -> list[Checkpoint]:
        return [
            self.checkpoints[epoch] for epoch in sorted(self.checkpoints) if sink in self.checkpoints[epoch].given_up
        ]

    def was_in_doubt(self, epoch: int, sink: str) -> bool:
        chain: Any = self.rows
        of_sink = [row.event for row in chain.rows if row.epoch == epoch and row.sink == sink]
        outcomes = [event for event in of_sink if event in (Event.IN_DOUBT, Event.REPLACED)]
        return outcomes[-1:] == [Event.IN_DOUBT]

    def iterate_committed(self, most: int | None = None) -> Iterator[Checkpoint]:
        done = [each for each in self.checkpoints.values() if _committed(each)]
        yield from sorted(done, key=lambda each: each.decision or 0, reverse=True)[:most]

    def boundaries(self, time: datetime, topic: str) -> tuple[Boundary | None, Boundary | None]:
        pinned = [
            Boundary(at, range_.topic_id if range_ else "", offsets, range_)
            for checkpoint in self.checkpoints.values()
            if checkpoint.interval
            for range_ in [find_range(checkpoint.ranges, topic)]
            for at, offsets in (
                (checkpoint.interval.start, range_.starts if range_ else {}),
                (checkpoint.interval.end, range_.ends if range_ else {}),
            )
        ]
        before = max((each for each in pinned if each.time <= time), key=lambda each: each.time, default=None)
        after = min((each for each in pinned if each.time >= time), key=lambda each: each.time, default=None)
        return before, after

    def gaps_before(self, interval: Interval) -> list[Interval]:
        coverage = coverage_of(self.checkpoints.values(), [interval])
        return [gap for gap in coverage.gaps if gap.end <= interval.start]

    def checkpoints_ending_last(self, time: datetime) -> list[Checkpoint]:
        pinned = [
            (checkpoint.interval.end, checkpoint)
            for _, checkpoint in sorted(self.checkpoints.items())
            if checkpoint.interval and checkpoint.interval.end <= time
        ]
        last = max((end for end, _ in pinned), default=None)
        return [checkpoint for end, checkpoint in pinned if end == last]

    def _pinning(self, wanted: Callable[[Row], Any]) -> list[Checkpoint]:
        chain: Any = self.rows
        epochs = {row.epoch for row in chain.rows if row.event in PINS and wanted(row)}
        return [self.checkpoints[epoch] for epoch in sorted(epochs)]


def coverage_of(checkpoints: Iterable[Checkpoint], asked: Iterable[Interval] = ()) -> Coverage:
    """What the intervals cover, by the state of each checkpoint in place of queries of its rows."""
    covered, skipped, aborted = [*asked], [], []
    for checkpoint in checkpoints:
        if checkpoint.interval and not checkpoint.is_repair:
            kind = aborted if checkpoint.state is State.ABORTED else covered
            (kind if checkpoint.skipped is None else skipped).append(checkpoint.interval)
    return find_coverage(covered, skipped, aborted)


def _committed(known: Checkpoint) -> bool:
    return known.state is State.COMMITTED and known.decision is not None and known.forwarded is None


class MemoryTable:
    """Takes the place of `StateTable`.

    Args:
        watch: is shown each row before it is written, with the checkpoint as it was and as it will be.
    """

    id = "s0"

    def __init__(self, steps: Steps, watch: Callable[[Row, Checkpoint | None, Checkpoint], None] | None = None) -> None:
        self.chains: dict[str, Chain] = {}
        self._steps, self._watch = steps, watch

    def chain(self, pipeline: str) -> Chain:
        return self.chains.get(pipeline, EMPTY)

    def view(self, pipeline: str) -> MemoryView:
        look = self._steps.take("reads the state table", lambda: self.chain(pipeline), seen=lambda chain: chain.number)
        return MemoryView.of(pipeline, look)

    def append(self, view: View, row: Row) -> MemoryView:
        chain: Any = view.rows
        sink = f" {row.sink}" if row.sink else ""
        what = f"records '{row.event.value}'{sink} of epoch {row.epoch} attempt {row.attempt}"
        after = self._steps.take(
            what, lambda: self._write(chain, row), EITHER, _unknown, seen=lambda chain: chain.number
        )
        return MemoryView.of(row.pipeline, after)

    def _write(self, chain: Chain, row: Row) -> Chain:
        if self.chain(row.pipeline) is not chain or row.seq != chain.head.seq + 1:
            raise Conflict
        after = _next(chain, row)
        if self._watch:
            self._watch(row, chain.checkpoints.get(row.epoch), after.checkpoints[row.epoch])
        self.chains[row.pipeline] = after
        return after

    def tidy(self, view: View) -> View:
        return view

    def pipelines(self) -> list[str]:
        return self._steps.take("lists the pipelines", lambda: sorted(self.chains))

    def history(self, pipeline: str, since_epoch: int = 0, until_epoch: int | None = None) -> list[Row]:
        rows = self.chain(pipeline).rows
        return [row for row in rows if since_epoch <= row.epoch and (until_epoch is None or row.epoch <= until_epoch)]


def _unknown(what: str) -> OutcomeUnknown:
    return OutcomeUnknown("whether the row was recorded is not known.", what, "onceonly recover")
