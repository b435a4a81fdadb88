"""Intervals over any log, in any order: every record at most once, nothing between run intervals left out."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from onceonly.checkpoint.interfaces import FirstRecord
from onceonly.checkpoint.offsets import Boundary, Interval, Offsets, TopicLog, TopicRange
from onceonly.coordinator.boundaries import TopicPlanner
from onceonly.coordinator.coordinator import Coordinator
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts, FakeSource

pytestmark = pytest.mark.slow

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
FLIGHTS = Pipeline(
    name="flights",
    source=KafkaSource("flights"),
    transform="jobs.flights:clean",
    sinks=[DeltaSink("lake", "lake")],
    mode="interval",
)
Write = tuple[int, int | None]  # partition, minute after noon; None is an offset without a record


@dataclass(frozen=True)
class Run:
    """One interval, in minutes after noon, and what producers wrote before it was planned."""

    start: int
    end: int
    writes: tuple[Write, ...]

    @property
    def interval(self) -> Interval:
        return Interval(at(self.start), at(self.end))


@dataclass
class Pinned:
    """What a View shows of pinned intervals, in memory."""

    ranges: dict[Interval, TopicRange] = field(default_factory=dict)

    @property
    def latest(self) -> SimpleNamespace | None:
        return next((SimpleNamespace(interval=i, ranges=(r,)) for i, r in reversed(self.ranges.items())), None)

    def boundaries(self, time: datetime, topic: str) -> tuple[Boundary | None, Boundary | None]:
        pinned = [
            Boundary(instant, range_.topic_id, offsets)
            for interval, range_ in self.ranges.items()
            for instant, offsets in ((interval.start, range_.starts), (interval.end, range_.ends))
        ]
        before = max((b for b in pinned if b.time <= time), key=lambda b: b.time, default=None)
        after = min((b for b in pinned if b.time >= time), key=lambda b: b.time, default=None)
        return before, after


def at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


# Few minutes and partitions: duplicates, disorder and records exactly at a boundary are then the rule.
WRITES = st.lists(st.tuples(st.integers(0, 2), st.none() | st.integers(0, 12)), max_size=10).map(tuple)
CUTS = st.lists(st.integers(0, 12), min_size=2, max_size=7, unique=True).map(sorted)


@st.composite
def histories(draw: st.DrawFn) -> list[Run]:
    """Adjacent intervals in any order, some never run, with writes before each."""
    cuts = draw(CUTS)
    pairs = draw(st.permutations(list(pairwise(cuts))))
    run = pairs[: draw(st.integers(1, len(pairs)))]
    return [Run(start, end, draw(WRITES)) for start, end in run]


def write(source: FakeSource, writes: tuple[Write, ...]) -> None:
    for partition in {p for p, _ in writes}:
        minutes = [minute for p, minute in writes if p == partition]
        source.append(partition, *(None if minute is None else (at(minute), minute) for minute in minutes))


def without_zeros(offsets: Offsets) -> dict[int, int]:
    return {p: offset for p, offset in offsets.items() if offset}


def check(ranges: Mapping[Interval, TopicRange]) -> None:
    """The model: one line of boundaries per partition, in order of time, each interval from one to the next."""
    boundaries: dict[datetime, dict[int, int]] = {}
    for interval, range_ in ranges.items():
        for instant, offsets in ((interval.start, range_.starts), (interval.end, range_.ends)):
            first_pinned = boundaries.setdefault(instant, without_zeros(offsets))
            assert without_zeros(offsets) == first_pinned, f"the boundary {instant:%H:%M} has moved"
    in_order = [boundaries[instant] for instant in sorted(boundaries)]
    for before, after in pairwise(in_order):
        assert all(offset <= after.get(p, 0) for p, offset in before.items()), "boundaries cross: records twice"
    taken = [(p, o) for range_ in ranges.values() for p, span in range_.partitions.items() for o in range(*span)]
    assert len(taken) == len(set(taken)), "a record in two intervals"
    for first, last in runs_without_gap(ranges):
        start, end = boundaries[first], boundaries[last]
        expected = {(p, o) for p in end for o in range(start.get(p, 0), end[p])}
        inside = [i for i in ranges if first <= i.start and i.end <= last]
        read = {(p, o) for i in inside for p, span in ranges[i].partitions.items() for o in range(*span)}
        assert read == expected, "a record between two run intervals was left out"


def runs_without_gap(ranges: Mapping[Interval, TopicRange]) -> list[tuple[datetime, datetime]]:
    """(start, end) of the longest rows of adjacent intervals."""
    rows: list[tuple[datetime, datetime]] = []
    for interval in sorted(ranges, key=lambda i: i.start):
        if rows and rows[-1][1] == interval.start:
            rows[-1] = (rows[-1][0], interval.end)
        else:
            rows.append((interval.start, interval.end))
    return rows


@settings(max_examples=150, deadline=None)
@given(histories())
@example([Run(0, 5, ((0, 7), (0, 3))), Run(5, 9, ())])  # a record of the first interval behind one of the second
@example([Run(5, 9, ((0, 3), (0, 7), (0, 3))), Run(0, 5, ())])  # the same, the later interval first
@example([Run(0, 5, ()), Run(9, 12, ((1, 1), (1, 4))), Run(5, 9, ((2, 6),))])  # partitions added in between
@example([Run(0, 5, ((0, 5), (0, 5), (0, 4))), Run(5, 6, ((0, 5),))])  # at the boundary itself, and late
def test_every_record_is_in_one_interval_at_most_and_none_is_left_between(history):
    with TemporaryDirectory() as folder:
        source, pinned = FakeSource("flights", Path(folder)), Pinned()
        for run in history:
            write(source, run.writes)
            planner = TopicPlanner(FLIGHTS, source, FLIGHTS.source, run.interval, now=at(60))
            pinned.ranges[run.interval] = planner.range(pinned)
            check(pinned.ranges)


def test_a_boundary_that_is_younger_than_the_look_at_the_log(tmp_path):
    """Another plan has pinned a partition that was added since this one looked."""
    source, pinned = FakeSource("flights", tmp_path), Pinned()
    write(source, ((0, 1), (0, 7)))
    early = TopicPlanner(FLIGHTS, source, FLIGHTS.source, Interval(at(0), at(5)), now=at(60))
    assert sorted(early.log.partitions) == [0]
    write(source, ((2, 1), (2, 7)))
    late = Interval(at(5), at(9))
    pinned.ranges[late] = TopicPlanner(FLIGHTS, source, FLIGHTS.source, late, now=at(60)).range(pinned)
    assert early.range(pinned).partitions == {0: (0, 1), 2: (0, 1)}


def test_a_partition_that_is_younger_than_the_look_at_the_log(tmp_path):
    """Only its times were asked when it was there: it has lost nothing."""
    source, pinned = FakeSource("flights", tmp_path), Pinned()
    write(source, ((0, 1), (0, 7)))
    early = TopicPlanner(FLIGHTS, source, FLIGHTS.source, Interval(at(0), at(5)), now=at(60))
    assert sorted(early.log.partitions) == [0]
    write(source, ((2, 1), (2, 7)))
    assert early.range(pinned).partitions == {0: (0, 1), 2: (0, 1)}


class AnySource(FakeSource):
    """Answers anything: two lookups may see different logs, and one may be old when it is used."""

    def __init__(self, answers: Iterator[list[int]]) -> None:
        super().__init__("flights", Path("/nowhere"))
        self.answers = answers

    def log(self) -> TopicLog:
        return TopicLog("flights", "id-1", dict.fromkeys(range(2), (0, 9)))

    def offsets_at(self, time: datetime, latest=None, floor=()) -> dict[int, FirstRecord]:
        return {partition: FirstRecord(offset, None) for partition, offset in enumerate(next(self.answers))}


ANSWERS = st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=12, max_size=12)


@settings(max_examples=150, deadline=None)
@given(CUTS.flatmap(lambda cuts: st.permutations(list(pairwise(cuts)))), ANSWERS)
@example([(0, 5), (5, 9)], [[0, 0], [7, 7], [3, 3]])  # an old answer for 9, below what another pinned for 5
@example([(0, 5)], [[7, 7], [3, 3]])
def test_whatever_the_source_answers_boundaries_never_cross(intervals, answers):
    source, pinned = AnySource(iter(answers)), Pinned()
    for start, end in intervals:
        interval = Interval(at(start), at(end))
        pinned.ranges[interval] = TopicPlanner(FLIGHTS, source, FLIGHTS.source, interval, now=at(60)).range(pinned)
        check(pinned.ranges)


@settings(max_examples=30, deadline=None)
@given(CUTS, st.lists(st.integers(0, 12)).map(sorted), st.randoms(use_true_random=False))
def test_in_a_log_in_order_each_interval_holds_just_the_records_of_its_time(cuts, minutes, random):
    with TemporaryDirectory() as folder:
        source, pinned = FakeSource("flights", Path(folder)), Pinned()
        write(source, tuple((0, minute) for minute in minutes))
        intervals = [Interval(at(a), at(b)) for a, b in pairwise(cuts)]
        random.shuffle(intervals)
        for interval in intervals:
            pinned.ranges[interval] = TopicPlanner(FLIGHTS, source, FLIGHTS.source, interval, now=at(60)).range(pinned)
            rows = source.read(None, (pinned.ranges[interval],))
            assert [r["value"] for r in rows] == [m for m in minutes if interval.start <= at(m) < interval.end]


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
@example([Run(5, 9, ((0, 3), (0, 7), (0, 3))), Run(0, 5, ((1, 2),)), Run(9, 12, ((1, 10), (0, 4)))])
def test_the_same_through_the_state_table(history):
    with TemporaryDirectory() as folder:
        state, parts = StateTable.make(f"{folder}/state"), FakeParts(Path(folder))
        for run in history:
            write(parts.sources(FLIGHTS)["flights"], run.writes)
            plan(state, parts, run)
        check(recorded(state))


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
@example([Run(m, m + 3, ((0, 11 - m), (1, m), (0, m))) for m in (6, 0, 9, 3)])
def test_the_same_when_all_are_planned_at_once(history):
    with TemporaryDirectory() as folder:
        state, parts = StateTable.make(f"{folder}/state"), FakeParts(Path(folder))

        def write_and_plan(run: Run) -> None:
            write(parts.sources(FLIGHTS)["flights"], run.writes)
            plan(state, parts, run)

        parts.sources(FLIGHTS)["flights"].append(0)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write_and_plan, history))
        check(recorded(state))


def plan(state: StateTable, parts: FakeParts, run: Run) -> None:
    Coordinator(state, parts).plan(FLIGHTS, f"run-{run.start}", lambda checkpoint: True, run.interval)


def recorded(state: StateTable) -> dict[Interval, TopicRange]:
    view = state.view("flights")
    planned = [view.checkpoint(epoch) for epoch in range(1, view.head.epoch + 1)]
    return {checkpoint.interval: checkpoint.ranges[0] for checkpoint in planned}
