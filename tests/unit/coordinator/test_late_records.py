"""Intervals whose boundary is not decided yet: they wait, and what comes after that is read by a later one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from codes import raises
from unit.world import World, minutes, values

from onceonly.checkpoint.model import State
from onceonly.checkpoint.offsets import Interval
from onceonly.errors import Busy, InvalidPipeline
from onceonly.pipeline.sources import KafkaSource


@pytest.fixture
def hourly(tmp_path) -> World:
    """Records 0 to 4, at these minutes after noon."""
    return World(tmp_path, mode="interval")


def late(world: World, *numbers: int) -> None:
    """Behind a producer's open transaction, which began at the end of the log."""
    world.source.hold(0, 5)
    world.put(*numbers)


def test_an_interval_waits_for_a_transaction_that_holds_back_its_end(hourly):
    late(hourly, 5, 6, 7, 12)
    with pytest.raises(Busy) as busy:
        hourly.plan("run-1", minutes(0, 10))
    assert "the boundary 2013-01-01T12:10:00Z is not decided yet" in busy.value.what
    assert "topic 'flights' partition 0: a producer's transaction is open since offset 5" in busy.value.why
    assert "describe-producers --topic flights --partition 0" in busy.value.todo
    assert hourly.now() is None
    hourly.source.hold(0, None)
    hourly.run("run-1", minutes(0, 10))
    assert values(hourly.lake) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_an_interval_waits_for_a_transaction_that_holds_back_its_start(hourly):
    late(hourly, 5, 12)
    with raises(Busy, "open-transaction", match="boundary 2013-01-01T12:10:00Z"):
        hourly.plan("run-1", minutes(10, 20))


def test_what_shows_below_the_open_transaction_is_decided(hourly):
    late(hourly, 5, 6)
    assert hourly.plan("run-1", minutes(0, 4)).ranges[0].partitions == {0: (0, 4)}


def test_an_open_transaction_above_a_pinned_neighbour_changes_nothing(hourly):
    hourly.plan("run-2", minutes(20, 30))
    late(hourly, 5, 12, 25)
    assert hourly.plan("run-1", minutes(0, 10)).ranges[0].partitions == {0: (0, 5)}


def test_one_topic_of_several_partitions_is_enough_to_wait_for(hourly):
    hourly.put(1, 15, partition=1)
    late(hourly, 5, 12)
    with raises(Busy, "open-transaction", match="partition 0"):
        hourly.plan("run-1", minutes(0, 10))


def test_a_chained_checkpoint_goes_up_to_the_open_transaction(tmp_path):
    world = World(tmp_path)
    late(world, 5, 6)
    assert world.plan().ranges[0].partitions == {0: (0, 5)}


# ---- grace


def test_a_grace_lets_late_records_in(tmp_path):
    """The interval ended five minutes ago, and records may be late by ten."""
    world = World(tmp_path, mode="interval", source=KafkaSource("flights", grace=600))
    ended = datetime.now(UTC) - timedelta(minutes=5)
    with pytest.raises(Busy) as busy:
        world.plan("run-1", Interval(ended - timedelta(days=36500), ended))
    assert "may still come" in busy.value.what
    assert "The grace of 600 s ends at" in busy.value.why
    assert world.now() is None
    world.put(5)
    sooner = Interval(ended - timedelta(days=36500), ended - timedelta(minutes=6))
    world.run("run-1", sooner)
    assert values(world.lake) == [0, 1, 2, 3, 4, 5]


def test_what_is_pinned_waits_for_no_grace(tmp_path):
    world = World(tmp_path, mode="interval")
    ended = datetime.now(UTC) - timedelta(minutes=5)
    interval = Interval(ended - timedelta(days=36500), ended)
    world.plan("run-1", interval)
    world.pipeline = type(world.pipeline).from_json(
        {**world.pipeline.to_json(), "source": {"kind": "kafka", "topic": "flights", "grace": 600.0}}
    )
    world.run("run-1", interval)
    assert world.now().state is State.COMMITTED


def test_a_record_that_comes_too_late_is_read_by_the_next_interval(hourly):
    hourly.put(12)
    hourly.run("run-1", minutes(0, 10))
    hourly.put(9, 13, 22)
    hourly.run("run-2", minutes(10, 20))
    assert values(hourly.lake) == [0, 1, 2, 3, 4, 12, 9, 13]


# ---- clocks


@pytest.mark.parametrize("grace", [0, 600])
@pytest.mark.parametrize(
    ("ahead", "error", "code"),
    [
        (timedelta(seconds=2), Busy, "interval-not-over"),
        (timedelta(minutes=50), Busy, "interval-not-over"),
        (timedelta(hours=2), InvalidPipeline, "interval-in-future"),
    ],
)
def test_clock_behind_the_scheduler_is_retried(tmp_path, grace, ahead, error, code):
    world = World(tmp_path, mode="interval", source=KafkaSource("flights", grace=grace))
    now = datetime.now(UTC)
    with pytest.raises(error) as refused:
        world.plan("run-1", Interval(now - timedelta(hours=1), now + ahead))
    assert refused.value.code == code
    assert world.now() is None
