"""Whether a table refers to a staged folder, or has since it was staged.

The table's log entries since then say so: the folder's own log names the version at which it was staged, and the
content of that version's entry, so that another history of the table is not taken for this one. Where that is not
known (entries were cleaned up, a copy of the table was restored) the list of all files decides.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.fs as pafs

from onceonly.sinks.delta import head, log

MOST = 2_000  # entries: more take longer to read than the list of all files


def refers(uri: str, folder: str) -> bool:
    told = _by_entries(uri, folder)
    return _by_files(uri, folder) if told is None else told


def _by_entries(uri: str, folder: str) -> bool | None:
    """None: they do not say."""
    try:
        files = log.file_system(uri)
        since = _entries_since(uri, _began(files, folder))
        if since is None:
            return None
        with ThreadPoolExecutor(head.AT_ONCE) as pool:
            return any(pool.map(lambda version: _names(files, version, folder), since))
    except head.BROKEN:
        return None


def _began(files: pafs.FileSystem, folder: str) -> dict[str, Any] | None:
    """The target's version as the folder's own log has it, if the target has that very version."""
    actions = map(json.loads, log.lines(files, f"{folder}/{log.entry(0)}"))
    known = next((action["commitInfo"].get(log.BEGAN) for action in actions if "commitInfo" in action), None)
    return known if known and log.began(files, known["version"]) == known else None


def _entries_since(uri: str, known: dict[str, Any] | None) -> range | None:
    """The versions that were written since; None: not all of them are there, or too many."""
    names = [info.base_name for info in log.entries(uri, log.LOG)]
    newest = head.newest_version(names)
    if known is None or newest - known["version"] > MOST:
        return None
    since = range(known["version"] + 1, newest + 1)
    return since if {f"{version:020}.json" for version in since} <= set(names) else None


def _names(files: pafs.FileSystem, version: int, folder: str) -> bool:
    return any(f"{folder}/".encode() in line for line in log.lines(files, log.entry(version)))


def _by_files(uri: str, folder: str) -> bool:
    table = log.open_table(uri)
    return table is not None and bool(log.in_folder(log.active_files(table), folder))
