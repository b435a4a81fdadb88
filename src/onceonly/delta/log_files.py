"""The files in the log of a Delta table: their names, the actions in an entry, and what of them is durable.

A power failure may leave an entry without its content. Readers take an empty entry for an empty commit, so its row
counts as not written. A process that had acted on the row would then be wrong. So writers and readers of an entry on a
local disk sync it first (`DurableLog`).
Source: Delta protocol, "Delta Log Entries", "Checkpoints", "Last Checkpoint File".
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from onceonly.storage import durability
from onceonly.storage.objects import PAGE, ListedObject, Objects

LOG_FOLDER = "_delta_log"
LAST_CHECKPOINT = f"{LOG_FOLDER}/_last_checkpoint"
ENTRY_NAME = re.compile(r"(\d{20})\.json")
# Of one file, of one of several parts (whose number is the last group), or of format V2 (with a UUID).
CHECKPOINT_NAME = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
ENTRY_NAME_LENGTH = len(f"{0:020}.json")
NO_VERSION = -1  # the newest version of a log without files


def entry_name(version: int) -> str:
    """Return the name of the log entry of a version."""
    return f"{version:020}.json"


def entry_path(version: int) -> str:
    """Return the path of the log entry of a version. No file has that of a version below 0."""
    return f"{LOG_FOLDER}/{entry_name(version)}"


def path_before_entry(version: int) -> str:
    """Return a path behind which a listing begins with the log entry of that version."""
    return entry_path(version - 1) if version > 0 else f"{LOG_FOLDER}/"


def checkpoint_path(version: int) -> str:
    """Return the path of a log checkpoint of one file, as delta-rs writes them."""
    return f"{LOG_FOLDER}/{version:020}.checkpoint.parquet"


def find_entry_version(name: str) -> int | None:
    """Return the version of a log entry with this name; None: it is none."""
    return _find_version(ENTRY_NAME, name)


def find_checkpoint_version(name: str) -> int | None:
    """Return the version of a log checkpoint, or of a part of one, with this name; None: it is none."""
    return _find_version(CHECKPOINT_NAME, name)


def _find_version(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return int(match[1]) if match else None


def find_last_checkpoint(names: Iterable[str]) -> tuple[int, list[str]]:
    """Return (version, files) of the last log checkpoint of which every file is there; NO_VERSION: there is none."""
    groups: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name in names:
        match = CHECKPOINT_NAME.fullmatch(name)
        if match:
            groups[int(match[1]), int(match[2] or 1)].append(name)
    complete: dict[int, list[str]] = {}
    for (version, number_of_parts), group in groups.items():
        if len(group) >= number_of_parts:
            complete[version] = sorted(group)
    last = max(complete, default=NO_VERSION)
    return last, complete.get(last, [])


def find_newest_version(names: Iterable[str]) -> int:
    """Return the newest version of a log with these files; NO_VERSION where there is none."""
    names = list(names)
    newest, _ = find_last_checkpoint(names)
    for name in names:
        version = find_entry_version(name)
        if version is not None:
            newest = max(newest, version)
    return newest


def parse_actions(lines: Iterable[str] | Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the actions of a log entry, one a line: each is an object with its kind as the only key.

    Raises:
        ValueError: a line cannot be parsed.
    """
    for line in lines:
        if line.strip():
            yield json.loads(line)


def list_recent(files: Objects) -> list[ListedObject]:
    """Return what the log of a table has since its last log checkpoint, and that; perhaps more.

    One request, where the log has less than a page; else the last log checkpoint tells where to begin.
    """
    pages = files.list_pages(LOG_FOLDER)
    first_page = next(pages, [])
    if len(first_page) < PAGE:
        return first_page
    last_checkpoint = _read_last_checkpoint(files)
    if last_checkpoint is not None:
        later = files.list_objects(LOG_FOLDER, after=path_before_entry(last_checkpoint))
        if any(find_checkpoint_version(obj.name) == last_checkpoint for obj in later):
            return later
    # No log checkpoint is named, or the named one is missing, or of another log than this: list the rest.
    objects = list(first_page)
    for page in pages:
        objects += page
    return objects


def _read_last_checkpoint(files: Objects) -> int | None:
    """Return the version that the log names as that of its last log checkpoint; None: it names none."""
    try:
        return int(json.loads(files.read(LAST_CHECKPOINT))["version"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


class DurableLog:
    """The log of a Delta table at a local path, and how far it is known to be on disk."""

    def __init__(self, table: Path) -> None:
        self.folder = table / LOG_FOLDER
        self._synced_version = -1  # of the newest entry that is on disk; -1: not known

    def sync(self) -> None:
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
