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
from onceonly.delta import log_files
from onceonly.statetable import files, row_files, row_format, store_compaction
from onceonly.statetable.local_log import ENTRIES_BEFORE_CHECKPOINT, LocalLog
from onceonly.statetable.log import MERGE, Action, Commit, Log, Taken, now_millis
from onceonly.statetable.query import Query
from onceonly.storage import durability
from onceonly.storage.objects import Objects
from onceonly.storage.paths import local_path

FULL_FILE = 4 << 20  # bytes; a file of this size is not merged again, so that the cost does not grow with history
MIN_AGE_SECONDS = 3600  # of what is removed


def tidy(pipeline: str, uri: str, log: Log) -> None:
    """Merge the pipeline's small files, shorten its log, and delete the files that were merged an hour ago.

    Raises:
        Taken: another process has written meanwhile.
        DeltaError, OSError: it was not completed; the next call continues.
    """
    if local_path(uri) or not store_compaction.merge(log, FULL_FILE):  # type: ignore[arg-type]
        table = DeltaTable(uri)
        _merge_files(table, pipeline, files.select_small(files.list_files(table), FULL_FILE), log)
        _shorten_log(uri)


def _merge_files(table: DeltaTable, pipeline: str, small_files: list[dict[str, Any]], log: Log) -> None:
    """Replace these files by one, as exactly the version after the one that was read.

    Where there is nothing to merge, the commit says that too: a query need not look for rows in small files.
    """
    uri, name = table.table_uri, f"merged-{uuid.uuid4().hex}"
    rows = _read_rows(pipeline, uri, small_files) if len(small_files) > 1 else []
    if rows is None:
        return  # merging would lose or duplicate a row
    actions: list[Action] = []
    if rows:
        actions = [row_files.put(uri, rows, name, changes=False), *map(_remove_action, small_files)]
    try:
        log.commit(table.version() + 1, Commit(MERGE, actions), None)
    except Taken:
        row_files.remove(uri, name)
        raise
    log.keep()


def _read_rows(pipeline: str, uri: str, small_files: list[dict[str, Any]]) -> list[Row] | None:
    """Return the rows of these files, in order; None where a row is missing, or is there twice."""
    first_seq = min(file["min.seq"] for file in small_files)
    last_seq = max(file["max.seq"] for file in small_files)
    records = Query(pipeline, uri).find(f"seq >= {first_seq} AND seq <= {last_seq}", tuple(row_format.COLUMNS))
    rows = sorted(map(row_format.from_record, records), key=lambda row: row.seq)
    expected = list(range(first_seq, last_seq + 1))
    if [row.seq for row in rows] != expected or len(rows) != sum(file["num_records"] for file in small_files):
        return None
    return rows


def _remove_action(file: dict[str, Any]) -> Action:
    return {
        "remove": {
            "path": file["path"],
            "dataChange": False,
            "deletionTimestamp": now_millis(),
            "size": file["size_bytes"],
            "extendedFileMetadata": True,
            "partitionValues": {},
        }
    }


def _shorten_log(uri: str) -> None:
    """Create a log checkpoint, and remove entries that no reader will ever look at."""
    local, table = local_path(uri), DeltaTable(uri)
    if local is None:
        Objects(uri).unlink(files.list_obsolete(table))
        return table.create_checkpoint()  # on object stores all entries stay
    log = LocalLog(local)
    _create_checkpoint(log, table.version())
    _remove_old(log)


def _create_checkpoint(log: LocalLog, version: int) -> None:
    """Create a log checkpoint of that version, unless there is one, and delete the files that it forgets.

    The files are deleted first, while the log still names them: so if this process dies, the next one deletes them.
    """
    _, last = log.listing()
    if last >= version:
        return
    with TemporaryDirectory(prefix="onceonly-") as scratch:
        copy = Path(scratch) / log.folder.name
        copy.mkdir()
        for path in log.folder.glob(f"{last:020}.checkpoint.parquet"):
            shutil.copyfile(path, copy / path.name)
        for entry_version in log.versions():
            if last <= entry_version <= version:
                path = log.path(entry_version)
                shutil.copyfile(path, copy / path.name)
        table = DeltaTable(scratch)
        for name in files.list_obsolete(table):
            (log.table / name).unlink(missing_ok=True)
        table.create_checkpoint()
        for name in (
            log_files.checkpoint_path(version),
            log_files.LAST_CHECKPOINT,
        ):  # in this order: the second names the first
            durability.write(log.table / name, (Path(scratch) / name).read_bytes())


def _remove_old(log: LocalLog) -> None:
    """Remove entries before all that readers look at, older log checkpoints, and drafts of killed writers.

    Each is removed when it is an hour old.
    """
    _, last = log.listing()
    entries = [log.path(version) for version in log.versions() if version <= last - ENTRIES_BEFORE_CHECKPOINT]
    checkpoints = [path for path in log.folder.glob("*.checkpoint.parquet") if int(path.name[:20]) < last]
    drafts = log.folder.glob(".*")
    for path in (*entries, *checkpoints, *drafts):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - MIN_AGE_SECONDS:
                path.unlink()
