"""The log of a pipeline's table on an object store: a commit is a put that fails if the name exists.

What an object store has acknowledged is durable. Entries of the log are never removed there. Each request costs a round
trip, so what this process has read or written is kept. One listing shows whether it still counts, by the tag of the
newest entry that is known: its content names one row. In a log that was restored or replaced, it is missing or has
another tag.

The entries before one are packed into it: so the last rows of a log are read by one request. They are those since the
last merge and the row before it, as far as they are small. A reader that does not know them ignores them. A log on a
disk has none: there an entry is read in a fraction of a millisecond.

Measured by 22 checkpoints on fakes, each step in a process that knows nothing yet, with 50 ms for each request:

| entries hold | seconds for a checkpoint | requests | bytes of an entry |
| --- | --- | --- | --- |
| one row | 3.4 | 62 | 1,900 |
| those before it, as JSON | 1.5 | 26 | 39,000 |
| the same, compressed | 1.5 | 26 | 5,500 |

Compressed, because no entry is ever removed there, and Spark and delta-rs read all of them since the last merge.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

from onceonly.delta import log_files
from onceonly.statetable import row_format
from onceonly.statetable.log import (
    CONFIGURATION,
    CREATION,
    MERGE,
    MERGED,
    NO_VERSION,
    ROW,
    Action,
    Commit,
    Damaged,
    Entry,
    Taken,
    creation,
    entry_from_info,
    parse_entry,
    rows_of,
)
from onceonly.storage.objects import ListedObject, Objects

MAX_PARSED_ENTRIES = 256  # entries that are kept in memory
LOOK_FRESH_SECONDS = 0.25  # a row is written after a look at the log that is not older
PACKED = "before"  # the key of a commit's information which holds the entries before it
MAX_PACKED_BYTES = 256 << 10  # of rows; they repeat each other, so that about a tenth is written


class _LogMemory(threading.local):
    """What a thread remembers of one history of the log; the tag and the time are of the newest version."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget that history: another log has its place, or nothing was read yet."""
        self.is_other = False
        self.has_just_merged = False  # this thread merged last, and it has not looked since
        self.newest, self.checkpoint = NO_VERSION, NO_VERSION
        self.tag = ""
        self.looked_at = float("-inf")
        self.entries: dict[int, Entry] = {}


