"""Rows that Spark stages: every type, every transform, sorted, and what readers find in them."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from codes import raises
from iceberg_tables import TABLE, create_table, open_catalog, sql_properties
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.errors import InvalidPipeline
from onceonly.testing.contract import SINK
from onceonly_iceberg import IcebergSink
from onceonly_iceberg.catalogs import TableOpener
from onceonly_iceberg.sink import IcebergWriter

pytestmark = pytest.mark.integration

TIMES = [
    dt.datetime(2013, 1, 1, 5),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    None,
    dt.datetime(2013, 1, 1, 6),
    dt.datetime(2014, 2, 1),
]
DAYS = [dt.date(2013, 1, 1), dt.date(1969, 12, 31), None, dt.date(1, 1, 1), dt.date(2013, 1, 2)]
SMALL = [Decimal("1.28"), Decimal("-1.28"), None, Decimal("0.00"), Decimal("9.99")]
LARGE = [Decimal("1.280"), Decimal("-10000000000000000000000000.000"), None, Decimal("0.000"), Decimal("1.281")]
COLUMNS = (
    ("i", IntegerType(), "INT", [1, -5, None, 2**31 - 1, 1]),
    ("l", LongType(), "BIGINT", [2**60 + 1, -7, None, 0, 2**60 + 2]),
    ("f", FloatType(), "FLOAT", [1.5, float("nan"), None, -0.0, 1.5]),
    ("d", DoubleType(), "DOUBLE", [1e300, float("-inf"), None, 0.0, 2.5]),
    ("b", BooleanType(), "BOOLEAN", [True, False, None, True, True]),
    ("small", DecimalType(7, 2), "DECIMAL(7,2)", SMALL),
    ("large", DecimalType(30, 3), "DECIMAL(30,3)", LARGE),
    ("day", DateType(), "DATE", DAYS),
    ("t", TimestampType(), "TIMESTAMP_NTZ", TIMES),
    ("z", TimestamptzType(), "TIMESTAMP", [time and time.replace(tzinfo=dt.UTC) for time in TIMES]),
    ("s", StringType(), "STRING", ["New York", "", None, "a/b=c%ü", "null"]),
    ("x", BinaryType(), "BINARY", [b"\x00\xff", b"", None, b"abc", b"abcd"]),
)
SCHEMA = Schema(*(NestedField(n, name, kind, required=False) for n, (name, kind, _, _) in enumerate(COLUMNS, 1)))
IDS = {name: number for number, (name, *_) in enumerate(COLUMNS, 1)}
DDL = ", ".join(f"{name} {ddl}" for name, _, ddl, _ in COLUMNS)
ROWS = list(zip(*(values for *_, values in COLUMNS), strict=True))
TRANSFORMS: list[tuple[str, Transform[Any, Any]]] = [
    *((name, IdentityTransform()) for name in ("i", "l", "b", "small", "large", "day", "t", "z", "s", "x")),
    *((name, BucketTransform(4)) for name in ("i", "l", "small", "large", "day", "t", "z", "s", "x")),
    *((name, TruncateTransform(3)) for name in ("i", "l", "small", "large", "s")),
    *((name, kind) for name in ("day", "t", "z") for kind in (YearTransform(), MonthTransform(), DayTransform())),
    *((name, HourTransform()) for name in ("t", "z")),
]


def make_sink(folder: Path) -> IcebergWriter:
    config = IcebergSink(SINK, TABLE, properties=sql_properties(str(folder)))
    return IcebergWriter(config, TableOpener(config, config.properties))


def publish(folder: Path, rows: Any, epoch: int = 1) -> Handle:
    txn = Transaction("ab", "flights", SINK, epoch, 1, f"{epoch:04x}00010000")
    handle: Handle = json.loads(json.dumps(make_sink(folder).stage(txn, rows)))
    sink = make_sink(folder)
    sink.commit(sink.rehearse(handle, epoch), epoch, None)  # type: ignore[arg-type]
    return handle


def read(folder: Path) -> Table:
    table: Table = open_catalog(str(folder)).load_table(TABLE)
    return table


def as_text(rows: list[Any]) -> list[str]:
    """Return rows so that NaN is equal to itself."""
    return sorted(repr(row).replace("<UTC>", "datetime.timezone.utc") for row in rows)


def spec_by(*parts: tuple[str, Transform[Any, Any]]) -> PartitionSpec:
    fields = []
    for number, (name, transform) in enumerate(parts):
        fields.append(PartitionField(IDS[name], 1000 + number, transform, f"{name}_part{number}"))
    return PartitionSpec(*fields)


def test_rows_of_every_type_are_the_same(spark: Any, tmp_path: Path) -> None:
    create_table(tmp_path, SCHEMA)
    publish(tmp_path, spark.createDataFrame(ROWS, DDL))
    rows = read(tmp_path).scan().to_arrow()
    assert as_text([tuple(row.values()) for row in rows.to_pylist()]) == as_text([tuple(row) for row in ROWS])


@pytest.mark.parametrize(
    ("name", "transform"), TRANSFORMS, ids=[f"{transform}-{name}" for name, transform in TRANSFORMS]
)
def test_partitions_are_those_of_iceberg(spark: Any, tmp_path: Path, name: str, transform: Transform[Any, Any]) -> None:
    """Each row is in the partition that PyIceberg computes for it."""
    create_table(tmp_path, SCHEMA, spec_by((name, transform)))
    publish(tmp_path, spark.createDataFrame(ROWS, DDL))
    table, position = read(tmp_path), IDS[name] - 1
    kind = COLUMNS[position][1]
    compute = transform.transform(kind)
    rows = 0
    for task in table.scan().plan_files():
        path = task.file.file_path.removeprefix("file://")
        for value in pq.ParquetFile(path).read()[name].to_pylist():
            rows += 1
            assert task.file.partition[0] == compute(internal(value))
    assert rows == len(ROWS)
    values = COLUMNS[position][3]
    for value in values:
        assert table.scan(row_filter=equal_to(name, value)).to_arrow().num_rows == values.count(value)


def internal(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=None) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    return (value - dt.date(1970, 1, 1)).days if isinstance(value, dt.date) else value


def equal_to(name: str, value: Any) -> Any:
    from pyiceberg.expressions import EqualTo, IsNull

    if value is None:
        return IsNull(name)
    if isinstance(value, dt.datetime | dt.date):
        return EqualTo(name, value.isoformat())
    return EqualTo(name, value)


def test_several_partition_fields(spark: Any, tmp_path: Path) -> None:
    spec = spec_by(("l", BucketTransform(3)), ("t", DayTransform()), ("s", IdentityTransform()))
    create_table(tmp_path, SCHEMA, spec)
    publish(tmp_path, spark.createDataFrame(ROWS, DDL))
    assert as_text(read(tmp_path).scan().to_arrow()["l"].to_pylist()) == as_text([row[1] for row in ROWS])


def test_files_are_sorted_and_say_so(spark: Any, tmp_path: Path) -> None:
    order = SortOrder(SortField(IDS["l"], IdentityTransform()), order_id=1)
    create_table(tmp_path, SCHEMA, spec_by(("b", IdentityTransform())), order)
    publish(tmp_path, spark.range(1000).selectExpr("(id * 7919) % 1000 AS l", "id % 2 = 0 AS b"))
    files = list(read(tmp_path).scan().plan_files())
    assert len(files) == 2
    for task in files:
        numbers = pq.ParquetFile(task.file.file_path.removeprefix("file://")).read()["l"].to_pylist()
        assert numbers == sorted(numbers)
        assert task.file.sort_order_id == read(tmp_path).sort_order().order_id


NESTED_DDL = "n INT, s STRUCT<a: BIGINT>, items ARRAY<STRING>, pairs MAP<STRING, BIGINT>"
NESTED_ROWS = [(1, (2,), ["a", None], {"k": 3}), (None, None, None, None)]
NESTED = Schema(
    NestedField(1, "n", IntegerType(), required=False),
    NestedField(2, "s", StructType(NestedField(3, "a", LongType(), required=False)), required=False),
    NestedField(4, "items", ListType(5, StringType(), element_required=False), required=False),
    NestedField(6, "pairs", MapType(7, StringType(), 8, LongType(), value_required=False), required=False),
)


def test_lists_and_maps_are_known_by_name(spark: Any, tmp_path: Path) -> None:
    """Spark writes no ids into them: the commit sets a name mapping, which survives a renamed column."""
    create_table(tmp_path, NESTED)
    publish(tmp_path, spark.createDataFrame(NESTED_ROWS, NESTED_DDL))
    with read(tmp_path).update_schema() as update:
        update.rename_column("n", "number")
    found = read(tmp_path).scan().to_arrow().to_pylist()
    assert as_text(found) == as_text(
        [
            {"number": 1, "s": {"a": 2}, "items": ["a", None], "pairs": [("k", 3)]},
            {"number": None, "s": None, "items": None, "pairs": None},
        ]
    )


def test_files_carry_field_ids(spark: Any, tmp_path: Path) -> None:
    """So a column that is dropped and added again by the same name shows nothing of the old one."""
    create_table(tmp_path, Schema(*NESTED.fields[:2]))
    publish(tmp_path, spark.createDataFrame([(1, (2,))], "n INT, s STRUCT<a: BIGINT>"))
    with read(tmp_path).update_schema() as update:
        update.delete_column("n")
    with read(tmp_path).update_schema() as update:
        update.add_column("n", IntegerType())
        update.rename_column("s", "renamed")
    assert read(tmp_path).scan().to_arrow().to_pylist() == [{"renamed": {"a": 2}, "n": None}]


def test_smaller_numbers_are_widened_and_missing_columns_null(spark: Any, tmp_path: Path) -> None:
    create_table(tmp_path, SCHEMA)
    publish(tmp_path, spark.createDataFrame([(1, 1.5)], "l INT, d FLOAT"))
    [row] = read(tmp_path).scan().to_arrow().to_pylist()
    assert (row["l"], row["d"], row["s"]) == (1, 1.5, None)


@pytest.mark.parametrize(
    ("ddl", "row", "code"),
    [
        ("i BIGINT", (1,), "iceberg-column-type"),
        ("day TIMESTAMP", (None,), "iceberg-column-type"),
        ("small DECIMAL(9,2)", (Decimal("1.00"),), "iceberg-column-type"),
        ("other INT", (1,), "iceberg-column-unknown"),
    ],
)
def test_rows_that_do_not_fit_are_refused(spark: Any, tmp_path: Path, ddl: str, row: Any, code: str) -> None:
    create_table(tmp_path, SCHEMA)
    with raises(InvalidPipeline, code):
        publish(tmp_path, spark.createDataFrame([row], ddl))


def test_nulls_in_required_columns_are_refused(spark: Any, tmp_path: Path) -> None:
    create_table(tmp_path, Schema(NestedField(1, "n", IntegerType(), required=True)))
    with raises(InvalidPipeline, "iceberg-null-in-required"):
        publish(tmp_path, spark.createDataFrame([(1,), (None,)], "n INT"))


def test_gate_reads_staged_rows(spark: Any, tmp_path: Path) -> None:
    create_table(tmp_path, SCHEMA, spec_by(("s", IdentityTransform()), ("l", BucketTransform(2))))
    sink, txn = make_sink(tmp_path), Transaction("ab", "flights", SINK, 1, 1, "000100010000")
    handle = sink.stage(txn, spark.createDataFrame(ROWS, DDL))
    assert as_text([tuple(row.values()) for row in sink.read_staged(handle).read_all().to_pylist()]) == as_text(
        [tuple(row) for row in ROWS]
    )
    assert as_text(sink.staged_frame(handle, spark).toArrow()["l"].to_pylist()) == as_text([row[1] for row in ROWS])
