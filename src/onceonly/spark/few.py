"""A checkpoint of so few records that this process reads them, and takes the rows that are made of them.

Spark still transforms them. Its Kafka source, Delta's writer and Python workers take seconds at their first use, which
is what such a checkpoint would mostly consist of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pyarrow as pa

RECORDS = 10_000  # read by a checkpoint; rows made of them
BYTES = 16 * 1024 * 1024  # of keys, values and headers
MOST_MILLIS = (2**63 - 1) // 1000
Row = tuple[Any, ...]  # of SCHEMA
TOO_LARGE = "maxResultSize"  # in the error about rows that are few, and of many megabytes
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", HEADERS),
    ]
)

_expected = ContextVar("few records are being staged", default=False)


@contextmanager
def reading(records: int | None) -> Iterator[None]:
    """What the block stages is made of at most so many records; None: not known."""
    token = _expected.set(records is not None and records <= RECORDS)
    try:
        yield
    finally:
        _expected.reset(token)


def expected() -> bool:
    """Whether few records are being staged."""
    return _expected.get()


def table(messages: Iterable[Any]) -> pa.Table | None:
    """The records, as Spark's Kafka source would read them; None: they are large, or Spark has to read them."""
    from pyspark.sql import DataFrame  # which a commit does not need

    return _table(messages) if _has_arrow(DataFrame) else None


def frame(spark: Any, table: pa.Table, decoded: Mapping[str, Any] | None = None) -> Any:
    """The records as a DataFrame.

    Args:
        decoded: Spark's types of the columns that `table` has beside those of SCHEMA.
    """
    from pyspark.sql.types import StructType

    from onceonly.spark.read import SCHEMA as DDL

    type_ = spark.createDataFrame([], DDL).schema
    for name, more in (decoded or {}).items():
        type_ = StructType([*type_.fields]).add(name, more)
    return spark.createDataFrame(table, type_).coalesce(1) if table.num_rows else spark.createDataFrame([], type_)


def collected(rows: Any) -> pa.Table | None:
    """The rows, if they are few; None: a transform has made many of them, or much may have been read for them."""
    if not expected() or not _has_arrow(rows):
        return None
    try:
        found: pa.Table = rows.limit(RECORDS + 1).toArrow()
    except Exception as error:
        if TOO_LARGE in str(error):
            return None
        raise
    return found if found.num_rows <= RECORDS else None


def _has_arrow(rows: Any) -> bool:
    """Spark gives Arrow's tables, and takes them, since 4.0."""
    return hasattr(rows, "toArrow")


def _table(messages: Iterable[Any]) -> pa.Table | None:
    rows, size = [], 0
    for message in messages:
        row = _row(message)
        if row is None:
            return None
        rows.append(row)
        size += _size(row)
        if size > BYTES:
            return None
    columns = zip(*sorted(rows, key=_place), strict=True) if rows else ([] for _ in SCHEMA)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


def _row(message: Any) -> Row | None:
    """None: it has no time, one that is no microsecond, or a header whose name is no text: Spark says what it is."""
    kind, millis = message.timestamp()
    try:
        headers = message.headers()
    except UnicodeDecodeError:
        return None
    if not kind or not is_time(millis):
        return None
    place = message.topic(), message.partition(), message.offset(), millis * 1000
    return message.key(), message.value(), *place, [{"key": k, "value": v} for k, v in headers or ()] or None


def is_time(millis: int) -> bool:
    """Whether a record's time, in milliseconds since 1970, can be a timestamp of Spark: 64 bits of microseconds."""
    return abs(millis) <= MOST_MILLIS


def _size(row: Row) -> int:
    headers = sum(len(header["key"]) + len(header["value"] or b"") for header in row[6] or ())
    return len(row[0] or b"") + len(row[1] or b"") + headers


def _place(row: Row) -> tuple[str, int, int]:
    return row[2], row[3], row[4]
