"""The log of a pipeline's table on a local or mounted disk.

An entry is on disk before it gets its name, by a hard link, which fails where the name exists. So an entry is whole or
not there. Only its name can be lost in a power failure: `sync` syncs the folder, before anything depends on the entry.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from onceonly.delta.log_files import ENTRY_NAME_LENGTH, LOG_FOLDER, entry_name
from onceonly.statetable.log import CONFIGURATION, NO_VERSION, Commit, Damaged, Entry, Taken, creation, parse_entry
from onceonly.storage.durability import sync, sync_with_parents

File = tuple[int, int, int]  # by which it is recognised: its number on the disk, when it was written, and its size
MAX_PARSED_ENTRIES = 256  # entries that are kept in memory
ENTRIES_BEFORE_CHECKPOINT = 256  # that are never removed, and so may be read


class LocalLog:
    """The log of a table on a local or mounted disk. See `Log`."""

    def __init__(self, table: Path) -> None:
        self.table, self.folder = table, table / LOG_FOLDER
        self._prefix = f"{self.folder}{os.sep}"
        self._synced: tuple[int, File | None] | None = None  # the last entry whose name is known to be on disk
        self._newest = NO_VERSION  # the version that this object has read or written last
        self._parsed: dict[int, tuple[File, Entry]] = {}  # by version

    def entries(self) -> tuple[int, Iterator[Entry]]:
        newest, checkpoint = self.listing()
        self._newest = newest
        return newest, self._read_down_from(newest, checkpoint)

    def is_other(self) -> bool:
        """Return False: on a disk, each look at a log comes after one at the state table's identity."""
        return False

    def listing(self) -> tuple[int, int]:
        """Return the current version, and that of the last log checkpoint; each NO_VERSION where there is none.

        Raises:
            Damaged: the log is empty, and the table is not.
        """
        entries, checkpoints = [], []
        for name in self._file_names():
            if len(name) == ENTRY_NAME_LENGTH and name.endswith(".json"):
                entries.append(name)
            elif name.endswith(".checkpoint.parquet") and name[0] != ".":
                checkpoints.append(name)
        if not entries and not checkpoints and any(self.table.glob("*.parquet")):
            raise Damaged(f"{self.folder} is empty, but there are files of rows.")
        newest = max(entries, default=None)  # as texts: all of them have the same number of digits
        version = int(newest[:20]) if newest else NO_VERSION
        checkpoint = max((int(name[:20]) for name in checkpoints), default=NO_VERSION)
        return max(checkpoint, version), checkpoint

    def _file_names(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []

    def versions(self) -> list[int]:
        """Return the versions whose entries are there, in order."""
        versions = []
        for path in self.folder.glob("*.json"):
            if len(path.name) == ENTRY_NAME_LENGTH:
                versions.append(int(path.name[:20]))
        return sorted(versions)

    def _read_down_from(self, newest: int, checkpoint: int) -> Iterator[Entry]:
        """Yield the entries from that version down, to `ENTRIES_BEFORE_CHECKPOINT` before the last log checkpoint.

        Older entries are removed, so that a process which was stopped for hours may have written one of that name.
        Each is opened by its name: a listing of the folder may leave out what was written while it was made.
        """
        for version in range(newest, max(checkpoint - ENTRIES_BEFORE_CHECKPOINT, NO_VERSION), -1):
            try:
                yield self._entry(version)
            except FileNotFoundError:
                if version > self.listing()[1]:  # else a log checkpoint holds what was in it
                    raise Damaged(f"Version {version} is missing.") from None
                return

    def _entry(self, version: int) -> Entry:
        """Return the entry; it is parsed again only where its file is another one than it was."""
        file = self._identify_file(version)
        parsed = self._parsed.get(version)
        if parsed is not None and parsed[0] == file:
            return parsed[1]
        entry = self._parse(version)
        self._parsed[version] = file, entry
        if len(self._parsed) > MAX_PARSED_ENTRIES:
            del self._parsed[min(self._parsed)]
        return entry

    def _identify_file(self, version: int) -> File:
        status = os.stat(self._path(version))
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _parse(self, version: int) -> Entry:
        path = self._path(version)
        with open(path, encoding="utf-8") as lines:
            try:
                return parse_entry(version, lines)
            except ValueError as error:
                raise Damaged(f"{path} cannot be parsed: {error}.") from error

    def path(self, version: int) -> Path:
        return Path(self._path(version))

    def _path(self, version: int) -> str:
        return self._prefix + entry_name(version)  # as text: a Path for each of thousands of entries takes time

    def create(self, configuration: Mapping[str, str] = CONFIGURATION) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        sync_with_parents(self.folder)
        with suppress(Taken):
            self.commit(0, creation(configuration), None)
        # before any file of rows: without its entries a table with rows would be taken for damaged after a power cut
        sync(self.folder)

    def commit(self, version: int, commit: Commit, after: Entry | None) -> None:
        path = self.path(version)
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            draft.write_text(commit.lines(), encoding="utf-8")
            sync(draft)
            self._check_after(after)
            os.link(draft, path)  # fails where the name exists: this is the compare-and-set
        except FileExistsError:
            raise Taken from None
        finally:
            draft.unlink(missing_ok=True)
        self._newest = version
        self._check_readers_see(version)

    def _check_after(self, after: Entry | None) -> None:
        """Check that the log still holds the entry `after`.

        A restored or replaced folder may have other rows under the same versions, or lack some.

        Raises:
            Taken: it does not.
        """
        if after is None or after.row is None or after.version == NO_VERSION:
            return
        try:
            row = self._entry(after.version).row
        except FileNotFoundError:
            raise Taken from None
        if row is None or row.id != after.row.id:
            raise Taken

    def _check_readers_see(self, version: int) -> None:
        """Check that readers see the commit of that version.

        If this process was stopped for hours before it, entries may have been removed meanwhile, so that the name of
        an old version was free again. Readers never look at such an entry.
        """
        _, checkpoint = self.listing()
        if version <= checkpoint - ENTRIES_BEFORE_CHECKPOINT:
            raise OSError(f"version {version} is older than what readers of the log look at")

    def sync(self) -> None:
        """Sync the folders of the log, unless that was done since the newest entry.

        In a folder that was restored meanwhile, the same version is another entry.
        """
        version = self._newest  # what another thread sees while the folder is synced may come too late for it
        if version == NO_VERSION:
            return
        newest: tuple[int, File | None] = version, None  # it was removed: a later log checkpoint is on disk
        with suppress(FileNotFoundError):
            newest = version, self._identify_file(version)
        if newest == self._synced:
            return
        folders = [self.folder]
        if self._synced is None or self._synced[0] >= version:  # else the names of the folders are on disk
            folders += [self.table, *self.table.parents[:2]]
        for folder in folders:
            sync(folder)
        self._synced = newest
