"""A recovery looks at the folders of few checkpoints, and at those of all once a day: none of it is forgotten."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from codes import raises
from unit.lightdelta import LightDelta, LightParts

from onceonly.checkpoint.model import Checkpoint, State, Transaction
from onceonly.coordinator import sweep
from onceonly.coordinator.coordinator import Coordinator
from onceonly.delta import log_files, table_files, txn_identifiers
from onceonly.errors import OutcomeUnknown
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.sinks.delta import staged_folders
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts

pytestmark = pytest.mark.slow


class World:
    """A pipeline into a Delta table; `listed` counts how often all its folders were looked through."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lake, self.listed = folder / "lake", 0
        self._fakes = FakeParts(folder / "parts")
        sinks = [DeltaSink("lake", path="lake")]
        self.pipeline = Pipeline(name="p", source=KafkaSource("t"), transform="a.b:c", sinks=sinks)
        parts: Any = LightParts(folder, self._fakes)
        self.coordinator = Coordinator(StateTable.make(str(folder / "state")), parts)
        real = LightDelta.leftovers
        monkeypatch.setattr(LightDelta, "leftovers", lambda sink, prefix: (self._count(), real(sink, prefix))[1])

    def _count(self) -> None:
        self.listed += 1

    def plan(self, number: int) -> Checkpoint:
        self._fakes.sources(self.pipeline)["t"].append(0, (datetime(2020, 1, 1, tzinfo=UTC), number))
        planned = self.coordinator.plan(self.pipeline, f"run {number}", lambda cp: True).checkpoint
        assert planned is not None
        return planned

    def stage(self, number: int) -> Checkpoint:
        return self.coordinator.stage("p", self.plan(number).epoch, lambda cp: {"lake": [number]})

    def run(self, number: int) -> Checkpoint:
        return self.coordinator.commit("p", self.stage(number).epoch)

    def recover(self) -> None:
        self.coordinator.recover("p", lambda cp: False)

    def folder(self, txn: Transaction) -> Path:
        return self.lake / (txn_identifiers.STAGED_PREFIX + txn.name)

    def writes_late(self, txn: Transaction) -> Path:
        """A process that was ended writes on after its folder was deleted."""
        late = self.folder(txn) / "part-0.parquet"
        late.parent.mkdir()
        late.touch()
        return late

    @property
    def mark(self) -> Path:
        [found] = (self.lake / log_files.LOG_FOLDER).glob(".onceonly.swept.*")
        return found


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    return World(tmp_path, monkeypatch)


def test_all_folders_are_looked_through_once_a_day_and_whenever_somebody_asks(world: World) -> None:
    world.run(1)
    for _ in range(3):
        world.recover()
    assert world.listed == 1
    for ago in (sweep.SECONDS_PER_DAY + 1, -sweep.SECONDS_PER_DAY):  # in time, and by a clock that was set back
        then = time.time() - ago
        os.utime(world.mark, (then, then))
        world.recover()
        world.recover()
    assert world.listed == 3
    world.coordinator.sweep("p")
    assert world.listed == 4


def test_the_folders_of_the_last_one_and_of_earlier_attempts_are_looked_at_each_time(world: World) -> None:
    world.run(1)
    world.recover()
    staged = world.stage(2)
    world.coordinator.abort("p", staged.epoch, "a test")
    world.writes_late(staged.transaction("lake"))
    world.recover()
    assert not world.folder(staged.transaction("lake")).exists()
    again = world.stage(3)
    world.writes_late(staged.transaction("lake"))
    world.recover()
    assert world.coordinator.state_table.view("p").require(again.epoch).state is State.COMMITTED
    assert not world.folder(staged.transaction("lake")).exists()
    assert world.listed == 1


def test_those_that_were_open_when_the_recovery_began_count_as_well(world: World, monkeypatch: Any) -> None:
    """Others have settled it meanwhile, and planned the next."""
    world.run(1)
    world.recover()
    staged = world.stage(2)
    before = world.coordinator.state_table.view("p")
    world.coordinator.commit("p", staged.epoch)
    (world.folder(staged.transaction("lake")) / staged_folders.MARK).unlink()  # as if it had died before its release
    world.run(3)
    assert sweep.sweep(world.coordinator.state_table, world.coordinator.parts, "p", before) == [
        staged.transaction("lake")
    ]
    assert world.listed == 1


def test_what_came_of_an_older_one_is_found_within_a_day(world: World) -> None:
    world.run(1)
    staged = world.stage(2)
    world.coordinator.abort("p", staged.epoch, "a test")
    world.recover()
    again = world.run(3)
    world.run(4)
    late = world.writes_late(staged.transaction("lake"))
    world.recover()
    assert again.epoch == staged.epoch and late.exists()
    then = time.time() - sweep.SECONDS_PER_DAY
    os.utime(world.mark, (then, then))
    world.recover()
    assert not late.parent.exists()


def test_a_look_that_failed_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run(1)
    staged = world.stage(2)
    world.coordinator.abort("p", staged.epoch, "a test")
    world.run(3)
    world.run(4)
    late = world.writes_late(staged.transaction("lake"))

    def broken(*_: Any) -> None:
        raise OSError("storage does not answer")

    with monkeypatch.context() as now:
        now.setattr(LightDelta, "discard", broken)
        with raises(OutcomeUnknown, "outcome-unknown"):
            world.recover()
    world.recover()
    assert not late.parent.exists()


def test_the_mark_is_kept_on_an_object_store_too_and_never_makes_a_table(tmp_path: Path, monkeypatch: Any) -> None:
    lake = LightDelta(tmp_path / "lake")
    lake.record_sweep("s-p")
    assert (lake.seconds_since_sweep("s-p"), Path(lake.uri).exists()) == (None, False)
    lake.stage(Transaction("s", "p", "lake", 1, 1, "a"), [1])
    handler = table_files.DeltaStorageHandler
    monkeypatch.setattr(table_files, "open_folder", lambda uri: pafs.PyFileSystem(handler(uri)))
    assert lake.seconds_since_sweep("s-p") is None
    lake.record_sweep("s-p")
    ago = lake.seconds_since_sweep("s-p")
    assert ago is not None and ago < sweep.SECONDS_PER_DAY
    assert lake.seconds_since_sweep("s-other") is None
    assert staged_folders.seconds_since_sweep(lake.uri, "s-p-other") is None
