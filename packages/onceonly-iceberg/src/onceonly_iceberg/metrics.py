"""What a manifest says of a Parquet file: counts, nulls, NaNs and bounds, by field id.

Bounds come from the footer, which is exact for all types but floats: a footer leaves NaN out of its bounds, or leaves
the bounds out. So columns of floats are read. What a footer does not say at all, such as bounds of very long texts, is
read as well. Nothing is said of what lies in lists and maps. Source: Iceberg spec, "Data File Fields" and "Bound
serialization".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import StatisticsCollector, compute_statistics_plan
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
    PrimitiveType,
    StringType,
    StructType,
)
from pyiceberg.utils.decimal import decimal_to_unscaled, unscaled_to_decimal

FIRST_SURROGATE, AFTER_SURROGATES = 0xD800, 0xE000
MAX_CODE_POINT = 0x10FFFF


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest value of a column that is neither null nor NaN; None: there is none, or unknown."""

    least: Any = None
    greatest: Any = None


@dataclass
class FileMetrics:
    """What is stated of one file. `bounds` holds whole values; `lower` and `upper` are what a manifest has of them."""

    rows: int = 0
    column_sizes: dict[int, int] = field(default_factory=dict)
    value_counts: dict[int, int] = field(default_factory=dict)
    null_counts: dict[int, int] = field(default_factory=dict)
    nan_counts: dict[int, int] = field(default_factory=dict)
    lower: dict[int, bytes] = field(default_factory=dict)
    upper: dict[int, bytes] = field(default_factory=dict)
    split_offsets: list[int] = field(default_factory=list)
    bounds: dict[int, Bounds] = field(default_factory=dict)
    all_nulls: dict[int, int] = field(default_factory=dict)  # of every column outside of lists and maps


@dataclass(frozen=True)
class LeafColumn:
    """A column of values outside of lists and maps.

    Args:
        path: the names that lead to it, joined by dots as in a Parquet footer.
    """

    field_id: int
    path: str
    type: PrimitiveType


def list_leaf_columns(schema: Schema) -> list[LeafColumn]:
    """List the columns of which something can be stated, also those in structs."""
    return _leaves_of(schema.as_struct(), "")


def _leaves_of(struct_type: StructType, prefix: str) -> list[LeafColumn]:
    leaves: list[LeafColumn] = []
    for column in struct_type.fields:
        path = f"{prefix}{column.name}"
        if isinstance(column.field_type, StructType):
            leaves += _leaves_of(column.field_type, f"{path}.")
        elif isinstance(column.field_type, PrimitiveType):
            leaves.append(LeafColumn(column.field_id, path, column.field_type))
    return leaves


def measure(file: pq.ParquetFile, schema: Schema, properties: Mapping[str, str]) -> FileMetrics:
    """Return the metrics of a file, as much as the table's properties ask for.

    Args:
        schema: with which the file was written.
        properties: of the table: `write.metadata.metrics.*`.
    """
    footer: pq.FileMetaData = file.metadata
    metrics = FileMetrics(footer.num_rows)
    positions = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    plan = compute_statistics_plan(schema, dict(properties))
    for group in range(footer.num_row_groups):
        metrics.split_offsets.append(_first_offset(footer.row_group(group)))
    for leaf in list_leaf_columns(schema):
        if leaf.path in positions:
            chunks = [footer.row_group(group).column(positions[leaf.path]) for group in range(footer.num_row_groups)]
            _measure_column(metrics, file, leaf, chunks, plan[leaf.field_id])
    return metrics


def _first_offset(group: Any) -> int:
    column = group.column(0)
    if column.has_dictionary_page and column.dictionary_page_offset:
        return min(int(column.dictionary_page_offset), int(column.data_page_offset))
    return int(column.data_page_offset)


def _measure_column(
    metrics: FileMetrics, file: pq.ParquetFile, leaf: LeafColumn, chunks: list[Any], wanted: StatisticsCollector
) -> None:
    nulls, bounds = _read_footer(leaf, chunks)
    nans = None
    if nulls is None or bounds is None or isinstance(leaf.type, FloatType | DoubleType):
        nulls, nans, bounds = _read_values(file, leaf)
    metrics.all_nulls[leaf.field_id] = nulls
    metrics.bounds[leaf.field_id] = bounds
    mode = wanted.mode.type.value
    metrics.column_sizes[leaf.field_id] = sum(int(chunk.total_compressed_size) for chunk in chunks)
    if mode == "none":
        return
    metrics.value_counts[leaf.field_id] = metrics.rows
    metrics.null_counts[leaf.field_id] = nulls
    if nans is not None:
        metrics.nan_counts[leaf.field_id] = nans
    if mode == "counts":
        return
    length = wanted.mode.length if mode == "truncate" else None
    lower = encode_lower(leaf.type, bounds.least, length)
    upper = encode_upper(leaf.type, bounds.greatest, length)
    if lower is not None:
        metrics.lower[leaf.field_id] = lower
    if upper is not None:
        metrics.upper[leaf.field_id] = upper


# ---- the footer


