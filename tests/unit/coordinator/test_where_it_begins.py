"""Where the first checkpoint of a chained pipeline begins: it is chosen once, and pinned."""

from __future__ import annotations

from datetime import timedelta

import pytest
from codes import raises
from unit.world import NOON, World, values

from onceonly.checkpoint.model import State
from onceonly.coordinator.plan import Planned
from onceonly.errors import Busy, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sources import KafkaSource


def world_from(tmp_path, start) -> World:
    """Its topic holds the records 0 to 4, at these minutes after noon."""
    return World(tmp_path, source=KafkaSource("flights", start=start))


@pytest.mark.parametrize(
    ("start", "read"),
    [
        ("earliest", [0, 1, 2, 3, 4]),
        (NOON + timedelta(minutes=3), [3, 4]),
        ((NOON + timedelta(minutes=3)).isoformat(), [3, 4]),
        (NOON - timedelta(days=1), [0, 1, 2, 3, 4]),
        ({0: 2}, [2, 3, 4]),
    ],
)
def test_the_first_checkpoint_begins_there_and_the_next_goes_on(tmp_path, start, read):
    world = world_from(tmp_path, start)
    world.run("run-1")
    assert values(world.lake) == read
    world.put(5)
    world.run("run-2")
    assert values(world.lake) == [*read, 5]


@pytest.mark.parametrize("start", ["latest", NOON + timedelta(days=1), {0: 5}])
def test_a_start_without_records_is_pinned_so_that_what_comes_next_is_read(tmp_path, start):
    world = world_from(tmp_path, start)
    pinned = plan(world, "run-1").checkpoint
    assert pinned is not None
    assert (pinned.state, pinned.ranges[0].partitions) == (State.COMMITTED, {0: (5, 5)})
    world.put(5, 6)
    world.run("run-2")
    assert values(world.lake) == [5, 6]
    assert plan(world, "run-3").checkpoint is None


def test_a_run_that_asks_twice_pins_one_start(tmp_path):
    world = world_from(tmp_path, "latest")
    assert plan(world, "run-1").checkpoint == plan(world, "run-1").checkpoint
    assert world.state.view("flights").head.epoch == 1


def plan(world: World, owner: str) -> Planned:
    return world.coordinator.plan(world.pipeline, owner, lambda checkpoint: False)


def test_a_start_that_is_changed_later_moves_nothing(tmp_path):
    world = world_from(tmp_path, {0: 3})
    world.run("run-1")
    changed = {**world.pipeline.to_json(), "source": {"kind": "kafka", "topic": "flights"}}
    world.pipeline = Pipeline.from_json(changed)
    world.put(5)
    world.run("run-2")
    assert values(world.lake) == [3, 4, 5]


def test_a_checkpoint_that_is_aborted_begins_there_again(tmp_path):
    world = world_from(tmp_path, {0: 3})
    epoch = world.plan("run-1").epoch
    world.abort(epoch)
    world.put(5)
    assert world.plan("run-2").ranges[0].partitions == {0: (3, 5)}


def test_what_is_held_back_at_that_time_is_waited_for(tmp_path):
    world = world_from(tmp_path, NOON + timedelta(minutes=10))
    world.source.hold(0, 5)
    world.put(5)
    with raises(Busy, "open-transaction"):
        world.plan("run-1")
    assert world.now() is None


@pytest.mark.parametrize(
    ("start", "why"),
    [
        ({0: 6}, r"it holds the offsets 0 to 4"),
        ({1: 0}, r"it has the partitions \[0\]"),
    ],
)
def test_an_offset_that_the_log_does_not_have_is_refused(tmp_path, start, why):
    world = world_from(tmp_path, start)
    with raises(InvalidPipeline, "start-not-in-log", match=why):
        world.plan("run-1")
    assert world.now() is None


def test_an_offset_that_has_expired_is_refused(tmp_path):
    world = world_from(tmp_path, {0: 1})
    world.source.expire(0, 2)
    with raises(InvalidPipeline, "start-not-in-log", match="it holds the offsets 2 to 4"):
        world.plan("run-1")


@pytest.mark.parametrize(
    "start", ["yesterday", "2013-01-01T12:00:00", {}, {0: -1}, {"a": 1}, {0: 1.5}, {0: True}, 7, None]
)
def test_what_is_no_place_in_a_topic_is_refused(start):
    with raises(InvalidPipeline, "option-invalid"):
        KafkaSource("flights", start=start)


def test_an_interval_begins_at_its_time(tmp_path):
    with raises(InvalidPipeline, "options-conflict"):
        World(tmp_path, mode="interval", source=KafkaSource("flights", start="latest"))


def test_it_is_the_same_after_a_round_trip_and_absent_where_it_is_not_chosen(tmp_path):
    for start in ("latest", NOON, {0: 2, 11: 3}):
        made = world_from(tmp_path, start).pipeline
        assert Pipeline.from_json(made.to_json()) == made
    assert "start" not in world_from(tmp_path, "earliest").pipeline.to_json()["source"]


def test_it_begins_where_a_consumer_group_is(tmp_path):
    world = world_from(tmp_path, "group:old-job")
    world.source.commit_group("old-job", {0: 3})
    world.run("run-1")
    assert values(world.lake) == [3, 4]
    world.source.commit_group("old-job", {0: 0})
    world.put(5)
    world.run("run-2")
    assert values(world.lake) == [3, 4, 5]


@pytest.mark.parametrize(("committed", "code"), [({}, "group-without-offsets"), ({0: 9}, "start-not-in-log")])
def test_a_group_that_does_not_tell_is_refused(tmp_path, committed, code):
    world = world_from(tmp_path, "group:old-job")
    world.source.commit_group("old-job", committed)
    with raises(InvalidPipeline, code):
        plan(world, "run-1")
    assert world.state.view("flights").head.epoch == 0
