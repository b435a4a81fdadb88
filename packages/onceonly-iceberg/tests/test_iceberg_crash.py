"""Processes die at every step of a checkpoint, and at any moment: the rows are in the table once, by a plain reader."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from iceberg_victims import DIED, POINTS, World, run
from installed import read_project, write_metadata
from patience import PATIENCE
from plain_reader import list_files, read_column

from onceonly.pipeline import registry

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
RECORDS, KILLS = 6, 30
# Its server imports what takes seconds, and each process is a fork of it: kills hit the work, not the imports.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["iceberg_victims"])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    write_metadata(tmp_path / "site", read_project(PROJECT.read_text()))
    monkeypatch.syspath_prepend(tmp_path / "site")
    registry._find_installed.cache_clear()
    yield World(str(tmp_path))
    registry._find_installed.cache_clear()


def start(world: World, owner: str, point: str = "", times: int = 1) -> BaseProcess:
    process = FORKS.Process(target=run, args=(world, owner, point, times))
    process.start()
    return process


def finish(world: World) -> None:
    process = start(world, "the last one")
    process.join(PATIENCE)
    assert process.exitcode == 0


def check(world: World, records: int) -> None:
    """Each row is there once, and a sweep leaves nothing of processes that died."""
    world.coordinator().sweep("flights")
    assert read_column(world.lake, "n") == list(range(records))
    data = Path(world.lake, "warehouse", "lake", "flights", "data")
    assert list((data / "onceonly-staged").iterdir()) == []
    referred = {Path(file["file_path"].removeprefix("file://")) for file in list_files(world.lake)}
    assert set(data.rglob("*.parquet")) == referred


@pytest.mark.crash
@pytest.mark.parametrize("point", POINTS)
def test_process_that_dies_loses_and_doubles_nothing(world: World, point: str) -> None:
    world.make(RECORDS)
    process = start(world, "run-1", point, 2)  # in the second checkpoint
    process.join(PATIENCE)
    assert process.exitcode == DIED
    finish(world)
    check(world, RECORDS)


@pytest.mark.heavy
def test_storm_of_kills(world: World) -> None:
    """SIGKILL at any moment of two processes at once, until 30 were killed; each round has new records."""
    draw, records, kills = random.Random(7), RECORDS, 0
    world.make(records)
    while kills < KILLS:
        processes = [start(world, f"run-{kills}-{number}") for number in range(2)]
        for process in processes:
            process.join(draw.uniform(0.2, 2.0))
            if process.exitcode is None:
                process.kill()
                kills += 1
            process.join(PATIENCE)
        world.append(records, records + RECORDS)
        records += RECORDS
    finish(world)
    check(world, records)
