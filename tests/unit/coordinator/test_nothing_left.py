"""A decision is never taken when nothing is left to publish: of every sink whose rows can be staged without Spark.

The contract suite says the same of each sink by itself (`breaks`), with Spark and a broker; here the coordinator does.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unit.lightdelta import LightDelta, LightMerge, LightReplace
from unit.lightfiles import LightFiles
from unit.world import World, values

from onceonly.checkpoint.model import Handle, State
from onceonly.errors import StageAgain
from onceonly.pipeline import registry
from onceonly.pipeline.sinks import DeltaSink

CONTRACT = Path(__file__).parents[2] / "contract"
ROWS = list(range(5))


def staged_folder(sink: Any, handle: Handle) -> Path:
    return Path(handle["folder"]) if isinstance(sink, LightFiles) else Path(sink.uri, handle["folder"])


def remove_all(sink: Any, handle: Handle) -> None:
    shutil.rmtree(staged_folder(sink, handle))


def remove_rows(sink: Any, handle: Handle) -> None:
    files = [path for path in staged_folder(sink, handle).rglob("*.*") if path.suffix in (".parquet", ".jsonl")]
    assert files
    for path in files:
        path.unlink()


@pytest.fixture(params=[LightDelta, LightMerge, LightReplace, LightFiles], ids=lambda sink: sink.__name__)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A pipeline of a sink of that class and a fake one, whose checkpoint is staged."""
    world = World(tmp_path, sinks=[DeltaSink("lake", "lake"), DeltaSink("files", "files")])
    fake, produce, target = world.parts.sink, world.parts.produce, tmp_path / "target"

    def sink(pipeline: Any, name: str) -> Any:
        return request.param(target, name) if name == "lake" else fake(pipeline, name)

    def rows(checkpoint: Any) -> Any:
        produced = produce(checkpoint)
        numbers = [row["value"] for row in produced["lake"]]
        files = [{"value": number} for number in numbers]
        return {**produced, "lake": files if request.param is LightFiles else numbers}

    world.parts.sink, world.parts.produce = sink, rows
    world.plan()
    world.stage()
    return world


def published(sink: Any) -> list[int]:
    found: list[int] = sink.values() if isinstance(sink, LightFiles) else sink.numbers()
    return found


@pytest.mark.parametrize("remove", [remove_all, remove_rows])
def test_nothing_is_decided_without_staged_rows(world: World, remove: Callable[[Any, Handle], None]) -> None:
    lake: Any = world.lake
    remove(lake, world.now().handles["lake"])
    with pytest.raises(StageAgain):
        world.commit()
    assert world.now().decision is None
    assert values(world.files) == []
    world.plan()
    world.stage()
    assert world.commit().state is State.COMMITTED
    assert published(world.lake) == values(world.files) == ROWS


def test_every_kind_of_sink_breaks_what_is_staged() -> None:
    """So its own suite removes what it has staged, and expects that it is staged again."""
    breaks = {path.stem.removesuffix("_breaks"): path for path in CONTRACT.glob("*_breaks.py")}
    named = {kind: {"files": "file"}.get(kind, kind) for kind in registry.OWN}
    for kind, name in named.items():
        listed = [
            [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            for node in ast.walk(ast.parse(breaks[name].read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Break"
        ]
        again = [words[0] for words in listed if words[-1] == "again"]
        assert any("removed" in str(words) for words in again), kind
