"""Real Delta tables of a pipeline, verified together: through a rewind, an accepted loss and damages by others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from person import Person
from unit.coordinator.test_every_target_history import DeltaParts
from unit.world import Durable

from onceonly.checkpoint.verification import Judgement
from onceonly.pipeline.sinks import DeltaSink
from onceonly.statetable.table import Snapshot
from onceonly.testing.fakes import FakeSource
from onceonly.verification.result import Verification
from onceonly.verification.verify import Verifier

pytestmark = pytest.mark.slow


class Tables(Durable):
    """A pipeline with two Delta tables, in which rows are numbers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, sinks=[DeltaSink("lake", "lake"), DeltaSink("files", "files")])
        self.parts: Any = DeltaParts(folder)
        for number in range(1, 4):
            self.put(number * 10)
            self.run(f"run-{number}")

    @property
    def source(self) -> FakeSource:
        rest = getattr(self.parts, "_rest", self.parts)
        return FakeSource("flights", rest.folder)

    def verify(self, is_deep: bool = False) -> Verification:
        return Verifier(lambda: Snapshot(self.state.uri), self.parts).verify("flights", is_deep)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


def wrong(result: Verification) -> set[tuple[str, int | None]]:
    return {(str(subject), finding.epoch) for subject, finding in result.list_findings(Judgement.WRONG)}


@pytest.mark.parametrize("is_deep", [False, True])
def test_healthy_tables_are_right(tables: Tables, is_deep: bool) -> None:
    result = tables.verify(is_deep)
    assert result.judgement is Judgement.RIGHT, result.list_findings(Judgement.UNKNOWN)
    assert {cell.epoch for cell in result.cells if str(cell.subject) == "sink 'lake'"} == {1, 2, 3}


@pytest.mark.parametrize("is_deep", [False, True])
def test_rewound_rows_are_taken_out(tables: Tables, is_deep: bool) -> None:
    Person(tables.coordinator).rewind("flights", 1, "somebody", "wrong code")
    tables.run("run-9")
    result = tables.verify(is_deep)
    assert result.judgement is Judgement.RIGHT, [*wrong(result), *result.list_findings(Judgement.UNKNOWN)]


def test_removed_file_is_wrong(tables: Tables) -> None:
    lake = Path(tables.parts.sink(tables.pipeline, "lake").uri)
    file = next(lake.glob("staged-*-lake-2-1-*/**/*.parquet"))
    file.unlink()
    assert wrong(tables.verify()) == {("sink 'lake'", 2)}


def test_rows_that_come_while_it_looks_are_not_accused(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline publishes between the reading of the state table and the look at the target, once."""
    sink, runs = type(tables.parts.sink(tables.pipeline, "lake")), iter(["run-10"])
    verify = sink.verify

    def look(target: Any, *arguments: Any) -> Any:
        for owner in runs:
            tables.put(77)
            tables.run(owner)
        yield from verify(target, *arguments)

    monkeypatch.setattr(sink, "verify", look)
    result = tables.verify()
    assert wrong(result) == set()
