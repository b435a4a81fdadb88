"""How far the log of a table on a local disk is known to survive a power failure.

A power failure may leave an entry without its content. Readers take an empty entry for an empty commit, so its row
counts as not written. A process that had acted on the row would then be wrong. So writers and readers of an entry sync
it first.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from onceonly.delta.log_files import CHECKPOINT_NAME, ENTRY_NAME, LOG_FOLDER
from onceonly.storage import durability


class DurableLog:
    """The log of a Delta table at a local path, and how far it is known to be on disk."""

    def __init__(self, table: Path) -> None:
        self.folder = table / LOG_FOLDER
        self._synced_version = -1  # of the newest entry that is on disk; -1: not known

    def keep(self) -> None:
        """Make sure that every existing entry is on disk. Without new entries this costs one directory listing.

        Raises:
            OSError: an entry may be lost in a power failure.
        """
        tail = self.tail()
        newest = _version_of(tail[-1])
        synced = self._synced_version
        if synced > newest:  # a restored older log
            synced = -1
        new_names = [name for name in tail if _version_of(name) > synced]
        for name in new_names:
            _sync_existing(self.folder / name)  # a missing one was cleaned up, and a later log checkpoint is on disk
        if new_names and synced < 0:
            durability.sync_with_parents(self.folder)  # not known to this process: any parent may be new, too
        elif new_names:
            durability.sync(self.folder)
        self._synced_version = newest

    def tail(self) -> list[str]:
        """Return the names of the entries since the last log checkpoint, in order: all that a reader needs."""
        names = sorted(filter(_is_entry_or_checkpoint, os.listdir(self.folder)))
        if not names:
            raise FileNotFoundError(f"{self.folder} contains no Delta log")
        start = 0
        for name in names:
            if not name.endswith(".json") and self._has_content(name):
                start = _version_of(name)
        return [name for name in names if _version_of(name) >= start]

    def _has_content(self, name: str) -> bool:
        with suppress(FileNotFoundError):
            return (self.folder / name).stat().st_size > 0
        return False


def _version_of(name: str) -> int:
    return int(name[:20])


def _sync_existing(path: Path) -> None:
    with suppress(FileNotFoundError):
        durability.sync(path)


def _is_entry_or_checkpoint(name: str) -> bool:
    return bool(ENTRY_NAME.fullmatch(name) or CHECKPOINT_NAME.fullmatch(name))
