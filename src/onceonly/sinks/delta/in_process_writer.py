"""Staging few rows by delta-rs in this process: where Delta on Spark would add nothing but the seconds of its start.

Only for tables whose features, settings and types leave nothing to apply or to check.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from onceonly.delta import file_statistics, log_files, table_files, table_snapshot
from onceonly.spark.small_batch import collect_small_batch
from onceonly.storage.objects import WRITTEN, Objects
from onceonly.storage.paths import local_path

FEATURES = {"appendOnly", "invariants"}  # of writers; the second means column metadata, which `_is_simple` refuses
WRITER_VERSIONS = (1, 2, 7)  # of the writer: the others mean more features, whether a table uses them or not
PARTITION_TYPES = {"byte", "short", "integer", "long", "date"}  # their values are written in one way only
SIMPLE_TYPES = {*PARTITION_TYPES, "boolean", "string", "timestamp", "binary", "double", "float"}
SINGLE_TRY = CommitProperties(max_commit_retries=0)


def write(uri: str, rows: Any) -> bool:
    """Write `rows` as the next version of a table that is being staged; False: nothing was written, Spark has to.

    Without rows it writes no version, as Spark does.
    """
    with open_locally(uri) as table:
        return _write(table, rows)


def _write(table: DeltaTable, rows: Any) -> bool:
    names = table_snapshot.column_names(table)
    if not is_supported(table) or set(names) != set(rows.schema.names):
        return False
    collected = collect_small_batch(rows)
    if collected is None or not _is_valid_text(collected):
        return False
    if collected.num_rows:
        write_deltalake(
            table,
            collected.select(names),
            mode="append",
            writer_properties=file_statistics.writer_properties(table_snapshot.column_fields(table)),
            commit_properties=SINGLE_TRY,
        )
        _recount(table)
    return True


def _recount(table: DeltaTable) -> None:
    """Write into the log what is in the files. Nobody reads that entry yet, and nothing is staged if this dies."""
    files, path = table_files.open_folder(table.table_uri), log_files.entry_path(1)
    actions = [json.loads(line) for line in table_files.read_lines(files, path)]
    for action in actions:
        if "add" in action:
            (add,) = file_statistics.recount([action["add"]], files, table)
            action["add"] = add
    table_files.write_text(files, path, "\n".join(map(json.dumps, actions)) + "\n")


@contextmanager
def open_locally(uri: str) -> Iterator[DeltaTable]:
    """Open a table that is being staged; of one on an object store a local copy, whose files are written there at last.

    Each new file is one request, and the log entry is the last.
    """
    if local_path(uri):
        yield DeltaTable(uri)
        return
    files = Objects(uri)
    with TemporaryDirectory(prefix="onceonly-") as scratch:
        first, second = Path(scratch, log_files.entry_path(0)), Path(scratch, log_files.entry_path(1))
        first.parent.mkdir()
        first.write_bytes(files.read(log_files.entry_path(0), WRITTEN))
        yield DeltaTable(scratch)
        new_files = [path for path in Path(scratch).rglob("*.parquet") if path.is_file()]
        if second.exists():
            new_files.append(second)
        for path in new_files:
            files.write(path.relative_to(scratch).as_posix(), path.read_bytes())


def is_supported(table: DeltaTable) -> bool:
    """Return whether rows of the right types are all that its writers have to know of."""
    protocol, metadata = table.protocol(), table.metadata()
    features = set(protocol.writer_features or []) | set(protocol.reader_features or [])
    if not features <= FEATURES or protocol.min_writer_version not in WRITER_VERSIONS or metadata.configuration:
        return False
    return all(_is_simple(field, metadata.partition_columns) for field in table_snapshot.column_fields(table))


def _is_simple(field: dict[str, Any], partitions: list[str]) -> bool:
    """Return whether a column has a type without parts, and nothing is attached to it."""
    if not field["nullable"] or field["metadata"] or not isinstance(field["type"], str):
        return False
    if field["name"] in partitions:
        return field["type"] in PARTITION_TYPES
    return field["type"] in SIMPLE_TYPES or field["type"].startswith("decimal")


def _is_valid_text(rows: pa.Table) -> bool:
    """Return whether all texts are UTF-8, which Spark does not demand."""
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
