"""The files of a Delta table: its folder, the entries of its log there, and which files its rows are in.

Source: Delta protocol, "Delta Log Entries", "Add File and Remove File".
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import RemoveAction

from onceonly.delta import log_files, txn_identifiers
from onceonly.delta.log_files import DurableLog
from onceonly.storage import durability
from onceonly.storage.folders import read_digest
from onceonly.storage.paths import local_path
from onceonly.waits import wait_for

PartitionCondition = list[list[tuple[str, str, Any]]]  # alternatives, each of (partition column, operator, value)


def open_table(uri: str) -> DeltaTable | None:
    """Open the table there; None: there is none."""
    try:
        with wait_for(f"the table at {uri}"):
            return DeltaTable(uri)
    except TableNotFoundError:
        return None


def open_folder(uri: str) -> pafs.FileSystem:
    """Return the folder of a table; on an object store through the same layer (and credentials) as the table itself."""
    if path := local_path(uri):
        return pafs.SubTreeFileSystem(str(path), pafs.LocalFileSystem())
    return pafs.PyFileSystem(DeltaStorageHandler(uri))


def write_text(files: pafs.FileSystem, path: str, text: str) -> None:
    """Write a file of the table in one call, in place of one of that name."""
    data = text.encode()
    with files.open_output_stream(path, buffer_size=len(data) + 1) as out:
        out.write(data)  # from within a buffer that holds it all: delta-rs takes bytes, pyarrow would hand it a Buffer


def list_folder(uri: str, folder: str = "", recursive: bool = False) -> list[pafs.FileInfo]:
    """List what a folder of the table holds; nothing, where the table's own folder is not there.

    (delta-rs refuses to list that.)
    """
    selector = pafs.FileSelector(folder, recursive=recursive, allow_not_found=True)
    try:
        infos: list[pafs.FileInfo] = open_folder(uri).get_file_info(selector)
    except TableNotFoundError:
        return []
    return infos


def list_log(uri: str) -> list[str]:
    """List the names of the files in the table's log."""
    return [info.base_name for info in list_folder(uri, log_files.LOG_FOLDER)]


def read_lines(files: pafs.FileSystem, path: str) -> Iterator[bytes]:
    """Yield the actions of a log entry, one by one: it may name as many files as the table has."""
    with files.open_input_stream(path) as stream:
        yield from io.BufferedReader(stream)


def identify_version(files: pafs.FileSystem, version: int) -> dict[str, Any] | None:
    """Return what identifies that version of a table: its number, and a digest (SHA-256) of its log entry.

    None: its log entry is no longer there.
    """
    digest = hash_entry(files, version)
    return {"version": version, "entry": digest} if digest else None


def hash_entry(files: pafs.FileSystem, version: int) -> str | None:
    """Return the SHA-256 of the log entry of a version; None: it is no longer there."""
    try:
        return read_digest(files, log_files.entry_path(version))
    except FileNotFoundError:
        return None


def sync_to_disk(target_uri: str, folder: str | None = None) -> None:
    """Make the table's log, and what is staged in `folder`, survive a power failure from now on.

    Raises:
        OSError: they may not. Nothing may follow from them.
    """
    local = local_path(target_uri)
    if local and folder:
        durability.sync_tree(local / folder)
    if local:
        DurableLog(local).sync()


def list_active_files(table: DeltaTable) -> dict[str, int]:
    """Return path (as in the log) -> size of the files that the table's rows are in."""
    adds = table.get_add_actions()
    return dict(zip(adds["path"].to_pylist(), adds["size_bytes"].to_pylist(), strict=True))


def select_in_folder(files: dict[str, int], folder: str) -> dict[str, int]:
    """Select the files in a staged folder, whatever rows they hold."""
    prefix = f"{folder}/"
    return {path: files[path] for path in files if path.startswith(prefix)}


def select_staged_in(files: dict[str, int], folder: str) -> dict[str, int]:
    """Select the files with the rows that were staged in a folder, as they were published."""
    inside = select_in_folder(files, folder)
    return {path: size for path, size in inside.items() if not txn_identifiers.is_kept_copy(path)}


def find_by_decoded(files: Iterable[str], wanted: Collection[str]) -> dict[str, str]:
    """Return decoded path -> path (as in the log) of those files that are wanted.

    Args:
        wanted: decoded paths. Of the files, which may be very many, only those are decoded that are encoded.
    """
    paths = {}
    for path in files:
        decoded = unquote(path) if "%" in path else path
        if decoded in wanted:
            paths[decoded] = path
    return paths


def select_partly_deleted(table: DeltaTable, files: Iterable[str]) -> list[str]:
    """Select the files of which a deletion vector hides rows, by their names, which hold a UUID.

    In the log the vector is part of a file's identity, which a `RemoveAction` cannot name.
    """
    if "deletionVectors" not in (table.protocol().reader_features or []):
        return []
    uris = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()["filepath"].to_pylist()
    names = set(map(_file_name, uris))
    return sorted(path for path in files if _file_name(path) in names)


def _file_name(uri: str) -> str:
    return unquote(uri).rpartition("/")[2]


def select_in_partitions(files: dict[str, int], table: DeltaTable, where: PartitionCondition) -> dict[str, int]:
    """Select the files of the partitions that match; `files` are all that the table has."""
    paths = dict(zip(sorted(table.file_uris()), sorted(files, key=unquote), strict=True))  # one prefix: one order
    if not where:
        return {}
    selected = {}
    for uri in table.file_uris(file_pruning_predicate=where):
        path = paths[uri]
        selected[path] = files[path]
    return selected


def partition_condition(adds: list[dict[str, Any]]) -> PartitionCondition:
    """Return a predicate for just the partitions that add actions are in."""
    partitions = set()
    for add in adds:
        partitions.add(tuple(sorted(add["partitionValues"].items())))
    where: PartitionCondition = []
    for partition in partitions:
        where.append([(column, "=", value or "") for column, value in partition])  # "" is null
    return where


def to_removes(files: dict[str, int]) -> list[RemoveAction]:
    """Return actions that remove those files from the table (paths decoded, as above). A VACUUM deletes them."""
    now = int(time.time() * 1000)
    removes = []
    for path, size in sorted(files.items()):
        removes.append(RemoveAction(unquote(path), True, now, size))
    return removes


def find_missing(adds: list[dict[str, Any]], folder: str, sizes: dict[str, int]) -> list[str]:
    """List those of `adds` that are missing or have another size.

    Args:
        sizes: of the files that exist, by path in the target.
    """
    missing = set()
    for add in adds:
        path = f"{folder}/{unquote(add['path'])}"
        if sizes.get(path) != add["size"]:
            missing.add(path)
    return sorted(missing)


def count_rows_and_bytes(adds: list[dict[str, Any]], staged_uri: str) -> tuple[int, int]:
    """Return (rows, bytes) of add actions; a Spark that collects no statistics leaves the rows to be counted."""
    rows = size = 0
    for add in adds:
        rows += _count_rows(add, staged_uri)
        size += add["size"]
    return rows, size


def _count_rows(add: dict[str, Any], staged_uri: str) -> int:
    rows = json.loads(add.get("stats") or "{}").get("numRecords")
    if rows is None:
        with open_folder(staged_uri).open_input_file(unquote(add["path"])) as file:
            rows = pq.read_metadata(file).num_rows
    return int(rows)
