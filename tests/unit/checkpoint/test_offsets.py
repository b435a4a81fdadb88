"""The arithmetic of boundaries: nothing is read twice, nothing is left out, whatever the numbers."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from codes import raises
from hypothesis import assume, given
from hypothesis import strategies as st

from onceonly.checkpoint.offsets import (
    TopicLog,
    TopicRange,
    cap,
    clamp,
    first_range,
    has_data,
    next_range,
    range_between,
    require_in_log,
)
from onceonly.errors import SourceLost

pytestmark = pytest.mark.slow

PARTITIONS = st.integers(0, 7)
OFFSETS = st.integers(0, 2**40)
SPANS = st.tuples(OFFSETS, st.integers(0, 10**6)).map(lambda pair: (pair[0], sum(pair)))
BOUNDARIES = st.dictionaries(PARTITIONS, OFFSETS)
RANGES = st.dictionaries(PARTITIONS, SPANS).map(lambda partitions: TopicRange("flights", "id", partitions))
LOG = TopicLog("flights", "id", {})
LOGS = st.dictionaries(PARTITIONS, SPANS).map(lambda partitions: TopicLog("flights", "id", partitions))


def grown(log: TopicLog, by: dict[int, int]) -> TopicLog:
    """The log later: longer, and with more partitions (they start at 0)."""
    partitions = {**{p: (0, 0) for p in by}, **log.partitions}
    return TopicLog(log.topic, log.topic_id, {p: (s, e + by.get(p, 0)) for p, (s, e) in partitions.items()})


# --- cap


@given(RANGES, st.integers(1, 10**7))
def test_a_cap_is_used_up_exactly_and_never_exceeded(range_: TopicRange, most: int) -> None:
    assert cap((range_,), most)[0].offset_count == min(most, range_.offset_count)


@given(RANGES, st.integers(1, 10**7))
def test_a_capped_range_is_the_beginning_of_the_range(range_: TopicRange, most: int) -> None:
    (capped,) = cap((range_,), most)
    assert capped.starts == range_.starts
    assert all(capped.starts[p] <= end <= range_.ends[p] for p, end in capped.ends.items())


@given(RANGES, st.integers(1, 1000))
def test_a_cap_takes_from_each_partition_in_proportion(range_: TopicRange, most: int) -> None:
    waiting = range_.offset_count
    assume(waiting > most)
    for p, (start, end) in cap((range_,), most)[0].partitions.items():
        share = (range_.ends[p] - start) * most / waiting
        assert int(share) <= end - start <= share + len(range_.partitions)  # rounding leaves less than one each


@given(st.dictionaries(PARTITIONS, st.tuples(OFFSETS, st.integers(0, 500)).map(lambda p: (p[0], sum(p)))), st.data())
def test_capped_checkpoints_read_everything_once(partitions: dict[int, tuple[int, int]], data: st.DataObject) -> None:
    log, most = TopicLog("flights", "id", partitions), data.draw(st.integers(50, 500))
    read: dict[int, list[tuple[int, int]]] = {p: [] for p in partitions}
    waiting = first_range(log, {})
    while has_data([waiting]):
        (previous,) = cap((waiting,), most)
        assert previous.offset_count > 0
        for p, piece in previous.partitions.items():
            read[p].append(piece)
        waiting = next_range(previous, log)
    for p, pieces in read.items():
        assert all(left[1] == right[0] for left, right in pairwise(pieces))
        assert not pieces or (pieces[0][0], pieces[-1][1]) == partitions[p]


# --- chain


@given(LOGS, st.dictionaries(PARTITIONS, st.integers(0, 1000)))
def test_the_next_range_starts_where_the_last_one_ended(log: TopicLog, by: dict[int, int]) -> None:
    first = first_range(log, {})
    assert first.partitions == log.partitions
    later = grown(log, by)
    second = next_range(first, later)
    assert second.starts == {p: first.ends.get(p, 0) for p in later.partitions}
    assert second.ends == {p: end for p, (_, end) in later.partitions.items()}


@given(LOGS, st.data())
def test_a_log_that_ends_before_what_was_read_is_refused(log: TopicLog, data: st.DataObject) -> None:
    assume(any(end > 0 for _, end in log.partitions.values()))
    partition = data.draw(st.sampled_from([p for p, (_, end) in log.partitions.items() if end > 0]))
    shorter = data.draw(st.integers(0, log.partitions[partition][1] - 1))
    start = min(log.partitions[partition][0], shorter)
    shrunk = TopicLog(log.topic, log.topic_id, {**log.partitions, partition: (start, shorter)})
    with raises(SourceLost, "source-shrank"):
        next_range(first_range(log, {}), shrunk)


@given(LOGS, st.data())
def test_a_partition_that_vanished_is_refused(log: TopicLog, data: st.DataObject) -> None:
    assume(log.partitions)
    gone = data.draw(st.sampled_from(sorted(log.partitions)))
    rest = TopicLog(log.topic, log.topic_id, {p: span for p, span in log.partitions.items() if p != gone})
    with raises(SourceLost, "partition-missing"):
        next_range(first_range(log, {}), rest)


@given(LOGS)
def test_a_topic_made_again_is_refused_even_if_it_looks_the_same(log: TopicLog) -> None:
    again = TopicLog(log.topic, "another id", log.partitions)
    with raises(SourceLost, "source-recreated"):
        next_range(first_range(log, {}), again)
    with raises(SourceLost, "source-recreated"):
        require_in_log(first_range(log, {}), again)


# --- require_in_log


@given(LOGS, st.data())
def test_a_range_is_held_until_its_first_record_is_gone(log: TopicLog, data: st.DataObject) -> None:
    range_ = first_range(log, {})
    require_in_log(range_, log)
    assume(has_data([range_]))
    partition = data.draw(st.sampled_from([p for p, (start, end) in log.partitions.items() if end > start]))
    start, end = log.partitions[partition]
    now = data.draw(st.integers(start + 1, end))
    with raises(SourceLost, "records-expired", match=f"offsets {start} to {now - 1} no longer exist"):
        require_in_log(range_, TopicLog(log.topic, log.topic_id, {**log.partitions, partition: (now, end)}))


@given(LOGS)
def test_an_empty_range_is_held_by_anything(log: TopicLog) -> None:
    empty = TopicRange(log.topic, log.topic_id, {p: (start, start) for p, (start, _) in log.partitions.items()})
    require_in_log(empty, TopicLog(log.topic, log.topic_id, {}))


# --- clamp and between


@given(BOUNDARIES, BOUNDARIES, BOUNDARIES)
def test_a_clamped_boundary_lies_between_its_neighbours(
    raw: dict[int, int], one: dict[int, int], other: dict[int, int]
) -> None:
    before = {p: min(one.get(p, 0), other.get(p, 0)) for p in {*one, *other}}
    after = {p: max(one.get(p, 0), other.get(p, 0)) for p in {*one, *other}}
    clamped = clamp(raw, before, after)
    assert clamped.keys() == raw.keys()
    for p, offset in clamped.items():
        assert before.get(p, 0) <= offset <= after.get(p, 0)
        assert offset == raw[p] or offset in (before.get(p, 0), after.get(p, 0))


@given(BOUNDARIES)
def test_a_boundary_without_neighbours_stays(raw: dict[int, int]) -> None:
    assert clamp(raw, None, None) == raw


@given(
    st.lists(st.lists(OFFSETS, min_size=3, max_size=3), min_size=2, max_size=8),
    st.randoms(use_true_random=False),
    st.data(),
)
def test_intervals_pinned_in_any_order_share_nothing_and_leave_no_gap(
    raw: list[list[int]], random: Random, data: st.DataObject
) -> None:
    """Offsets looked up for a later time may be lower (they follow timestamps), and partitions are added meanwhile."""
    order = list(range(len(raw)))
    random.shuffle(order)
    pinned: dict[int, dict[int, int]] = {}
    known = 1
    for time in order:
        known = data.draw(st.integers(known, 3))
        lower, higher = [t for t in pinned if t < time], [t for t in pinned if t > time]
        neighbours = (pinned[max(lower)] if lower else None, pinned[min(higher)] if higher else None)
        pinned[time] = clamp(dict(enumerate(raw[time][:known])), *neighbours)
    intervals = [range_between(LOG, "id", pinned[t], pinned[t + 1]) for t in range(len(raw) - 1)]
    assert all(start <= end for interval in intervals for start, end in interval.partitions.values())
    for left, right in pairwise(intervals):
        assert all(left.ends.get(p, 0) == right.starts.get(p, 0) for p in range(3))
    whole = range_between(LOG, "id", pinned[0], pinned[len(raw) - 1])
    assert sum(interval.offset_count for interval in intervals) == whole.offset_count


@given(BOUNDARIES, BOUNDARIES)
def test_a_partition_that_a_boundary_does_not_know_counts_as_zero(start: dict[int, int], end: dict[int, int]) -> None:
    range_ = range_between(LOG, "id", start, end)
    assert range_.partitions == {p: (start.get(p, 0), end.get(p, 0)) for p in {*start, *end}}


# --- JSON


@given(RANGES)
def test_a_range_survives_json(range_: TopicRange) -> None:
    assert TopicRange.from_json(range_.to_json()) == range_
