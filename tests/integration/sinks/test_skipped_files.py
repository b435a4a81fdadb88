"""A cluster that is set to skip files that it cannot read loses no row: each read fails, and nothing is published."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from unit.versions import FEED, Table

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.offsets import FILES, TopicRange
from onceonly.checkpoint.sink import Changes, Sink
from onceonly.errors import OnceonlyError
from onceonly.gate.inspector import LiveInspector
from onceonly.pipeline import definition
from onceonly.pipeline.sinks import DeltaSink, FileSink, StateSink
from onceonly.pipeline.sources import DeltaSource, FileSource, KafkaSource
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.files.sink import FileWriter
from onceonly.sinks.state.sink import StateWriter
from onceonly.sources.files import FileReader
from onceonly.spark.row_files import SKIPPING_SETTINGS
from onceonly.testing.fakes import FakeReceipts

pytestmark = pytest.mark.integration
NEVER: Any = None  # the handles of these sinks are never replaced
ROWS = 10
REFUSALS = (OnceonlyError, PySparkException, Py4JJavaError)
FORMATS = get_args(get_type_hints(FileSink)["format"])
SUFFIXES = {".parquet", ".json", ".jsonl", ".csv", ".avro"}
PY4J = "An error occurred while calling"  # o72.save: which tells nobody anything


@dataclass(frozen=True)
class Case:
    """Staged rows, and what reads them with Spark."""

    folder: Path  # in which they are
    read: Callable[[], Any]


@pytest.fixture(params=SKIPPING_SETTINGS)
def skipping(spark: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A session that skips files, and how its files are spoiled."""
    before = {setting: spark.conf.get(setting) for setting in SKIPPING_SETTINGS}
    spark.conf.set(request.param, "true")
    yield spoil if "Corrupt" in request.param else Path.unlink
    for setting, value in before.items():
        spark.conf.set(setting, value)


def spoil(path: Path) -> None:
    """Damage a file so that every check of sizes passes."""
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(len(data) - 8) + data[-4:])


def txn(sink: str) -> Transaction:
    return Transaction("5e1f" * 8, "flights", sink, 1, 1, "00010001" + "0000")


def rows(spark: Any) -> Any:
    return spark.range(0, ROWS, 1, 2).selectExpr("id AS n")


def examined(sink: Sink, handle: Handle, spark: Any) -> Callable[[], Any]:
    """What a gate does with them before it asks Great Expectations."""
    pipeline: Any = SimpleNamespace(gate=SimpleNamespace(in_process_rows=0))
    inspector = LiveInspector(pipeline, lambda name: sink, Path(), "", lambda: spark)
    staged: Any = SimpleNamespace(handles={sink.name: handle})
    suite: Any = None
    return lambda: inspector._subject(staged, sink.name, suite).rows._frame.collect()


def published_through_spark(spark: Any, folder: Path) -> Case:
    uri = str(folder)
    spark.sql(f"CREATE TABLE delta.`{uri}` (n BIGINT) USING delta TBLPROPERTIES ('delta.columnMapping.mode'='name')")
    sink = DeltaWriter(DeltaSink("lake", uri), uri, lambda: spark)
    handle = sink.stage(txn("lake"), rows(spark))
    return Case(folder / handle["folder"], lambda: sink.commit(handle, 1, NEVER))


def state(spark: Any, folder: Path) -> Case:
    sink = StateWriter(StateSink("totals", schema="n BIGINT, v BIGINT", key=["n"]), str(folder))
    handle = sink.stage(txn("totals"), Changes(rows(spark).selectExpr("n", "n AS v"), None))
    sink.commit(handle, 1, NEVER)
    return Case(folder, lambda: sink.read(spark, handle).collect())


def gate_of_delta(spark: Any, folder: Path) -> Case:
    sink = DeltaWriter(DeltaSink("lake", str(folder)), str(folder), lambda: spark)
    handle = sink.stage(txn("lake"), rows(spark))
    return Case(folder / handle["folder"], examined(sink, handle, spark))


def gate_of_files(spark: Any, folder: Path) -> Case:
    sink = FileWriter(FileSink("lake", path=str(folder)), str(folder))
    handle = sink.stage(txn("lake"), rows(spark))
    return Case(Path(handle["folder"]), examined(sink, handle, spark))


