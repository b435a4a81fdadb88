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
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from onceonly.delta.log_files import LOG_FOLDER, entry_name
from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.names import NAME
from onceonly.statetable.local_log import LocalLog
from onceonly.statetable.log import Log
from onceonly.storage import write_probe
from onceonly.storage.durability import require_writable
from onceonly.storage.paths import ARBITRATING_SCHEMES, LOCAL_SCHEMES, find_unsafe_setting, local_path
from onceonly.waits import wait_for

if TYPE_CHECKING:
    from deltalake import DeltaTable

ID, PLACE, FORMAT_KEY = "onceonly.id", "onceonly.place", "onceonly.format"
TRIED = "onceonly.arbitrates"  # of a table on an object store: writers have raced there, and one has won each time
FORMAT = 3  # of the folder: a table for each pipeline
PIPELINES = "_pipelines"  # hidden: a VACUUM of the empty table at the root would take its files for left over
BACKTRACE = re.compile(r"\n\s*0: .*", re.DOTALL)  # of Rust, in a message of delta-rs
CONFIGURATION = {"delta.appendOnly": "true", FORMAT_KEY: str(FORMAT)}


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
    _create_table(uri)
    return True


def read_identity(uri: str) -> str:
    """Return the identity of the table at `uri`, if it may be used as the state table.

    Raises:
        Missing: there is none.
        InvalidPipeline: storage without put-if-absent, another format, or a copy of another state table.
        NotCommitted: the storage does not answer.
    """
    check_atomic(uri)
    properties = read_properties(uri)
    if properties is None:
        raise Missing(
            f"there is no state table at {uri}.",
            "It records what was published so far. Its volume may not be mounted, or ONCEONLY_STATE (or ONCEONLY_HOME) "
            "may name another place.",
            "Correct that. If there has never been a state table: onceonly state init. Nothing was written.",
            code="state-table-missing",
        )
    if ID not in properties:
        raise InvalidPipeline(
            f"{uri} cannot be the state table.",
            "It is a Delta table that Onceonly did not create.",
            "Set ONCEONLY_STATE to an empty folder. Nothing was written.",
            code="state-table-foreign",
        )
    _check_format(uri, properties.get(FORMAT_KEY, "none"))
    if properties[PLACE] != locate(uri):
        raise InvalidPipeline(
            f"the state table at {uri} is a copy, or was moved.",
            f"It was created at {properties[PLACE]} and is now at {locate(uri)}. Two tables with one identity would "
            "take each other's output for their own.",
            "If the original no longer exists: onceonly state relocate. To use the copy as well: onceonly state fork, "
            "and give its pipelines new targets, else both publish the next rows. Nothing was written.",
            code="state-table-copied",
        )
    return properties[ID]


def exists(uri: str) -> bool:
    """Return whether there is a Delta table."""
    return read_properties(uri) is not None


def read_properties(uri: str) -> Mapping[str, str] | None:
    """Return the properties of the Delta table at `uri`; None: there is no table.

    Raises:
        NotCommitted: the storage does not answer.
    """
    with wait_for(f"the state table at {uri}"):
        return _read_properties(uri)


def _read_properties(uri: str) -> Mapping[str, str] | None:
    local = local_path(uri)
    if local and local.exists() and not local.is_dir():
        raise _unopened_error(uri, NotADirectoryError(str(local)))
    entries = _local_entries(local) if local else _stored_entries(uri)
    properties = _properties_in_log(entries, uri)
    if properties is not None or (local and not (local / LOG_FOLDER).is_dir()):
        return properties
    table = _open_delta_table(uri)  # none of the entries has them, but a log checkpoint may
    if table is None:
        return None
    return table.metadata().configuration


def _properties_in_log(entries: Iterator[str], uri: str) -> Mapping[str, str] | None:
    """Return the properties in the newest log entry that has them: delta-rs would take longer than all of `status`.

    Raises:
        NotCommitted: an entry cannot be read.
    """
    try:
        for entry in entries:
            for line in entry.splitlines():
                if '"metaData"' not in line:
                    continue
                action = json.loads(line)
                if "metaData" in action:
                    return dict(action["metaData"]["configuration"])
    except (OSError, ValueError) as error:
        raise _unopened_error(uri, error) from error
    return None


def _local_entries(table: Path) -> Iterator[str]:
    """Yield the texts of the log's entries, newest first; each is read when it is asked for."""
    for entry in sorted((table / LOG_FOLDER).glob("*.json"), reverse=True):
        yield entry.read_text(encoding="utf-8")


def _stored_entries(uri: str) -> Iterator[str]:
    """Yield the same of a table on an object store."""
    from onceonly.statetable.store_log import read_texts

    return read_texts(uri)


def table_folder(uri: str, pipeline: str) -> str:
    """Return where the table of that pipeline is."""
    return f"{uri.rstrip('/')}/{PIPELINES}/{pipeline}"


def list_pipelines(uri: str) -> list[str]:
    """Return the names of the pipelines that have a table, sorted."""
    local = local_path(uri)
    names = _local_table_names(local) if local else _stored_table_names(uri)
    return sorted(name for name in names if NAME.fullmatch(name))


def _local_table_names(table: Path) -> list[str]:
    names = []
    for log in (table / PIPELINES).glob(f"*/{LOG_FOLDER}"):
        has_row = (log / entry_name(1)).exists() or any(log.glob("*.checkpoint.*"))
        if has_row:
            names.append(log.parent.name)
    return names


