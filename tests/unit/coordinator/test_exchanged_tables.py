"""A table that was exchanged for a copy with another history, and is as long, has the id and the name it had."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from deltalake import DeltaTable
from person import Person
from unit.versions import Table, minutes

from onceonly.checkpoint.interfaces import Source
from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.forward import Forward
from onceonly.coordinator.skip import Skip
from onceonly.errors import SourceLost
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import DeltaSource
from onceonly.sources.delta import DeltaReader
from onceonly.testing.fakes import FakeParts

FIRST, SECOND, THIRD = minutes(0, 10), minutes(10, 20), minutes(20, 30)


class Parts(FakeParts):
    def sources(self, pipeline: Pipeline) -> Mapping[str, Source]:
        return {source.topic: DeltaReader(source, source.path) for source in pipeline.sources}  # type: ignore[arg-type]


class Reader:
    """A pipeline behind a table; its checkpoints publish the versions that they cover."""

    def __init__(self, folder: Path, mode: Any = "interval") -> None:
        self.table, self.parts = Table(folder), Parts(folder)
        self.through = Coordinator(self.table.state, self.parts)
        source, sink = DeltaSource(self.table.uri), DeltaSink("out", "out")
        self.pipeline = Pipeline(name="reads", source=source, transform="jobs:f", sinks=[sink], mode=mode)

    def plan(self, interval: Interval | None = None, owner: str = "run") -> Checkpoint:
        planned = self.through.plan(self.pipeline, owner, lambda _: False, interval).checkpoint
        assert planned is not None
        return planned

    def run(self, interval: Interval | None = None, owner: str = "run") -> tuple[int, int]:
        planned = self.plan(interval, owner)
        self.through.stage("reads", planned.epoch, self.produce)
        return self.through.commit("reads", planned.epoch).ranges[0].partitions[0]

    def produce(self, checkpoint: Checkpoint) -> dict[str, list[Any]]:
        return {"out": [list(range_.partitions[0]) for range_ in checkpoint.ranges]}

    def write(self, *minutes_: float) -> None:
        """A version at each of these minutes."""
        for minute in minutes_:
            self.table.write(int(minute))
            self.table.date(self.table.end - 1, minute)


@pytest.fixture
def days(tmp_path: Path) -> Reader:
    """By intervals, with two versions in each of three."""
    made = Reader(tmp_path)
    made.write(1, 2, 11, 12, 21, 22)
    return made


def test_the_interval_after_one_that_was_read(days: Reader) -> None:
    days.run(FIRST)
    days.table.exchange(1)
    days.write(5, 11, 12, 13, 14, 21)
    with raises(SourceLost, "source-replaced"):
        days.plan(SECOND)


def test_the_interval_before_one_that_was_read(days: Reader) -> None:
    days.run(THIRD)
    days.table.exchange(5)
    days.write(23)
    with raises(SourceLost, "source-replaced"):
        days.plan(SECOND)


def test_an_interval_beside_one_that_had_no_versions(days: Reader) -> None:
    """What is compared is the last version that anything was pinned of."""
    assert days.run(SECOND) == (2, 4)
    assert days.plan(minutes(30, 40)).ranges[0].partitions[0] == (6, 6)
    days.table.exchange(4)
    days.write(21, 22, 23)
    with raises(SourceLost, "source-replaced"):
        days.plan(THIRD)


def test_what_has_grown_is_the_same_table(days: Reader) -> None:
    assert days.run(SECOND) == (2, 4)
    days.write(31)
    DeltaTable(days.table.uri, version=4).create_checkpoint()
    for version in range(4):
        days.table.entry(version).unlink()  # cleaned up
    assert days.run(THIRD) == (4, 6)


def test_exchanged_while_it_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was recognised, and before its mark is taken."""
    reader = Reader(tmp_path, "chained")
    reader.write(1, 2)
    reader.run(owner="run-1")
    reader.write(3)
    inner = DeltaReader._list_files

    def files(self: DeltaReader, range_: Any) -> Any:
        found = inner(self, range_)
        reader.table.exchange(1, 20, 30)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(DeltaReader, "_list_files", files)
        with raises(SourceLost, "source-replaced"):
            reader.plan(owner="run-2")


def test_after_versions_that_a_person_has_left_out(tmp_path: Path) -> None:
    reader = Reader(tmp_path, "chained")
    reader.write(1, 2)
    reader.run(owner="run-1")
    reader.table.now.delete("n = 2")
    Person(reader.through).skip_offsets("reads", Skip("orders", 0, 3, "ann", "on purpose"))
    reader.table.exchange(2, 20, 30)
    with raises(SourceLost, "source-replaced"):
        reader.plan(owner="run-2")


def test_nothing_is_left_out_of_another_table(tmp_path: Path) -> None:
    reader = Reader(tmp_path, "chained")
    reader.write(1, 2)
    reader.run(owner="run-1")
    reader.table.exchange(1, 20, 30)
    with raises(SourceLost, "source-replaced"):
        Person(reader.through).skip_offsets("reads", Skip("orders", 0, 3, "ann", "on purpose"))


def test_after_a_person_has_said_from_where_it_goes_on(tmp_path: Path) -> None:
    reader = Reader(tmp_path, "chained")
    reader.write(1, 2)
    Person(reader.through).forward(reader.pipeline, Forward(7, "ann", "restored", {"orders": {0: 2}}))
    reader.table.exchange(1, 20, 30)
    with raises(SourceLost, "source-replaced"):
        reader.plan(owner="run-2")
