"""The log of a Delta table, as a reader of ranges of versions needs it.

Source: Delta protocol, "Delta Log Entries", "Add File and Remove File", "Add CDC File", "Commit Provenance
Information", "In-Commit Timestamps".
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from onceonly.filesystems import durability
from onceonly.filesystems.paths import local_path

ENTRY = re.compile(r"(\d{20})\.json")
LOG = "_delta_log"
AT_ONCE = 16  # requests at the same time
NO_DATE = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class File:
    """A file that a version adds, with a path relative to the table's folder; `size` is None if it is not known."""

    path: str
    size: int | None
    values: Mapping[str, str | None]  # of the partition columns, as text

    @property
    def elsewhere(self) -> bool:
        """Whether it is outside of the table's folder: that of a shallow clone."""
        return bool(urlsplit(self.path).scheme) or self.path.startswith("/")


@dataclass(frozen=True)
class Version:
    """What one version of the table did.

    Args:
        added: files whose rows are new.
        removed: files whose rows are no longer in the table. Files that were only rewritten are in neither.
        changed: files of its Change Data Feed.
        operation: as the writer calls it, such as "WRITE".
        hides: whether a deletion vector hides rows of the added files.
        redefines: whether the table's columns, settings or protocol are others since then.
        transactions: application -> number, of those that it published.
    """

    number: int
    added: tuple[File, ...]
    removed: tuple[File, ...]
    changed: tuple[File, ...]
    operation: str
    hides: bool
    redefines: bool
    transactions: Mapping[str, int]


class TableLog:
    """Reads the log. Every call looks again; an entry never changes, unless the table is restored from a copy."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")

    def times(self) -> dict[int, datetime]:
        """The versions whose entries are there, without a gap up to the newest, with their times of modification.

        On a local disk they are there to stay: what is read may not be lost in a power failure afterwards.

        Raises:
            TableNotFoundError: there is no table.
        """
        if local := local_path(self.uri):
            _keep(durability.Log(local))
        found = self._files().get_file_info(pafs.FileSelector(LOG, allow_not_found=True))
        times = {int(m[1]): info.mtime for info in found if (m := ENTRY.fullmatch(info.base_name))}
        if not times:
            raise TableNotFoundError(f"no log in {self.uri}/{LOG}")
        newest = max(times)
        first = next(number for number in range(newest, -2, -1) if number not in times) + 1
        return {number: times[number] or NO_DATE for number in range(first, newest + 1)}

    def table(self, version: int) -> DeltaTable:
        """The table as of that version."""
        return DeltaTable(self.uri, version=version)

    def versions(self, numbers: Iterable[int]) -> list[Version]:
        """Raises FileNotFoundError: one of the entries is not there any more."""
        files = self._files()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda number: _version(number, _actions(files, number)), numbers))

    def commit_times(self, numbers: Iterable[int]) -> dict[int, datetime | None]:
        """The in-commit timestamps of these versions."""
        files = self._files()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return dict(pool.map(lambda number: (number, _commit_time(_actions(files, number))), numbers))

    def mark(self, version: int) -> str | None:
        """What tells this version from another one of the same number; None: its entry is not there."""
        try:
            with self._files().open_input_stream(entry(version)) as stream:
                return hashlib.file_digest(io.BufferedReader(stream), "sha256").hexdigest()
        except FileNotFoundError:
            return None

    def missing(self, wanted: Iterable[File]) -> list[str]:
        """Paths of files that are not there, or have another size."""
        each, files = list(wanted), self._files()

        def found(part: list[File]) -> list[pafs.FileInfo]:
            there: list[pafs.FileInfo] = files.get_file_info([file.path for file in part])
            return there

        parts = [each[start : start + AT_ONCE] for start in range(0, len(each), AT_ONCE)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            infos = [info for part in pool.map(found, parts) for info in part]
        return [file.path for file, info in zip(each, infos, strict=True) if not _is_there(file, info)]

    def _files(self) -> pafs.FileSystem:
        if path := local_path(self.uri):
            return pafs.SubTreeFileSystem(str(path), pafs.LocalFileSystem())
        return pafs.PyFileSystem(DeltaStorageHandler(self.uri))


def active(table: DeltaTable) -> list[File]:
    """The files that a table's rows are in."""
    adds = table.get_add_actions()
    found = zip(adds["path"].to_pylist(), adds["size_bytes"].to_pylist(), strict=True)
    return [File(unquote(path), size, {}) for path, size in found]


def entry(version: int) -> str:
    return f"{LOG}/{version:020}.json"


def _keep(log: durability.Log) -> None:
    try:
        log.keep()
    except FileNotFoundError as error:
        raise TableNotFoundError(str(error)) from error


def _is_there(file: File, info: pafs.FileInfo) -> bool:
    return info.type is pafs.FileType.File and file.size in (None, info.size)


def _actions(files: pafs.FileSystem, number: int) -> Iterator[dict[str, Any]]:
    with files.open_input_stream(entry(number)) as stream:
        for line in io.BufferedReader(stream):
            if line.strip():
                yield json.loads(line)


def _version(number: int, actions: Iterable[dict[str, Any]]) -> Version:
    told = list(actions)
    adds, removes, feed = ([action[kind] for action in told if action.get(kind)] for kind in ("add", "remove", "cdc"))
    added = [add for add in adds if add.get("dataChange", True)]
    removed = [remove for remove in removes if remove.get("dataChange", True)]
    info: Mapping[str, Any] = next((action["commitInfo"] for action in told if action.get("commitInfo")), {})
    txns = [action["txn"] for action in told if action.get("txn")]
    return Version(
        number,
        tuple(map(_file, added)),
        tuple(map(_file, removed)),
        tuple(map(_file, feed)),
        str(info.get("operation", "?")),
        any(add.get("deletionVector") for add in added),
        any(action.get("metaData") or action.get("protocol") for action in told),
        {txn["appId"]: txn["version"] for txn in txns},
    )


def _file(action: Mapping[str, Any]) -> File:
    values = {name: text or None for name, text in (action.get("partitionValues") or {}).items()}  # "" is null
    return File(unquote(action["path"]), action.get("size"), values)


def _commit_time(actions: Iterable[dict[str, Any]]) -> datetime | None:
    for action in actions:
        millis = (action.get("commitInfo") or {}).get("inCommitTimestamp")
        if millis is not None:
            return datetime.fromtimestamp(millis / 1000, UTC)
    return None
