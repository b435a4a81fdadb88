"""Staging rows by Spark's Parquet writer, with a log entry that is made of the footers of its files.

Delta's own writer looks at the table, collects statistics in another pass and commits, which takes longer than many a
checkpoint's rows. It is left to tables that ask more of a writer than files with the right columns: `is_supported`.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, unquote

import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable

from onceonly.delta import file_statistics, log_files, table_files, table_snapshot
from onceonly.delta.file_statistics import ColumnPath
from onceonly.delta.statistics import FLOATS, Field, is_struct
from onceonly.sinks.staging.row_types import nullable
from onceonly.spark import row_files, stores
from onceonly.storage.interface import MAX_PARALLEL_REQUESTS

ROWS_FOLDER = "rows"  # in the staged one
# Writer features that do not change what a new file is, or that ask for nothing unless a column or a setting does.
HARMLESS_FEATURES = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "deletionVectors",
    "generatedColumns",
    "invariants",
}
HARMLESS_FEATURES |= {"timestampNtz", "vacuumProtocolCheck"}
LAST_UNNAMED_VERSION = 4  # of the writer: 5 is column mapping, 6 identity columns
NAMED_FEATURES_VERSION = 7
HARMLESS_SETTINGS = {  # of tables, that do not change what a new file is
    "delta.appendOnly",
    "delta.checkpoint.writeStatsAsJson",
    "delta.checkpoint.writeStatsAsStruct",
    "delta.dataSkippingNumIndexedCols",
    "delta.dataSkippingStatsColumns",
    "delta.deletedFileRetentionDuration",
    "delta.enableChangeDataFeed",
    "delta.enableDeletionVectors",
    "delta.enableExpiredLogCleanup",
    "delta.isolationLevel",
    "delta.logRetentionDuration",
    "delta.setTransactionRetentionDuration",
}
COLUMN_METADATA = {"comment"}  # whatever else a column says, a writer has to know
PARTITION_TYPES = {"boolean", "byte", "date", "integer", "long", "short", "string"}  # named alike by both writers
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
# Without a limit, Spark leaves out the bounds of long texts. A log has 32 characters of them, of up to 4 bytes.
STATISTICS_BYTES = 256
FORMAT_OPTIONS = {"parquet.statistics.truncate.length": str(STATISTICS_BYTES)}


def write(uri: str, rows: Any) -> bool:
    """Write `rows` as the next version of a table that is being staged; False: nothing was written, Delta has to.

    Without rows it writes no version, as Delta does.
    """
    if not _can_be_deleted(uri):
        return False
    table = DeltaTable(uri)
    fields, partitions = table_snapshot.column_fields(table), table.metadata().partition_columns
    if not is_supported(table) or not _are_columns(fields, rows):
        return False
    ordered = rows.select(*(row_files.quote_name(field["name"]) for field in fields))
    stored_fields = table_snapshot.without_columns(fields, partitions)
    paths_with_nan = _save(ordered, f"{uri}/{ROWS_FOLDER}", partitions, _list_floats(stored_fields))
    adds = _make_adds(uri, stored_fields, paths_with_nan)
    if adds:
        info = {"timestamp": int(time.time() * 1000), "operation": "WRITE", "engineInfo": "onceonly"}
        lines = [json.dumps({"commitInfo": info})] + [json.dumps({"add": add}) for add in adds]
        table_files.write_text(table_files.open_folder(uri), log_files.entry_path(1), "\n".join(lines) + "\n")
    return True


def _can_be_deleted(uri: str) -> bool:
    """Return whether all of the folder can be deleted again: on S3, Spark marks folders by objects that delta-rs keeps.

    Delta's own writer makes none.
    """
    return stores.find_store(uri) is not stores.S3


def is_supported(table: DeltaTable) -> bool:
    """Return whether all that its writers have to know of are names and types of columns."""
    protocol, metadata = table.protocol(), table.metadata()
    if protocol.min_writer_version not in (*range(LAST_UNNAMED_VERSION + 1), NAMED_FEATURES_VERSION):
        return False
    if set(protocol.writer_features or []) - HARMLESS_FEATURES:
        return False
    if any(name.startswith("delta.") and name not in HARMLESS_SETTINGS for name in metadata.configuration):
        return False
    return all(_is_plain(field, metadata.partition_columns) for field in table_snapshot.column_fields(table))


def _is_plain(field: Field, partitions: Sequence[str]) -> bool:
    """Return whether nothing is attached to a column, at any depth."""
    if field["name"] in partitions and field["type"] not in PARTITION_TYPES:
        return False
    comments = field["metadata"].keys() & COLUMN_METADATA
    bare = {**field, "metadata": {name: field["metadata"][name] for name in field["metadata"].keys() - comments}}
    return bool(nullable(bare) == bare)


def _are_columns(fields: Sequence[Field], rows: Any) -> bool:
    """Return whether the rows have just these columns: nothing is missing, or to be cast."""
    row_types = table_snapshot.types_by_name(json.loads(rows.schema.json())["fields"])
    table_types = table_snapshot.types_by_name(fields)
    return {name: nullable(kind) for name, kind in row_types.items()} == {
        name: nullable(kind) for name, kind in table_types.items()
    }


# ---- NaN, which a footer leaves out of its bounds, and which is the largest value to Spark


def _list_floats(fields: Sequence[Field], outer: ColumnPath = ()) -> list[ColumnPath]:
    """List the columns that can be NaN, also those in structs."""
    paths: list[ColumnPath] = []
    for field in fields:
        path = (*outer, field["name"])
        if is_struct(field["type"]):
            paths += _list_floats(field["type"]["fields"], path)
        elif isinstance(field["type"], str) and field["type"] in FLOATS:
            paths.append(path)
    return paths


def _save(rows: Any, folder: str, partitions: Sequence[str], floats: Sequence[ColumnPath]) -> set[ColumnPath]:
    """Write the rows, and return which of the columns `floats` may have NaN in some of them."""
    if not floats:
        row_files.save(rows, folder, "parquet", partitions, FORMAT_OPTIONS)
        return set()
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    checks = []
    for number, path in enumerate(floats):
        column = F.col(".".join(map(row_files.quote_name, path)))
        checks.append(F.max(F.isnan(column)).alias(str(number)))
    observation = Observation(uuid.uuid4().hex)
    row_files.save(rows.observe(observation, *checks), folder, "parquet", partitions, FORMAT_OPTIONS)
    answers = observation.get
    return {path for number, path in enumerate(floats) if answers.get(str(number)) is not False}


# ---- the log entry


def _make_adds(uri: str, fields: Sequence[Field], paths_with_nan: Collection[ColumnPath]) -> list[dict[str, Any]]:
    """Return the add actions of the files with rows, whose statistics come from their footers.

    Args:
        fields: the columns in a file.
        paths_with_nan: columns of which nothing is stated.
    """
    files = table_files.open_folder(uri)

    def make_add(info: pafs.FileInfo) -> dict[str, Any] | None:
        with files.open_input_file(info.path) as source:
            metadata = pq.read_metadata(source)
        if not metadata.num_rows:  # of no rows at all, Spark writes one file
            return None
        return {
            "path": quote(info.path),
            "partitionValues": _partition_values(info.path),
            "size": info.size,
            "modificationTime": int(info.mtime.timestamp() * 1000),
            "dataChange": True,
            "stats": file_statistics.read_footer_statistics(metadata, fields, paths_with_nan),
        }

    infos = table_files.list_folder(uri, ROWS_FOLDER, recursive=True)
    written = sorted((info for info in infos if _is_written(info)), key=lambda info: info.path)
    with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
        return [add for add in pool.map(make_add, written) if add]


def _is_written(info: pafs.FileInfo) -> bool:
    """Return whether it is a file of rows, and none of Spark's own marks, or of a store's for a folder."""
    return bool(info.type == pafs.FileType.File and info.base_name.endswith(".parquet"))


def _partition_values(path: str) -> Mapping[str, str | None]:
    """Return the values by column, which are in the names of the folders."""
    values: dict[str, str | None] = {}
    for folder in path.split("/")[1:-1]:
        name, _, value = folder.partition("=")
        values[unquote(name)] = None if value == NULL_PARTITION else unquote(value)
    return values
