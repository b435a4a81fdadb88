"""Where the state table is: created on request only, and refused on storage without compare-and-set.

A folder holds it: an empty Delta table, which says what the folder is, and below it a table for each pipeline.

A missing table is an error: its folder may be on a volume that is not mounted, and with an empty table in its place
every pipeline would start again. So only `onceonly state init` and the plan of an embedded set-up create one.

A copy of a state table must not be used as the table itself: both would number decisions for the same sinks. So the
table records its place (the folder's inode, or the URI) beside its identity. A copy is refused until somebody declares
what it is: `relocate` (the original no longer exists) or `fork` (a second table, with a new identity).
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.filesystems.durability import require_writable
from onceonly.filesystems.paths import LOCAL_SCHEMES, local_path
from onceonly.pipeline.names import NAME
from onceonly.statetable.local_log import LocalLog
from onceonly.statetable.log import Log

if TYPE_CHECKING:
    from deltalake import DeltaTable

ID, PLACE, FORMAT_KEY = "onceonly.id", "onceonly.place", "onceonly.format"
TRIED = "onceonly.arbitrates"  # of a table on an object store: writers have raced there, and one has won each time
FORMAT = 3  # of the folder: a table for each pipeline
PIPELINES = "_pipelines"  # hidden: a VACUUM of the empty table at the root would take its files for left over
CONFIGURATION = {"delta.appendOnly": "true", FORMAT_KEY: str(FORMAT)}
ATOMIC_SCHEMES = {*LOCAL_SCHEMES, "s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure"}


@dataclass(frozen=True)
class Opened:
    id: str


class Missing(InvalidPipeline):
    """There is no state table."""


def make(uri: str) -> bool:
    """Create the table at `uri` unless it exists; returns whether it was created.

    Raises:
        InvalidPipeline: storage without put-if-absent.
        NotCommitted: the storage does not answer, or is not writable.
    """
    check_atomic(uri)
    if exists(uri):
        return False
    _check_storage(uri)
    _create(uri)
    return True


def open_(uri: str) -> Opened:
    """The table at `uri`.

    Raises:
        Missing: there is none.
        InvalidPipeline: storage without put-if-absent, another format, or a copy of another state table.
        NotCommitted: the storage does not answer.
    """
    check_atomic(uri)
    found = configuration(uri)
    if found is None:
        raise Missing(
            f"there is no state table at {uri}.",
            "It records what was published so far. Its volume may not be mounted, or ONCEONLY_STATE (or ONCEONLY_HOME) "
            "may name another place.",
            "Correct that. If there has never been a state table: onceonly state init. Nothing was written.",
        )
    if ID not in found:
        raise InvalidPipeline(
            f"{uri} cannot be the state table.",
            "It is a Delta table that Onceonly did not create.",
            "Set ONCEONLY_STATE to an empty folder. Nothing was written.",
        )
    _check_format(uri, found.get(FORMAT_KEY, "none"))
    if found[PLACE] != place(uri):
        raise InvalidPipeline(
            f"the state table at {uri} is a copy, or was moved.",
            f"It was created at {found[PLACE]} and is now at {place(uri)}. Two tables with one identity would "
            "take each other's output for their own.",
            "If the original no longer exists: onceonly state relocate. To use the copy as well: onceonly state fork, "
            "and give its pipelines new targets, else both publish the next rows. Nothing was written.",
        )
    return Opened(found[ID])


def exists(uri: str) -> bool:
    """Whether there is a Delta table."""
    return configuration(uri) is not None


def configuration(uri: str) -> Mapping[str, str] | None:
    """What the table says of itself; None: there is no table.

    Raises:
        NotCommitted: the storage does not answer.
    """
    local = local_path(uri)
    if local and local.exists() and not local.is_dir():
        raise _unopened(uri, NotADirectoryError(str(local)))
    found = _told(_local_entries(local) if local else _stored_entries(uri), uri)
    if found is not None or (local and not (local / "_delta_log").is_dir()):
        return found
    table = _existing(uri)
    return table.metadata().configuration if table else None


def _told(entries: Iterator[str], uri: str) -> Mapping[str, str] | None:
    """By the newest log entry that tells: delta-rs would take longer than all that `status` does."""
    try:
        for entry in entries:
            for line in entry.splitlines():
                if '"metaData"' in line and "metaData" in (action := json.loads(line)):
                    return dict(action["metaData"]["configuration"])
    except (OSError, ValueError) as error:
        raise _unopened(uri, error) from error
    return None


def _local_entries(table: Path) -> Iterator[str]:
    """The texts of the log's entries, newest first."""
    for entry in sorted((table / "_delta_log").glob("*.json"), reverse=True):
        yield entry.read_text(encoding="utf-8")


def _stored_entries(uri: str) -> Iterator[str]:
    from onceonly.statetable.store_log import texts

    return texts(uri)


