"""Merging the small files of a pipeline's table on an object store, in few requests.

The rows since the last merge are in the log's entries, which have been read. So of the log only the last log checkpoint
is read again, and of the files only the last merged one. The log checkpoint is made on this machine, in a copy of the
log in which the entries since the last merge name no files: by then those are merged.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from onceonly.checkpoint.model import Row
from onceonly.delta import log_files
from onceonly.statetable import files, row_files, row_format
from onceonly.statetable.arrow_format import SCHEMA
from onceonly.statetable.log import MERGE, NONE, Action, Commit, Entry, now_millis
from onceonly.statetable.query import rows_up_to
from onceonly.statetable.store_log import StoreLog
from onceonly.storage.objects import WRITTEN


def merge(log: StoreLog, full: int) -> bool:
    """Replace all small files by one, and make a log checkpoint; False: it is not as Onceonly left it, and stays.

    Args:
        full: a merged file of so many bytes is not merged again.
    Raises:
        Taken: another process has written meanwhile.
        OSError: it was not completed; the next call continues.
    """
    newest, all_entries = log.recent()
    entries = _since_merge(all_entries)
    rows = [entry.row for entry in reversed(entries) if entry.row]
    if any(entry.foreign or entry.rewrites for entry in entries) or not rows:
        return False
    with TemporaryDirectory(prefix="onceonly-") as scratch:
        _copy_log(log, entries, newest, Path(scratch))
        table_files = files.list_files(DeltaTable(scratch))
        small_files = files.select_small(table_files, full)
        old_rows = _read_rows(log, small_files)
        last_seq = max((file["max.seq"] for file in table_files), default=0)
        if old_rows is None or not _has_no_hole(last_seq, rows):
            return False
        obsolete = [*(file["path"] for file in small_files), *(row_files.path_of(row.id) for row in rows)]
        add = row_files.put(log.uri, [*old_rows, *rows], f"merged-{uuid.uuid4().hex}", changes=False)
        log.commit(newest + 1, Commit(MERGE, [add, *map(_remove_action, obsolete)]), None)
        _make_checkpoint(log, newest + 1, Path(scratch), rows[-1])
    return True


def _since_merge(all_entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries down to the last merge, or to the first one, newest first."""
    entries: list[Entry] = []
    for entry in all_entries:
        entries.append(entry)
        if entry.merges:
            break
    return entries


def _copy_log(log: StoreLog, entries: Sequence[Entry], newest: int, scratch: Path) -> None:
    """Copy the log from its last log checkpoint on; the entries since the last merge name no files in the copy."""
    (scratch / log_files.LOG_FOLDER).mkdir()
    if log.checkpoint != NONE:
        checkpoint = log_files.checkpoint_path(log.checkpoint)
        (scratch / checkpoint).write_bytes(log.files.read(checkpoint))
    # Not version 0, which creates the table: its protocol and schema have to be in the copy.
    unmerged = {entry.version: entry for entry in entries if not entry.merges and entry.version}
    for version in range(log.checkpoint + 1, newest + 1):
        path = log_files.entry_path(version)
        if version in unmerged:
            content = Commit("WRITE", [], unmerged[version].row).lines().encode()
        else:
            content = log.files.read(path, WRITTEN)
        (scratch / path).write_bytes(content)


def _read_rows(log: StoreLog, small_files: Sequence[Mapping[str, Any]]) -> list[Row] | None:
    """Return the rows of these files, in order; None where a row is missing, or is there twice."""
    rows: list[Row] = []
    expected: list[int] = []
    for file in small_files:
        rows += _rows_of(log, file["path"])
        expected += range(file["min.seq"], file["max.seq"] + 1)
    return rows if [row.seq for row in rows] == expected else None


def _rows_of(log: StoreLog, path: str) -> list[Row]:
    """Return the rows of one file, in order."""
    records = pq.read_table(pa.BufferReader(log.files.read(path)))
    rows = map(row_format.from_record, records.select(SCHEMA.names).cast(SCHEMA).to_pylist())
    return sorted(rows, key=lambda row: row.seq)


def _has_no_hole(last_seq: int, rows: Sequence[Row]) -> bool:
    """Return whether the first row has the next number, and each further one the next again."""
    return [row.seq for row in rows] == list(range(last_seq + 1, rows[-1].seq + 1))


def _remove_action(path: str) -> Action:
    return {"remove": {"path": path, "dataChange": False, "deletionTimestamp": now_millis()}}


def _make_checkpoint(log: StoreLog, version: int, scratch: Path, last: Row) -> None:
    """Make a log checkpoint of the copy and that version, by which all rows up to `last` were merged.

    What it forgets is deleted before it is written: so if this process dies, the next one deletes it.
    """
    path = log_files.entry_path(version)
    (scratch / path).write_bytes(log.files.read(path, WRITTEN))
    table = DeltaTable(str(scratch))
    try:
        log.files.unlink(files.list_obsolete(table))
    finally:
        table.create_checkpoint()
        _write_checkpoint(log, version, scratch, last)


def _write_checkpoint(log: StoreLog, version: int, scratch: Path, last: Row) -> None:
    """Write the log checkpoint of that version to the store, and then the file that names it."""
    path = log_files.checkpoint_path(version)
    content = (scratch / path).read_bytes()
    log.files.write(path, content)
    log.files.write(log_files.LAST_CHECKPOINT, (scratch / log_files.LAST_CHECKPOINT).read_bytes())
    log.files.remember(path, rows_up_to(last.id), content)
