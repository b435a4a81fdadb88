"""Keeping a pipeline's table small: few files, a short log, no obsolete files.

A replacement is on disk before the original is removed. On a local disk delta-rs does not guarantee that, so files are
merged here, and the log checkpoint is created in a copy of the log and then copied back.
"""

from __future__ import annotations

import shutil
import time
import uuid
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deltalake import DeltaTable

from onceonly.checkpoint.model import Row
from onceonly.filesystems import delta_names, durability
from onceonly.filesystems.objects import Objects
from onceonly.filesystems.paths import local_path
from onceonly.statetable import files, row_files, row_format, store_compaction
from onceonly.statetable.local_log import KEPT, LocalLog
from onceonly.statetable.log import MERGE, Action, Commit, Log, Taken, now
from onceonly.statetable.query import Query

FULL_FILE = 4 << 20  # bytes; a file of this size is not merged again, so that the cost does not grow with history
OLD = 3600  # seconds


def tidy(pipeline: str, uri: str, log: Log) -> None:
    """Merge the pipeline's small files, shorten its log, and delete the files that were merged an hour ago.

    Raises:
        Taken: another process has written meanwhile.
        DeltaError, OSError: it was not completed; the next call continues.
    """
    if local_path(uri) or not store_compaction.merge(log, FULL_FILE):  # type: ignore[arg-type]
        table = DeltaTable(uri)
        _merge(table, pipeline, files.small(files.of(table), FULL_FILE), log)
        _shorten(uri)


def _merge(table: DeltaTable, pipeline: str, small: list[dict[str, Any]], log: Log) -> None:
    """Replace these files by one, as exactly the version after the one that was read.

    Where there is nothing to merge, the commit says that too: a query need not look for rows in small files.
    """
    uri, name = table.table_uri, f"merged-{uuid.uuid4().hex}"
    rows = _rows(pipeline, uri, small) if len(small) > 1 else []
    if rows is None:
        return  # merging would lose or duplicate a row
    merged = [row_files.put(uri, rows, name, changes=False)] if rows else []
    removed = map(_removed, small) if rows else ()
    try:
        log.commit(table.version() + 1, Commit(MERGE, [*merged, *removed]), None)
    except Taken:
        row_files.remove(uri, name)
        raise
    log.keep()


def _rows(pipeline: str, uri: str, small: list[dict[str, Any]]) -> list[Row] | None:
    """The rows of these files; None where a row is missing, or is there twice."""
    since, until = min(file["min.seq"] for file in small), max(file["max.seq"] for file in small)
    found = Query(pipeline, uri).find(f"seq >= {since} AND seq <= {until}", tuple(row_format.COLUMNS))
    rows = sorted((row_format.from_record(each) for each in found), key=lambda row: row.seq)
    held = sum(file["num_records"] for file in small)
    return rows if [row.seq for row in rows] == list(range(since, until + 1)) and len(rows) == held else None


def _removed(file: dict[str, Any]) -> Action:
    gone = {"path": file["path"], "dataChange": False, "deletionTimestamp": now(), "size": file["size_bytes"]}
    return {"remove": {**gone, "extendedFileMetadata": True, "partitionValues": {}}}


def _shorten(uri: str) -> None:
    """Create a log checkpoint, and remove entries that no reader will ever look at."""
    local, table = local_path(uri), DeltaTable(uri)
    if local is None:
        Objects(uri).unlink(files.obsolete(table))
        return table.create_checkpoint()  # on object stores all entries stay
    log = LocalLog(local)
    _checkpoint(log, table.version())
    _remove_old(log)


def _checkpoint(log: LocalLog, version: int) -> None:
    _, last = log.listing()
    if last >= version:
        return
    with TemporaryDirectory(prefix="onceonly-") as scratch:
        copy = Path(scratch) / log.folder.name
        copy.mkdir()
        for each in (path.name for path in log.folder.glob(f"{last:020}.checkpoint.parquet")):
            shutil.copyfile(log.folder / each, copy / each)
        for each in (log.path(found).name for found in log.versions() if last <= found <= version):
            shutil.copyfile(log.folder / each, copy / each)
        table = DeltaTable(scratch)
        for path in files.obsolete(table):
            (log.table / path).unlink(missing_ok=True)
        table.create_checkpoint()
        for made in (delta_names.checkpoint(version), delta_names.LAST):  # in this order: the second names the first
            durability.write(log.table / made, (Path(scratch) / made).read_bytes())


def _remove_old(log: LocalLog) -> None:
    """Entries before all that readers look at, older log checkpoints, and drafts of killed writers; after an hour."""
    _, last = log.listing()
    old = [log.path(version) for version in log.versions() if version <= last - KEPT]
    checkpoints = [path for path in log.folder.glob("*.checkpoint.parquet") if int(path.name[:20]) < last]
    for path in (*old, *checkpoints, *log.folder.glob(".*")):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - OLD:
                path.unlink()