def folder(uri: str, pipeline: str) -> str:
    """Where the table of that pipeline is."""
    return f"{uri.rstrip('/')}/{PIPELINES}/{pipeline}"


def pipelines(uri: str) -> list[str]:
    """Those that have a table."""
    local = local_path(uri)
    return sorted(name for name in (_local_folders(local) if local else _folders(uri)) if NAME.fullmatch(name))


def _local_folders(table: Path) -> list[str]:
    found = (table / PIPELINES).glob("*/_delta_log")
    return [log.parent.name for log in found if (log / f"{1:020}.json").exists() or any(log.glob("*.checkpoint.*"))]


def _folders(uri: str) -> list[str]:
    from onceonly.filesystems.objects import Objects

    return Objects(uri).folders(PIPELINES)


def _check_format(uri: str, written: str) -> None:
    if written != str(FORMAT):
        raise InvalidPipeline(
            f"the state table at {uri} has another format.",
            f"Its format is {written}, and this version of Onceonly reads and writes format {FORMAT} only.",
            "Install the version that wrote it, or let ONCEONLY_STATE name another folder. Nothing was written.",
            "state-table-format",
        )


def relocate(uri: str) -> None:
    """Accept that the table was moved; its identity stays."""
    table = _existing(uri)
    if table is not None:
        _check_storage(uri)
        table.alter.set_table_properties({PLACE: place(uri), **_tried(uri)}, raise_if_not_exists=False)


def fork(uri: str) -> None:
    """Give a copy an identity of its own. The caller has checked that it has no unsettled checkpoint."""
    table = _existing(uri)
    if table is not None:
        _check_storage(uri)
        changed = {ID: uuid.uuid4().hex, PLACE: place(uri), **_tried(uri)}
        table.alter.set_table_properties(changed, raise_if_not_exists=False)


def check_atomic(uri: str) -> None:
    """Refuse storage on which two writers could both win a compare-and-set."""
    scheme = urlsplit(uri).scheme.lower()
    unsafe = unsafe_s3() if scheme in ("s3", "s3a") else None
    if scheme not in ATOMIC_SCHEMES or unsafe:
        raise InvalidPipeline(
            f"{uri} cannot hold the state table.",
            unsafe or f"Every decision needs put-if-absent, which '{scheme}://' is not known to support.",
            "Use a local or network file system, S3 with conditional put, GCS or Azure. Nothing was written.",
        )


def check_writable(uri: str) -> None:
    """Refuse a table that this process cannot write to, or on a store of which it is not known that it arbitrates.

    Raises:
        InvalidPipeline: the store does not arbitrate.
        NotCommitted: nothing was written.
    """
    found = {} if local_path(uri) else configuration(uri)
    if found is not None and TRIED not in found:  # without a table nothing is written
        _check_storage(uri)


def _check_storage(uri: str) -> None:
    """The same, whatever the table says."""
    path = local_path(uri)
    if path:
        return require_writable(path)
    from onceonly.statetable import arbitration

    try:
        arbitration.check(uri)
    except OSError as error:
        raise _unopened(uri, error) from error


def _tried(uri: str) -> dict[str, str]:
    return {} if local_path(uri) else {TRIED: "true"}


def place(uri: str) -> str:
    """What distinguishes a table from its copy; the same through every mount of one file system."""
    path = local_path(uri)
    return f"inode {path.stat().st_ino}" if path else uri.rstrip("/").replace("s3a://", "s3://", 1)


def unsafe_s3() -> str | None:
    """What the environment says by which writers on S3 do not exclude each other; None: nothing."""
    if os.environ.get("AWS_S3_ALLOW_UNSAFE_RENAME", "").lower() in ("1", "true"):
        return "AWS_S3_ALLOW_UNSAFE_RENAME is set: the last writer would win silently."
    if os.environ.get("AWS_CONDITIONAL_PUT", "etag").lower() == "disabled":
        return "AWS_CONDITIONAL_PUT is disabled: without put-if-absent the last writer would win silently."
    return None


def _existing(uri: str) -> DeltaTable | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise _unopened(uri, error) from error


def _unopened(uri: str, error: Exception) -> NotCommitted:
    why = f"{type(error).__name__}: {error}"
    return NotCommitted(f"the state table at {uri} cannot be opened.", why, "Check the storage and its credentials.")


def _create(uri: str) -> None:
    """Of two processes at once, one creates it."""
    try:
        if local := local_path(uri):
            local.mkdir(parents=True, exist_ok=True)
        log_of(uri).create({**CONFIGURATION, ID: uuid.uuid4().hex, PLACE: place(uri), **_tried(uri)})
    except OSError as error:
        raise NotCommitted(
            f"the state table at {uri} cannot be created.", str(error), "Check the storage and its credentials."
        ) from error


def log_of(folder: str) -> Log:
    """The log of the table there."""
    if local := local_path(folder):
        return LocalLog(local)
    from onceonly.statetable.store_log import StoreLog

    return StoreLog(folder)
