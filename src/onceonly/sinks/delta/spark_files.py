"""The files that Spark wrote into a target when it published: are all rows in them, and are they on disk?

Everything else that a commit adds was staged before, and is counted and synced then. What Spark appends are new files.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote, urlsplit

from onceonly.checkpoint.model import Handle
from onceonly.counts import count
from onceonly.errors import OutcomeUnknown
from onceonly.sinks.delta import log
from onceonly.storage import durability
from onceonly.storage.paths import local_path

MAX_FOLLOWING = 4  # commits after ours in which the table's own compaction is looked for


def settle(sink: str, uri: str, handle: Handle, version: int) -> None:
    """Check and sync what that version of the target added beside the staged files.

    A table that compacts itself (`delta.autoOptimize.autoCompact`) does so in a commit that follows at once, by the
    same call of Spark. Its files have replaced ours, so they are synced, too.

    Raises:
        OutcomeUnknown: rows are missing in it.
        OSError: a file may be lost in a power failure. Nothing may follow from it.
    """
    adds = _added_files(uri, version)
    written = [add for add in adds if not unquote(add["path"]).startswith(f"{handle['folder']}/")]
    if len(written) == len(adds) and "merge" not in handle:  # a merge may change nothing
        _require_all_rows(sink, uri, handle, version, written)
    for following_version in range(version + 1, version + 1 + MAX_FOLLOWING):
        written += _added_files(uri, following_version)
    _sync(uri, written)


def _added_files(uri: str, version: int) -> list[dict[str, Any]]:
    """Read the add actions of a log entry; none if there is no such entry. Entries are cleaned up days later."""
    adds = []
    try:
        for line in log.lines(log.file_system(uri), log.entry(version)):
            action = json.loads(line) if b'"add"' in line else {}
            if "add" in action:
                adds.append(action["add"])
    except FileNotFoundError:
        return []
    return adds


def _require_all_rows(sink: str, uri: str, handle: Handle, version: int, adds: list[dict[str, Any]]) -> None:
    rows = log.count(adds, uri)[0]
    if rows == handle["rows"]:
        return
    raise OutcomeUnknown(
        f"sink '{sink}': version {version} of {uri} does not have all rows.",
        f"{count(handle['rows'], 'row')} of {handle['folder']} had to be published, and Spark wrote {rows:,}.",
        f"Nothing was deleted. The staged rows are in {uri}/{handle['folder']}. Compare them with that version, and "
        "keep them until it is known what is missing.",
        code="rows-differ",
    )


def _sync(uri: str, adds: list[dict[str, Any]]) -> None:
    root = local_path(uri)
    if root is None:
        return
    paths = [unquote(add["path"]) for add in adds if not urlsplit(add["path"]).scheme]
    durability.sync_files([root / path for path in paths])
