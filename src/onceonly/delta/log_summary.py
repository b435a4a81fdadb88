"""A summary of a table's log: the identity of the table, and every transaction identifier.

A table library reads the list of all files before it answers. This reads three columns of the last log checkpoint, and
the log entries since: of one file, of several parts, of format V2 (whose sidecars hold files alone), on any storage.
Source: Delta protocol, "Transaction Identifiers", "Change Metadata", "Checkpoints".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from onceonly.delta import log_files, table_files, table_snapshot
from onceonly.delta.table_snapshot import TableSnapshot
from onceonly.errors import OutcomeUnknown
from onceonly.storage.objects import ListedObject, Objects
from onceonly.storage.paths import local_path

TABLE_ACTIONS = ("metaData", "protocol")  # what a table is; the newest of each counts
# Key in the information of a commit: what the table is by then, so that no earlier entry has to be read.
TABLE_KEY = "onceonly.table"
MAX_SUMMARY_BYTES = 32 << 10  # bytes: what is larger is not repeated in each commit
ACTION_MARKERS = tuple(f'"{name}"'.encode() for name in ("txn", *TABLE_ACTIONS, TABLE_KEY))  # of lines to parse
MAX_CHECKPOINT_BYTES_AT_ONCE = 8 << 20  # a log checkpoint on an object store up to this is read in one request
LOG_ERRORS = (OSError, ValueError, KeyError, DeltaError)  # of a log that cannot be read, or is no log
MAX_PARALLEL_READS = 16  # entries read at the same time
CHECKPOINT_COLUMNS = ["txn.appId", "txn.version", "metaData", "protocol"]
CHECKPOINT_BATCH_ROWS = 4096  # of a log checkpoint, at a time: most of them are files


@dataclass(frozen=True)
class LogSummary:
    """What a log says of one version of a table; `table_id` is None where it does not name it."""

    version: int
    table_id: str | None
    txns: Mapping[str, int]  # app id -> version
    actions: Mapping[str, Mapping[str, Any]]  # its `metaData` and `protocol`, where the log has them


def read(uri: str) -> LogSummary | None:
    """Read the newest version; None: there is no table.

    Raises:
        OutcomeUnknown: the log is not whole, or cannot be read.
    """
    return open_log(uri).read_summary()


def read_digest(uri: str, version: int) -> str | None:
    """Return the SHA-256 of that log entry; None: it is no longer there.

    Raises:
        OutcomeUnknown: it cannot be read.
    """
    try:
        if local_path(uri):
            return table_files.hash_entry(table_files.open_folder(uri), version)
        return hashlib.sha256(Objects(uri).read(log_files.entry_path(version))).hexdigest()
    except FileNotFoundError:
        return None
    except LOG_ERRORS as error:
        raise _unreadable_error(uri, error) from error


class StoredLog:
    """The log of a table on an object store, as one listing shows it.

    Args:
        complete: lists also what was written before the last log checkpoint.
    """

    def __init__(self, uri: str, complete: bool = False) -> None:
        self.uri, self.files = uri, Objects(uri)
        objects = self.files.list_objects(log_files.LOG_FOLDER) if complete else log_files.list_recent(self.files)
        self.objects_by_name: dict[str, ListedObject] = {file.name: file for file in objects}

    def read_lines(self, path: str) -> Iterator[bytes]:
        file = self.objects_by_name[path.rpartition("/")[2]]
        yield from self.files.read(path, file.tag).splitlines()

    def open_input_file(self, path: str) -> pa.NativeFile:
        file = self.objects_by_name[path.rpartition("/")[2]]
        if file.size > MAX_CHECKPOINT_BYTES_AT_ONCE:
            return table_files.open_folder(self.uri).open_input_file(path)
        return pa.BufferReader(self.files.read(path, file.tag))


Files: TypeAlias = "pafs.FileSystem | StoredLog"


class TableLog:
    """The log of a table, as one listing shows it. Each call raises OutcomeUnknown where it cannot be read."""

    def __init__(self, uri: str, files: Files, names: list[str]) -> None:
        self.uri, self._files, self._names = uri, files, names

    def read_summary(self) -> LogSummary | None:
        """Read the newest version; None: there is no table."""
        newest = log_files.find_newest_version(self._names)
        try:
            if newest < 0:
                return None
            if isinstance(self._files, StoredLog):
                return _read_backwards(self._files, newest)
            return _read_forwards(self._files, self._names, newest)
        except LOG_ERRORS as error:
            raise _unreadable_error(self.uri, error) from error

    def read_digest(self, version: int) -> str | None:
        """Return the SHA-256 of that log entry; None: it is no longer there."""
        if not isinstance(self._files, StoredLog):
            return read_digest(self.uri, version)
        entry = self._files.objects_by_name.get(log_files.entry_name(version))
        if entry is None:
            return read_digest(self.uri, version)
        try:
            return hashlib.sha256(self._files.files.read(entry.path, entry.tag)).hexdigest()
        except FileNotFoundError:
            return None
        except LOG_ERRORS as error:
            raise _unreadable_error(self.uri, error) from error

    def read_commit_info(self, version: int) -> dict[str, Any]:
        """Read what that commit says of itself; empty: nothing, or its log entry is no longer there."""
        try:
            for line in _read_lines(self._files, log_files.entry_path(version)):
                if b'"commitInfo"' not in line:
                    continue
                info: dict[str, Any] | None = json.loads(line).get("commitInfo")
                if info:
                    return info
            return {}
        except (FileNotFoundError, KeyError):
            return {}
        except LOG_ERRORS as error:
            raise _unreadable_error(self.uri, error) from error


def open_log(uri: str) -> TableLog:
    """Open the log of the table there, or an empty one.

    Raises:
        OutcomeUnknown: it cannot be listed.
    """
    try:
        if not local_path(uri):
            stored = StoredLog(uri)
            return TableLog(uri, stored, list(stored.objects_by_name))
        names = []
        for info in table_files.list_folder(uri, log_files.LOG_FOLDER):
            # An empty file is no log checkpoint. An entry counts in any case.
            if info.size or log_files.ENTRY_NAME.fullmatch(info.base_name):
                names.append(info.base_name)
        return TableLog(uri, table_files.open_folder(uri), names)
    except LOG_ERRORS as error:
        raise _unreadable_error(uri, error) from error


def open_snapshot(uri: str) -> table_snapshot.Table | None:
    """Open the table there, as an append has to know it; None: there is none."""
    if local_path(uri):
        return table_files.open_table(uri)
    return read_snapshot(uri)


def read_snapshot(uri: str) -> TableSnapshot | None:
    """Read the newest version of a table on an object store; None: there is none.

    Raises:
        OutcomeUnknown: the log is not whole, or cannot be read.
    """
    try:
        stored = StoredLog(uri)
        newest = log_files.find_newest_version(stored.objects_by_name)
        if newest < 0:
            return None
        summary = _read_backwards(stored, newest)
        entry = stored.objects_by_name.get(log_files.entry_name(newest))
        if missing := set(TABLE_ACTIONS) - set(summary.actions):
            raise ValueError(f"it does not tell {sorted(missing)}")
        digest = None
        if entry:
            digest = hashlib.sha256(stored.files.read(entry.path, entry.tag)).hexdigest()
    except LOG_ERRORS as error:
        raise _unreadable_error(uri, error) from error
    return TableSnapshot(uri, summary.actions, summary.txns, newest, digest)


def read_txn_versions(uri: str, app_id: str) -> Iterator[tuple[int, int]]:
    """Yield (version of the table, number) of an application's transactions, newest first, as far as entries are left.

    Raises:
        OutcomeUnknown: the log cannot be read.
    """
    try:
        files: Files
        if local_path(uri):
            files = table_files.open_folder(uri)
            names = set(table_files.list_log(uri))
        else:
            files = StoredLog(uri, complete=True)
            names = set(files.objects_by_name)
        for version in range(log_files.find_newest_version(names), -1, -1):
            if log_files.entry_name(version) not in names:
                return
            for action in _read_actions(files, log_files.entry_path(version)):
                txn = action.get("txn")
                if txn and txn["appId"] == app_id:
                    yield version, txn["version"]
    except FileNotFoundError:  # cleaned up since the log was listed
        return
    except LOG_ERRORS as error:
        raise _unreadable_error(uri, error) from error


def summarize_for_commit(before: TableSnapshot, app_id: str, version: int) -> dict[str, Any]:
    """Return what a commit after that look, with that transaction, says of the table; nothing, if it is much."""
    table_summary = {**before.actions, "txns": {**before.txns, app_id: version}}
    if len(json.dumps(table_summary)) > MAX_SUMMARY_BYTES:
        return {}
    return {TABLE_KEY: table_summary}


def _read_backwards(stored: StoredLog, newest: int) -> LogSummary:
    """Read from the newest entry down to one that shows what the table was by then, or to the last log checkpoint.

    The first request is for one entry, which is enough behind a commit of ours; each further round reads four times
    as many.
    """
    start, _ = log_files.find_last_checkpoint(stored.objects_by_name)
    actions: list[dict[str, Any]] = []
    last, round_size = newest, 1
    with ThreadPoolExecutor(MAX_PARALLEL_READS) as pool:
        while last > start:
            first = max(last - round_size, start) + 1
            paths = list(map(log_files.entry_path, range(first, last + 1)))
            actions_by_entry = list(pool.map(lambda path: _read_actions(stored, path), paths))
            for entry_actions in reversed(actions_by_entry):
                table_summary = _find_table_summary(entry_actions)
                if table_summary:
                    return _fold_actions(newest, [*_as_actions(table_summary), *actions])
                actions = [*entry_actions, *actions]
            last, round_size = last - len(paths), 4 * round_size
    return _read_forwards(stored, list(stored.objects_by_name), newest)


def _find_table_summary(actions: list[dict[str, Any]]) -> Mapping[str, Any] | None:
    for action in actions:
        info = action.get("commitInfo", ())
        if TABLE_KEY in info:
            table_summary: Mapping[str, Any] | None = info[TABLE_KEY]
            return table_summary
    return None


def _as_actions(table_summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the actions of which the summary is the result."""
    actions: list[dict[str, Any]] = []
    for name in TABLE_ACTIONS:
        actions.append({name: table_summary[name]})
    for app_id, version in table_summary["txns"].items():
        actions.append({"txn": {"appId": app_id, "version": version}})
    return actions


