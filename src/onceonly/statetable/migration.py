"""Converting a state table of format 2 or older, one Delta table with the rows of all pipelines, to one for each.

The old table counts until the commit that changes the folder's format. That commit follows exactly the version which
was copied, so a row that somebody writes meanwhile makes it fail, and everything is copied again. A writer of the older
version is refused from then on: Delta does not let it commit across a change of the table's metadata.

The old files stay where they are. Nothing reads them any more.
"""

from __future__ import annotations

import shutil
import uuid

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from onceonly.checkpoint.model import Row
from onceonly.errors import InvalidPipeline
from onceonly.filesystems.durability import tree_to_disk
from onceonly.filesystems.paths import local_path
from onceonly.pipeline.names import NAME
from onceonly.statetable import location, row_files, row_format
from onceonly.statetable.arrow_format import SCHEMA, from_arrow
from onceonly.statetable.log import MERGE, NONE, Action, Commit, Log
from onceonly.statetable.query import run
from onceonly.statetable.trouble import damaged

AT_ONCE = 50_000  # rows in memory


def migrate(uri: str) -> dict[str, int]:
    """Convert the state table at `uri`; returns the number of rows by pipeline. Empty: it is converted already.

    Raises:
        InvalidPipeline: there is no state table that can be converted. Nothing was changed.
        NotCommitted: the folder cannot be written to.
        OutcomeUnknown: the old table is damaged. It is unchanged.
    """
    while old := _old(uri):
        location.check_writable(uri)
        copied = {name: _copy(old, uri, name) for name in _names(old)}
        current, properties = {location.FORMAT_KEY: str(location.FORMAT)}, CommitProperties(max_commit_retries=0)
        try:
            old.alter.set_table_properties(current, raise_if_not_exists=False, commit_properties=properties)
        except CommitFailedError:  # somebody has written a row meanwhile
            continue
        if local := local_path(uri):
            tree_to_disk(local / "_delta_log")
        return copied
    return {}


def _old(uri: str) -> DeltaTable | None:
    """The table, if it is one of an older format; None: it is one of this format."""
    found = location.configuration(uri)
    if found is None or location.ID not in found:
        raise InvalidPipeline(f"there is no state table at {uri}.", "", "Point ONCEONLY_STATE to the table to convert.")
    if int(found.get(location.FORMAT_KEY, 1)) >= location.FORMAT:
        location.open_(uri)
        return None
    if found[location.PLACE] != location.place(uri):
        raise InvalidPipeline(
            f"the state table at {uri} is a copy, or was moved.",
            "Declare first what it is.",
            "If the original no longer exists: onceonly state relocate. To use the copy as well: onceonly state "
            "fork. Then convert it. Nothing was changed.",
        )
    return DeltaTable(uri)


def _names(old: DeltaTable) -> list[str]:
    return sorted(part["pipeline"] for part in old.partitions() if NAME.fullmatch(part["pipeline"]))


def _copy(old: DeltaTable, uri: str, pipeline: str) -> int:
    """Make the table of one pipeline, with all of its rows; returns how many."""
    folder = location.folder(uri, pipeline)
    log = _fresh(folder)
    last = old.transaction_version(pipeline) or 0
    log.create()
    bounds = [(first, min(first + AT_ONCE, last)) for first in range(1, last, AT_ONCE)]
    files = [_file(old, folder, pipeline, range(*bound)) for bound in bounds]
    log.commit(1, Commit(MERGE, files), None)
    (row,) = _rows(old, pipeline, range(last, last + 1))
    log.commit(2, Commit("WRITE", [row_files.put(folder, [row], row.id)], row), None)
    log.keep()
    return last


def _fresh(folder: str) -> Log:
    """The log of a new table; what is left of a conversion that was interrupted is removed."""
    log = location.log_of(folder)
    if local := local_path(folder):
        shutil.rmtree(local, ignore_errors=True)
    if log.entries()[0] != NONE:
        raise InvalidPipeline(
            f"{folder} exists already.",
            "An interrupted conversion left it.",
            f"Delete everything below {folder}, and convert again. The old table is unchanged.",
        )
    return log


def _file(old: DeltaTable, folder: str, pipeline: str, numbers: range) -> Action:
    return row_files.put(folder, _rows(old, pipeline, numbers), f"merged-{uuid.uuid4().hex}")


def _rows(old: DeltaTable, pipeline: str, numbers: range) -> list[Row]:
    where = f"pipeline = '{pipeline}' AND seq >= {numbers.start} AND seq < {numbers.stop}"
    found = run(old, f"SELECT {', '.join(row_format.COLUMNS)} FROM state WHERE {where}").cast(SCHEMA)
    rows = sorted(from_arrow(found), key=lambda row: row.seq)
    if [row.seq for row in rows] != list(numbers):
        raise damaged(
            pipeline, old.table_uri, f"Rows {numbers.start} to {numbers.stop - 1} are not all there exactly once."
        )
    return rows