# ---- sources


def frames(source: Any, spark: Any, *ranges: TopicRange) -> Callable[[], Any]:
    return lambda: [source.read(spark, (range_,)).collect() for range_ in ranges]


def table_versions(spark: Any, folder: Path) -> Case:
    table = Table(folder)
    table.write(1)
    table.write(2, 3)
    return Case(Path(table.uri), frames(table.reader(), spark, table.range(0, 1), table.range(1, 2)))


def whole_table(spark: Any, folder: Path) -> Case:
    table = Table(folder)
    table.write(1)
    table.write(2, 3)
    return Case(Path(table.uri), frames(table.reader(), spark, table.pin()))


def table_changes(spark: Any, folder: Path) -> Case:
    table = Table(folder)
    table.write(1, configuration=FEED)
    table.write(2, 3)
    pinned = table.pin(changes=True), table.range(1, 2, changes=True)
    return Case(Path(table.uri), frames(table.reader(changes=True), spark, *pinned))


def file_sink(folder: Path, format: Any) -> FileWriter:
    return FileWriter(FileSink("lake", str(folder), format=format), str(folder))


def files_of(format: str) -> Callable[[Any, Path], Case]:
    def files(spark: Any, folder: Path) -> Case:
        sink, lake = file_sink(folder, format), str(folder)
        sink.commit(sink.stage(txn("lake"), rows(spark)), 1, FakeReceipts(folder.with_name("receipts")))
        reader = FileReader(FileSource(lake, name="orders"), lake)
        wanted = TopicRange("orders", f"{'5e1f' * 8}-flights-lake", {0: (1, 2)}, FILES)
        return Case(folder, frames(reader, spark, reader.add_mark(wanted, None)))

    files.__name__ = f"files_of_{format}"
    return files


SOURCES: dict[str, list[Callable[[Any, Path], Case]]] = {
    DeltaSource.kind: [table_versions, whole_table, table_changes],
    FileSource.kind: [files_of(format) for format in FORMATS],
}


def test_every_source_of_files_is_tried() -> None:
    assert set(SOURCES) == set(definition.SOURCES) - {KafkaSource.kind}


@pytest.mark.parametrize("of", [case for cases in SOURCES.values() for case in cases])
def test_no_row_of_a_source_is_skipped(
    spark: Any, skipping: Any, tmp_path: Path, of: Callable[[Any, Path], Case]
) -> None:
    case = of(spark, tmp_path / "lake")
    skipping(data_file(case.folder))
    with pytest.raises(REFUSALS):
        case.read()


@pytest.mark.parametrize("format", ["csv", "json"])
def test_malformed_row_is_not_dropped(spark: Any, tmp_path: Path, format: str) -> None:
    """Of a text file that can be read: as a source, and as what a gate examines on Spark."""
    source = files_of(format)(spark, tmp_path / "lake")
    sink = file_sink(tmp_path / "staged", format)
    handle = sink.stage(txn("lake"), rows(spark))
    gate = Case(Path(handle["folder"]), examined(sink, handle, spark))
    for case in (source, gate):
        path = data_file(case.folder)
        path.write_text(path.read_text() + "not a number\n")
        with pytest.raises(REFUSALS):
            case.read()


def data_file(folder: Path) -> Path:
    names = [path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES and path.is_file()]
    return next(path for path in names if not path.parent.name.startswith("_"))


# ---- what is staged


@pytest.mark.parametrize("of", [published_through_spark, state, gate_of_delta, gate_of_files])
def test_no_row_is_skipped(spark: Any, skipping: Any, tmp_path: Path, of: Callable[[Any, Path], Case]) -> None:
    case = of(spark, tmp_path / "lake")
    skipping(sorted(case.folder.rglob("*.parquet"))[0])
    with pytest.raises(REFUSALS) as refused:
        case.read()
    assert not isinstance(refused.value, OnceonlyError) or PY4J not in str(refused.value)

    if of is published_through_spark:
        assert spark.read.format("delta").load(str(tmp_path / "lake")).count() == 0
