"""The definition that a checkpoint carries: parsed once, and another one where a row has changed it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from unit.tables import QUICK
from unit.world import World

from onceonly.checkpoint.definition import Definition
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline

FROM_JSON = Pipeline.from_json


@pytest.fixture
def parsed_definitions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Definitions in the order in which they were parsed."""
    definitions: list[Any] = []

    def from_json(data: Any) -> Pipeline:
        definitions.append(data)
        return FROM_JSON(data)

    monkeypatch.setattr(Pipeline, "from_json", from_json)
    yield definitions


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_commit_parses_the_definition_once(world: World, parsed_definitions: list[Any]) -> None:
    world.put(1, 2)
    planned = world.plan()
    assert planned is not None
    world.stage(planned.epoch)
    parsed_definitions.clear()
    world.commit(planned.epoch)
    assert len(parsed_definitions) == (0 if QUICK else 1), "a table in memory keeps what was parsed before"


def test_a_plan_with_another_definition_has_another_pipeline(world: World) -> None:
    world.put(1, 2)
    planned = world.plan()
    assert planned is not None and planned.definition.pipeline.transform == world.pipeline.transform
    world.pipeline = replace(world.pipeline, transform="jobs.flights:better")
    again = world.plan()
    assert again is not None and again.epoch == planned.epoch
    assert again.definition.pipeline == world.pipeline


def test_what_cannot_be_parsed_can_still_be_read(world: World) -> None:
    stored = world.pipeline.to_json()
    sinks = [{**sink, "kind": "not-installed"} for sink in stored["sinks"]]
    definition = Definition({**stored, "sinks": sinks})
    assert definition.sink_names == tuple(sink["name"] for sink in sinks)
    assert definition.gate is None and definition.upstreams == ()
    for _ in range(2):  # an error is not kept: the package may be installed by now
        with raises(InvalidPipeline, "sink-kind-unknown", match="not-installed"):
            _ = definition.pipeline
