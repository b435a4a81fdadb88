"""Several topics in one pipeline: pinned together, each on its own terms."""

from datetime import timedelta

import pytest
from codes import raises
from unit.world import NOON, World, minutes, values

from onceonly.checkpoint.model import State
from onceonly.checkpoint.offsets import find_range
from onceonly.errors import InvalidPipeline, SourceLost
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sources import KafkaSource
from onceonly.testing.fakes import FakeSource

BOTH = [KafkaSource("flights"), KafkaSource("weather")]


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path, source=BOTH)


def weather(world: World) -> FakeSource:
    return world.parts.sources(world.pipeline)["weather"]


def rain(world: World, *values: int) -> None:
    weather(world).append(0, *((NOON + timedelta(minutes=v), v) for v in values))


def pinned(world: World, epoch: int) -> dict[str, tuple[int, int]]:
    return {range_.topic: range_.partitions.get(0) for range_ in world.now(epoch).ranges}


def test_what_all_of_them_hold_is_one_checkpoint(world):
    rain(world, 100, 101)
    world.run("run-1")
    assert pinned(world, 1) == {"flights": (0, 5), "weather": (0, 2)}
    assert sorted(values(world.lake)) == [0, 1, 2, 3, 4, 100, 101]


def test_new_records_in_one_of_them_are_enough(world):
    world.run("run-1")
    rain(world, 100)
    world.run("run-2")
    assert pinned(world, 2) == {"flights": (5, 5), "weather": (0, 1)}
    assert world.plan("run-3") is None


def test_intervals_have_boundaries_in_each_topic(tmp_path):
    world = World(tmp_path, mode="interval", source=BOTH)
    world.put(*range(5, 30))
    rain(world, 3, 12, 14, 25)
    world.run("run-2", minutes(10, 20))
    world.run("run-1", minutes(0, 10))
    world.run("run-3", minutes(20, 25))
    assert pinned(world, 1) == {"flights": (10, 20), "weather": (1, 3)}
    assert pinned(world, 2) == {"flights": (0, 10), "weather": (0, 1)}
    assert sorted(values(world.lake)) == sorted([*range(25), 3, 12, 14])


def test_an_interval_is_empty_only_where_all_are(tmp_path):
    world = World(tmp_path, mode="interval", source=BOTH)
    rain(world, 15)
    assert world.plan("run-2", minutes(10, 20)).state is State.PLANNED
    assert world.plan("run-3", minutes(20, 30)).state is State.COMMITTED


def test_one_that_is_lost_stops_all(world):
    rain(world, 100)
    world.plan()
    weather(world).recreate()
    with raises(SourceLost, "source-recreated"):
        world.stage()
    assert values(world.lake) == []


@pytest.mark.parametrize("source", [KafkaSource("flights"), [*BOTH, KafkaSource("planes")]])
def test_other_topics_make_another_pipeline(world, source):
    world.run("run-1")
    world.pipeline = Pipeline(**{**vars(world.pipeline), "source": source})
    with raises(InvalidPipeline, "pipeline-changed") as refused:
        world.plan("run-2")
    assert "read topic 'flights', 'weather' so far" in refused.value.why


def test_how_far_each_is_shows_in_its_consumer_group(world):
    rain(world, 100, 101)
    world.run("run-1")
    assert [source._topic()["reported"]["flights"] for source in (world.source, weather(world))] == [{"0": 5}, {"0": 2}]
    assert find_range(world.now().ranges, "planes") is None