class StoreLog:
    """The log of a table on an object store. See `Log`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._memory = _LogMemory()

    @cached_property
    def files(self) -> Objects:
        return Objects(self.uri)

    def entries(self) -> tuple[int, Iterator[Entry]]:
        """Return the newest version and its entries, as `Log.entries` does, after a look at the store.

        After a merge by this thread, once, they are returned as that has left them: a writer that was first since is
        noticed by the next commit.
        """
        memory = self._memory
        has_just_merged, memory.has_just_merged = memory.has_just_merged, False
        if has_just_merged:
            return self.recent()
        self._look()
        return memory.newest, self._read_down_from(memory.newest)

    def recent(self) -> tuple[int, Iterator[Entry]]:
        """Return what the last look has shown, if that was just now.

        That is enough for a caller who commits on these entries, or not at all: the commit fails where they are old.
        """
        if self._is_stale():
            self._look()
        return self._memory.newest, self._read_down_from(self._memory.newest)

    @property
    def checkpoint(self) -> int:
        """The version of the last log checkpoint of one file that has been seen; NO_VERSION: there is none.

        One of several parts, which other programs write, may lack some of them.
        """
        return self._memory.checkpoint

    def is_other(self) -> bool:
        return self._memory.is_other or self._memory.newest == NO_VERSION

    def create(self, configuration: Mapping[str, str] = CONFIGURATION) -> None:
        with suppress(Taken):
            self.commit(0, creation(configuration), None)

    def commit(self, version: int, commit: Commit, after: Entry | None) -> None:
        self._check_continues(version - 1, after)
        try:
            text = commit.lines(pack_entries(version, self._memory.entries))
            tag = self.files.create(log_files.entry_path(version), text.encode())
        except FileExistsError as error:  # also where a first answer was lost
            raise Taken from error
        memory = self._memory
        memory.newest, memory.tag, memory.looked_at = version, tag or "", time.monotonic()
        memory.has_just_merged = commit.operation == MERGE
        _remember(memory.entries, Entry(version, commit.row, commit.operation == MERGE))

    def sync(self) -> None:
        """Do nothing: what an object store has acknowledged is durable."""

    def _check_continues(self, version: int, after: Entry | None) -> None:
        """Check that `version` is the newest one, and that its last row is that of `after`.

        A restored or replaced table may have other rows under the same versions, or lack some. There is no further
        look if the last one was just now and has shown that version, or if this thread has just written it.

        Raises:
            Taken: the log does not continue there.
        """
        if self._memory.newest != version or self._is_stale():
            self._look()
        if self._memory.newest != version:
            raise Taken
        if after and after.row:
            last_row = next(rows_of(self._read_down_from(version)), None)
            if last_row is None or last_row.id != after.row.id:
                raise Taken

    def _is_stale(self) -> bool:
        return time.monotonic() - self._memory.looked_at > LOOK_FRESH_SECONDS

    def _look(self) -> None:
        """Remember what was written since the last look; where it is another log than before, begin again."""
        memory = self._memory
        has_looked = memory.newest != NO_VERSION
        if not has_looked or not memory.tag or not self._catch_up():
            memory.forget()
            memory.is_other = has_looked
            self._remember_listing(log_files.list_recent(self.files))

    def _catch_up(self) -> bool:
        """List the newest entry that is known and those behind it, in one request; False: it is another log."""
        memory = self._memory
        newest_path = log_files.entry_path(memory.newest)
        listing = self.files.list_objects(log_files.LOG_FOLDER, after=log_files.path_before_entry(memory.newest))
        newest_file = next((file for file in listing if file.path == newest_path), None)
        if newest_file is None or newest_file.tag != memory.tag:
            return False
        self._remember_listing(listing)
        return True

    def _remember_listing(self, listing: list[ListedObject]) -> None:
        """Remember the newest version of a listing, its tag, and the last log checkpoint.

        Raises:
            Damaged: a version between the first and the newest one is missing.
        """
        memory = self._memory
        versions = []
        for file in listing:
            version = log_files.find_entry_version(file.name)
            if version is not None:
                versions.append(version)
                memory.newest, memory.tag = version, file.tag or ""
            checkpoint = log_files.find_checkpoint_version(file.name)
            if checkpoint is not None and file.path == log_files.checkpoint_path(checkpoint):
                memory.checkpoint = max(memory.checkpoint, checkpoint)
        if versions and versions != list(range(versions[0], memory.newest + 1)):
            raise Damaged(f"Only {len(versions)} of the versions {versions[0]} to {memory.newest} are there.")
        memory.looked_at = time.monotonic()

    def _read_down_from(self, newest: int) -> Iterator[Entry]:
        """Yield the entries from that version down; each is fetched when it is asked for."""
        remembered = self._memory.entries  # of this history, whatever is seen later
        fetched: dict[int, Entry] = {}  # of the last request: `remembered` does not keep the oldest ones
        for version in range(newest, NO_VERSION, -1):
            if version not in remembered and version not in fetched:
                try:
                    entries = self._fetch(version)
                except FileNotFoundError:
                    raise Damaged(f"Version {version} is missing.") from None
                fetched = {}
                for entry in entries:
                    fetched[entry.version] = entry
                    _remember(remembered, entry)
            yield remembered.get(version) or fetched[version]

    def actions(self, version: int) -> list[Action]:
        """Return the actions of one entry."""
        return [json.loads(line) for line in self.files.read(log_files.entry_path(version)).splitlines()]

    def _fetch(self, version: int) -> list[Entry]:
        """Return that entry, and those before it that are packed into it, oldest first.

        Raises:
            FileNotFoundError: it is missing.
            Damaged: it cannot be parsed.
        """
        path = log_files.entry_path(version)
        try:
            lines = self.files.read(path).decode().splitlines()
            earlier = sorted(unpack_entries(version, lines), key=lambda entry: entry.version)
            return [*earlier, parse_entry(version, lines)]
        except ValueError as error:
            raise Damaged(f"{path} cannot be parsed: {error}.") from error


def _remember(entries: dict[int, Entry], entry: Entry) -> None:
    """Add the entry; of more than `MAX_PARSED_ENTRIES` the oldest is dropped."""
    entries[entry.version] = entry
    if len(entries) > MAX_PARSED_ENTRIES:
        del entries[min(entries)]


def read_texts(uri: str) -> Iterator[str]:
    """Yield the entries of the log of any table, newest first; none where there is no table.

    Each is read when it is asked for.

    Raises:
        OSError: the storage does not answer.
    """
    files = Objects(uri)
    for file in reversed(files.list_objects(log_files.LOG_FOLDER)):
        if log_files.find_entry_version(file.name) is not None:
            with suppress(FileNotFoundError):
                yield files.read(file.path, file.tag).decode()


def pack_entries(version: int, entries: Mapping[int, Entry]) -> dict[str, str]:
    """Return what the commit of that version holds of the entries before it, as far as they are known without a hole.

    Args:
        entries: the known entries by version.
    Returns:
        One more field of its commit info; none where the entry before it is not known.
    """
    infos: list[dict[str, str]] = []
    size, has_merge = 0, False
    for number in range(version - 1, NO_VERSION, -1):
        entry = entries.get(number)
        if entry is None or entry.foreign:
            break
        info = _short_info(entry)
        infos.append(info)
        size += len(info.get(ROW, ""))
        has_merge = has_merge or entry.merges
        if size > MAX_PACKED_BYTES or (has_merge and entry.row):
            break
    if not infos:
        return {}
    compressed = zlib.compress(json.dumps(infos).encode())
    return {PACKED: base64.b64encode(compressed).decode()}


def unpack_entries(version: int, lines: Sequence[str]) -> list[Entry]:
    """Return the entries that are packed into the log file of that version, which has these lines; newest first.

    Raises:
        ValueError: they cannot be parsed.
    """
    packed = _find_packed(lines)
    if packed is None:
        return []
    try:
        infos = json.loads(zlib.decompress(base64.b64decode(packed)))
    except zlib.error as error:
        raise ValueError(str(error)) from error
    versions = range(version - 1, NO_VERSION, -1)
    return [entry_from_info(number, info) for number, info in zip(versions, infos, strict=False)]


def _find_packed(lines: Sequence[str]) -> str | None:
    """Return the packed text in the first commit info that has it; other lines are not parsed."""
    for line in lines:
        if f'"{PACKED}":' in line and '"commitInfo"' in line:
            packed: str | None = json.loads(line)["commitInfo"].get(PACKED)
            return packed
    return None


def _short_info(entry: Entry) -> dict[str, str]:
    """Return the part of its commit info from which `entry_from_info` makes the same entry."""
    if entry.row:
        return {ROW: row_format.to_text(entry.row)}
    if entry.merges:
        return {MERGED: "true"}
    return {"operation": MERGE if entry.rewrites else CREATION}
