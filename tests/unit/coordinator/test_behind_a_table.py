"""A pipeline behind a Delta table, on a real table and fake sinks: what each checkpoint covers, and what ends it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from unit.versions import Table

from onceonly.checkpoint.interfaces import Source
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.coordinator.coordinator import Coordinator
from onceonly.errors import InvalidPipeline, SourceLost
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import DeltaSource, KafkaSource
from onceonly.sources.delta import DeltaReader
from onceonly.testing.fakes import FakeParts


class Parts(FakeParts):
    def sources(self, pipeline: Pipeline) -> Mapping[str, Source]:
        (source,) = pipeline.sources
        return {source.topic: DeltaReader(source, source.path)} if source.kind == "delta" else super().sources(pipeline)


class Behind:
    """One pipeline; its checkpoints publish the versions that they cover."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.table, self.parts = Table(folder), Parts(folder)
        self.pipeline = self.define("behind", DeltaSource(self.table.uri, **options))
        self.coordinator = Coordinator(self.table.state, self.parts)

    def define(self, name: str, source: Any) -> Pipeline:
        return Pipeline(name=name, source=source, transform="jobs:f", sinks=[DeltaSink("out", "out")])

    def plan(self, owner: str = "run") -> Checkpoint | None:
        return self.coordinator.plan(self.pipeline, owner, lambda _: False).checkpoint

    def stage(self, epoch: int) -> Checkpoint:
        return self.coordinator.stage("behind", epoch, self.produce)

    def produce(self, checkpoint: Checkpoint) -> dict[str, list[Any]]:
        return {"out": [list(range_.partitions[0]) for range_ in checkpoint.ranges]}

    def run(self, owner: str) -> list[int]:
        planned = self.plan(owner)
        assert planned is not None
        self.stage(planned.epoch)
        self.coordinator.commit("behind", planned.epoch)
        return list(planned.ranges[0].partitions[0])

    def published(self) -> list[list[int]]:
        return self.parts.sink(self.pipeline, "out").rows()


@pytest.fixture
def behind(tmp_path: Path) -> Behind:
    made = Behind(tmp_path)
    made.table.write(1)
    made.table.write(2)
    return made


def test_each_checkpoint_goes_on_where_the_one_before_ended(behind: Behind) -> None:
    assert behind.run("run-1") == [0, 2]
    assert behind.plan("run-2") is None
    behind.table.write(3)
    behind.table.now.optimize.compact()
    assert behind.run("run-3") == [2, 4]
    assert behind.published() == [[0, 2], [2, 4]]


def test_what_was_pinned_stays_pinned_while_the_table_grows(behind: Behind) -> None:
    behind.run("run-1")
    behind.table.write(3)
    planned = behind.plan("run-2")
    assert planned is not None
    behind.table.write(4)
    behind.coordinator.abort("behind", 2, "told to")
    again = behind.plan("run-3")
    assert again is not None
    assert (again.epoch, again.ranges) == (2, planned.ranges)
    assert behind.run("run-3") == [2, 3]
    assert behind.run("run-4") == [3, 4]


def test_from_the_latest_version_on(tmp_path: Path) -> None:
    """Pinned at once, though there is nothing to read: tomorrow it would be another place."""
    behind = Behind(tmp_path, start="latest")
    behind.table.write(1)
    first = behind.plan("run-1")
    assert first is not None
    assert (first.state, first.ranges[0].partitions) == (State.COMMITTED, {0: (1, 1)})
    behind.table.write(2)
    assert behind.run("run-2") == [1, 2]


def test_nothing_is_staged_of_what_a_vacuum_took(behind: Behind) -> None:
    planned = behind.plan()
    assert planned is not None
    behind.table.now.optimize.compact()
    behind.table.now.vacuum(0, dry_run=False, enforce_retention_duration=False)
    with raises(SourceLost, "source-files-missing"):
        behind.stage(1)
    assert behind.published() == []


def test_files_that_vanish_while_it_is_staged_are_noticed(behind: Behind) -> None:
    behind.plan()

    def produce(checkpoint: Checkpoint) -> dict[str, list[Any]]:
        behind.table.now.optimize.compact()
        behind.table.now.vacuum(0, dry_run=False, enforce_retention_duration=False)
        return behind.produce(checkpoint)

    with raises(SourceLost, "source-files-missing"):
        behind.coordinator.stage("behind", 1, produce)
    assert behind.parts.sink(behind.pipeline, "out").leftovers("") == []


def test_nothing_is_planned_of_a_table_that_was_replaced_or_restored(behind: Behind) -> None:
    behind.run("run-1")
    kept = behind.table.entry(1).read_bytes()
    behind.table.entry(1).unlink()
    with raises(SourceLost, "source-shrank", match="table 'orders' partition 0 ends before what was already read"):
        behind.plan("run-2")
    behind.table.write(20)
    behind.table.write(30)
    with raises(SourceLost, "source-replaced"):
        behind.plan("run-2")
    behind.table.entry(1).write_bytes(kept)
    assert behind.run("run-2") == [2, 3]


def test_it_does_not_take_the_place_of_another_source(behind: Behind) -> None:
    behind.run("run-1")
    behind.pipeline = behind.define("behind", KafkaSource("other"))
    with raises(InvalidPipeline, "pipeline-changed"):
        behind.plan("run-2")


def test_under_a_new_name_it_would_publish_everything_again(behind: Behind) -> None:
    behind.run("run-1")
    behind.pipeline = behind.define("renamed", DeltaSource(behind.table.uri))
    with raises(InvalidPipeline, "pipeline-renamed"):
        behind.plan("run-2")


def test_a_table_that_the_pipeline_writes_is_none_to_read() -> None:
    with raises(InvalidPipeline, "own-output-read"):
        Pipeline(name="p", source=DeltaSource("lake/a"), transform="jobs:f", sinks=[DeltaSink("a", "lake/a")])
