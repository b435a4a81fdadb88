"""What a table's log says of the table itself: its identity, and every transaction identifier.

A table library reads the list of all files before it answers. This reads three columns of the last log checkpoint, and
the log entries since: of one file, of several parts, of format V2 (whose sidecars hold files alone), on any storage.
Source: Delta protocol, "Transaction Identifiers", "Change Metadata", "Checkpoints".
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from onceonly.errors import OutcomeUnknown
from onceonly.sinks.delta import log

ENTRY = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
COLUMNS = ["txn.appId", "txn.version", "metaData.id"]
BROKEN = (OSError, ValueError, KeyError, DeltaError)  # a log that cannot be read, or is no log
ROWS = 4096  # of a log checkpoint, at a time: most of them are files
AT_ONCE = 16  # entries read at the same time


@dataclass(frozen=True)
class Head:
    """Of one version of a table; `table_id` is None where the log does not name it."""

    version: int
    table_id: str | None
    txns: Mapping[str, int]  # app id -> version


def read(uri: str) -> Head | None:
    """The newest version; None: there is no table.

    Raises:
        OutcomeUnknown: the log is not whole, or cannot be read.
    """
    try:
        files, found = log.file_system(uri), log.entries(uri, log.LOG)
        names = [info.base_name for info in found if info.size or ENTRY.fullmatch(info.base_name)]
        newest = newest_version(names)
        return None if newest < 0 else _read(files, names, newest)
    except BROKEN as error:
        raise _unreadable(uri, error) from error


def transactions(uri: str, app_id: str) -> Iterator[tuple[int, int]]:
    """(version of the table, number) of an application's transactions, newest first, as far as entries are left.

    Raises:
        OutcomeUnknown: the log cannot be read.
    """
    try:
        files = log.file_system(uri)
        names = {info.base_name for info in log.entries(uri, log.LOG)}
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


def _read(files: pafs.FileSystem, names: list[str], newest: int) -> Head:
    """Raises FileNotFoundError: an entry is missing, or was cleaned up since the log was listed."""
    start, parts = _last_checkpoint(names)
    wanted = [*parts, *(f"{number:020}.json" for number in range(start + 1, newest + 1))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        read = pool.map(lambda name: _of_file(files, f"{log.LOG}/{name}"), wanted)
        actions = [action for found in read for action in found]
    txns = [action["txn"] for action in actions if action.get("txn")]
    ids = [action["metaData"]["id"] for action in actions if action.get("metaData")]
    return Head(newest, ids[-1] if ids else None, {txn["appId"]: txn["version"] for txn in txns})


def _last_checkpoint(names: Iterable[str]) -> tuple[int, list[str]]:
    """(its version, its files), of the last one of which every file is there; -1 where there is none."""
    groups: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name in names:
        if match := CHECKPOINT.fullmatch(name):
            groups[int(match[1]), int(match[2] or 1)].append(name)
    whole = {version: sorted(group) for (version, parts), group in groups.items() if len(group) >= parts}
    last = max(whole, default=-1)
    return last, whole.get(last, [])


def _of_file(files: pafs.FileSystem, path: str) -> list[dict[str, Any]]:
    """Its `txn` and `metaData` actions."""
    if path.endswith(".parquet"):
        return _of_checkpoint(files, path)
    wanted = (line for line in log.lines(files, path) if b'"txn"' in line or b'"metaData"' in line)
    return [json.loads(line) for line in wanted]


def _of_checkpoint(files: pafs.FileSystem, path: str) -> list[dict[str, Any]]:
    with files.open_input_file(path) as part:
        batches = pq.ParquetFile(part).iter_batches(ROWS, columns=COLUMNS, use_threads=False)
        return [action for batch in batches for action in _actions(batch)]


def _actions(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Of the few rows that are no file. (Without `drop_null`: it imports what takes longer than all of this.)"""
    told = {name: batch[name].to_pylist() for name in batch.schema.names if batch[name].null_count < len(batch)}
    return [{name: value} for name, values in told.items() for value in values if value]


def _unreadable(uri: str, error: Exception) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"what the log of {uri} shows is not known.",
        f"{type(error).__name__}: {error}",
        "Fix the storage or the table, then repeat the command. Nothing was written.",
    )