def _read_forwards(files: Files, names: list[str], newest: int) -> LogSummary:
    """Read the last log checkpoint and the entries since.

    Raises:
        FileNotFoundError: an entry is missing, or was cleaned up since the log was listed.
    """
    start, parts = log_files.find_last_checkpoint(names)
    entries = map(log_files.entry_name, range(start + 1, newest + 1))

    def read_file(name: str) -> list[dict[str, Any]]:
        return _read_actions(files, f"{log_files.LOG_FOLDER}/{name}")

    actions: list[dict[str, Any]] = []
    with ThreadPoolExecutor(MAX_PARALLEL_READS) as pool:
        for file_actions in pool.map(read_file, [*parts, *entries]):
            actions += file_actions
    return _fold_actions(newest, actions)


def _fold_actions(newest: int, actions: list[dict[str, Any]]) -> LogSummary:
    """Fold actions, oldest first: the last one of each kind counts."""
    txns: dict[str, int] = {}
    table_actions: dict[str, Mapping[str, Any]] = {}
    for action in actions:
        txn = action.get("txn")
        if txn:
            txns[txn["appId"]] = txn["version"]
        for name in TABLE_ACTIONS:
            if action.get(name):
                table_actions[name] = action[name]
    table_id = None
    if "metaData" in table_actions:
        table_id = table_actions["metaData"]["id"]
    return LogSummary(newest, table_id, txns, table_actions)


