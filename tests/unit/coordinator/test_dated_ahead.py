"""Records whose clock has gone wrong: boundaries pass over them, and they are read by their offsets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise, permutations

import pytest
from codes import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.world import NOON, World, minutes, values

from onceonly.checkpoint.boundary_search import search
from onceonly.coordinator.boundaries import MAX_CLOCK_SKEW
from onceonly.errors import Busy, SourceLost
from onceonly.pipeline.sources import KafkaSource
from onceonly.views import descriptions

FAR = NOON + timedelta(days=365 * 80)


@pytest.fixture
def hourly(tmp_path) -> World:
    """Records 0 to 4, at these minutes after noon, and one of eighty years later."""
    world = World(tmp_path, mode="interval")
    world.source.append(0, (FAR, 99))
    return world


def test_record_of_the_future_stops_nothing(hourly):
    hourly.put(5, 6, 7, 10, 11, 12, 14)
    for number, (start, end) in enumerate(pairwise((0, 5, 10, 13, 14)), 1):
        hourly.run(f"run-{number}", minutes(start, end))
    assert values(hourly.lake) == [0, 1, 2, 3, 4, 99, 5, 6, 7, 10, 11, 12]
    assert [hourly.now(epoch).ranges[0].ahead for epoch in (1, 2, 3, 4)] == [1, 0, 0, 0]


def test_interval_says_what_is_dated_ahead(hourly):
    hourly.source.append(0, (FAR, 100))
    hourly.put(5, 11)
    first, second = (hourly.plan(f"run-{end}", minutes(end - 10, end)) for end in (10, 20))
    assert descriptions.describe_coverage(first).endswith("2 records of topic 'flights' are dated in the future")
    assert "future" not in descriptions.describe_coverage(second)
    assert hourly.now(1).ranges[0].ahead == 2  # as the table has it, not only the plan


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_intervals_in_any_order_share_nothing(tmp_path, order):
    world = World(tmp_path, mode="interval")
    world.source.append(0, (FAR, 99))
    world.put(5, 6, 12, 11, 21)
    world.source.append(0, (FAR, 98))
    world.put(22, 31)
    for number in order:
        world.run(f"run-{number}", minutes(10 * number, 10 * number + 10))
    assert sorted(values(world.lake)) == [0, 1, 2, 3, 4, 5, 6, 11, 12, 21, 22, 98, 99]


def test_end_of_the_log_is_the_last_boundary(hourly):
    planned = hourly.plan("run-1", minutes(0, 10))
    assert planned.ranges[0].partitions == {0: (0, 6)}
    hourly.put(9, 12)  # late
    hourly.plan("run-2", minutes(10, 20))
    assert hourly.now(2).ranges[0].partitions == {0: (6, 8)}


def test_transaction_behind_the_record_is_waited_for(hourly):
    hourly.source.hold(0, 6)
    hourly.put(7)
    with raises(Busy, "open-transaction", match="open since offset 6"):
        hourly.plan("run-1", minutes(0, 10))


def test_record_within_the_skew_is_a_boundary(tmp_path):
    world = World(tmp_path, mode="interval")
    soon = datetime.now(UTC) + MAX_CLOCK_SKEW / 2
    world.source.append(0, (soon, 99))
    world.put(5, 6)
    assert world.plan("run-1", minutes(0, 10)).ranges[0].partitions == {0: (0, 5)}


def test_start_by_time_passes_over_it(tmp_path):
    world = World(tmp_path, source=KafkaSource("flights", start=NOON + timedelta(minutes=5)))
    world.source.append(0, (FAR, 99))
    world.put(4, 5, 6)
    assert world.plan().ranges[0].partitions == {0: (7, 9)}


def test_only_the_record_of_the_future_is_left(hourly):
    """Retention keeps it: nothing shows that records of this interval were not removed before it."""
    hourly.source.expire(0, 5)
    hourly.put(7, 8)
    with raises(SourceLost, "records-expired", match="starts at offset 5"):
        hourly.plan("run-1", minutes(5, 10))


def test_older_record_behind_it_shows_that_nothing_is_lost(hourly):
    hourly.source.expire(0, 5)
    hourly.put(4, 6, 12)
    assert hourly.plan("run-1", minutes(5, 10)).ranges[0].partitions == {0: (7, 8)}


MINUTES = st.lists(st.sampled_from([*range(30), 10**6]), max_size=25)


@settings(max_examples=200, deadline=None)
@given(MINUTES, st.integers(0, 30))
def test_search_finds_the_first_in_time(dated, minute):
    found = search(((n, _at(m)) for n, m in enumerate(dated)), _at(minute), _at(1000), len(dated))
    offset = next((n for n, m in enumerate(dated) if minute <= m <= 1000), len(dated))
    assert (found.offset, found.ahead) == (offset, sum(m > 1000 for m in dated[:offset]))
    assert found.lowest == offset or all(m > 1000 for m in dated[found.lowest : offset])
    if found.lowest > 0 and found.ahead and found.lowest < offset:
        assert dated[found.lowest - 1] < minute


def _at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)
