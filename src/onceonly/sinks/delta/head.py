"""What a table's log says of the table itself: its identity, and every transaction identifier.

A table library reads the list of all files before it answers. This reads three columns of the last log checkpoint, and
the log entries since: of one file, of several parts, of format V2 (whose sidecars hold files alone), on any storage.
Source: Delta protocol, "Transaction Identifiers", "Change Metadata", "Checkpoints".
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from onceonly.errors import OutcomeUnknown
from onceonly.filesystems import delta_names
from onceonly.filesystems.objects import Found, Objects
from onceonly.filesystems.paths import local_path
from onceonly.sinks.delta import log
from onceonly.sinks.delta.look import Look

ENTRY = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
COLUMNS = ["txn.appId", "txn.version", "metaData", "protocol"]
SHOWN = "onceonly.table"  # in the information of a commit: what the table is by then, so that no earlier one is read
LARGE = 32 << 10  # bytes: what is larger is not repeated in each commit
WANTED = tuple(f'"{name}"'.encode() for name in ("txn", "metaData", "protocol", SHOWN))
WHOLE = 8 << 20  # bytes: a log checkpoint on an object store that is not larger is read in one request
BROKEN = (OSError, ValueError, KeyError, DeltaError)  # a log that cannot be read, or is no log
ROWS = 4096  # of a log checkpoint, at a time: most of them are files
AT_ONCE = 16  # entries read at the same time


@dataclass(frozen=True)
class Head:
    """Of one version of a table; `table_id` is None where the log does not name it."""

    version: int
    table_id: str | None
    txns: Mapping[str, int]  # app id -> version
    told: Mapping[str, Mapping[str, Any]]  # its `metaData` and `protocol`, where the log has them


def read(uri: str) -> Head | None:
    """The newest version; None: there is no table.

    Raises:
        OutcomeUnknown: the log is not whole, or cannot be read.
    """
    return open_log(uri).head()


def digest(uri: str, version: int) -> str | None:
    """SHA-256 of that log entry; None: it is no longer there.

    Raises:
        OutcomeUnknown: it cannot be read.
    """
    try:
        if local_path(uri):
            entry = log.began(log.file_system(uri), version)
            return entry["entry"] if entry else None
        return hashlib.sha256(Objects(uri).read(log.entry(version))).hexdigest()
    except FileNotFoundError:
        return None
    except BROKEN as error:
        raise _unreadable(uri, error) from error


class Stored:
    """The log of a table on an object store, as one listing shows it; `whole`: also before its last log checkpoint."""

    def __init__(self, uri: str, whole: bool = False) -> None:
        self.uri, self.files = uri, Objects(uri)
        listed = self.files.below(log.LOG) if whole else delta_names.recent(self.files)
        self.found: dict[str, Found] = {each.name: each for each in listed}

    def lines(self, path: str) -> Iterator[bytes]:
        found = self.found[path.rpartition("/")[2]]
        yield from self.files.read(path, found.tag).splitlines()

    def open_input_file(self, path: str) -> pa.NativeFile:
        found = self.found[path.rpartition("/")[2]]
        if found.size > WHOLE:
            return log.file_system(self.uri).open_input_file(path)
        return pa.BufferReader(self.files.read(path, found.tag))


Files: TypeAlias = "pafs.FileSystem | Stored"


class TableLog:
    """The log of a table, as one listing shows it. Each call raises OutcomeUnknown where it cannot be read."""

    def __init__(self, uri: str, files: Files, names: list[str]) -> None:
        self.uri, self._files, self._names = uri, files, names

    def head(self) -> Head | None:
        """The newest version; None: there is no table."""
        newest = newest_version(self._names)
        try:
            if newest < 0:
                return None
            if isinstance(self._files, Stored):
                return _read_back(self._files, newest)
            return _read(self._files, self._names, newest)
        except BROKEN as error:
            raise _unreadable(self.uri, error) from error

    def digest(self, version: int) -> str | None:
        """SHA-256 of that log entry; None: it is no longer there."""
        entry = self._files.found.get(f"{version:020}.json") if isinstance(self._files, Stored) else None
        if entry is None or not isinstance(self._files, Stored):
            return digest(self.uri, version)
        try:
            return hashlib.sha256(self._files.files.read(entry.path, entry.tag)).hexdigest()
        except FileNotFoundError:
            return None
        except BROKEN as error:
            raise _unreadable(self.uri, error) from error

    def commit_info(self, version: int) -> dict[str, Any]:
        """What that commit says of itself; empty: nothing, or its log entry is no longer there."""
        try:
            lines = _lines(self._files, log.entry(version))
            infos = (json.loads(line).get("commitInfo") for line in lines if b'"commitInfo"' in line)
            return next((info for info in infos if info), {})
        except (FileNotFoundError, KeyError):
            return {}
        except BROKEN as error:
            raise _unreadable(self.uri, error) from error


def open_log(uri: str) -> TableLog:
    """The log of the table there, or an empty one.

    Raises:
        OutcomeUnknown: it cannot be listed.
    """
    try:
        if not local_path(uri):
            stored = Stored(uri)
            return TableLog(uri, stored, list(stored.found))
        found = log.entries(uri, log.LOG)
        names = [info.base_name for info in found if info.size or ENTRY.fullmatch(info.base_name)]
        return TableLog(uri, log.file_system(uri), names)
    except BROKEN as error:
        raise _unreadable(uri, error) from error


def table(uri: str) -> log.Table | None:
    """The table there, as an append has to know it; None: there is none."""
    return log.open_table(uri) if local_path(uri) else look(uri)


def look(uri: str) -> Look | None:
    """The newest version of a table on an object store; None: there is none.

    Raises:
        OutcomeUnknown: the log is not whole, or cannot be read.
    """
    try:
        files = Stored(uri)
        newest = newest_version(files.found)
        if newest < 0:
            return None
        found, entry = _read_back(files, newest), files.found.get(f"{newest:020}.json")
        if missing := {"metaData", "protocol"} - set(found.told):
            raise ValueError(f"it does not tell {sorted(missing)}")
        digest = hashlib.sha256(files.files.read(entry.path, entry.tag)).hexdigest() if entry else None
    except BROKEN as error:
        raise _unreadable(uri, error) from error
    return Look(uri, found.told, found.txns, newest, digest)


def transactions(uri: str, app_id: str) -> Iterator[tuple[int, int]]:
    """(version of the table, number) of an application's transactions, newest first, as far as entries are left.

    Raises:
        OutcomeUnknown: the log cannot be read.
    """
    try:
        files: Files = log.file_system(uri) if local_path(uri) else Stored(uri, whole=True)
        names = (
            set(files.found) if isinstance(files, Stored) else {each.base_name for each in log.entries(uri, log.LOG)}
        )
        for version in range(newest_version(names), -1, -1):
            if f"{version:020}.json" not in names:
                return
            found = [each["txn"] for each in _of_file(files, log.entry(version)) if each.get("txn")]
            yield from ((version, txn["version"]) for txn in found if txn["appId"] == app_id)
    except FileNotFoundError:  # cleaned up since the log was listed
        return
    except BROKEN as error:
        raise _unreadable(uri, error) from error


def newest_version(names: Iterable[str]) -> int:
    """Of a log with these files; -1 where there is none."""
    return max(_last_checkpoint(names)[0], *(int(match[1]) for name in names if (match := ENTRY.fullmatch(name))), -1)


def summary(before: Look, app_id: str, version: int) -> dict[str, Any]:
    """What a commit after that look, with that transaction, says of the table; nothing, if it is much."""
    said = {**before.told, "txns": {**before.txns, app_id: version}}
    return {SHOWN: said} if len(json.dumps(said)) <= LARGE else {}


def _read_back(files: Stored, newest: int) -> Head:
    """From the newest entry down to one that shows what the table was by then, or to the last log checkpoint."""
    start, _ = _last_checkpoint(files.found)
    actions: list[dict[str, Any]] = []
    at, most = newest, 1
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while at > start:
            paths = [log.entry(version) for version in range(max(at - most, start) + 1, at + 1)]
            read = list(pool.map(lambda path: _of_file(files, path), paths))
            for found in reversed(read):
                shown = next((each["commitInfo"][SHOWN] for each in found if SHOWN in each.get("commitInfo", ())), None)
                if shown:
                    return _head(newest, [*_as_actions(shown), *actions])
                actions = [*found, *actions]
            at, most = at - len(paths), 4 * most
    return _read(files, list(files.found), newest)


def _as_actions(shown: Mapping[str, Any]) -> list[dict[str, Any]]:
    txns = [{"txn": {"appId": app_id, "version": version}} for app_id, version in shown["txns"].items()]
    return [{name: shown[name]} for name in ("metaData", "protocol")] + txns


def _read(files: Files, names: list[str], newest: int) -> Head:
    """Raises FileNotFoundError: an entry is missing, or was cleaned up since the log was listed."""
    start, parts = _last_checkpoint(names)
    wanted = [*parts, *(f"{number:020}.json" for number in range(start + 1, newest + 1))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        read = pool.map(lambda name: _of_file(files, f"{log.LOG}/{name}"), wanted)
        actions = [action for found in read for action in found]
    return _head(newest, actions)


def _head(newest: int, actions: list[dict[str, Any]]) -> Head:
    txns = [action["txn"] for action in actions if action.get("txn")]
    told = {name: action[name] for action in actions for name in ("metaData", "protocol") if action.get(name)}
    table_id = told["metaData"]["id"] if "metaData" in told else None
    return Head(newest, table_id, {txn["appId"]: txn["version"] for txn in txns}, told)


def _last_checkpoint(names: Iterable[str]) -> tuple[int, list[str]]:
    """(its version, its files), of the last one of which every file is there; -1 where there is none."""
    groups: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name in names:
        if match := CHECKPOINT.fullmatch(name):
            groups[int(match[1]), int(match[2] or 1)].append(name)
    whole = {version: sorted(group) for (version, parts), group in groups.items() if len(group) >= parts}
    last = max(whole, default=-1)
    return last, whole.get(last, [])


def _of_file(files: Files, path: str) -> list[dict[str, Any]]:
    """Its `txn`, `metaData` and `protocol` actions."""
    if path.endswith(".parquet"):
        return _of_checkpoint(files, path)
    return [json.loads(line) for line in _lines(files, path) if any(word in line for word in WANTED)]


def _lines(files: Files, path: str) -> Iterator[bytes]:
    return files.lines(path) if isinstance(files, Stored) else log.lines(files, path)


def _of_checkpoint(files: Files, path: str) -> list[dict[str, Any]]:
    with files.open_input_file(path) as part:
        batches = pq.ParquetFile(part).iter_batches(ROWS, columns=COLUMNS, use_threads=False)
        return [action for batch in batches for action in _actions(batch)]


def _actions(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Of the few rows that are no file. (Without `drop_null`: it imports what takes longer than all of this.)"""
    told = {name: batch[name].to_pylist() for name in batch.schema.names if batch[name].null_count < len(batch)}
    return [{name: value} for name, values in told.items() for value in values if value]


def _unreadable(uri: str, error: Exception) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"it is not known what the log of {uri} shows.",
        f"{type(error).__name__}: {error}",
        "Fix the storage or the table, then repeat the command. Nothing was written.",
    )
