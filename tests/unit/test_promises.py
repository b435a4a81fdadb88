"""The README's guarantee: each promise names its tests in docs/proof.md, and those that no other file has are here."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from unit.world import World

from onceonly.pipeline.sinks import DeltaSink

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`((?:tests|src)/\S+\.py)::(\w+)`")


def promises() -> dict[str, list[tuple[str, str]]]:
    """Promise -> (file, test) of each, from the table."""
    section = (ROOT / "docs" / "proof.md").read_text().partition("## Promises and their tests")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    return {row[1].strip(): NAMED.findall(row[2]) for row in rows if not set(row[1].strip()) <= {"-"}}


def test_the_table_is_read() -> None:
    assert len(promises()) > 20


@pytest.mark.parametrize("promise", promises())
def test_every_promise_has_a_test(promise: str) -> None:
    tests = promises()[promise]
    assert tests
    for file, name in tests:
        parsed = ast.parse((ROOT / file).read_text())
        functions = {node.name for node in ast.walk(parsed) if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{file} has no {name}"


def test_what_is_published_comes_from_one_attempt(tmp_path: Path) -> None:
    """Also where a transform makes something else each time, and wherever an attempt has died."""
    world, attempts = World(tmp_path), iter(range(1, 9))

    def produce(checkpoint: Any) -> dict[str, list[dict[str, int]]]:
        attempt = next(attempts)
        return {sink.name: [{"value": attempt}] * attempt for sink in world.pipeline.sinks}

    assert world.plan()
    world.files.fail("stage", "after", "before")
    for _ in range(2):
        with pytest.raises(ConnectionError):
            world.coordinator.stage("flights", 1, produce)
    world.coordinator.stage("flights", 1, produce)
    world.commit()
    assert world.lake.rows() == world.files.rows() == [{"value": 3}] * 3


def test_two_pipelines_of_one_topic_each_publish_every_record(tmp_path: Path) -> None:
    worlds = {name: World(tmp_path, name=name, sinks=[DeltaSink("lake", name)]) for name in ("first", "second")}
    for name, world in worlds.items():
        planned = world.plan(f"run of {name}")
        assert planned is not None
        world.coordinator.stage(name, planned.epoch, world.parts.produce)
    for name, world in worlds.items():
        world.coordinator.commit(name, 1)
        assert sorted(row["offset"] for row in world.lake.rows()) == list(range(10))
