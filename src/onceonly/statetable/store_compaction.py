"""Merging the small files of a pipeline's table on an object store, in few requests.

The rows since the last merge are in the log's entries, which have been read. So only the last merged file is read
again, and the log checkpoint is made on this machine: of the log as it is, but without the files that were just merged.
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
from onceonly.statetable import row_files, row_format
from onceonly.statetable.arrow_format import SCHEMA
from onceonly.statetable.log import MERGE, NONE, Action, Commit, Entry, now
from onceonly.statetable.store_log import StoreLog


def merge(log: StoreLog, full: int) -> bool:
    """Replace all small files by one, and make a log checkpoint; False: it is not as Onceonly left it, and stays.

    Args:
        full: a merged file of so many bytes is not merged again.
    Raises:
        Taken: another process has written meanwhile.
        OSError: it was not completed; the next call continues.
    """
    newest, found = log.entries()
    since = _since_merge(found)
    rows = [entry.row for entry in reversed(since) if entry.row]
    if any(entry.foreign or entry.rewrites for entry in since) or not rows:
        return False
    adds = _merged_files(log, since[-1])
    held = [number for add in adds for number in row_files.numbers(add)]
    small = [add["path"] for add in adds if add["size"] < full]
    old = [row for path in small for row in _rows_of(log, path)]
    if [row.seq for row in old] != (held if small else []):
        return False
    if [row.seq for row in rows] != list(range(max(held, default=0) + 1, rows[-1].seq + 1)):
        return False
    name = f"merged-{uuid.uuid4().hex}"
    gone = [*small, *(row_files.path_of(row.id) for row in rows)]
    merged = row_files.put(log.uri, [*old, *rows], name, changes=False)
    log.commit(newest + 1, Commit(MERGE, [merged, *map(_removed, gone)]), None)
    _make_checkpoint(log, since, newest + 1)
    return True


def _since_merge(found: Any) -> list[Entry]:
    """The entries down to the last merge, or to the first one, newest first."""
    since: list[Entry] = []
    for entry in found:
        since.append(entry)
        if entry.merges:
            break
    return since


def _merged_files(log: StoreLog, entry: Entry) -> list[Mapping[str, Any]]:
    """What a merge has added; nothing, if that entry is none."""
    return [action["add"] for action in log.actions(entry.version) if "add" in action] if entry.merges else []


def _rows_of(log: StoreLog, path: str) -> list[Row]:
    found = pq.read_table(pa.BufferReader(log.files.read(path)))
    rows = map(row_format.from_record, found.select(SCHEMA.names).cast(SCHEMA).to_pylist())
    return sorted(rows, key=lambda row: row.seq)


def _removed(path: str) -> Action:
    return {"remove": {"path": path, "dataChange": False, "deletionTimestamp": now()}}


def _make_checkpoint(log: StoreLog, since: Sequence[Entry], version: int) -> None:
    """A copy of the log is enough in which the entries since the last merge name no files: they are merged by now."""
    small = {entry.version: entry for entry in since if not entry.merges and entry.version}
    name = f"{version:020}.checkpoint.parquet"
    with TemporaryDirectory(prefix="onceonly-") as scratch:
        folder = Path(scratch, delta_names.LOG)
        folder.mkdir()
        if log.checkpoint != NONE:
            last = f"{log.checkpoint:020}.checkpoint.parquet"
            (folder / last).write_bytes(log.files.read(f"{delta_names.LOG}/{last}"))
        for number in range(log.checkpoint + 1, version + 1):
            path = delta_names.entry(number)
            known = small.get(number)
            text = Commit("WRITE", [], known.row).lines().encode() if known else log.files.read(path, WRITTEN)
            Path(scratch, path).write_bytes(text)
        DeltaTable(scratch).create_checkpoint()
        for made in (name, "_last_checkpoint"):  # in this order: the second names the first
            log.files.write(f"{delta_names.LOG}/{made}", (folder / made).read_bytes())
