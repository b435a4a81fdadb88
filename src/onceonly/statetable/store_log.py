"""The log of a pipeline's table on an object store, through delta-rs: a commit is a put that fails if the name exists.

What an object store has acknowledged is durable. Entries of the log are never removed there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction

from onceonly.checkpoint.model import Row
from onceonly.statetable import row_format
from onceonly.statetable.log import CONFIGURATION, NONE, Action, Commit, Damaged, Entry, Taken, parsed

NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class StoreLog:
    """See `Log`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def entries(self) -> tuple[int, Iterator[Entry]]:
        table = self._open()
        return (NONE, iter(())) if table is None else (table.version(), _read(table))

    def create(self, configuration: Mapping[str, str] = CONFIGURATION) -> None:
        try:
            DeltaTable.create(
                self.uri,
                Schema.from_json(row_format.schema_json()),
                configuration=configuration,
                raise_if_key_not_exists=False,
                commit_properties=CommitProperties(max_commit_retries=0),  # else a second one would change the first
            )
        except DeltaError as error:
            if self._open() is None:  # else another process was first
                raise OSError(f"{self.uri}: {error}") from error

    def commit(self, version: int, commit: Commit, after: Entry | None) -> None:
        table = self._open()
        if table is None or table.version() != version - 1:
            raise Taken
        last = _last(table)
        if after and after.row and last and last.id != after.row.id:
            raise Taken
        row = commit.row
        named = [Transaction(row.pipeline, row.seq)] if row else []
        try:
            table.create_write_transaction(
                [_of_delta(action) for action in commit.actions],
                "append",
                table.schema(),
                commit_properties=CommitProperties(commit.told(), max_commit_retries=0, app_transactions=named),
                post_commithook_properties=NO_HOOKS,
            )
        except CommitFailedError as error:  # also where a first answer was lost
            raise Taken from error
        except DeltaError as error:
            raise OSError(f"{self.uri}: {error}") from error

    def keep(self) -> None:
        """What an object store has acknowledged is durable."""

    def _open(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.uri)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise OSError(f"{self.uri}: {error}") from error


def _read(table: DeltaTable) -> Iterator[Entry]:
    """One request an entry, by its name: `DeltaTable.history` also shows later ones, under these numbers."""
    files = pafs.PyFileSystem(DeltaStorageHandler(table.table_uri))
    for version in range(table.version(), NONE, -1):
        yield _entry(files, version)


def _entry(files: pafs.FileSystem, version: int) -> Entry:
    path = f"_delta_log/{version:020}.json"
    try:
        with files.open_input_stream(path) as stream:
            return parsed(version, stream.read().decode().splitlines())
    except FileNotFoundError:
        raise Damaged(f"Version {version} is missing.") from None
    except ValueError as error:
        raise Damaged(f"{path} cannot be parsed: {error}.") from error
    except DeltaError as error:
        raise OSError(f"{path}: {error}") from error


def _last(table: DeltaTable) -> Row | None:
    return next((each.row for each in _read(table) if each.row), None)


def _of_delta(action: Action) -> AddAction | RemoveAction:
    if "add" in action:
        add = action["add"]
        return AddAction(add["path"], add["size"], {}, add["modificationTime"], add["dataChange"], add["stats"])
    gone = action["remove"]
    return RemoveAction(gone["path"], gone["dataChange"], gone["deletionTimestamp"], gone["size"], {})
