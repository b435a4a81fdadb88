"""The add actions of single files, as a table's log has them: with partition values as text, and deletion vectors."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from onceonly.delta import log_files, table_files

ADD_BATCH_ROWS = 1 << 14
ADD_COLUMNS = ["path", "partitionValues", "size", "modificationTime", "stats", "deletionVector"]
Add = Mapping[str, Any]


def read(uri: str, version: int, paths: Collection[str]) -> dict[str, Add]:
    """Return the newest add action of each of these files, up to a version of the table.

    Args:
        paths: decoded, of files that the table has at that version.
    Raises:
        OSError: a part of the log cannot be read.
        ValueError: the log does not name one of them.
    """
    files, adds_by_path, missing = table_files.open_folder(uri), dict[str, Add](), set(paths)
    names = []
    for name in table_files.list_log(uri):
        checkpoint_version = log_files.find_checkpoint_version(name)
        if checkpoint_version is not None and checkpoint_version <= version:
            names.append(name)
    start, parts = log_files.find_last_checkpoint(names)
    for number in range(version, start, -1):
        if not missing:
            break
        for add in _read_entry(files, number):
            if (path := unquote(add["path"])) in missing:
                adds_by_path[path] = add
        missing -= adds_by_path.keys()
    for part in parts if missing else ():
        for add in _read_checkpoint(files, f"{log_files.LOG_FOLDER}/{part}", missing):
            adds_by_path[unquote(add["path"])] = add
    if lost := sorted(set(paths) - adds_by_path.keys()):
        raise ValueError(f"the log of {uri} does not name {len(lost):,} of its files, such as {lost[0]}")
    return adds_by_path


def _read_entry(files: pafs.FileSystem, version: int) -> Iterator[Add]:
    for line in table_files.read_lines(files, log_files.entry_path(version)):
        if b'"add"' in line:
            action = json.loads(line)
            if "add" in action:
                yield action["add"]


def _read_checkpoint(files: pafs.FileSystem, path: str, wanted: Collection[str]) -> Iterator[Add]:
    with files.open_input_file(path) as source:
        checkpoint = pq.ParquetFile(source)
        add_type, columns = checkpoint.schema_arrow.field("add").type, list[str]()
        for name in ADD_COLUMNS:
            if add_type.get_field_index(name) >= 0:
                columns.append(f"add.{name}")
        for batch in checkpoint.iter_batches(ADD_BATCH_ROWS, columns=columns, use_threads=False):
            yield from _select(batch.column("add"), wanted)


def _select(adds: pa.StructArray, wanted: Collection[str]) -> Iterator[Add]:
    for number, path in enumerate(adds.field("path").to_pylist()):
        if path is not None and unquote(path) in wanted:
            add = adds[number].as_py()
            if add is not None:
                yield {**add, "partitionValues": dict(add["partitionValues"] or ())}
