"""Sinks of files, of state and the fake one pass the suite that every sink has to pass."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import pytest
from contract.damages import FAKE_DAMAGES, STATE_DAMAGES
from contract.fake_breaks import FAKE_BREAKS
from contract.file_breaks import FILE_BREAKS
from contract.parts import BROKEN_ON_SPARK, WRITTEN_BY_SPARK
from contract.spark_rows import Folder, OnSpark
from contract.state_breaks import STATE_BREAKS
from contract.stored import digest
from integration.services.hdfs import Hdfs

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Changes, Sink
from onceonly.pipeline.sinks import FileSink, StateSink
from onceonly.sinks.files.sink import FileWriter
from onceonly.sinks.state.sink import DONE, StateWriter
from onceonly.testing import contract
from onceonly.testing.contract import SINK, Rows, SinkContract
from onceonly.testing.fakes import FakeSink
from onceonly.testing.targets import digest_files


@dataclass(frozen=True)
class Fake(Folder):
    def sink(self) -> Sink:
        return FakeSink(SINK, Path(self.folder))

    def published(self) -> list[int]:
        return sorted(row["n"] for row in FakeSink(SINK, Path(self.folder)).rows())

    def digests(self) -> Mapping[str, str]:
        entries = FakeSink(SINK, Path(self.folder)).entries()
        return {entry["txn"]: digest(json.dumps(entry).encode()) for entry in entries}


@dataclass(frozen=True)
class Files(Folder):
    shows_each = True

    def sink(self) -> Sink:
        return FileWriter(FileSink(SINK, self.folder), self.folder)

    def published(self) -> list[int]:
        there = any(Path(self.folder).glob("*.parquet"))
        return sorted(pandas.read_parquet(self.folder)["n"].to_list()) if there else []

    def digests(self) -> Mapping[str, str]:
        return digest_files(Path(self.folder).glob("*.parquet"))


@dataclass(frozen=True)
class FilesOnHdfs(contract.Target):
    folder: str
    hdfs: Hdfs

    shows_each = True

    def sink(self) -> Sink:
        return FileWriter(FileSink(SINK, self.folder), self.folder, self.hdfs.webhdfs)

    def published(self) -> list[int]:
        return sorted(n for path in self._shown() for n in pandas.read_parquet(self.hdfs.fs.open(path))["n"])

    def digests(self) -> Mapping[str, str]:
        return {path: digest(self.hdfs.fs.cat_file(path)) for path in self._shown()}

    def _shown(self) -> list[str]:
        return list(self.hdfs.fs.glob(f"{self.folder.removeprefix(self.hdfs.root)}/*.parquet"))

    def traces(self, txn: Transaction) -> list[Any]:
        return [path for path in self.hdfs.files(self.folder.rpartition("/")[0]) if txn.name in path]


@dataclass(frozen=True)
class State(Folder):
    shows_each = True
    is_atomic = False  # the row in the state table publishes it, and there the two exclude each other
    is_repairable = False

    def sink(self) -> Sink:
        return StateWriter(StateSink(SINK, schema="n INT", key=["n"]), self.folder)

    def published(self) -> list[int]:
        runs = (run for done in Path(self.folder).glob(f"*/{DONE}") for run in done.parent.glob("*/*.parquet"))
        return sorted(n for run in runs for n in pandas.read_parquet(run)["n"])


class TestFake(SinkContract):
    breaks = FAKE_BREAKS
    damages = FAKE_DAMAGES

    @pytest.fixture
    def target(self, tmp_path: Path) -> contract.Target:
        return Fake(str(tmp_path / "out"))


@pytest.mark.integration
class TestFiles(OnSpark):
    breaks = FILE_BREAKS
    part = BROKEN_ON_SPARK

    @pytest.fixture
    def target(self, tmp_path: Path) -> contract.Target:
        return Files(str(tmp_path / "out"))


@pytest.mark.integration
class TestFilesOnHdfs(OnSpark):
    breaks = FILE_BREAKS
    part = WRITTEN_BY_SPARK | {"test_two_pipelines_into_one_target_do_not_disturb_each_other"}

    @pytest.fixture
    def target(self, hdfs: Hdfs) -> contract.Target:
        return FilesOnHdfs(f"{hdfs.root}/{uuid.uuid4().hex}/out", hdfs)


@pytest.mark.integration
class TestState(OnSpark):
    breaks = STATE_BREAKS
    damages = STATE_DAMAGES

    @pytest.fixture
    def target(self, tmp_path: Path) -> contract.Target:
        return State(str(tmp_path / "out"))

    @pytest.fixture
    def make_rows(self, session: Any) -> Rows:
        return lambda *numbers: Changes(session.createDataFrame([(number,) for number in numbers], "n INT"), None)
