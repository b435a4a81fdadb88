"""Pipelines with state: one checkpoint after the other, each with what the one before has left."""

import pytest
from codes import raises
from person import Person
from unit.world import World, minutes

from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.stage import find_state_before
from onceonly.errors import Busy, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, StateSink

TOTALS = StateSink("totals", schema="page STRING, views BIGINT", key=["page"])


@pytest.fixture
def world(tmp_path) -> World:
    world = World(tmp_path, mode="interval", sinks=[DeltaSink("lake", "lake"), TOTALS])
    world.put(*range(5, 20), *range(30, 40))  # nothing between minutes 20 and 30
    return world


def before(world: World, epoch: int):
    return find_state_before(world.state.view("flights"), world.now(epoch))


def test_each_goes_on_from_the_one_before_over_empty_intervals(world):
    first = world.run("run-1", minutes(0, 10))
    assert before(world, 1) is None
    assert world.plan("run-2", minutes(10, 20)).epoch == 2
    assert before(world, 2) == first.handles["totals"]
    world.stage(2)
    second = world.commit(2)
    assert world.plan("run-3", minutes(20, 30)).handles == {}
    world.plan("run-4", minutes(30, 40))
    assert before(world, 4) == second.handles["totals"]


def test_a_missing_interval_is_named(world):
    world.run("run-1", minutes(0, 10))
    with pytest.raises(InvalidPipeline) as refused:
        world.plan("run-3", minutes(20, 30))
    assert str(Interval(minutes(10, 20).start, minutes(10, 20).end)) in refused.value.what
    assert "missing" in refused.value.what
    assert world.state.view("flights").head.epoch == 1


def test_there_is_no_going_back(world):
    world.run("run-2", minutes(10, 20))
    with raises(InvalidPipeline, "interval-before-state"):
        world.plan("run-1", minutes(0, 10))


@pytest.mark.parametrize("settle", [lambda world: None, lambda world: world.abort(1)])
def test_the_one_before_has_to_be_committed(world, settle):
    world.plan("run-1", minutes(0, 10))
    world.stage(1)
    settle(world)
    with raises(Busy, "checkpoint-open", match="epoch 1 comes before"):
        world.plan("run-2", minutes(10, 20))


def test_state_that_was_given_up_stops_the_pipeline(world):
    world.plan("run-1", minutes(0, 10))
    world.stage(1)
    world.parts.sink(world.pipeline, "totals").fail("commit", "refused", "refused")
    with raises(Exception, "test-refused"):
        world.commit(1)
    Person(world.coordinator).give_up("flights", 1, "totals", "me", "lost")
    world.plan("run-2", minutes(10, 20))
    with raises(InvalidPipeline, "state-unsettled"):
        before(world, 2)


def test_a_new_name_starts_with_an_empty_state_anywhere(world):
    world.run("run-1", minutes(0, 10))
    other = StateSink("newer", schema="page STRING, views BIGINT", key=["page"])
    world.pipeline = Pipeline(**{**vars(world.pipeline), "sinks": [DeltaSink("lake", "lake"), other]})
    world.plan("run-2", minutes(30, 40))
    assert before(world, 2) is None
