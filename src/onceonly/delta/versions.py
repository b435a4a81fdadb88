"""The log of a Delta table, as a reader of ranges of versions needs it.

Source: Delta protocol, "Delta Log Entries", "Add File and Remove File", "Add CDC File", "Commit Provenance
Information", "In-Commit Timestamps".
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from onceonly.delta import table_files
from onceonly.delta.log_files import LOG_FOLDER, DurableLog, entry_path, find_entry_version, parse_actions
from onceonly.storage.paths import local_path
from onceonly.unix_time import UNIX_EPOCH
from onceonly.waits import wait_for

MAX_PARALLEL_REQUESTS = 16
NO_DATE = UNIX_EPOCH


@dataclass(frozen=True)
class File:
    """A file that a version adds.

    Args:
        path: relative to the table's folder.
        size: in bytes; None: not known.
    """

    path: str
    size: int | None
    values: Mapping[str, str | None]  # of the partition columns, as text

    @property
    def is_outside(self) -> bool:
        """Return whether it is outside of the table's folder: that of a shallow clone."""
        return bool(urlsplit(self.path).scheme) or self.path.startswith("/")


@dataclass(frozen=True)
class Version:
    """The changes that one version of the table made.

    Args:
        added: files whose rows are new.
        removed: files whose rows are no longer in the table. Files that were only rewritten are in neither.
        changed: files of its Change Data Feed.
        operation: as the writer calls it, such as "WRITE".
        hides: a deletion vector hides rows of the added files.
        redefines: the table's columns, settings or protocol are others since then.
        transactions: application -> number, of the transactions that it published.
    """

    number: int
    added: tuple[File, ...]
    removed: tuple[File, ...]
    changed: tuple[File, ...]
    operation: str
    hides: bool
    redefines: bool
    transactions: Mapping[str, int]


class VersionLog:
    """A reader of the log. Every call reads again; an entry never changes, unless the table is restored from a copy."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")

    def times(self) -> dict[int, datetime]:
        """Return the modification time of each version whose entry is there, without a gap up to the newest.

        On a local disk they are there to stay: what is read may not be lost in a power failure afterwards.

        Raises:
            TableNotFoundError: there is no table.
        """
        local_folder = local_path(self.uri)
        if local_folder:
            _sync_log(DurableLog(local_folder))
        times = {}
        for info in self._open_storage().get_file_info(pafs.FileSelector(LOG_FOLDER, allow_not_found=True)):
            version = find_entry_version(info.base_name)
            if version is not None:
                times[version] = info.mtime
        if not times:
            raise TableNotFoundError(f"no log in {self.uri}/{LOG_FOLDER}")
        newest = max(times)
        first = newest
        while first - 1 in times:
            first -= 1
        return {number: times[number] or NO_DATE for number in range(first, newest + 1)}

    def table(self, version: int) -> DeltaTable:
        """Load the table as of that version."""
        with wait_for(f"the table at {self.uri}"):
            return DeltaTable(self.uri, version=version)

    def versions(self, numbers: Iterable[int]) -> list[Version]:
        """Read these versions. Raises FileNotFoundError: one of the entries is not there any more."""
        storage = self._open_storage()
        with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
            return list(pool.map(lambda number: _to_version(number, _read_actions(storage, number)), numbers))

    def commit_times(self, numbers: Iterable[int]) -> dict[int, datetime | None]:
        """Read the in-commit timestamps of these versions."""
        storage = self._open_storage()
        with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
            return dict(pool.map(lambda number: (number, _find_commit_time(_read_actions(storage, number))), numbers))

    def mark(self, version: int) -> str | None:
        """Return a hash that tells this version from another one of the same number; None: its entry is not there."""
        return table_files.hash_entry(self._open_storage(), version)

    def list_missing_files(self, files: Iterable[File]) -> list[str]:
        """Return the paths of files that are not there, or have another size."""
        files = list(files)
        storage = self._open_storage()

        def read_infos(start: int) -> list[pafs.FileInfo]:
            part = files[start : start + MAX_PARALLEL_REQUESTS]
            infos: list[pafs.FileInfo] = storage.get_file_info([file.path for file in part])
            return infos

        starts = range(0, len(files), MAX_PARALLEL_REQUESTS)
        with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
            infos = list(chain.from_iterable(pool.map(read_infos, starts)))
        missing_paths = []
        for file, info in zip(files, infos, strict=True):
            if not _is_there(file, info):
                missing_paths.append(file.path)
        return missing_paths

    def _open_storage(self) -> pafs.FileSystem:
        """Return a file system whose root is the table's folder."""
        return table_files.open_folder(self.uri)


def list_table_files(table: DeltaTable) -> list[File]:
    """Return the files that a table's rows are in."""
    adds = table.get_add_actions()
    paths, sizes = adds["path"].to_pylist(), adds["size_bytes"].to_pylist()
    files = []
    for path, size in zip(paths, sizes, strict=True):
        files.append(File(unquote(path), size, {}))
    return files


def _sync_log(log: DurableLog) -> None:
    try:
        log.sync()
    except FileNotFoundError as error:
        raise TableNotFoundError(str(error)) from error


def _is_there(file: File, info: pafs.FileInfo) -> bool:
    return info.type is pafs.FileType.File and file.size in (None, info.size)


def _read_actions(storage: pafs.FileSystem, number: int) -> Iterator[dict[str, Any]]:
    with storage.open_input_stream(entry_path(number)) as stream:
        yield from parse_actions(io.BufferedReader(stream))


def _to_version(number: int, actions: Iterable[dict[str, Any]]) -> Version:
    actions = list(actions)
    adds = _select_changes(actions, "add")
    removes = _select_changes(actions, "remove")
    commit_infos = _select_kind(actions, "commitInfo")
    commit_info = commit_infos[0] if commit_infos else {}
    transactions = {}
    for txn in _select_kind(actions, "txn"):
        transactions[txn["appId"]] = txn["version"]
    return Version(
        number,
        added=tuple(map(_to_file, adds)),
        removed=tuple(map(_to_file, removes)),
        changed=tuple(map(_to_file, _select_kind(actions, "cdc"))),
        operation=str(commit_info.get("operation", "?")),
        hides=any(add.get("deletionVector") for add in adds),
        redefines=bool(_select_kind(actions, "metaData") or _select_kind(actions, "protocol")),
        transactions=transactions,
    )


def _select_kind(actions: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the content of the actions of one kind: an action is an object with its kind as the only key."""
    return [action[kind] for action in actions if action.get(kind)]


def _select_changes(actions: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the content of the adds or removes that change the table's rows, and do not only rewrite them."""
    return [content for content in _select_kind(actions, kind) if content.get("dataChange", True)]


def _to_file(action: Mapping[str, Any]) -> File:
    partition_values = action.get("partitionValues") or {}
    values = {name: text or None for name, text in partition_values.items()}  # "" is null
    return File(unquote(action["path"]), action.get("size"), values)


def _find_commit_time(actions: Iterable[dict[str, Any]]) -> datetime | None:
    for action in actions:
        millis = (action.get("commitInfo") or {}).get("inCommitTimestamp")
        if millis is not None:
            return datetime.fromtimestamp(millis / 1000, UTC)
    return None
