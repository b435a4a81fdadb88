"""Keeping the state table small: few files, a short log, no obsolete files.

A replacement is on disk before the original is removed. On a local disk delta-rs does not guarantee that, so files are
merged here, and the log checkpoint is created in a copy of the log and then copied back.
"""

from __future__ import annotations

import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from onceonly.filesystems import durability
from onceonly.filesystems.durability import Log, version_of
from onceonly.filesystems.paths import local_path
from onceonly.statetable import row_files
from onceonly.statetable.reading import Reading
from onceonly.statetable.row_files import NO_HOOKS

FULL_FILE = 4 << 20  # bytes; a file of this size is not merged again, so that the cost does not grow with history
LONG_LOG = 50  # entries since the last log checkpoint; the same as the table's delta.checkpointInterval
PIPELINE = "partition.pipeline"
OF_A_FILE = ["path", "size_bytes", "num_records", "min.seq", "max.seq", PIPELINE]
LAST = "_last_checkpoint"
TRIES = 20  # commits that may lose to writers of other pipelines


def tidy(at: Reading, pipeline: str, most: int) -> bool:
    """Merge files if the pipeline has more than `most`, and shorten a long log. Returns whether files were merged.

    Raises:
        DeltaError, OSError: it was not completed; the next call continues.
    """
    small = at.ask(lambda table: _to_merge(table, pipeline, most))
    if small:
        _merge(at, pipeline, small)
    if small or _is_long(at.delta):
        _shorten(at.delta.table_uri)
    if small:
        _delete_merged(at.delta.table_uri)
    return bool(small)


def _to_merge(table: DeltaTable, pipeline: str, most: int) -> dict[str, dict[str, Any]]:
    """The files since the last full one, if there are more than `most`; else none."""
    mine = [("pipeline", "=", pipeline)]
    small = _small(table, pipeline) if len(table.file_uris(file_pruning_predicate=mine)) > most else {}
    return small if len(small) > most else {}


def _merge(at: Reading, pipeline: str, small: dict[str, dict[str, Any]]) -> None:
    """Merge these files, unless another process does the same."""
    files = {path: file["size_bytes"] for path, file in small.items()}
    since, until = min(file["min.seq"] for file in small.values()), max(file["max.seq"] for file in small.values())
    rows = at.rows({pipeline: f"seq >= {since} AND seq <= {until}"})
    held = sum(file["num_records"] for file in small.values())
    if [row.seq for row in rows] != list(range(since, until + 1)) or len(rows) != held:
        return  # merging would lose or duplicate a row
    uri, name = at.delta.table_uri, f"merged-{uuid.uuid4().hex}"
    merged = row_files.put(uri, rows, name)
    for _ in range(TRIES):
        table = DeltaTable(uri)
        active = _active(table, pipeline)
        if merged.path in active:
            return
        if not files.keys() <= active.keys():
            return row_files.remove(uri, pipeline, name)
        with suppress(CommitFailedError):
            return row_files.replace(table, files, merged)


def _active(table: DeltaTable, pipeline: str) -> dict[str, dict[str, Any]]:
    """Path -> the log's record of that file."""
    import pyarrow.compute as pc  # here, as in `row_files`

    files = pa.table(table.get_add_actions(flatten=True)).select(OF_A_FILE)
    return {file["path"]: file for file in files.filter(pc.field(PIPELINE) == pipeline).to_pylist()}


def _small(table: DeltaTable, pipeline: str) -> dict[str, dict[str, Any]]:
    """The files after the last full one. Files before it are never merged, even if a single row filled it."""
    files = _active(table, pipeline)
    full = max((file["max.seq"] for file in files.values() if file["size_bytes"] >= FULL_FILE), default=0)
    return {path: file for path, file in files.items() if file["max.seq"] > full}


def _is_long(table: DeltaTable) -> bool:
    local = local_path(table.table_uri)
    return local is not None and len(Log(local).tail()) > LONG_LOG  # on object stores delta-rs does it on commit


def _shorten(uri: str) -> None:
    """Create a log checkpoint, and remove entries before it that are older than an hour."""
    local, table = local_path(uri), DeltaTable(uri)
    if local:
        _checkpoint(local, table.version())
    else:
        table.create_checkpoint()
    DeltaTable(uri).cleanup_metadata()


def _checkpoint(table: Path, version: int) -> None:
    log, name = Log(table), f"{version:020}.checkpoint.parquet"
    if (log.folder / name).exists():
        return
    with TemporaryDirectory(prefix="onceonly-") as scratch:
        copy = Path(scratch) / log.folder.name
        copy.mkdir()
        for entry in (entry for entry in log.tail() if version_of(entry) <= version):
            shutil.copyfile(log.folder / entry, copy / entry)
        DeltaTable(scratch).create_checkpoint()
        for made in (name, LAST):  # in this order: the second names the first
            durability.write(log.folder / made, (copy / made).read_bytes())


def _delete_merged(uri: str) -> None:
    """Delete merged files. Files that no log entry names stay: a stopped process may still write that entry."""
    DeltaTable(uri).vacuum(retention_hours=1, dry_run=False, post_commithook_properties=NO_HOOKS)