def _stored_table_names(uri: str) -> list[str]:
    from onceonly.storage.objects import Objects

    return Objects(uri).list_folders(PIPELINES)


def _check_format(uri: str, table_format: str) -> None:
    if table_format != str(FORMAT):
        raise InvalidPipeline(
            f"the state table at {uri} has another format.",
            f"Its format is {table_format}, and this version of Onceonly reads and writes format {FORMAT} only.",
            "Install the version that wrote it, or let ONCEONLY_STATE name another folder. Nothing was written.",
            code="state-table-format",
        )


def relocate(uri: str) -> None:
    """Accept that the table was moved; its identity stays."""
    _record_place(uri, {})


def fork(uri: str) -> None:
    """Give a copy an identity of its own. The caller has checked that it has no unsettled checkpoint."""
    _record_place(uri, {ID: uuid.uuid4().hex})


def _record_place(uri: str, properties: Mapping[str, str]) -> None:
    """Record these properties, where the table is, and that its store was tried. Without a table nothing is written."""
    table = _open_delta_table(uri)
    if table is not None:
        _check_storage(uri)
        table.alter.set_table_properties({**properties, **_place_properties(uri)}, raise_if_not_exists=False)


def check_atomic(uri: str) -> None:
    """Refuse storage on which two writers could both win a compare-and-set."""
    scheme = urlsplit(uri).scheme.lower()
    if scheme in LOCAL_SCHEMES:
        return
    obstacle = find_unsafe_setting(uri)
    if scheme not in ARBITRATING_SCHEMES:
        obstacle = f"Every decision needs put-if-absent, which '{scheme}://' is not known to support."
    if obstacle:
        raise InvalidPipeline(
            f"{uri} cannot hold the state table.",
            obstacle,
            "Use a local or network file system, S3 with conditional put, GCS or Azure. Nothing was written.",
            code="store-not-arbitrating",
        )


def check_writable(uri: str) -> None:
    """Refuse a table that this process cannot write to, or on a store of which it is not known that it arbitrates.

    Raises:
        InvalidPipeline: the store does not arbitrate.
        NotCommitted: nothing was written.
    """
    properties = {} if local_path(uri) else read_properties(uri)
    if properties is not None and TRIED not in properties:  # without a table nothing is written
        _check_storage(uri)


def check_place(uri: str, pipeline: str) -> None:
    """Refuse, before any work, a place in which a plan could not make the table, or record a row of that pipeline.

    It is tried by a file that is removed again.

    Raises:
        InvalidPipeline: the store does not arbitrate.
        NotCommitted: nothing was written.
    """
    check_atomic(uri)
    write_probe.require_writable(uri)
    properties = {TRIED: ""} if local_path(uri) else read_properties(uri) or {}
    if TRIED not in properties:
        _check_storage(uri)
    # On a store, a file in the folder of a pipeline without rows would show that pipeline to others for a moment.
    if local_path(uri) or pipeline in list_pipelines(uri):
        write_probe.require_writable(f"{table_folder(uri, pipeline)}/{LOG_FOLDER}")


def _check_storage(uri: str) -> None:
    """Refuse storage as `check_writable` does, whatever the table's properties are."""
    path = local_path(uri)
    if path:
        return require_writable(path)
    from onceonly.storage import arbitration

    try:
        arbitration.require_put_if_absent(uri)
    except OSError as error:
        raise _unopened_error(uri, error) from error


def _place_properties(uri: str) -> dict[str, str]:
    """Return the properties that record where a table is and, on a store, that the store was tried."""
    tried = {} if local_path(uri) else {TRIED: "true"}
    return {PLACE: locate(uri), **tried}


def locate(uri: str) -> str:
    """Return what distinguishes a table from its copy; the same through every mount of one file system."""
    path = local_path(uri)
    if path:
        return f"inode {path.stat().st_ino}"
    return uri.rstrip("/").replace("s3a://", "s3://", 1)


def _open_delta_table(uri: str) -> DeltaTable | None:
    """Return the Delta table at `uri`; None: there is none. Raises NotCommitted."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise _unopened_error(uri, error) from error


def _unopened_error(uri: str, error: Exception) -> NotCommitted:
    why = BACKTRACE.sub("", f"{type(error).__name__}: {error}")
    return NotCommitted(
        f"the state table at {uri} cannot be opened.",
        why,
        "Check the storage and its credentials. If its files are damaged, restore an earlier copy "
        f"({name_page('operations', 'backup-and-restore')}).",
        code="store-unreachable",
    )


def _create_table(uri: str) -> None:
    """Create the table. Of two processes at once, one creates it."""
    try:
        if local := local_path(uri):
            local.mkdir(parents=True, exist_ok=True)  # first: `locate` returns its inode
        identity = {ID: uuid.uuid4().hex, **_place_properties(uri)}
        open_log(uri).create({**CONFIGURATION, **identity})
    except OSError as error:
        raise NotCommitted(
            f"the state table at {uri} cannot be created.",
            str(error),
            "Check the storage and its credentials.",
            code="store-unreachable",
        ) from error


def open_log(folder: str) -> Log:
    """Return the log of the table in that folder."""
    if local := local_path(folder):
        return LocalLog(local)
    from onceonly.statetable.store_log import StoreLog

    return StoreLog(folder)
