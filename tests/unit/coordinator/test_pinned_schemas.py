"""Schemas that records are decoded by: what an attempt has pinned, every later one decodes by."""

import pytest
from codes import raises
from world import World

from onceonly.errors import Fenced
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sources import KafkaSource

FIRST = {"flights": {"value": {"writers": {"3": "ab" * 32}}}}
OTHER = {"flights": {"value": {"writers": {"4": "cd" * 32}}}}


@pytest.fixture
def world(tmp_path) -> World:
    made = World(tmp_path)
    made.plan("run-1")
    return made


def claim(world: World):
    return world.coordinator._stager.claim("flights", 1, None)


def test_the_first_attempt_pins_for_all(world):
    assert world.coordinator.pin(claim(world), FIRST).schemas == FIRST
    second = claim(world)
    assert second.schemas == FIRST
    assert world.coordinator.pin(second, OTHER).schemas == FIRST
    assert world.events() == ["planned", "claimed", "pinned", "claimed"]


def test_an_attempt_that_was_ended_pins_nothing(world):
    late = claim(world)
    claim(world)
    with raises(Fenced, "ownership-lost"):
        world.coordinator.pin(late, FIRST)
    assert world.now().schemas == {}


def test_they_stay_when_it_is_aborted_and_planned_again(world):
    world.coordinator.pin(claim(world), FIRST)
    world.abort()
    world.plan("run-2")
    assert world.now().schemas == FIRST


def test_a_source_that_is_defined_otherwise_is_pinned_anew(world):
    world.coordinator.pin(claim(world), FIRST)
    world.abort()
    changed = Pipeline(**{**vars(world.pipeline), "source": KafkaSource("flights", max_records=7)})
    world.coordinator.plan(changed, "run-2", world.alive)
    assert world.now().schemas == {}
