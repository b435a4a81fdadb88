"""A checkpoint of so few records that this process reads them, and takes the rows that are made of them.

Spark still transforms them. Its Kafka source, Delta's writer and Python workers take seconds at their first use, which
is what such a checkpoint would mostly consist of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

MAX_RECORDS = 10_000  # that a checkpoint reads; and rows that a transform makes of them, for one sink
MAX_BYTES = 16 * 1024 * 1024  # of keys, values and headers
MAX_TIME_MILLIS = (2**63 - 1) // 1000  # Spark's timestamps have 64 bits of microseconds
Row = tuple[Any, ...]  # of RECORD_SCHEMA
RESULT_TOO_LARGE = "maxResultSize"  # in the error about rows that are few, and of many megabytes
HEADERS_ARROW_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", HEADERS_ARROW_TYPE),
    ]
)


def is_small(max_records: int | None) -> bool:
    """Return whether a checkpoint of at most that many records is a small batch; None: their number is not known."""
    return max_records is not None and max_records <= MAX_RECORDS


def to_table(messages: Iterable[Any]) -> pa.Table | None:
    """Return the records as Spark's Kafka source would read them; None: they are large, or Spark has to read them."""
    from pyspark.sql import DataFrame  # which a commit does not need

    return _build_table(messages) if _has_arrow(DataFrame) else None


def to_frame(spark: Any, table: pa.Table, decoded: Mapping[str, Any] | None = None) -> Any:
    """Return the records as a DataFrame.

    Args:
        decoded: Spark's types of the columns that `table` has beside those of RECORD_SCHEMA.
    """
    from pyspark.sql.types import StructType

    from onceonly.spark.topics import SCHEMA

    row_type = StructType([*SCHEMA.fields])
    for name, column_type in (decoded or {}).items():
        row_type.add(name, column_type)
    if not table.num_rows:
        return spark.createDataFrame([], row_type)
    return spark.createDataFrame(table, row_type).coalesce(1)


def collect_small_batch(rows: Any) -> pa.Table | None:
    """Collect the rows that a transform has made of a small batch; None: it made many or large ones of it."""
    if not _has_arrow(rows):
        return None
    try:
        table: pa.Table = rows.limit(MAX_RECORDS + 1).toArrow()
    except Exception as error:
        if RESULT_TOO_LARGE in str(error):
            return None
        raise
    return table if table.num_rows <= MAX_RECORDS else None


def _has_arrow(rows: Any) -> bool:
    """Return whether Spark gives and takes Arrow's tables, as it does since 4.0."""
    return hasattr(rows, "toArrow")


def _build_table(messages: Iterable[Any]) -> pa.Table | None:
    """Return the records in the order of their partitions and offsets; None: too large, or one of them has no row."""
    rows: list[Row] = []
    size = 0
    for message in messages:
        row = _build_row(message)
        if row is None:
            return None
        rows.append(row)
        size += _size_of(row)
        if size > MAX_BYTES:
            return None
    rows.sort(key=_position)
    columns = []
    for number, field in enumerate(RECORD_SCHEMA):
        values = [row[number] for row in rows]
        columns.append(pa.array(values, field.type))
    return pa.table(columns, RECORD_SCHEMA)


def _build_row(message: Any) -> Row | None:
    """Return the record as a row of RECORD_SCHEMA.

    None: it has no time, one that is no microsecond, or a header whose name is no text. Spark says what it is.
    """
    kind, millis = message.timestamp()
    try:
        headers = message.headers()
    except UnicodeDecodeError:
        return None
    if not kind or not is_representable_time(millis):
        return None
    header_structs = [{"key": name, "value": value} for name, value in headers or ()]
    position = message.topic(), message.partition(), message.offset()
    return message.key(), message.value(), *position, millis * 1000, header_structs or None


def is_representable_time(millis: int) -> bool:
    """Return whether a record's time, in milliseconds since 1970, fits Spark's timestamps: 64 bits of microseconds."""
    return abs(millis) <= MAX_TIME_MILLIS


def _size_of(row: Row) -> int:
    """Return the bytes of the key, the value and the headers."""
    key, value, *_, headers = row
    size = len(key or b"") + len(value or b"")
    for header in headers or ():
        size += len(header["key"]) + len(header["value"] or b"")
    return size


def _position(row: Row) -> tuple[str, int, int]:
    _, _, topic, partition, offset, *_ = row
    return topic, partition, offset
