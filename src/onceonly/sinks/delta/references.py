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
    """Return whether the table refers to the folder, or has since it was staged."""
    in_log = _find_in_entries(uri, folder)
    return _is_in_files(uri, folder) if in_log is None else in_log


def _find_in_entries(uri: str, folder: str) -> bool | None:
    """Return whether a log entry names the folder; None: they do not say."""
    try:
        files = log.file_system(uri)
        versions = _entries_since(uri, _find_staged_version(files, folder))
        if versions is None:
            return None
        with ThreadPoolExecutor(head.MAX_PARALLEL_READS) as pool:
            return any(pool.map(lambda version: _has_folder(files, version, folder), versions))
    except head.LOG_ERRORS:
        return None


def _find_staged_version(files: pafs.FileSystem, folder: str) -> dict[str, Any] | None:
    """Find the target's version as the folder's own log has it, if the target has that very version."""
    identity = None
    for line in log.lines(files, f"{folder}/{log.entry(0)}"):
        action = json.loads(line)
        if "commitInfo" in action:
            identity = action["commitInfo"].get(log.TARGET_VERSION_KEY)
            break
    if not identity or log.identify_version(files, identity["version"]) != identity:
        return None
    return dict(identity)


def _entries_since(uri: str, identity: dict[str, Any] | None) -> range | None:
    """Return the versions that were written since; None: not all of them are there, or too many."""
    names = [info.base_name for info in log.entries(uri, log.LOG)]
    newest = head.newest_version(names)
    if identity is None or newest - identity["version"] > MOST:
        return None
    versions = range(identity["version"] + 1, newest + 1)
    return versions if {f"{version:020}.json" for version in versions} <= set(names) else None


def _has_folder(files: pafs.FileSystem, version: int, folder: str) -> bool:
    """Return whether that log entry names a file in the folder."""
    return any(f"{folder}/".encode() in line for line in log.lines(files, log.entry(version)))


def _is_in_files(uri: str, folder: str) -> bool:
    table = log.open_table(uri)
    return table is not None and bool(log.in_folder(log.active_files(table), folder))
