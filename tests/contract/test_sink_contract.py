"""Our own sinks, and the fake one, pass the suite that every sink has to pass."""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import pytest
from contract.delta_breaks import DELTA_BREAKS
from contract.fake_breaks import FAKE_BREAKS
from contract.file_breaks import FILE_BREAKS
from contract.kafka_breaks import KAFKA_BREAKS
from contract.state_breaks import STATE_BREAKS
from deltalake import DeltaTable
from integration.readers.kafka_reader import new_topic, until, values
from integration.services.hdfs import Hdfs

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Changes, Sink
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.merge import Merge
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, StateSink
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.files.sink import FileWriter
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sinks.state.sink import DONE, StateWriter
from onceonly.testing import contract
from onceonly.testing.contract import SINK, Rows, SinkContract
from onceonly.testing.fakes import FakeSink


def no_spark() -> Any:
    raise AssertionError("publishing and aborting need no Spark here")


@dataclass(frozen=True)
class Folder(contract.Target):
    """What lies in a folder; its staged rows are beside it, or in it."""

    folder: str

    def traces(self, txn: Transaction) -> list[Any]:
        return [path for path in Path(self.folder).parent.rglob("*") if txn.name in path.name]


@dataclass(frozen=True)
class Fake(Folder):
    def sink(self) -> Sink:
        return FakeSink(SINK, Path(self.folder))

    def published(self) -> list[int]:
        return sorted(row["n"] for row in FakeSink(SINK, Path(self.folder)).rows())


@dataclass(frozen=True)
class Delta(Folder):
    def sink(self) -> Sink:
        return DeltaWriter(DeltaSink(SINK, self.folder), self.folder, no_spark)

    def published(self) -> list[int]:
        return sorted(DeltaTable(self.folder).to_pyarrow_table()["n"].to_pylist())


@dataclass(frozen=True)
class Merging(Delta):
    def sink(self) -> Sink:
        merge = Merge(keys=["n"], order_by=["at"], deletes="gone")
        return DeltaWriter(DeltaSink(SINK, self.folder, merge=merge), self.folder, no_spark)


@dataclass(frozen=True)
class Files(Folder):
    shows_each = True

    def sink(self) -> Sink:
        return FileWriter(FileSink(SINK, self.folder), self.folder)

    def published(self) -> list[int]:
        there = any(Path(self.folder).glob("*.parquet"))
        return sorted(pandas.read_parquet(self.folder)["n"].to_list()) if there else []


@dataclass(frozen=True)
class FilesOnHdfs(contract.Target):
    folder: str
    hdfs: Hdfs

    shows_each = True

    def sink(self) -> Sink:
        return FileWriter(FileSink(SINK, self.folder), self.folder, self.hdfs.webhdfs)

    def published(self) -> list[int]:
        shown = self.hdfs.fs.glob(f"{self.folder.removeprefix(self.hdfs.root)}/*.parquet")
        return sorted(n for path in shown for n in pandas.read_parquet(self.hdfs.fs.open(path))["n"])

    def traces(self, txn: Transaction) -> list[Any]:
        return [path for path in self.hdfs.files(self.folder.rpartition("/")[0]) if txn.name in path]


@dataclass(frozen=True)
class State(Folder):
    shows_each = True
    is_atomic = False  # the row in the state table publishes it, and there the two exclude each other

    def sink(self) -> Sink:
        return StateWriter(StateSink(SINK, schema="n INT", key=["n"]), self.folder)

    def published(self) -> list[int]:
        runs = (run for done in Path(self.folder).glob(f"*/{DONE}") for run in done.parent.glob("*/*.parquet"))
        return sorted(n for run in runs for n in pandas.read_parquet(run)["n"])


