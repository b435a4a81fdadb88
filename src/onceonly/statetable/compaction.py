"""Keeping a pipeline's table small: few files, a short log, no obsolete files.

A replacement is on disk before the original is removed. On a local disk delta-rs does not guarantee that, so files are
merged here, and the log checkpoint is created in a copy of the log and then copied back.

On an object store it takes few requests. The rows since the last merge are in the log's entries, which have been read.
So of the log only the last log checkpoint is read again, and of the files only the last merged one. The log checkpoint
is made on this machine, in a copy of the log in which the entries since the last merge name no files: by then those are
merged.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from onceonly.checkpoint.model import Row
from onceonly.delta import log_files
from onceonly.statetable import row_files, row_format
from onceonly.statetable.local_log import ENTRIES_BEFORE_CHECKPOINT, LocalLog
from onceonly.statetable.log import MERGE, NO_VERSION, Action, Commit, Entry, Log, Taken, now_millis, rows_of
from onceonly.statetable.query import Query, rows_up_to
from onceonly.statetable.store_log import StoreLog
from onceonly.storage import durability
from onceonly.storage.objects import WRITTEN, Objects
from onceonly.storage.paths import local_path
from onceonly.waits import wait_for

FULL_FILE_BYTES = 4 << 20  # a file of this size is not merged again, so that the cost does not grow with history
MIN_AGE_SECONDS = 3600  # of what is removed


class TableFile(NamedTuple):
    """A file of rows, as the log records it: path, size, number of rows, and the numbers of the first and the last."""

    path: str
    bytes: int
    rows: int
    first_seq: int
    last_seq: int


def tidy(pipeline: str, uri: str, log: Log) -> None:
    """Merge the pipeline's small files, shorten its log, and delete the files that were merged an hour ago.

    Raises:
        Taken: another process has written meanwhile.
        DeltaError, OSError: it was not completed; the next call continues.
    """
    if not local_path(uri) and isinstance(log, StoreLog) and merge_on_store(log):
        return
    with wait_for(f"the state table at {uri}, whose files are merged"):
        table = DeltaTable(uri)
        _merge_files(table, pipeline, select_small(list_files(table)), log)
        _shorten_log(uri)


# ---- files of the table


def list_files(table: DeltaTable) -> list[TableFile]:
    """Return the files of the table, in the order of their rows."""
    files = []
    adds = pa.table(table.get_add_actions(flatten=True))
    if adds.num_rows:  # a table without files has no columns of statistics
        adds = adds.select(["path", "size_bytes", "num_records", "min.seq", "max.seq"])
    for add in adds.to_pylist():
        file = TableFile(add["path"], add["size_bytes"], add["num_records"], add["min.seq"], add["max.seq"])
        files.append(file)
    return sorted(files, key=lambda file: file.first_seq)


def select_small(files: list[TableFile]) -> list[TableFile]:
    """Return, of all files of a table, those after the last full one.

    Files before it are never merged, even if a single row filled it.
    """
    full_files = [file for file in files if file.bytes >= FULL_FILE_BYTES]
    last_full_seq = _last_seq(full_files)
    return [file for file in files if file.last_seq > last_full_seq]


def _last_seq(files: Iterable[TableFile]) -> int:
    """Return the number of the last row in these files; 0: there are none."""
    return max((file.last_seq for file in files), default=0)


def list_obsolete(table: DeltaTable) -> list[str]:
    """Return the files that merges took out of the table longer ago than it keeps them for readers of older versions.

    A log checkpoint forgets them. Files that no entry names are never among them: a stopped process may be about to
    name one.
    """
    return [path for path in table.vacuum(dry_run=True) if "/" not in path]


# ---- disks


def _merge_files(table: DeltaTable, pipeline: str, small_files: list[TableFile], log: Log) -> None:
    """Replace these files by one, as exactly the version after the one that was read.

    Where there is nothing to merge, the commit says that too: a query need not look for rows in small files.
    """
    uri, name = table.table_uri, f"merged-{uuid.uuid4().hex}"
    rows = _query_rows(pipeline, uri, small_files) if len(small_files) > 1 else []
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
    log.sync()


def _query_rows(pipeline: str, uri: str, small_files: list[TableFile]) -> list[Row] | None:
    """Return the rows of these files, in order; None where a row is missing, or is there twice."""
    first_seq, last_seq = small_files[0].first_seq, _last_seq(small_files)
    records = Query(pipeline, uri).find(f"seq >= {first_seq} AND seq <= {last_seq}", tuple(row_format.COLUMNS))
    rows = sorted(map(row_format.from_record, records), key=lambda row: row.seq)
    expected = list(range(first_seq, last_seq + 1))
    recorded_rows = sum(file.rows for file in small_files)
    if _seqs(rows) != expected or len(rows) != recorded_rows:
        return None
    return rows


def _remove_action(file: TableFile) -> Action:
    return {
        "remove": {
            "path": file.path,
            "dataChange": False,
            "deletionTimestamp": now_millis(),
            "size": file.bytes,
            "extendedFileMetadata": True,
            "partitionValues": {},
        }
    }


def _shorten_log(uri: str) -> None:
    """Create a log checkpoint, and remove entries that no reader will ever look at."""
    local, table = local_path(uri), DeltaTable(uri)
    if local is None:
        Objects(uri).unlink(list_obsolete(table))
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
        for name in list_obsolete(table):
            (log.table / name).unlink(missing_ok=True)
        table.create_checkpoint()
        # In this order: the second file names the first.
        for name in (log_files.checkpoint_path(version), log_files.LAST_CHECKPOINT):
            durability.write(log.table / name, (Path(scratch) / name).read_bytes())


def _remove_old(log: LocalLog) -> None:
    """Remove entries before all that readers look at, older log checkpoints, and drafts of killed writers.

    Each is removed when it is an hour old.
    """
    for path in _list_old(log):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - MIN_AGE_SECONDS:
                path.unlink()


def _list_old(log: LocalLog) -> list[Path]:
    """Return the files that `_remove_old` removes once they are an hour old."""
    _, last = log.listing()
    paths = []
    for version in log.versions():
        if version <= last - ENTRIES_BEFORE_CHECKPOINT:
            paths.append(log.path(version))
    for checkpoint in log.folder.glob("*.checkpoint.parquet"):
        if int(checkpoint.name[:20]) < last:
            paths.append(checkpoint)
    drafts = log.folder.glob(".*")
    return [*paths, *drafts]


# ---- object stores


def merge_on_store(log: StoreLog) -> bool:
    """Replace all small files by one, and make a log checkpoint; False: it is not as Onceonly left it, and stays.

    Raises:
        Taken: another process has written meanwhile.
        OSError: it was not completed; the next call continues.
    """
    newest, all_entries = log.recent()
    entries = _since_merge(all_entries)
    rows = list(rows_of(reversed(entries)))
    if any(entry.foreign or entry.rewrites for entry in entries) or not rows:
        return False
    with TemporaryDirectory(prefix="onceonly-") as scratch:
        _copy_log(log, entries, newest, Path(scratch))
        table_files = list_files(DeltaTable(scratch))
        small_files = select_small(table_files)
        old_rows = _read_rows(log, small_files)
        if old_rows is None or not _has_no_hole(_last_seq(table_files), rows):
            return False
        obsolete: list[str] = []
        for file in small_files:
            obsolete.append(file.path)
        for row in rows:
            obsolete.append(row_files.path_of(row.id))
        add = row_files.put(log.uri, [*old_rows, *rows], f"merged-{uuid.uuid4().hex}", changes=False)
        log.commit(newest + 1, Commit(MERGE, [add, *map(_remove_path_action, obsolete)]), None)
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
    if log.checkpoint != NO_VERSION:
        checkpoint = log_files.checkpoint_path(log.checkpoint)
        (scratch / checkpoint).write_bytes(log.files.read(checkpoint))
    unmerged = {}  # by version
    for entry in entries:
        # Not version 0, which creates the table: its protocol and schema have to be in the copy.
        if entry.version and not entry.merges:
            unmerged[entry.version] = entry
    for version in range(log.checkpoint + 1, newest + 1):
        path = log_files.entry_path(version)
        if version in unmerged:
            content = Commit("WRITE", [], unmerged[version].row).lines().encode()
        else:
            content = log.files.read(path, WRITTEN)
        (scratch / path).write_bytes(content)


def _read_rows(log: StoreLog, small_files: Sequence[TableFile]) -> list[Row] | None:
    """Return the rows of these files, in order; None where a row is missing, or is there twice."""
    rows: list[Row] = []
    expected: list[int] = []
    for file in small_files:
        rows += _read_file(log, file.path)
        expected += range(file.first_seq, file.last_seq + 1)
    if _seqs(rows) != expected:
        return None
    return rows


def _read_file(log: StoreLog, path: str) -> list[Row]:
    """Return the rows of one file, in order."""
    records, schema = pq.read_table(pa.BufferReader(log.files.read(path))), row_format.arrow_schema()
    rows = map(row_format.from_record, records.select(schema.names).cast(schema).to_pylist())
    return sorted(rows, key=lambda row: row.seq)


def _has_no_hole(last_seq: int, rows: Sequence[Row]) -> bool:
    """Return whether the first row has the next number, and each further one the next again."""
    return _seqs(rows) == list(range(last_seq + 1, rows[-1].seq + 1))


def _seqs(rows: Sequence[Row]) -> list[int]:
    return [row.seq for row in rows]


def _remove_path_action(path: str) -> Action:
    return {"remove": {"path": path, "dataChange": False, "deletionTimestamp": now_millis()}}


def _make_checkpoint(log: StoreLog, version: int, scratch: Path, last: Row) -> None:
    """Make a log checkpoint of the copy and that version, by which all rows up to `last` were merged.

    What it forgets is deleted before it is written: so if this process dies, the next one deletes it.
    """
    path = log_files.entry_path(version)
    (scratch / path).write_bytes(log.files.read(path, WRITTEN))
    table = DeltaTable(str(scratch))
    try:
        log.files.unlink(list_obsolete(table))
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
