"""The statistics of a file that delta-rs wrote here, by what is in the file: delta-rs tells others of it.

Parquet's own statistics are exact where delta-rs writes them, which `writer_properties` decides. The other columns are
read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import ColumnProperties, DeltaTable, WriterProperties

from onceonly.sinks.delta.statistics import FLOATS, Field, is_bounded, is_struct, is_unbounded, text

PREFIX = 32  # characters of a text, as Spark cuts them
LAST = "\U0010ffff"  # above every character that may have been cut off
ROWS = 1 << 17  # of a file in memory at a time
NONE = ColumnProperties(statistics_enabled="NONE")
SOME = ColumnProperties(statistics_enabled="CHUNK")
EPOCH = datetime(1970, 1, 1)


def writer_properties(fields: Sequence[Field]) -> WriterProperties:
    """How delta-rs writes Parquet: without the statistics in which it leaves NaN out.

    Readers skip parts of a file by these. Columns inside of others cannot be named to it.
    """
    exact = {each["name"]: SOME for each in fields if is_bounded(each["type"]) and each["type"] not in FLOATS}
    return WriterProperties(compression="SNAPPY", default_column_properties=NONE, column_properties=exact)


def of_file(source: Any, fields: Sequence[Field]) -> str:
    """What Parquet's own statistics of a file say, and what its values say where it has none.

    Args:
        source: the file, which delta-rs wrote with `writer_properties`.
        fields: the columns in it.
    """
    file = pq.ParquetFile(source)
    ranges = {each["name"]: _read_ranges(file, each) for each in fields if not is_unbounded(each["type"])}
    return text(
        {
            "numRecords": file.metadata.num_rows,
            "minValues": {name: found.tree("low") for name, found in ranges.items()},
            "maxValues": {name: found.tree("high") for name, found in ranges.items()},
            "nullCount": {name: found.tree("nulls") for name, found in ranges.items()},
        }
    )


def recount(adds: list[dict[str, Any]], files: pafs.FileSystem, table: DeltaTable) -> list[dict[str, Any]]:
    """The add actions of files that delta-rs wrote into that table, with the statistics of what is in them."""
    fields = _columns(table)
    return [{**add, "stats": _of_file_at(files, unquote(add["path"]), fields)} for add in adds]


def _of_file_at(files: pafs.FileSystem, path: str, fields: Sequence[Field]) -> str:
    with files.open_input_file(path) as source:
        return of_file(source, fields)


def _columns(table: DeltaTable) -> list[Field]:
    """The columns that a file of the table has."""
    partitions = table.metadata().partition_columns
    return [each for each in json.loads(table.schema().to_json())["fields"] if each["name"] not in partitions]


@dataclass
class _Range:
    """Of one column in the rows read so far; of a struct, its columns by name."""

    low: Any = None
    high: Any = None
    nulls: int = 0
    inner: dict[str, _Range] = field(default_factory=dict)

    def tree(self, side: str) -> Any:
        if self.inner:
            return {name: found.tree(side) for name, found in self.inner.items()}
        return getattr(self, side)

    def widen(self, low: Any, high: Any, nulls: int) -> None:
        self.nulls += nulls
        if low is not None:
            self.low = low if self.low is None or low < self.low else self.low
            self.high = high if self.high is None or high > self.high else self.high


def _read_ranges(file: pq.ParquetFile, column: Field) -> _Range:
    found = _Range()
    parts = _parts_told(file, column["name"]) if not is_struct(column["type"]) else None
    if parts is None:
        for batch in file.iter_batches(ROWS, columns=[column["name"]], use_threads=False):
            _scan(found, batch.column(column["name"]), column["type"])
    else:
        for statistics in parts:
            low = high = None
            if statistics.has_min_max:
                low, high = _value(column["type"], statistics, False), _value(column["type"], statistics, True)
            found.widen(low, high, statistics.null_count)
    return _shown(found, column["type"])


def _parts_told(file: pq.ParquetFile, name: str) -> list[Any] | None:
    """Statistics of a column in each part of the file; None: they do not tell of all rows."""
    paths = [file.metadata.schema.column(number).path for number in range(file.metadata.num_columns)]
    if paths.count(name) != 1:  # "a.b" may also be a column in a struct
        return None
    index = paths.index(name)
    groups = [file.metadata.row_group(number).column(index) for number in range(file.metadata.num_row_groups)]
    parts = [group.statistics for group in groups]
    for group, part in zip(groups, parts, strict=True):
        if part is None or not part.has_null_count or not (part.has_min_max or part.null_count == group.num_values):
            return None
    return parts


def _value(kind: str, statistics: Any, is_high: bool) -> Any:
    if kind == "date" or kind.startswith("timestamp"):
        return statistics.max_raw if is_high else statistics.min_raw  # as Python's dates end in 9999
    return statistics.max if is_high else statistics.min


def _scan(found: _Range, column: pa.Array, kind: Any) -> None:
    """Take the values of a column, or of a struct's columns, into account."""
    if is_struct(kind):
        for each in kind["fields"]:
            if not is_unbounded(each["type"]):
                part = found.inner.setdefault(each["name"], _Range())
                _scan(part, pc.struct_field(column, [each["name"]]), each["type"])
        return
    if kind in FLOATS and pc.any(pc.is_nan(column)).as_py():
        found.widen(math.nan, math.nan, column.null_count)
        found.low = found.high = math.nan
        return
    if kind == "date" or kind.startswith("timestamp"):
        column = column.cast(pa.int32() if kind == "date" else pa.timestamp("us", column.type.tz)).view(
            pa.int32() if kind == "date" else pa.int64()
        )
    span = pc.min_max(column)
    found.widen(span["min"].as_py(), span["max"].as_py(), column.null_count)


def _shown(found: _Range, kind: Any) -> _Range:
    """The same in the form of a log."""
    if is_struct(kind):
        inner = {each["name"]: each["type"] for each in kind["fields"]}
        return _Range(inner={name: _shown(part, inner[name]) for name, part in found.inner.items()})
    if found.low is None:
        return _Range(nulls=found.nulls)
    return _Range(_as_told(kind, found.low, False), _as_told(kind, found.high, True), found.nulls)


def _as_told(kind: str, value: Any, is_high: bool) -> Any:
    if kind == "string":
        return _cut(value, is_high)
    try:
        if kind == "date":
            return (EPOCH.date() + timedelta(days=value)).isoformat()
        if kind.startswith("timestamp"):
            zone = "" if kind.endswith("ntz") else "Z"
            return (EPOCH + timedelta(microseconds=value)).isoformat(timespec="microseconds") + zone
    except OverflowError:
        return None
    return value


def _cut(text: str, is_high: bool) -> str:
    """A prefix, of which `LAST` makes an upper bound."""
    if len(text) <= PREFIX or not is_high:
        return text[:PREFIX]
    length = next((n for n in range(PREFIX, len(text)) if text[n] != LAST), len(text))
    return text[:length] + LAST if length < len(text) else text