def _read_actions(files: Files, path: str) -> list[dict[str, Any]]:
    """Read the `txn`, `metaData` and `protocol` actions of a log entry or checkpoint."""
    if path.endswith(".parquet"):
        with files.open_input_file(path) as part:
            return _read_checkpoint(part)
    actions = []
    for line in _read_lines(files, path):
        if _has_marker(line):  # most lines name a file; they are not parsed
            actions.append(json.loads(line))
    return actions


def _read_checkpoint(part: pa.NativeFile) -> list[dict[str, Any]]:
    """Read the `txn`, `metaData` and `protocol` actions of a log checkpoint, or of a part of one."""
    actions: list[dict[str, Any]] = []
    checkpoint = pq.ParquetFile(part)
    for batch in checkpoint.iter_batches(CHECKPOINT_BATCH_ROWS, columns=CHECKPOINT_COLUMNS, use_threads=False):
        actions += _select_actions(batch)
    return actions


def _select_actions(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the few rows that are no file. (Without `drop_null`: it imports what takes longer than all of this.)"""
    actions = []
    for name in batch.schema.names:
        if batch[name].null_count == len(batch):
            continue
        for value in batch[name].to_pylist():
            if value:
                actions.append({name: value})
    return actions


def _has_marker(line: bytes) -> bool:
    return any(marker in line for marker in ACTION_MARKERS)


def _read_lines(files: Files, path: str) -> Iterator[bytes]:
    if isinstance(files, StoredLog):
        return files.read_lines(path)
    return table_files.read_lines(files, path)


def _unreadable_error(uri: str, error: Exception) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"it is not known what the log of {uri} shows.",
        f"{type(error).__name__}: {error}",
        "Fix the storage or the table, then repeat the command. Nothing was written.",
        code="table-unreadable",
    )
