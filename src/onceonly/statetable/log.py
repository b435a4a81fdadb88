"""The log of one pipeline's table: each commit is one row, made as exactly the next version.

That is the compare-and-set. Of two processes that make the same version, the second is refused with `Taken`. A few
commits hold no row: the creation, and those that merge files or remove old ones. A row is part of its own log entry,
so the last rows are read without a query engine, and without opening the table.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from onceonly.checkpoint.model import Row
from onceonly.errors import OutcomeUnknown
from onceonly.statetable import row_format

BLANK = "\0 \n"
NO_VERSION = -1  # the version of a table that does not exist
ROW = "row"  # the key of a commit's information which holds its row
MERGE, MERGED = "OPTIMIZE", "merged"  # the operation of a merge, and the key by which it says so
CREATION = "CREATE TABLE"
WITHOUT_ROWS = {CREATION, MERGE, "VACUUM START", "VACUUM END"}  # commits that change no row
CONFIGURATION = {
    "delta.appendOnly": "true",
    "delta.logRetentionDuration": "interval 3650 days",  # old entries are removed by `compaction` alone
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
NOTHING: Mapping[str, str] = MappingProxyType({})
Action = Mapping[str, Mapping[str, Any]]


class Taken(Exception):
    """Another commit has that version."""


class Damaged(Exception):
    """The log is not one that Onceonly has written."""


@dataclass(frozen=True)
class Entry:
    """A commit; `row` is None where it holds none.

    Args:
        merges: all rows before it are in merged files from then on.
        rewrites: another program has put rows into other files, and changed none.
        foreign: it was made by another program and may have changed rows.
    """

    version: int
    row: Row | None = None
    merges: bool = False
    rewrites: bool = False
    foreign: bool = False


@dataclass(frozen=True)
class Commit:
    """What a commit is to hold."""

    operation: str
    actions: Sequence[Action]
    row: Row | None = None

    def own_info(self) -> dict[str, str]:
        """Return the fields of its commit info that only Onceonly's commits have."""
        info = {}
        if self.row:
            info[ROW] = row_format.to_text(self.row)
        if self.operation == MERGE:
            info[MERGED] = "true"
        return info

    def lines(self, more: Mapping[str, str] = NOTHING) -> str:
        """Return its entry of the log, one action a line.

        Args:
            more: further fields of its commit info.
        """
        actions: list[Action] = []
        if self.row:
            # by `txn` a reader of the table alone notices where rows were removed from it
            txn = {"appId": self.row.pipeline, "version": self.row.seq, "lastUpdated": now_millis()}
            actions.append({"txn": txn})
        info = {
            "timestamp": now_millis(),
            "operation": self.operation,
            "operationParameters": {},
            "engineInfo": "onceonly",
        }
        commit_info = {"commitInfo": {**info, **self.own_info(), **more}}
        return "".join(_json_line(action) for action in [commit_info, *actions, *self.actions])


class Log(Protocol):
    """The commits of one pipeline's table. Each call raises OSError where the storage does not answer."""

    def entries(self) -> tuple[int, Iterator[Entry]]:
        """Return the current version (NO_VERSION: no table) and the entries down from it, as far as they exist.

        Every entry since the last log checkpoint is among them.

        Raises:
            Damaged: an entry is missing or cannot be parsed (also while they are read).
        """

    def is_other(self) -> bool:
        """Return whether `entries` has last shown no table, or one that does not continue what it has shown before."""

    def create(self, configuration: Mapping[str, str] = CONFIGURATION) -> None:
        """Create the table, as version 0, unless it exists."""

    def commit(self, version: int, commit: Commit, after: Entry | None) -> None:
        """Make this commit, as exactly this version, where the log still holds the entry `after` (None: no row yet).

        Raises:
            Taken: the version exists, or that entry does not. It may be this very commit, if an earlier try failed.
        """

    def sync(self) -> None:
        """Make sure that what `entries` has shown survives a power failure.

        Raises:
            OSError: it may not.
        """


def creation(configuration: Mapping[str, str]) -> Commit:
    """Return the commit that creates a table with the columns of rows."""
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": row_format.schema_json(),
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": now_millis(),
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    return Commit(CREATION, [{"protocol": protocol}, {"metaData": metadata}])


def entry_from_info(version: int, info: Mapping[str, Any]) -> Entry:
    """Return the entry of a commit with this commit info."""
    if ROW in info:
        return Entry(version, row_format.from_text(info[ROW]))
    merges, operation = MERGED in info, info.get("operation")
    foreign = not merges and operation not in WITHOUT_ROWS
    return Entry(version, merges=merges, rewrites=not merges and operation == MERGE, foreign=foreign)


def rows_of(entries: Iterable[Entry]) -> Iterator[Row]:
    """Yield the rows of those entries that hold one, in the order of the entries."""
    for entry in entries:
        if entry.row:
            yield entry.row


def parse_entry(version: int, lines: Iterable[str]) -> Entry:
    """Return the entry of a log file with these lines.

    Raises:
        ValueError: they cannot be parsed.
    """
    has_actions = False
    for line in lines:
        if not line.strip(BLANK):
            continue
        action, has_actions = json.loads(line), True
        if "commitInfo" in action:
            return entry_from_info(version, action["commitInfo"])
    return Entry(version, foreign=has_actions)  # blank: a power failure took a commit of another program


def now_millis() -> int:
    """Return the milliseconds since 1970, as Delta counts them."""
    return int(time.time() * 1000)


def _json_line(action: Action) -> str:
    return json.dumps(action, separators=(",", ":")) + "\n"


def damage_error(pipeline: str, uri: str, why: str) -> OutcomeUnknown:
    """Return the error for a table whose rows are not those that Onceonly wrote."""
    return OutcomeUnknown(
        f"{pipeline}: the state table at {uri} is damaged.",
        why,
        "Nothing was changed. Restore that folder from a backup before running this pipeline.",
        code="state-table-damaged",
    )


def read_error(pipeline: str, uri: str, error: Exception) -> OutcomeUnknown:
    """Return the error for a table whose storage fails with `error`."""
    why = str(error).partition("\n")[0]  # what follows is delta-rs's call stack
    return OutcomeUnknown(
        f"{pipeline}: the state table at {uri} cannot be read.",
        f"{type(error).__name__}: {why}",
        "Nothing was written. Check its storage. If files are missing, restore them, then: onceonly recover",
        code="state-table-unreadable",
    )
