"""The names in the log of a Delta table. Source: Delta protocol, "Delta Log Entries", "Checkpoints"."""

from __future__ import annotations

import json
import re

from onceonly.storage.objects import PAGE, ListedObject, Objects

LOG = "_delta_log"
ENTRY = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*")
LAST = f"{LOG}/_last_checkpoint"


def entry(version: int) -> str:
    """Return the path of a log entry. Below 0: a path before all of them."""
    return f"{LOG}/{version:020}.json" if version >= 0 else f"{LOG}/"


def checkpoint(version: int) -> str:
    """Return the path of a log checkpoint of one file, as delta-rs writes them."""
    return f"{LOG}/{version:020}.checkpoint.parquet"


def version_of(name: str) -> int | None:
    """Return the version of a log entry; None: it is none."""
    match = ENTRY.fullmatch(name)
    return int(match[1]) if match else None


def checkpoint_of(name: str) -> int | None:
    """Return the version of a log checkpoint, or of a part of one; None: it is none."""
    match = CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def recent(files: Objects) -> list[ListedObject]:
    """Return what the log of a table has since its last log checkpoint, and that; perhaps more.

    One request, where the log has less than a page; else the last log checkpoint tells where to begin.
    """
    pages = files.pages(LOG)
    first_page = next(pages, [])
    if len(first_page) < PAGE:
        return first_page
    last_checkpoint = _read_last_checkpoint(files)
    if last_checkpoint is not None:
        later = files.below(LOG, after=entry(last_checkpoint - 1))
        if any(checkpoint_of(obj.name) == last_checkpoint for obj in later):
            return later
    # No log checkpoint is named, or the named one is missing, or of another log than this: list the rest.
    objects = list(first_page)
    for page in pages:
        objects += page
    return objects


def _read_last_checkpoint(files: Objects) -> int | None:
    """Return the version that the log names as that of its last log checkpoint; None: it names none."""
    try:
        return int(json.loads(files.read(LAST))["version"])
    except (FileNotFoundError, ValueError, KeyError):
        return None
