"""The log of a pipeline's table on an object store, through delta-rs: a commit is a put that fails if the name exists.

What an object store has acknowledged is durable. Entries of the log are never removed there. Each request costs a round
trip, so what this process has read or written is kept, as long as the newest entry is still the one that it knows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from functools import cached_property

import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction

from onceonly.statetable import row_format
from onceonly.statetable.log import CONFIGURATION, NONE, Action, Commit, Damaged, Entry, Taken, parsed

NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
LOG = "_delta_log"
PARSED = 256  # entries that are kept in memory


class _Seen(threading.local):
    """What a thread has seen of the log: the table, and entries by version, all of one history."""

    def __init__(self) -> None:
        self.table: DeltaTable | None = None
        self.entries: dict[int, Entry] = {}


class StoreLog:
    """See `Log`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._seen = _Seen()

    @cached_property
    def _files(self) -> pafs.FileSystem:
        return _files(self.uri)

    def entries(self) -> tuple[int, Iterator[Entry]]:
        table = self._current()
        return (NONE, iter(())) if table is None else (table.version(), self._read(table.version()))

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
        table = self._at(version - 1)
        self._check_after(version - 1, after)
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
        if row:
            _keep(self._seen.entries, Entry(version, row))

    def keep(self) -> None:
        """What an object store has acknowledged is durable."""

    def _at(self, version: int) -> DeltaTable:
        """The table at that version, where that is the newest one, as far as is known."""
        table = self._seen.table
        if table is None or table.version() != version:
            table = self._current()
        if table is None or table.version() != version:
            raise Taken
        return table

    def _check_after(self, newest: int, after: Entry | None) -> None:
        """A restored or replaced table may have other rows under the same versions, or lack some."""
        try:
            found = self._fetch(newest)
            while after and not found.row and found.version > 0:
                found = self._fetch(found.version - 1)
        except FileNotFoundError:
            raise Taken from None
        if after and after.row and found.row and found.row.id != after.row.id:
            raise Taken

    def _current(self) -> DeltaTable | None:
        seen = self._seen
        if seen.table is None or not self._follows(seen.table):
            seen.table, seen.entries = self._open(), {}
        return seen.table

    def _follows(self, table: DeltaTable) -> bool:
        """Take up what was written since; False: it is not the log that was seen, or it cannot be told.

        Updating a table only looks for later versions. So the last row that was seen has to be there still, and so has
        the newest entry: a restored table lacks some, or has others under the same versions.
        """
        known = self._seen.entries
        last = max((version for version, entry in known.items() if entry.row), default=NONE)
        try:
            table.update_incremental()
            newest = table.version()
            if not 0 <= last <= newest or self._fetch(last) != known[last]:
                return False
            for version in [version for version in known if version > last]:
                del known[version]
            if newest > last:
                _keep(known, self._fetch(newest))
        except (DeltaError, OSError):  # what is wrong shows when it is opened
            return False
        return True

    def _read(self, newest: int) -> Iterator[Entry]:
        """One request an entry, by its name: `DeltaTable.history` also shows later ones, under these numbers."""
        known = self._seen.entries  # of this history, whatever is seen later
        for version in range(newest, NONE, -1):
            found = known.get(version)
            if found is None:
                try:
                    found = self._fetch(version)
                except FileNotFoundError:
                    raise Damaged(f"Version {version} is missing.") from None
                _keep(known, found)
            yield found

    def _fetch(self, version: int) -> Entry:
        path = f"{LOG}/{version:020}.json"
        try:
            return parsed(version, _text(self._files, path).splitlines())
        except ValueError as error:
            raise Damaged(f"{path} cannot be parsed: {error}.") from error
        except DeltaError as error:
            raise OSError(f"{path}: {error}") from error

    def _open(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.uri)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise OSError(f"{self.uri}: {error}") from error


def _keep(known: dict[int, Entry], entry: Entry) -> None:
    known[entry.version] = entry
    if len(known) > PARSED:
        del known[min(known)]


def texts(uri: str) -> Iterator[str]:
    """The entries of the log of any table, newest first; none where there is no table.

    Raises:
        OSError: the storage does not answer.
    """
    try:
        files = _files(uri)
        found = files.get_file_info(pafs.FileSelector(LOG, allow_not_found=True))
        for path in sorted((info.path for info in found if info.path.endswith(".json")), reverse=True):
            yield _text(files, path)
    except TableNotFoundError:
        return
    except DeltaError as error:
        raise OSError(f"{uri}: {error}") from error


def _files(uri: str) -> pafs.FileSystem:
    return pafs.PyFileSystem(DeltaStorageHandler(uri))


def _text(files: pafs.FileSystem, path: str) -> str:
    with files.open_input_stream(path) as stream:
        return str(stream.read().decode())


def _of_delta(action: Action) -> AddAction | RemoveAction:
    if "add" in action:
        add = action["add"]
        return AddAction(add["path"], add["size"], {}, add["modificationTime"], add["dataChange"], add["stats"])
    gone = action["remove"]
    return RemoveAction(gone["path"], gone["dataChange"], gone["deletionTimestamp"], gone["size"], {})
