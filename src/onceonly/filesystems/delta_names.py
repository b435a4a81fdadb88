"""The names in the log of a Delta table. Source: Delta protocol, "Delta Log Entries", "Checkpoints"."""

from __future__ import annotations

import json
import re

from onceonly.filesystems.objects import PAGE, Found, Objects

LOG = "_delta_log"
ENTRY = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*")
LAST = f"{LOG}/_last_checkpoint"


def entry(version: int) -> str:
    return f"{LOG}/{version:020}.json" if version >= 0 else f"{LOG}/"  # before all of them


def checkpoint(version: int) -> str:
    """Of one file, as delta-rs writes them."""
    return f"{LOG}/{version:020}.checkpoint.parquet"


def version_of(name: str) -> int | None:
    """Of a log entry; None: it is none."""
    match = ENTRY.fullmatch(name)
    return int(match[1]) if match else None


def checkpoint_of(name: str) -> int | None:
    """Of a log checkpoint, or a part of one; None: it is none."""
    match = CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def recent(files: Objects) -> list[Found]:
    """What the log of a table has since its last log checkpoint, and that; perhaps more.

    One request, where the log has less than a page; else the last log checkpoint tells where to begin.
    """
    pages = files.pages(LOG)
    found = next(pages, [])
    if len(found) < PAGE:
        return found
    last = _last(files)
    later = [] if last is None else files.below(LOG, after=entry(last - 1))
    if any(checkpoint_of(each.name) == last for each in later):
        return later
    return [*found, *(each for page in pages for each in page)]  # it is missing, or tells of another log than this


def _last(files: Objects) -> int | None:
    try:
        return int(json.loads(files.read(LAST))["version"])
    except (FileNotFoundError, ValueError, KeyError):
        return None