@dataclass(frozen=True)
class Topic(Folder):
    bootstrap: str
    topic: str
    late: bool
    sink_bootstrap: str = ""  # if its connection leads elsewhere

    shows_decisions = False  # the marker that ends a transaction is that transaction's own, and has no number
    shows_each = True
    tells_first = False  # of several that end one transaction at once each is told that it did
    is_atomic = False  # each Spark task's transaction ends by itself: some may be committed and others fenced

    def sink(self) -> Sink:
        config = KafkaSink(name=SINK, topic=self.topic)
        connection = KafkaConnection.plaintext(self.sink_bootstrap or self.bootstrap)
        return KafkaWriter(config, connection, self.late, self.folder, Path(self.folder))

    def published(self) -> list[int]:
        until(lambda: not self._ending(), what="the end of every transaction that is being ended")
        return sorted(int(value or b"") for value in values(self.bootstrap, self.topic))

    def traces(self, txn: Transaction) -> list[Any]:
        """Its spool, and what is open at the broker."""
        with Transactions({"bootstrap_servers": self.bootstrap}) as known:
            return [*super().traces(txn), *known.open(f".*{txn.name}.*")]

    def _ending(self) -> list[str]:
        """Transactions of which the markers are being written into this topic."""
        with Transactions({"bootstrap_servers": self.bootstrap}) as known:
            described = known.describe(known.open(".*"))
        here = {id: seen for id, seen in described.items() if any(topic == self.topic for topic, _ in seen.partitions)}
        return [id for id, seen in here.items() if seen.state != "Ongoing"]


class TestFake(SinkContract):
    breaks = FAKE_BREAKS

    @pytest.fixture
    def target(self, tmp_path: Path) -> contract.Target:
        return Fake(str(tmp_path / "out"))


class OnSpark(SinkContract):
    @pytest.fixture
    def session(self, spark: Any) -> Any:
        return spark

    @pytest.fixture
    def make_rows(self, session: Any) -> Rows:
        return lambda *numbers: session.createDataFrame([(number,) for number in numbers], "n INT")


@pytest.mark.integration
class TestDelta(OnSpark):
    breaks = DELTA_BREAKS

    @pytest.fixture
    def target(self, tmp_path: Path) -> contract.Target:
        return Delta(str(tmp_path / "out"))


@pytest.mark.integration
class TestMerging(OnSpark):
    breaks = DELTA_BREAKS

    """Each number is a key; all changes are of one order, so only the first one of a key counts."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> contract.Target:
        return Merging(str(tmp_path / "out"))

    @pytest.fixture
    def make_rows(self, session: Any) -> Rows:
        def make(*numbers: int) -> Any:
            rows = session.createDataFrame([(number,) for number in numbers], "n INT")
            return rows.selectExpr("n", "1 AS at", "false AS gone")

        return make


@pytest.mark.integration
class TestFiles(OnSpark):
    breaks = FILE_BREAKS

    @pytest.fixture
    def target(self, tmp_path: Path) -> contract.Target:
        return Files(str(tmp_path / "out"))


@pytest.mark.integration
class TestFilesOnHdfs(OnSpark):
    breaks = FILE_BREAKS

    @pytest.fixture
    def target(self, hdfs: Hdfs) -> contract.Target:
        return FilesOnHdfs(f"{hdfs.root}/{uuid.uuid4().hex}/out", hdfs)


@pytest.mark.integration
class TestState(OnSpark):
    breaks = STATE_BREAKS

    @pytest.fixture
    def target(self, tmp_path: Path) -> contract.Target:
        return State(str(tmp_path / "out"))

    @pytest.fixture
    def make_rows(self, session: Any) -> Rows:
        return lambda *numbers: Changes(session.createDataFrame([(number,) for number in numbers], "n INT"), None)


@pytest.mark.integration
@pytest.mark.parametrize("late", [False, True], ids=["staged", "late"])
class TestKafka(OnSpark):
    breaks = KAFKA_BREAKS

    @pytest.fixture
    def target(self, tmp_path: Path, broker: str, late: bool) -> contract.Target:
        return Topic(str(tmp_path / "out"), broker, new_topic(broker, partitions=3), late)

    @pytest.fixture
    def make_rows(self, session: Any) -> Rows:
        def make(*numbers: int) -> Any:
            rows = session.createDataFrame([(number,) for number in numbers], "n INT")
            return rows.selectExpr("CAST(n AS STRING) AS value")

        return make
