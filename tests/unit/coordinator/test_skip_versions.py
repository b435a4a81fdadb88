"""Versions of a table that a person leaves out, because they do more than append."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from person import Person
from unit.versions import Table

from onceonly.checkpoint.interfaces import Source
from onceonly.checkpoint.model import Checkpoint
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.skip import Skip
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import DeltaSource
from onceonly.testing.fakes import FakeParts
from onceonly.views import descriptions


class Parts(FakeParts):
    """The table's versions, as they are planned; of its rows, none."""

    def __init__(self, folder: Path, table: Table) -> None:
        super().__init__(folder)
        self._table = table

    def sources(self, pipeline: Pipeline) -> Mapping[str, Source]:
        (source,) = pipeline.sources
        return {"orders": self._table.reader(ignore_deletes=getattr(source, "ignore_deletes", False))}

    def produce(self, checkpoint: Checkpoint) -> dict[str, list[dict[str, Any]]]:
        return {"lake": []}


class Reader:
    """A pipeline behind the table."""

    def __init__(self, folder: Path) -> None:
        self.table = Table(folder)
        self.parts = Parts(folder / "parts", self.table)
        self.through = Coordinator(self.table.state, self.parts)
        source, sink = DeltaSource(self.table.uri), DeltaSink("lake", "lake")
        self.pipeline = Pipeline(name="reads", source=source, transform="jobs:f", sinks=[sink])

    def plan(self, owner: str) -> int:
        planned = self.through.plan(self.pipeline, owner, lambda _: False).checkpoint
        assert planned is not None
        return planned.epoch

    def run(self, owner: str) -> dict[int, tuple[int, int]]:
        """Returns the versions that it has read."""
        epoch = self.plan(owner)
        self.through.stage("reads", epoch, self.parts.produce)
        (range_,) = self.through.commit("reads", epoch).ranges
        assert range_.kind == "delta"
        return dict(range_.partitions)

    def skip(self, to: int) -> Checkpoint:
        return Person(self.through).skip_offsets(
            "reads", Skip("orders", 0, to, "ann", "the rows were deleted on purpose")
        )


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """Three versions are read; the fourth deletes rows."""
    made = Reader(tmp_path)
    for number in (1, 2, 3):
        made.table.write(number)
    assert made.run("run-1") == {0: (0, 3)}
    made.table.now.delete("n = 2")
    return made


def test_it_goes_on_behind_a_version_that_deletes(reader: Reader) -> None:
    with raises(InvalidPipeline, "not-append-only", match="version 3 does not only add rows"):
        reader.plan("run-2")
    assert descriptions.describe_coverage(reader.skip(4)).startswith(
        "leaves out 'orders' from version 3 to 4 (skipped by ann"
    )
    reader.table.write(4)
    assert reader.run("run-3") == {0: (4, 5)}


def test_pipeline_that_stopped_at_a_deletion_passes_over_it_from_then_on(reader: Reader) -> None:
    with raises(InvalidPipeline, "not-append-only"):
        reader.plan("run-2")
    reader.pipeline = replace(reader.pipeline, source=DeltaSource(reader.table.uri, ignore_deletes=True))
    assert reader.run("run-3") == {0: (3, 4)}
    reader.table.write(4)
    reader.table.now.delete("n = 4")
    reader.through.abort("reads", reader.plan("run-4"), "it died")
    reader.table.write(5)
    assert reader.run("run-5") == {0: (4, 6)}
    assert reader.run("run-6") == {0: (6, 7)}


def test_a_refusal_is_in_the_words_of_a_table(reader: Reader) -> None:
    with pytest.raises(InvalidPipeline) as refused:
        reader.skip(9)
    assert refused.value.what == "reads: table 'orders' cannot be skipped to version 9."
    assert refused.value.why == "It continues at version 3, and the log ends at 4: --to lies in between."


def test_what_was_pinned_and_given_up_may_be_left_out(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for number in (1, 2, 3):
        reader.table.write(number)
    reader.through.abort("reads", reader.plan("run-1"), "the rows are not wanted")
    reader.skip(2)
    assert reader.run("run-2") == {0: (2, 3)}
