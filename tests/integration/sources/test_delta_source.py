"""Delta tables as sources, written by deltalake and by Spark, read by Spark: exactly the pinned range."""

from __future__ import annotations

import os
import time
from datetime import date, datetime
from decimal import Decimal
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from unit.versions import FEED, Table

from onceonly.checkpoint.offsets import TopicRange
from onceonly.errors import SourceLost

pytestmark = pytest.mark.integration


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def rows(table: Table, spark: Any, range_: TopicRange, **options: Any) -> list[dict[str, Any]]:
    reader = table.reader(**options)
    reader.verify((range_,))
    found = [row.asDict() for row in reader.read(spark, (range_,)).collect()]
    reader.verify((range_,))
    return sorted(found, key=lambda row: (row["n"], str(row)))


def numbers(table: Table, spark: Any, range_: TopicRange) -> list[int]:
    return [row["n"] for row in rows(table, spark, range_)]


def test_a_range_holds_what_its_versions_added_whatever_is_written_beside_it(table: Table, spark: Any) -> None:
    """Also days whose folders have other names, files that are compacted, and columns that are new."""
    table.write(1, 2)
    table.write(3, day="a b/ü%={*}")
    pinned = table.range(1, 2)
    table.write(4, day="c")
    table.now.optimize.compact()
    assert rows(table, spark, pinned) == [{"n": 3, "day": "a b/ü%={*}"}]
    columns = pa.schema([("n", pa.int64()), ("day", pa.string()), ("more", pa.string())])
    table.add(pa.table({"n": [5], "day": [None], "more": ["x"]}, columns))
    table.write(6, 7, day="c")
    assert rows(table, spark, table.range(1, table.end)) == [
        {"n": 3, "day": "a b/ü%={*}", "more": None},
        {"n": 4, "day": "c", "more": None},
        {"n": 5, "day": None, "more": "x"},
        {"n": 6, "day": "c", "more": None},
        {"n": 7, "day": "c", "more": None},
    ]
    assert rows(table, spark, pinned) == [{"n": 3, "day": "a b/ü%={*}"}]  # with the columns of its own end


def test_the_first_range_is_the_whole_table_as_it_is_then(table: Table, spark: Any) -> None:
    """Also where rows were deleted, and where the log no longer reaches back to the beginning."""
    table.write(1, 2, 3)
    table.write(4, 5, day="tue")
    table.now.delete("n = 2")
    table.now.create_checkpoint()
    for version in (0, 1):
        table.entry(version).unlink()
    first = table.pin()
    assert first.partitions == {0: (0, 3)}
    table.write(6)
    assert numbers(table, spark, first) == [1, 3, 4, 5]
    assert numbers(table, spark, table.range(3, 4)) == [6]
    assert numbers(table, spark, table.range(4, 4)) == []


def test_versions_older_than_a_week_are_read_while_their_files_exist(table: Table, spark: Any) -> None:
    """Delta refuses them by their age: the whole table as of then, and its Change Data Feed."""
    table.write(1, configuration=FEED)
    for n in (2, 3, 4):
        table.write(n)
    for version in range(4):
        moment = time.time() - (40 - 10 * version) * 86_400
        os.utime(table.entry(version), (moment, moment))
    assert numbers(table, spark, table.range(0, 2)) == [1, 2]
    assert [row["n"] for row in rows(table, spark, table.range(1, 2), changes=True)] == [2]
    setting = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
    assert spark.conf.get(setting, None) in (None, "true"), "it is switched off for that read alone"


def test_partition_columns_have_the_types_of_the_table(table: Table, spark: Any) -> None:
    """Written by Spark; what is appended is what Delta itself would read."""
    made = (
        "SELECT id AS n, CAST(id AS STRING) AS day, DATE'2024-01-01' + CAST(id AS INT) AS date, "
        "TIMESTAMP'2024-01-01 12:34:56.789' AS at, CAST(id AS DECIMAL(9, 2)) / 4 AS price, id = 1 AS first, "
        "named_struct('x', array(id), 'y', map('k', TIMESTAMP_NTZ'2024-01-01 00:00:00')) AS parts "
        "FROM range({}, {})"
    )
    for start in (0, 2):
        frame = spark.sql(made.format(start, start + 2)).coalesce(1)
        writer = frame.write.format("delta").mode("append")
        writer.partitionBy("date", "at", "price", "first").save(table.uri)
    whole, later = table.pin(), table.range(1, 2)
    every = rows(table, spark, whole)
    assert rows(table, spark, later) == every[2:]
    assert [(row["n"], row["date"], row["first"]) for row in every[:2]] == [
        (0, date(2024, 1, 1), False),
        (1, date(2024, 1, 2), True),
    ]
    assert (every[3]["at"], every[3]["price"]) == (datetime(2024, 1, 1, 12, 34, 56, 789000), Decimal("0.75"))


