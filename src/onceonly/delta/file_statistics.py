"""The statistics of a Parquet file, read from the file itself, in the form of a Delta log.

Of a file that delta-rs wrote, Parquet's own statistics are exact where `writer_properties` asks for them, and the other
columns are read: what delta-rs writes into the log differs. Of a file that Spark wrote, its footer tells all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import ColumnProperties, DeltaTable, WriterProperties

from onceonly.delta import table_snapshot
from onceonly.delta.statistics import FLOATS, Field, is_bounded, is_struct, is_unbounded, to_json
from onceonly.unix_time import MICROSECOND, NAIVE_UNIX_EPOCH

PREFIX_LENGTH = 32  # characters of a text, as Spark cuts them
LAST_CHARACTER = "\U0010ffff"  # above every character that may have been cut off
BATCH_ROWS = 1 << 17  # of a file in memory at a time
ColumnPath = tuple[str, ...]  # the names of the structs that a column is in, and its own
WITHOUT_STATISTICS = ColumnProperties(statistics_enabled="NONE")
WITH_STATISTICS = ColumnProperties(statistics_enabled="CHUNK")


def writer_properties(fields: Sequence[Field]) -> WriterProperties:
    """Return how delta-rs writes Parquet: without the statistics in which it leaves NaN out.

    Readers skip parts of a file by these. Columns inside of others cannot be named to it.
    """
    exact = {}
    for column in fields:
        if is_bounded(column["type"]) and column["type"] not in FLOATS:
            exact[column["name"]] = WITH_STATISTICS
    return WriterProperties(compression="SNAPPY", default_column_properties=WITHOUT_STATISTICS, column_properties=exact)


def read_statistics(source: Any, fields: Sequence[Field]) -> str:
    """Return what Parquet's own statistics of a file say, and what its values say where it has none.

    Args:
        source: the file, which delta-rs wrote with `writer_properties`.
        fields: the columns in it.
    """
    file = pq.ParquetFile(source)
    lows, highs, nulls = {}, {}, {}
    for column in fields:
        if is_unbounded(column["type"]):
            continue
        column_range, name = _read_range(file, column), column["name"]
        lows[name], highs[name] = column_range.tree("low"), column_range.tree("high")
        nulls[name] = column_range.tree("nulls")
    return to_json({"numRecords": file.metadata.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls})


def read_footer_statistics(
    metadata: pq.FileMetaData, fields: Sequence[Field], paths_with_nan: Collection[ColumnPath]
) -> str:
    """Return what the footer of a file that Spark wrote says of its columns.

    A column of which it does not tell everything is left out.

    Args:
        paths_with_nan: columns that are left out, because a footer does not tell NaN.
    """
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    ranges = _read_footer_ranges(_Footer(metadata, paths), fields, paths_with_nan, ())
    sides = {}
    for key, side in (("minValues", "low"), ("maxValues", "high"), ("nullCount", "nulls")):
        sides[key] = {name: column_range.tree(side) for name, column_range in ranges.items()}
    return to_json({"numRecords": metadata.num_rows, **sides})


def recount(adds: list[dict[str, Any]], files: pafs.FileSystem, table: DeltaTable) -> list[dict[str, Any]]:
    """Return the add actions of files that delta-rs wrote into that table, with the statistics of what is in them."""
    fields = _stored_columns(table)
    recounted = []
    for add in adds:
        stats = _read_statistics_at(files, unquote(add["path"]), fields)
        recounted.append({**add, "stats": stats})
    return recounted


def _read_statistics_at(files: pafs.FileSystem, path: str, fields: Sequence[Field]) -> str:
    with files.open_input_file(path) as source:
        return read_statistics(source, fields)


def _stored_columns(table: DeltaTable) -> list[Field]:
    """Return the columns that a file of the table has."""
    partitions = table.metadata().partition_columns
    return table_snapshot.without_columns(table_snapshot.column_fields(table), partitions)


@dataclass
class _Range:
    """The bounds and nulls of one column in the rows read so far; of a struct, those of its columns by name."""

    low: Any = None
    high: Any = None
    nulls: int = 0
    inner: dict[str, _Range] = field(default_factory=dict)

    def tree(self, side: str) -> Any:
        """Return one of `low`, `high` and `nulls`; of a struct, of each of its columns by name."""
        if self.inner:
            return {name: inner_range.tree(side) for name, inner_range in self.inner.items()}
        return getattr(self, side)

    def widen(self, low: Any, high: Any, nulls: int) -> None:
        """Take more rows into account; bounds of None: all of them are null."""
        self.nulls += nulls
        if low is None:
            return
        if self.low is None or low < self.low:
            self.low = low
        if self.high is None or high > self.high:
            self.high = high


def _read_range(file: pq.ParquetFile, column: Field) -> _Range:
    """Read the range of a column in the form of a log: from Parquet's statistics, else from the values."""
    name, kind = column["name"], column["type"]
    paths = [file.metadata.schema.column(number).path for number in range(file.metadata.num_columns)]
    parts = None if is_struct(kind) else _Footer(file.metadata, paths).find_statistics(name)
    if parts is not None:
        return _in_log_form(_combine(parts, kind), kind)
    column_range = _Range()
    for batch in file.iter_batches(BATCH_ROWS, columns=[name], use_threads=False):
        _scan(column_range, batch.column(name), kind)
    return _in_log_form(column_range, kind)


