"""Schemas that records are decoded by: what an attempt has pinned, every later one decodes by."""

from contextlib import contextmanager

import pytest
from codes import raises
from world import World

from onceonly.errors import Fenced, NotCommitted
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
    return world.coordinator._stager.claim("flights", 1, None).require(1)


def test_the_first_attempt_pins_for_all(world):
    assert world.coordinator._stager.pin(claim(world), FIRST).schemas == FIRST
    second = claim(world)
    assert second.schemas == FIRST
    assert world.coordinator._stager.pin(second, OTHER).schemas == FIRST
    assert world.events() == ["planned", "claimed", "pinned", "claimed"]


def test_the_stage_pins_what_it_is_told_before_it_produces(world):
    decoded_by = []

    def produce(checkpoint):
        decoded_by.append(checkpoint.schemas)
        assert world.events()[-1] == "pinned"
        raise NotCommitted("it failed.", "The test says so.", "Retry.", code="job-failed")

    with raises(NotCommitted, "job-failed"):
        world.coordinator.stage("flights", 1, produce, prepare=lambda checkpoint: FIRST)
    world.coordinator.stage("flights", 1, world.parts.produce, prepare=lambda checkpoint: OTHER)
    assert decoded_by == [FIRST]
    assert world.now().schemas == FIRST
    assert world.events() == ["planned", "claimed", "pinned", "claimed", "staged"]


def test_the_claim_is_renewed_until_it_is_recorded(world):
    events_at_end = []

    @contextmanager
    def renewal(renew):
        assert renew()
        yield
        events_at_end.append(world.events())
        assert not renew()

    world.coordinator.stage("flights", 1, world.parts.produce, renewal=renewal)
    assert events_at_end == [["planned", "claimed", "renewed", "staged"]]
    assert world.now().state.value == "staged"


def test_an_attempt_that_was_ended_pins_nothing(world):
    late = claim(world)
    claim(world)
    with raises(Fenced, "ownership-lost"):
        world.coordinator._stager.pin(late, FIRST)
    assert world.now().schemas == {}


def test_they_stay_when_it_is_aborted_and_planned_again(world):
    world.coordinator._stager.pin(claim(world), FIRST)
    world.abort()
    world.plan("run-2")
    assert world.now().schemas == FIRST


def test_a_source_that_is_defined_otherwise_is_pinned_anew(world):
    world.coordinator._stager.pin(claim(world), FIRST)
    world.abort()
    changed = Pipeline(**{**vars(world.pipeline), "source": KafkaSource("flights", max_records=7)})
    world.coordinator.plan(changed, "run-2", world.alive)
    assert world.now().schemas == {}
