"""Merging the small files of a pipeline's table on an object store, in few requests.

The rows since the last merge are in the log's entries, which have been read. So of the log only the last log checkpoint
is read again, and of the files only the last merged one. The log checkpoint is made on this machine, in a copy of the
log in which the entries since the last merge name no files: by then those are merged.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from onceonly.checkpoint.model import Row
from onceonly.filesystems import delta_names
from onceonly.filesystems.objects import WRITTEN
from onceonly.statetable import files, row_files, row_format
from onceonly.statetable.arrow_format import SCHEMA
from onceonly.statetable.log import MERGE, NONE, Action, Commit, Entry, now
from onceonly.statetable.query import rows_up_to
from onceonly.statetable.store_log import StoreLog


def merge(log: StoreLog, full: int) -> bool:
    """Replace all small files by one, and make a log checkpoint; False: it is not as Onceonly left it, and stays.

    Args:
        full: a merged file of so many bytes is not merged again.
    Raises:
        Taken: another process has written meanwhile.
        OSError: it was not completed; the next call continues.
    """
    newest, found = log.recent()
    since = _since_merge(found)
    rows = [entry.row for entry in reversed(since) if entry.row]
    if any(entry.foreign or entry.rewrites for entry in since) or not rows:
        return False
    with TemporaryDirectory(prefix="onceonly-") as scratch:
        _copy(log, since, newest, Path(scratch))
        held = files.of(DeltaTable(scratch))
        small = files.small(held, full)
        old = [row for file in small for row in _rows_of(log, file["path"])]
        if [row.seq for row in old] != [seq for file in small for seq in _numbers(file)]:
            return False
        last = max((file["max.seq"] for file in held), default=0)
        if [row.seq for row in rows] != list(range(last + 1, rows[-1].seq + 1)):
            return False
        gone = [*(file["path"] for file in small), *(row_files.path_of(row.id) for row in rows)]
        merged = row_files.put(log.uri, [*old, *rows], f"merged-{uuid.uuid4().hex}", changes=False)
        log.commit(newest + 1, Commit(MERGE, [merged, *map(_removed, gone)]), None)
        _make_checkpoint(log, newest + 1, Path(scratch), rows[-1])
    return True


def _since_merge(found: Any) -> list[Entry]:
    """The entries down to the last merge, or to the first one, newest first."""
    since: list[Entry] = []
    for entry in found:
        since.append(entry)
        if entry.merges:
            break
    return since


def _copy(log: StoreLog, since: Sequence[Entry], newest: int, scratch: Path) -> None:
    """The log from its last log checkpoint on; the entries since the last merge name no files."""
    (scratch / delta_names.LOG).mkdir()
    if log.checkpoint != NONE:
        last = delta_names.checkpoint(log.checkpoint)
        (scratch / last).write_bytes(log.files.read(last))
    small = {entry.version: entry for entry in since if not entry.merges and entry.version}
    for number in range(log.checkpoint + 1, newest + 1):
        path, known = delta_names.entry(number), small.get(number)
        text = Commit("WRITE", [], known.row).lines().encode() if known else log.files.read(path, WRITTEN)
        (scratch / path).write_bytes(text)


def _numbers(file: Mapping[str, Any]) -> range:
    """Of the rows in a file."""
    return range(file["min.seq"], file["max.seq"] + 1)


def _rows_of(log: StoreLog, path: str) -> list[Row]:
    found = pq.read_table(pa.BufferReader(log.files.read(path)))
    rows = map(row_format.from_record, found.select(SCHEMA.names).cast(SCHEMA).to_pylist())
    return sorted(rows, key=lambda row: row.seq)


def _removed(path: str) -> Action:
    return {"remove": {"path": path, "dataChange": False, "deletionTimestamp": now()}}


def _make_checkpoint(log: StoreLog, version: int, scratch: Path, last: Row) -> None:
    """Of the copy and that version, by which all rows up to `last` were merged.

    What it forgets is deleted before it is written: so if this process dies, the next one deletes it.
    """
    path = delta_names.entry(version)
    (scratch / path).write_bytes(log.files.read(path, WRITTEN))
    table = DeltaTable(str(scratch))
    try:
        log.files.unlink(files.obsolete(table))
    finally:
        table.create_checkpoint()
        _write(log, version, scratch, last)


def _write(log: StoreLog, version: int, scratch: Path, last: Row) -> None:
    made = delta_names.checkpoint(version)
    content = (scratch / made).read_bytes()
    log.files.write(made, content)
    log.files.write(delta_names.LAST, (scratch / delta_names.LAST).read_bytes())  # after what it names
    log.files.keep(made, rows_up_to(last.id), content)
