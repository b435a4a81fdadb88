"""Which state `forget` is about: that of the last checkpoint which has published one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from codes import raises
from unit.coordinator.test_capabilities import Bare
from unit.world import World

from onceonly.checkpoint.model import Handle
from onceonly.checkpoint.sink import StateBackend
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, StateSink
from onceonly.testing.fakes import FakeParts

TOTALS = StateSink("totals", schema="page STRING, views BIGINT", key=["page"])


class Totals(Bare, StateBackend):
    """A state that notes what it was asked to forget."""

    def __init__(self, fake: Any, asked: list[Handle]) -> None:
        super().__init__(fake)
        self._asked = asked

    def read(self, spark: Any, before: Handle | None) -> Any:
        return []

    def forget(self, after: Handle) -> None:
        self._asked.append(after)


class StateParts(FakeParts):
    asked: list[Handle]

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        live = super().sink(pipeline, name)
        return Totals(live, self.asked) if name == "totals" else live


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, mode="chained", sinks=[DeltaSink("lake", "lake"), TOTALS])
    world.parts = StateParts(tmp_path)
    world.parts.asked = []
    return world


def test_the_last_published_state_is_forgotten(world: World) -> None:
    world.run("run-1")
    world.put(10)
    second = world.run("run-2")
    assert world.coordinator.forget("flights").epoch == 2
    assert world.parts.asked == [second.handles["totals"]]


@pytest.mark.parametrize("settle", [lambda world: None, lambda world: world.stage(2), lambda world: world.abort(2)])
def test_what_is_not_published_is_passed_over(world: World, settle: Any) -> None:
    first = world.run("run-1")
    world.put(10)
    world.plan("run-2")
    settle(world)
    rows = world.events()
    assert world.coordinator.forget("flights").epoch == 1
    assert world.parts.asked == [first.handles["totals"]]
    assert world.events() == rows


def test_without_a_published_state_there_is_nothing_to_forget(world: World) -> None:
    with raises(InvalidPipeline, "nothing-to-forget"):
        world.coordinator.forget("flights")
    world.plan()
    with raises(InvalidPipeline, "nothing-to-forget", match="not published yet"):
        world.coordinator.forget("flights")


def test_a_pipeline_without_a_state_has_nothing_to_forget(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("run-1")
    with raises(InvalidPipeline, "nothing-to-forget", match="keeps no state"):
        world.coordinator.forget("flights")
