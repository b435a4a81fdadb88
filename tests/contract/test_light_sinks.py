"""The suite on the Delta and the file sink whose rows are staged without Spark: quick, and part of `make unit`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from contract.damages import DELTA_DAMAGES, FILE_DAMAGES, MERGE_DAMAGES
from contract.delta_breaks import DELTA_BREAKS
from contract.file_breaks import FILE_BREAKS
from contract.rewritten import COLUMN, ByColumn
from contract.stored import stored_table
from deltalake import DeltaTable
from unit.lightdelta import LightDelta, LightMerge
from unit.lightfiles import LightFiles

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Sink
from onceonly.testing.contract import Rows, SinkContract, Stage, Target
from onceonly.testing.targets import digest_files


@dataclass(frozen=True)
class Delta(Target):
    folder: str

    def sink(self) -> Sink:
        return LightDelta(Path(self.folder))

    def published(self) -> list[int]:
        there = DeltaTable.is_deltatable(self.folder)
        return sorted(DeltaTable(self.folder).to_pyarrow_table()["n"].to_pylist()) if there else []

    def digests(self) -> Mapping[str, str]:
        return stored_table(self.folder)

    def traces(self, txn: Transaction) -> list[Any]:
        return [path for path in Path(self.folder).parent.rglob("*") if txn.name in path.name]


@dataclass(frozen=True)
class Merging(Delta):
    def sink(self) -> Sink:
        return LightMerge(Path(self.folder))

    def digests(self) -> Mapping[str, str]:
        return {}  # a merge may rewrite files


@dataclass(frozen=True)
class Files(Delta):
    shows_each = True

    def sink(self) -> Sink:
        return LightFiles(Path(self.folder))

    def published(self) -> list[int]:
        lines = (line for path in Path(self.folder).glob("*.jsonl") for line in path.read_text().splitlines())
        return sorted(json.loads(line)["n"] for line in lines)

    def digests(self) -> Mapping[str, str]:
        return digest_files(Path(self.folder).glob("*.jsonl"))


class TestDelta(SinkContract):
    breaks = DELTA_BREAKS
    damages = DELTA_DAMAGES

    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return Delta(str(tmp_path / "out"))

    @pytest.fixture
    def make_rows(self) -> Rows:
        return lambda *numbers: numbers


class TestMerging(TestDelta):
    """Each number is the key of a change that is newer than those of earlier epochs."""

    damages = MERGE_DAMAGES

    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return Merging(str(tmp_path / "out"))


@dataclass(frozen=True)
class Named(Delta):
    def sink(self) -> Sink:
        return LightDelta(Path(self.folder), checkpoint_column=COLUMN)


class TestNamed(ByColumn, TestDelta):
    """Each row names the transaction that has published it."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return Named(str(tmp_path / "out"))


class TestFiles(SinkContract):
    breaks = FILE_BREAKS
    damages = FILE_DAMAGES

    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return Files(str(tmp_path / "out"))

    @pytest.mark.parametrize("some", [(1, 2, 3)])
    def test_what_is_staged_can_be_looked_at_here_and_on_spark(
        self, target: Target, stage: Stage, session: Any, some: tuple[int, ...]
    ) -> None:
        """Not of no rows: this stage writes an empty file then, which Spark does not."""
        super().test_what_is_staged_can_be_looked_at_here_and_on_spark(target, stage, session, some)
