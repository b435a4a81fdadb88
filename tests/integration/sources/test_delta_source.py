"""Delta tables as sources, written by deltalake and by Spark: what is pinned, what is read, what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from onceonly.checkpoint.offsets import DELTA, Interval, TopicRange
from onceonly.coordinator.pins import Pins
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.tables import DeltaSource
from onceonly.sources.delta import DeltaReader
from onceonly.statetable.table import StateTable

pytestmark = pytest.mark.integration
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
FEED = {"delta.enableChangeDataFeed": "true"}


class Table:
    """A table of numbers and days, and a pipeline that reads it."""

    def __init__(self, folder: Path) -> None:
        self.uri = str(folder / "orders")
        self.state = StateTable.make(str(folder / "state"))

    def write(self, *numbers: int, day: str = "mon", **options: Any) -> None:
        rows = pa.table({"n": pa.array(numbers, pa.int64()), "day": [day] * len(numbers)})
        write_deltalake(
            self.uri, rows, **{"mode": "append", "partition_by": ["day"], "schema_mode": "merge", **options}
        )

    def reader(self, **options: Any) -> DeltaReader:
        return DeltaReader(DeltaSource(self.uri, **options), self.uri)

    def pin(self, interval: Interval | None = None, **options: Any) -> TopicRange:
        """The range that the next checkpoint of a pipeline would pin."""
        mode = "interval" if interval else "chained"
        source = DeltaSource(self.uri, **options)
        pipeline = Pipeline(name="p", source=source, transform="jobs:f", sinks=[DeltaSink("x", "x")], mode=mode)
        pins = Pins(pipeline, self.reader(**options), source, interval)
        return pins.range(self.state.view("p"))

    def range(self, start: int, end: int) -> TopicRange:
        table_id = str(DeltaTable(self.uri).metadata().id)
        return self.reader().marked(TopicRange("orders", table_id, {0: (start, end)}, DELTA), None)

    def entry(self, version: int) -> Path:
        return Path(self.uri, "_delta_log", f"{version:020}.json")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def rows(table: Table, spark: Any, range_: TopicRange, **options: Any) -> list[dict[str, Any]]:
    reader = table.reader(**options)
    reader.verify((range_,))
    found = reader.read(spark, (range_,))
    return sorted((row.asDict() for row in found.collect()), key=lambda row: (row["n"], str(row)))


def numbers(table: Table, spark: Any, range_: TopicRange, **options: Any) -> list[int]:
    return [row["n"] for row in rows(table, spark, range_, **options)]


def test_a_range_holds_what_its_versions_added_whatever_is_written_beside_it(table: Table, spark: Any) -> None:
    """Also days with names that are no names of folders, files that are compacted, and columns that are new."""
    table.write(1, 2)
    table.write(3, day="a b/ü%=")
    pinned = table.range(1, 2)
    table.write(4, day="c")
    DeltaTable(table.uri).optimize.compact()
    assert rows(table, spark, pinned) == [{"n": 3, "day": "a b/ü%="}]
    more = pa.table(
        {"n": [5], "day": [None], "more": ["x"]},
        pa.schema([("n", pa.int64()), ("day", pa.string()), ("more", pa.string())]),
    )
    write_deltalake(table.uri, more, mode="append", schema_mode="merge")
    table.write(6, 7, day="c")
    end = DeltaTable(table.uri).version() + 1
    assert rows(table, spark, table.range(1, end)) == [
        {"n": 3, "day": "a b/ü%=", "more": None},
        {"n": 4, "day": "c", "more": None},
        {"n": 5, "day": None, "more": "x"},
        {"n": 6, "day": "c", "more": None},
        {"n": 7, "day": "c", "more": None},
    ]
    assert rows(table, spark, pinned) == [{"n": 3, "day": "a b/ü%="}]  # with the columns of its own end


def test_the_first_range_is_the_whole_table_as_it_is_then(table: Table, spark: Any) -> None:
    """Also where rows were deleted, and where the log no longer reaches back to the beginning."""
    table.write(1, 2, 3)
    table.write(4, 5, day="tue")
    DeltaTable(table.uri).delete("n = 2")
    DeltaTable(table.uri).create_checkpoint()
    for version in (0, 1):
        table.entry(version).unlink()
    first = table.pin()
    assert (first.partitions, first.kind) == ({0: (0, 3)}, "delta")
    table.write(6)
    assert numbers(table, spark, first) == [1, 3, 4, 5]
    assert numbers(table, spark, table.range(3, 4)) == [6]
