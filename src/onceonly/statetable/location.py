"""Where the state table is: created on request only, and refused on storage without compare-and-set.

A missing table is an error: its folder may be on a volume that is not mounted, and with an empty table in its place
every pipeline would start again. So only `onceonly state init` and the plan of an embedded set-up create one.

A copy of a state table must not be used as the table itself: both would number decisions for the same sinks. So the
table records its place (the folder's inode, or the URI) beside its identity. A copy is refused until somebody declares
what it is: `relocate` (the original no longer exists) or `fork` (a second table, with a new identity).
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from urllib.parse import urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from onceonly.checkpoint.model import FORMAT
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.filesystems.durability import require_writable
from onceonly.filesystems.paths import LOCAL_SCHEMES, local_path
from onceonly.statetable.row_format import SCHEMA, check_format

ID, PLACE, FORMAT_KEY = "onceonly.id", "onceonly.place", "onceonly.format"
CONFIGURATION = {
    "delta.appendOnly": "true",
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    FORMAT_KEY: str(FORMAT),
}
ATOMIC_SCHEMES = {*LOCAL_SCHEMES, "s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure"}


@dataclass(frozen=True)
class Opened:
    table: DeltaTable
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
    if _existing(uri):
        return False
    check_writable(uri)
    _create(uri)
    return True


def open_(uri: str) -> Opened:
    """The table at `uri`.

    Raises:
        Missing: there is none.
        InvalidPipeline: storage without put-if-absent, a newer format, or a copy of another state table.
        NotCommitted: the storage does not answer.
    """
    check_atomic(uri)
    table = _existing(uri)
    if table is None:
        raise Missing(
            f"there is no state table at {uri}.",
            "It records what was published so far. Its volume may not be mounted, or ONCEONLY_STATE (or ONCEONLY_HOME) "
            "may name another place.",
            "Correct that. If there has never been a state table: onceonly state init. Nothing was written.",
        )
    configuration = table.metadata().configuration
    check_format(int(configuration.get(FORMAT_KEY, FORMAT)))
    if ID not in configuration:
        raise InvalidPipeline(
            f"{uri} cannot be the state table.",
            "It is a Delta table that Onceonly did not create.",
            "Set ONCEONLY_STATE to an empty folder. Nothing was written.",
        )
    if configuration[PLACE] != place(uri):
        raise InvalidPipeline(
            f"the state table at {uri} is a copy, or was moved.",
            f"It was created at {configuration[PLACE]} and is now at {place(uri)}. Two tables with one identity would "
            "take each other's output for their own.",
            "If the original no longer exists: onceonly state relocate. To use the copy beside it: onceonly state "
            "fork. Nothing was written.",
        )
    return Opened(table, configuration[ID])


def relocate(uri: str) -> None:
    """Accept that the table was moved; its identity stays."""
    table = _existing(uri)
    if table is not None:
        check_writable(uri)
        table.alter.set_table_properties({PLACE: place(uri)}, raise_if_not_exists=False)


def fork(uri: str) -> None:
    """Give a copy an identity of its own. The caller has checked that it has no unsettled checkpoint."""
    table = _existing(uri)
    if table is not None:
        check_writable(uri)
        table.alter.set_table_properties({ID: uuid.uuid4().hex, PLACE: place(uri)}, raise_if_not_exists=False)


def check_atomic(uri: str) -> None:
    """Refuse storage on which two writers could both win a compare-and-set."""
    scheme = urlsplit(uri).scheme.lower()
    unsafe = _unsafe_s3() if scheme in ("s3", "s3a") else None
    if scheme not in ATOMIC_SCHEMES or unsafe:
        raise InvalidPipeline(
            f"{uri} cannot hold the state table.",
            unsafe or f"Every decision needs put-if-absent, which '{scheme}://' is not known to support.",
            "Use a local or network file system, S3 with conditional put, GCS or Azure. Nothing was written.",
        )


def check_writable(uri: str) -> None:
    """Refuse a local table that this process cannot write to.

    Raises:
        NotCommitted: nothing was written.
    """
    path = local_path(uri)
    if path:
        require_writable(path)


def place(uri: str) -> str:
    """What distinguishes a table from its copy; the same through every mount of one file system."""
    path = local_path(uri)
    return f"inode {path.stat().st_ino}" if path else uri.rstrip("/").replace("s3a://", "s3://", 1)


def _unsafe_s3() -> str | None:
    if os.environ.get("AWS_S3_ALLOW_UNSAFE_RENAME", "").lower() in ("1", "true"):
        return "AWS_S3_ALLOW_UNSAFE_RENAME is set: the last writer would win silently."
    if os.environ.get("AWS_CONDITIONAL_PUT", "etag").lower() == "disabled":
        return "AWS_CONDITIONAL_PUT is disabled: without put-if-absent the last writer would win silently."
    return None


def _existing(uri: str) -> DeltaTable | None:
    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise NotCommitted(
            f"the state table at {uri} cannot be opened.", str(error), "Check the storage and its credentials."
        ) from error


def _create(uri: str) -> None:
    path = local_path(uri)
    try:
        if path:
            path.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(
            uri,
            SCHEMA,
            partition_by=["pipeline"],
            configuration={**CONFIGURATION, ID: uuid.uuid4().hex, PLACE: place(uri)},
            raise_if_key_not_exists=False,
        )
    except (DeltaError, OSError) as error:
        if _existing(uri) is None:  # else another process was first
            raise NotCommitted(
                f"the state table at {uri} cannot be created.", str(error), "Check the storage and its credentials."
            ) from error
