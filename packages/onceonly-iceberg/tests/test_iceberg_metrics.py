"""What manifests say of files is what is in them: compared with the values that a reader finds."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Sequence
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from onceonly_iceberg.metrics import FileMetrics, encode_upper, measure

EPOCH = dt.datetime(1970, 1, 1)
TEXTS = st.text(max_size=40) | st.sampled_from(["", "\ud7ff", "a" * 5_000, "\U0010ffff" * 20, "ß" * 17, "\ud7ff" * 17])
VALUES: dict[str, tuple[IcebergType, st.SearchStrategy[Any]]] = {
    "boolean": (BooleanType(), st.booleans()),
    "int": (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    "long": (LongType(), st.integers(-(2**63), 2**63 - 1)),
    "float": (FloatType(), st.floats(width=32)),
    "double": (DoubleType(), st.floats()),
    "small decimal": (DecimalType(7, 2), st.decimals(-99999, 99999, places=2)),
    "long decimal": (DecimalType(18, 4), st.decimals(-99999999999999, 99999999999999, places=4)),
    "large decimal": (DecimalType(38, 10), st.decimals(-(10**27), 10**27, places=10)),
    "date": (DateType(), st.dates()),
    "timestamp": (TimestampType(), st.datetimes()),
    "timestamptz": (TimestamptzType(), st.datetimes(timezones=st.just(dt.UTC))),
    "string": (StringType(), TEXTS),
    "binary": (BinaryType(), st.binary(max_size=40) | st.just(b"\xff" * 20)),
}


def write(schema: Schema, rows: Sequence[dict[str, Any]], group: int = 3) -> pq.ParquetFile:
    buffer = BytesIO()
    table = pa.Table.from_pylist(list(rows), schema=schema_to_pyarrow(schema))
    pq.write_table(table, buffer, row_group_size=group, store_decimal_as_integer=True, coerce_timestamps="us")
    return pq.ParquetFile(pa.BufferReader(buffer.getvalue()))


def comparable(kind: IcebergType, value: Any) -> Any:
    """Return a value in the form in which bounds hold it."""
    if isinstance(kind, DateType):
        return (value - dt.date(1970, 1, 1)).days
    if isinstance(kind, TimestampType | TimestamptzType):
        return (value.replace(tzinfo=None) - EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(kind, FloatType):
        return struct.unpack("<f", struct.pack("<f", value))[0]
    return value


def check_column(metrics: FileMetrics, field_id: int, kind: IcebergType, values: Sequence[Any]) -> None:
    known = [comparable(kind, value) for value in values if value is not None]
    numbers = [value for value in known if value == value]
    assert metrics.value_counts[field_id] == len(values)
    assert metrics.null_counts[field_id] == len(values) - len(known)
    if isinstance(kind, FloatType | DoubleType):
        assert metrics.nan_counts[field_id] == len(known) - len(numbers)
    else:
        assert field_id not in metrics.nan_counts
    if not numbers:
        assert field_id not in metrics.lower and field_id not in metrics.upper
        return
    assert from_bytes(kind, metrics.lower[field_id]) <= min(numbers)
    if field_id in metrics.upper:
        assert from_bytes(kind, metrics.upper[field_id]) >= max(numbers)
    else:
        assert isinstance(kind, StringType | BinaryType)
    if not isinstance(kind, StringType | BinaryType):
        assert from_bytes(kind, metrics.lower[field_id]) == min(numbers)
        assert from_bytes(kind, metrics.upper[field_id]) == max(numbers)


@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_metrics_are_of_the_values(name: str, data: st.DataObject) -> None:
    kind, strategy = VALUES[name]
    values = data.draw(st.lists(st.none() | strategy, max_size=8))
    schema = Schema(NestedField(1, "v", kind, required=False))
    check_column(measure(write(schema, [{"v": value} for value in values]), schema, {}), 1, kind, values)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.none() | st.fixed_dictionaries({"x": st.none() | st.floats()}), max_size=8))
def test_column_in_a_struct_has_counts(rows: list[dict[str, Any] | None]) -> None:
    """And bounds by which its partition is known, which a manifest has not."""
    schema = Schema(NestedField(1, "s", StructType(NestedField(2, "x", DoubleType(), required=False)), required=False))
    values = [row["x"] if row else None for row in rows]
    metrics = measure(write(schema, [{"s": row} for row in rows]), schema, {})
    numbers = [value for value in values if value is not None and value == value]
    assert (metrics.value_counts[2], metrics.null_counts[2]) == (len(rows), values.count(None))
    assert metrics.nan_counts[2] == len(values) - values.count(None) - len(numbers)
    assert (metrics.bounds[2].least, metrics.bounds[2].greatest) == (
        min(numbers, default=None),
        max(numbers, default=None),
    )
    assert metrics.lower == {}


@settings(deadline=None)
@given(TEXTS, st.integers(1, 20))
def test_cut_text_is_below_its_upper_bound(text: str, length: int) -> None:
    bound = encode_upper(StringType(), text, length)
    assert bound is None or bound >= text.encode()
    assert bound is None or len(bound.decode()) <= length
    if bound is None:
        assert set(text[:length]) == {"\U0010ffff"}


def test_zero_has_both_signs_in_its_bounds() -> None:
    """To readers -0.0 is less than 0.0."""
    schema = Schema(NestedField(1, "v", DoubleType(), required=False))
    metrics = measure(write(schema, [{"v": 0.0}, {"v": -0.0}]), schema, {})
    assert (metrics.lower[1], metrics.upper[1]) == (struct.pack("<d", -0.0), struct.pack("<d", 0.0))


def test_modes_of_metrics_are_those_of_the_table() -> None:
    schema = Schema(*(NestedField(number, f"c{number}", StringType(), required=False) for number in range(1, 5)))
    properties = {
        "write.metadata.metrics.default": "none",
        "write.metadata.metrics.column.c2": "counts",
        "write.metadata.metrics.column.c3": "full",
        "write.metadata.metrics.column.c4": "truncate(2)",
    }
    row = {f"c{number}": "abcdefghijklmnopqrstuvwxyz" for number in range(1, 5)}
    metrics = measure(write(schema, [row]), schema, properties)
    assert sorted(metrics.value_counts) == [2, 3, 4]
    assert metrics.lower == {3: row["c3"].encode(), 4: b"ab"}
    assert metrics.upper == {3: row["c3"].encode(), 4: b"ac"}


def test_long_texts_have_bounds() -> None:
    """A footer has none of them."""
    schema = Schema(NestedField(1, "v", StringType(), required=False))
    metrics = measure(write(schema, [{"v": "b" * 9_000}, {"v": "a" * 9_000}]), schema, {})
    assert (metrics.lower[1], metrics.upper[1]) == (b"a" * 16, b"b" * 15 + b"c")


def test_decimals_have_the_fewest_bytes() -> None:
    schema = Schema(NestedField(1, "v", DecimalType(38, 2), required=False))
    metrics = measure(write(schema, [{"v": Decimal("-1.28")}, {"v": Decimal("1.28")}]), schema, {})
    assert (metrics.lower[1], metrics.upper[1]) == (b"\x80", b"\x00\x80")