def test_changes_are_read_by_the_change_data_feed(table: Table, spark: Any) -> None:
    """From the whole table, as inserted, through deletions and updates, with the columns of the range's end."""
    table.write(1, 2, 3, configuration=FEED)
    first = table.pin(changes=True)
    table.now.delete("n = 2")
    spark.sql(f"UPDATE delta.`{table.uri}` SET n = 30 WHERE n = 3").collect()
    more = table.range(1, 3, changes=True)
    columns = pa.schema([("n", pa.int64()), ("day", pa.string()), ("more", pa.string())])
    table.add(pa.table({"n": [5], "day": ["tue"], "more": ["x"]}, columns))
    whole = rows(table, spark, first, changes=True)
    assert [(row["n"], row["_change_type"], row["_commit_version"]) for row in whole] == [
        (n, "insert", 0) for n in (1, 2, 3)
    ]
    found = rows(table, spark, more, changes=True)
    assert list(found[0]) == ["n", "day", "_change_type", "_commit_version", "_commit_timestamp"]
    assert [type(row["_commit_timestamp"]) for row in (whole[0], found[0])] == [datetime, datetime]
    assert [(row["n"], row["_change_type"], row["_commit_version"]) for row in found] == [
        (2, "delete", 1),
        (3, "update_preimage", 2),
        (30, "update_postimage", 2),
    ]


WRITERS = ["delta-rs", pytest.param("spark", marks=pytest.mark.heavy), "spark with deletion vectors"]


@pytest.mark.parametrize("writer", WRITERS)
def test_each_row_comes_once_however_deletions_lie_in_the_ranges(table: Table, spark: Any, writer: str) -> None:
    """Whatever the ranges are: a deletion is before, between or after what they add, and of rows or of whole files."""
    vectors = str(writer == "spark with deletion vectors").lower()
    if writer == "delta-rs":
        table.write(0)
    else:
        properties = f"'delta.enableDeletionVectors' = '{vectors}'"
        columns = "(n LONG, day STRING) USING delta PARTITIONED BY (day)"
        spark.sql(f"CREATE TABLE delta.`{table.uri}` {columns} TBLPROPERTIES ({properties})").collect()

    def delete(condition: str) -> None:
        if writer == "delta-rs":
            table.now.delete(condition)
        else:
            spark.sql(f"DELETE FROM delta.`{table.uri}` WHERE {condition}").collect()

    table.add_by(spark, writer, 1, 2, 3)
    delete("n = 2")
    table.add_by(spark, writer, 4, 5, 6)
    delete("n IN (1, 5)")
    table.add_by(spark, writer, 7, day="tue")
    delete("day = 'tue'")
    table.add_by(spark, writer, 8)
    assert table.end == 8
    numbers_by_range: dict[tuple[int, int], list[int]] = {}
    for start, end in combinations(range(2, table.end + 1), 2):
        pinned = table.range(start, end, ignore_deletes=True)
        numbers_by_range[start, end] = [row["n"] for row in rows(table, spark, pinned, ignore_deletes=True)]
    for count in range(table.end - 2):
        for cuts in combinations(range(3, table.end), count):
            ends = [2, *cuts, table.end]
            found = [n for pair in pairwise(ends) for n in numbers_by_range[pair]]
            assert found == [4, 5, 6, 7, 8], cuts
    has_vectors = any("deletionVector" in action.get("add", {}) for action in table.actions(4))
    assert has_vectors == (vectors == "true")


def test_files_that_vanish_while_they_are_read_are_lost_and_not_left_out(table: Table, spark: Any) -> None:
    table.write(1)
    table.write(2)
    pinned, whole = table.range(1, 2), table.pin()
    for range_ in (pinned, whole):
        reader = table.reader()
        reader.verify((range_,))
        found = reader.read(spark, (range_,))
        for file in DeltaTable(table.uri).file_uris():
            Path(file).rename(f"{file}.gone")
        with pytest.raises(Exception, match=r"FILE|file") as failed:
            found.collect()
        assert isinstance(reader.diagnose(failed.value, spark, (range_,)), SourceLost)
        for file in DeltaTable(table.uri).file_uris():
            Path(f"{file}.gone").rename(file)