@dataclass(frozen=True)
class _Footer:
    """The footer of a file.

    Args:
        paths: of its columns, those in structs as "a.b".
    """

    metadata: pq.FileMetaData
    paths: Sequence[str]

    def find_statistics(self, path: str) -> list[Any] | None:
        """Return the statistics of a column in each part of the file; None: they do not tell of all rows."""
        parts = []
        for chunk in self.list_chunks(path):
            part = chunk.statistics
            if part is None or not part.has_null_count or not (part.has_min_max or part.null_count == chunk.num_values):
                return None
            parts.append(part)
        return parts or None

    def list_chunks(self, path: str) -> list[Any]:
        """Return a column's part in each row group; none if several columns have that path, or none has."""
        if self.paths.count(path) != 1:  # "a.b" may also be a column in a struct
            return []
        index = self.paths.index(path)
        return [self.metadata.row_group(number).column(index) for number in range(self.metadata.num_row_groups)]


def _combine(parts: Sequence[Any], kind: str) -> _Range:
    """Return the range over all parts of a file."""
    column_range = _Range()
    for statistics in parts:
        low = high = None
        if statistics.has_min_max:
            low, high = _bounds(kind, statistics)
        column_range.widen(low, high, statistics.null_count)
    return column_range


def _read_footer_ranges(
    footer: _Footer, fields: Sequence[Field], paths_with_nan: Collection[ColumnPath], outer: ColumnPath
) -> dict[str, _Range]:
    """Return the ranges of those columns of which the footer tells everything, in the form of a log."""
    ranges: dict[str, _Range] = {}
    for column in fields:
        name, kind, path = column["name"], column["type"], (*outer, column["name"])
        if is_struct(kind):
            ranges[name] = _Range(inner=_read_footer_ranges(footer, kind["fields"], paths_with_nan, path))
        elif isinstance(kind, str) and path not in paths_with_nan:
            column_range = _read_footer_range(footer, ".".join(path), kind)
            if column_range:
                ranges[name] = column_range
    return ranges


def _read_footer_range(footer: _Footer, path: str, kind: str) -> _Range | None:
    """Return the range of a column; None: the footer does not tell everything."""
    parts = footer.find_statistics(path)
    if parts is None:
        return None
    if not is_bounded(kind):
        return _Range(nulls=sum(part.null_count for part in parts))
    try:
        return _in_log_form(_combine(parts, kind), kind)
    except UnicodeDecodeError:  # a text that is no UTF-8, which Spark takes as it is
        return None


def _bounds(kind: str, statistics: Any) -> tuple[Any, Any]:
    if kind == "date" or kind.startswith("timestamp"):
        return statistics.min_raw, statistics.max_raw  # as Python's dates end in 9999
    return statistics.min, statistics.max


def _scan(column_range: _Range, column: pa.Array, kind: Any) -> None:
    """Take the values of a column, or of a struct's columns, into account."""
    if is_struct(kind):
        for inner in kind["fields"]:
            if not is_unbounded(inner["type"]):
                inner_range = column_range.inner.setdefault(inner["name"], _Range())
                _scan(inner_range, pc.struct_field(column, [inner["name"]]), inner["type"])
        return
    if kind in FLOATS and pc.any(pc.is_nan(column)).as_py():
        # No comparison with NaN is true, so once it is a bound, `widen` keeps it.
        column_range.widen(math.nan, math.nan, column.null_count)
        column_range.low = column_range.high = math.nan
        return
    if kind == "date":
        column = column.cast(pa.int32()).view(pa.int32())
    elif kind.startswith("timestamp"):
        column = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    span = pc.min_max(column)
    column_range.widen(span["min"].as_py(), span["max"].as_py(), column.null_count)


def _in_log_form(column_range: _Range, kind: Any) -> _Range:
    """Return the range with values as a log has them."""
    if is_struct(kind):
        struct_range = _Range()
        for inner in kind["fields"]:
            name = inner["name"]
            if name in column_range.inner:
                struct_range.inner[name] = _in_log_form(column_range.inner[name], inner["type"])
        return struct_range
    if column_range.low is None:
        return _Range(nulls=column_range.nulls)
    low, high = _log_value(kind, column_range.low, False), _log_value(kind, column_range.high, True)
    return _Range(low, high, column_range.nulls)


def _log_value(kind: str, value: Any, is_high: bool) -> Any:
    """Return a bound as a log has it; None: it has none for it."""
    if kind == "string":
        return _shorten(value, is_high)
    try:
        if kind == "date":
            return (NAIVE_UNIX_EPOCH.date() + timedelta(days=value)).isoformat()
        if kind.startswith("timestamp"):
            zone = "" if kind.endswith("ntz") else "Z"
            return (NAIVE_UNIX_EPOCH + value * MICROSECOND).isoformat(timespec="microseconds") + zone
    except OverflowError:
        return None
    return value


def _shorten(text: str, is_high: bool) -> str:
    """Return a prefix, of which `LAST_CHARACTER` makes an upper bound."""
    if len(text) <= PREFIX_LENGTH or not is_high:
        return text[:PREFIX_LENGTH]
    for length in range(PREFIX_LENGTH, len(text)):
        if text[length] != LAST_CHARACTER:
            return text[:length] + LAST_CHARACTER
    return text