def _read_footer(leaf: LeafColumn, chunks: list[Any]) -> tuple[int | None, Bounds | None]:
    """Return the number of nulls and the bounds; None for what the footer does not say."""
    nulls, least, greatest = 0, [], []
    for chunk in chunks:
        statistics = chunk.statistics if chunk.is_stats_set else None
        if statistics is None or not statistics.has_null_count:
            return None, None
        nulls += statistics.null_count
        if statistics.null_count == chunk.num_values:
            continue
        if not statistics.has_min_max:
            return nulls, None
        try:
            least.append(_decode(leaf.type, statistics.physical_type, statistics.min_raw))
            greatest.append(_decode(leaf.type, statistics.physical_type, statistics.max_raw))
        except UnicodeDecodeError:
            return nulls, Bounds()  # Spark writes invalid text as it is
    return nulls, Bounds(min(least), max(greatest)) if least else Bounds()


def _decode(kind: IcebergType, physical_type: str, raw: Any) -> Any:
    """Return a value of a footer: whole numbers for dates and times, as Iceberg stores them."""
    if isinstance(kind, DecimalType):
        unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)
        return unscaled_to_decimal(unscaled, kind.scale)
    if isinstance(kind, StringType):
        return raw.decode("utf-8")
    return raw


# ---- the values


def _read_values(file: pq.ParquetFile, leaf: LeafColumn) -> tuple[int, int | None, Bounds]:
    """Return the numbers of nulls and of NaNs (None: it has no floats), and the bounds."""
    table = file.read(columns=[leaf.path])
    while any(pa.types.is_struct(column.type) for column in table.schema):
        table = table.flatten()
    column = table.column(leaf.path)
    values, nans = column.drop_null(), None
    if isinstance(leaf.type, FloatType | DoubleType):
        is_nan = pc.is_nan(values)
        nans = int(pc.sum(is_nan).as_py() or 0)
        values = values.filter(pc.invert(is_nan))
    return column.null_count, nans, _find_bounds(leaf, values)


def _find_bounds(leaf: LeafColumn, values: pa.ChunkedArray) -> Bounds:
    if not len(values):
        return Bounds()
    if isinstance(leaf.type, StringType | BinaryType):
        values = values.cast(pa.large_binary())
    both = pc.min_max(values)
    least, greatest = both["min"], both["max"]
    if isinstance(leaf.type, StringType):
        try:
            return Bounds(least.as_py().decode("utf-8"), greatest.as_py().decode("utf-8"))
        except UnicodeDecodeError:
            return Bounds()
    if pa.types.is_temporal(values.type):
        return Bounds(least.value, greatest.value)
    return Bounds(least.as_py(), greatest.as_py())


# ---- bounds in a manifest


def encode_lower(kind: IcebergType, value: Any, length: int | None) -> bytes | None:
    """Return the lower bound of a column; a text is cut after `length` code points, bytes after `length` bytes."""
    if value is None:
        return None
    if isinstance(kind, FloatType | DoubleType) and value == 0:
        value = -0.0  # which is less than 0.0 to readers
    if length is not None and isinstance(kind, StringType | BinaryType):
        value = value[:length]
    return encode(kind, value)


def encode_upper(kind: IcebergType, value: Any, length: int | None) -> bytes | None:
    """Return the upper bound; None: a text that is cut has no successor."""
    if value is None:
        return None
    if isinstance(kind, FloatType | DoubleType) and value == 0:
        value = 0.0
    if length is not None and isinstance(kind, StringType | BinaryType) and len(value) > length:
        value = _next_text(value[:length]) if isinstance(kind, StringType) else _next_bytes(value[:length])
        if value is None:
            return None
    return encode(kind, value)


def _next_text(text: str) -> str | None:
    """Return the shortest text that is greater than all that begin with `text`."""
    for end in range(len(text), 0, -1):
        point = ord(text[end - 1]) + 1
        if point == FIRST_SURROGATE:
            point = AFTER_SURROGATES
        if point <= MAX_CODE_POINT:
            return text[: end - 1] + chr(point)
    return None


def _next_bytes(value: bytes) -> bytes | None:
    for end in range(len(value), 0, -1):
        if value[end - 1] < 0xFF:
            return value[: end - 1] + bytes([value[end - 1] + 1])
    return None


def encode(kind: IcebergType, value: Any) -> bytes:
    """Return one value as Iceberg serializes single values."""
    if isinstance(kind, BooleanType):
        return b"\x01" if value else b"\x00"
    if isinstance(kind, IntegerType | DateType):
        return struct.pack("<i", value)
    if isinstance(kind, FloatType):
        return struct.pack("<f", value)
    if isinstance(kind, DoubleType):
        return struct.pack("<d", value)
    if isinstance(kind, DecimalType):
        return _encode_decimal(value)
    if isinstance(kind, StringType):
        return bytes(value.encode("utf-8"))
    if isinstance(kind, BinaryType):
        return bytes(value)
    return struct.pack("<q", value)  # long, times


def _encode_decimal(value: Decimal) -> bytes:
    unscaled = decimal_to_unscaled(value)
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return unscaled.to_bytes(size, "big", signed=True)
