"""Which files make changes part of a table: computed from one snapshot, for a commit of exactly the next version.

A change applies unless the table has a row of its key that is not below it. Of the files that hold rows of such keys,
copies without those rows are written beside the staged files. If all changes apply, the staged files become part of the
table as they are; otherwise the changes that apply are copied, too. In memory are keys and order of the changes, and of
one batch of the table at a time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from onceonly.checkpoint.model import Handle, Outcome
from onceonly.sinks.delta import entry, file_statistics, log
from onceonly.sinks.staging import row_text

ROWS = 1 << 17  # of the table in memory at a time
READAHEAD = 2  # batches
FEW = 100  # values, such as days, by which partitions are looked up one by one
BOUNDED = (pa.types.is_integer, pa.types.is_date)  # types whose statistics are exact: not shortened, not rounded
OPTIONS = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")


@dataclass(frozen=True)
class Merged:
    """What the commit adds and removes, and what it did, for people."""

    adds: list[AddAction]
    removes: dict[str, int]
    detail: dict[str, int]


@dataclass
class Known:
    """What several tries of one publication have to find out only once, because files never change.

    Args:
        changes: keys and order of the staged changes, numbered.
        files: by path, the numbers of the changes of whose keys it has rows, and of those that it makes stale.
        copied: paths and numbers of changes, and the copies that were written for them.
    """

    changes: pa.Table = None
    files: dict[str, tuple[pa.Array, pa.Array]] = field(default_factory=dict)
    copied: tuple[list[str], pa.Array, list[AddAction]] | None = None

    def copies(self, paths: list[str], numbers: pa.Array) -> list[AddAction] | None:
        same = self.copied and self.copied[0] == paths and self.copied[1].equals(numbers)
        return self.copied[2] if self.copied and same else None


@dataclass(frozen=True)
class _Found:
    """Of one snapshot: files with keys of the changes, and the changes that apply."""

    files: list[tuple[ds.ParquetFileFragment, pa.Array]]
    applied: pa.Table

    @property
    def touched(self) -> list[ds.ParquetFileFragment]:
        """The files with rows that a change replaces."""
        numbers = _numbers(self.applied)
        found = [fragment for fragment, matched in self.files if pc.any(pc.is_in(matched, numbers)).as_py()]
        return sorted(found, key=lambda fragment: fragment.path)

    @property
    def updated(self) -> int:
        matched = pa.concat_arrays([pa.array([], pa.int64()), *(found for _, found in self.files)])
        return int(pc.sum(pc.is_in(self.applied["change"], matched)).as_py() or 0)


def publish(
    target: DeltaTable, uri: str, handle: Handle, version: int, adds: list[dict[str, Any]], known: Known
) -> Outcome:
    """What is merged holds for this snapshot alone, so it is committed as exactly the next version, or again.

    Args:
        version: the evidence.
        adds: the add actions of the staged rows.
        known: of earlier tries of the same publication by this process.
    Raises:
        CommitFailedError: another commit came first.
    """
    merged = compute(target, uri, handle, adds, known)
    removes = log.as_removes(merged.removes)
    entry.commit(target, merged.adds, removes, handle["app_id"], version, exactly_next=True)
    return Outcome(detail={"rows": handle["rows"], **merged.detail})


def compute(target: DeltaTable, uri: str, handle: Handle, adds: list[dict[str, Any]], known: Known) -> Merged:
    """Write the copies that are needed, durably, and return what to commit. Nothing is visible before that.

    Args:
        adds: the add actions of the staged rows.
        known: of earlier tries of the same publication by this process.
    """
    if not adds:
        return Merged([], {}, {"inserted": 0, "updated": 0, "older": 0, "rewritten": 0})
    table = _dataset(target)
    staged = _staged_dataset(f"{uri.rstrip('/')}/{log.rows_folder(handle)}", table, adds)
    found = _search(target, table, staged, handle, known)
    applied, touched = found.applied, found.touched
    older = len(known.changes) - len(applied)
    copied = list(staged.get_fragments()) if older and len(applied) else []
    parts = [_without(table, part, applied, handle) for part in touched]
    parts += [_only(table, part, applied, handle) for part in copied]
    paths, numbers = [part.path for part in touched], _numbers(applied)
    if (written := known.copies(paths, numbers)) is None:
        written = _write(target, uri, handle["folder"], table.schema, parts) if parts else []
        known.copied = paths, numbers, written
    detail = {"inserted": len(applied) - found.updated, "updated": found.updated}
    return Merged(
        [*written, *([] if older else log.as_target_adds(adds, log.rows_folder(handle), target))],
        _removed(target, touched),
        {**detail, "older": older, "rewritten": len(touched)},
    )


def _dataset(table: DeltaTable) -> ds.FileSystemDataset:
    return table.to_pyarrow_dataset(parquet_read_options=OPTIONS)


def _staged_dataset(uri: str, table: ds.FileSystemDataset, adds: list[dict[str, Any]]) -> ds.FileSystemDataset:
    """All of the staged rows."""
    try:
        return _dataset(DeltaTable(uri))
    except ValueError:  # of a day after 9999 in Spark's statistics, which are not needed here
        pass
    files, file_format = log.file_system(uri), ds.ParquetFileFormat(read_options=OPTIONS)
    fragments = [
        file_format.make_fragment(unquote(add["path"]), files, _partition(table.schema, add["partitionValues"]))
        for add in adds
    ]
    return ds.FileSystemDataset(fragments, table.schema, file_format, files)


def _partition(schema: pa.Schema, values: dict[str, str | None]) -> ds.Expression:
    """The values of partition columns; an empty text is null."""
    texts = {name: pa.array([text or None], pa.string()) for name, text in values.items()}
    columns = {name: row_text.from_folders(text, schema.field(name).type)[0] for name, text in texts.items()}
    parts = [ds.field(name) == value if value.is_valid else ds.field(name).is_null() for name, value in columns.items()]
    return reduce(lambda one, other: one & other, parts, ds.scalar(True))


def _numbers(table: pa.Table) -> pa.Array:
    return table["change"].combine_chunks()


# ---- which changes apply, and to which files


def _search(target: DeltaTable, table: ds.Dataset, staged: ds.Dataset, handle: Handle, known: Known) -> _Found:
    keys, order = handle["merge"]["keys"], handle["merge"]["order_by"]
    if known.changes is None:
        changes = staged.to_table(columns=_named(keys, "key") | _named(order, "new"))
        known.changes = changes.append_column("change", pa.array(range(len(changes)), pa.int64()))
    columns, files, stale = _named(keys, "key") | _named(order, "old"), [], [pa.array([], pa.int64())]
    for fragment in _fragments(target, table, keys, known.changes):
        if fragment.path not in known.files:
            known.files[fragment.path] = _look_into(_batches(fragment, table.schema, columns), known.changes)
        matched, not_newer = known.files[fragment.path]
        files.append((fragment, matched))
        stale.append(not_newer)
    applied = pc.invert(pc.is_in(known.changes["change"], pa.concat_arrays(stale)))
    return _Found(files, known.changes.filter(applied))


def _look_into(batches: Iterator[pa.RecordBatch], changes: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Numbers of the changes of whose keys there are rows, and of those that are not newer than such a row."""
    matched, stale = [pa.array([], pa.int64())], [pa.array([], pa.int64())]
    for batch in batches:
        both = pa.Table.from_batches([batch]).join(changes, _keys(changes), join_type="inner", use_threads=False)
        matched.append(_numbers(both))
        stale.append(_numbers(both.filter(pc.invert(_is_newer(both)))))
    return pc.unique(pa.concat_arrays(matched)), pc.unique(pa.concat_arrays(stale))


def _named(columns: list[str], role: str) -> dict[str, ds.Expression]:
    return {f"{role} {number}": ds.field(name) for number, name in enumerate(columns)}


def _keys(table: pa.Table) -> list[str]:
    return [name for name in table.schema.names if name.startswith("key ")]


def _batches(fragment: ds.Fragment, schema: pa.Schema, columns: Any = None) -> Iterator[pa.RecordBatch]:
    read: Iterator[pa.RecordBatch] = fragment.to_batches(
        schema, columns, batch_size=ROWS, batch_readahead=READAHEAD, fragment_readahead=1, use_threads=False
    )
    return read


def _fragments(
    target: DeltaTable, table: ds.FileSystemDataset, keys: list[str], changes: pa.Table
) -> Iterator[ds.ParquetFileFragment]:
    """The files that may have rows with keys of the changes.

    To a dataset, a bound that a file does not have is null, and it leaves the file out. So such files are always read.
    """
    wanted = {fragment.path for fragment in table.get_fragments(filter=_bounds(target, table, keys, changes))}
    wanted |= _without_bounds(target, keys)
    return (fragment for fragment in table.get_fragments() if fragment.path in wanted)


def _without_bounds(target: DeltaTable, keys: list[str]) -> set[str]:
    """Paths of the files of which the log lacks a bound of a key, as after a change of what has statistics."""
    adds = pa.table(target.get_add_actions(flatten=True))
    names = {f"{side}.{key}" for key in keys for side in ("min", "max")} & set(adds.column_names)
    missing = [adds["path"].filter(pc.is_null(adds[name])).to_pylist() for name in names]
    return {unquote(path) for paths in missing for path in paths}


def _bounds(target: DeltaTable, table: ds.Dataset, keys: list[str], changes: pa.Table) -> ds.Expression | None:
    """What every row with a key of the changes meets: files and partitions that cannot are not read."""
    exact = {name for name in keys if any(is_kind(table.schema.field(name).type) for is_kind in BOUNDED)}
    exact |= set(target.metadata().partition_columns)
    parts = [_between(name, changes[f"key {number}"]) for number, name in enumerate(keys) if name in exact]
    return reduce(lambda one, other: one & other, parts) if parts else None


def _between(name: str, values: pa.ChunkedArray) -> ds.Expression:
    span, some = pc.min_max(values), pc.unique(values)  # of scalars: Python has no day after 9999
    few = ds.field(name).isin(some) if len(some) <= FEW else ds.scalar(True)
    return (ds.field(name) >= span["min"]) & (ds.field(name) <= span["max"]) & few


def _is_newer(both: pa.Table) -> pa.ChunkedArray:
    """Row by row: whether the change is above the table's row. A null in the table is below everything."""
    pairs = [(both[name], both[f"old {name[4:]}"]) for name in both.schema.names if name.startswith("new ")]
    newer = pa.chunked_array([pa.array([False] * len(both), pa.bool_())])
    for new, old in reversed(pairs):
        above = pc.fill_null(pc.greater(new, old), True)
        newer = pc.or_(above, pc.and_(pc.fill_null(pc.equal(new, old), False), newer))
    return newer


# ---- copies


def _without(table: ds.Dataset, fragment: ds.Fragment, applied: pa.Table, handle: Handle) -> Iterator[pa.RecordBatch]:
    """The file's rows that no change replaces."""
    for batch in _batches(fragment, table.schema):
        yield batch.filter(pc.invert(_has_key(batch, applied, handle)))


def _only(table: ds.Dataset, fragment: ds.Fragment, applied: pa.Table, handle: Handle) -> Iterator[pa.RecordBatch]:
    """The staged changes that apply."""
    for batch in _batches(fragment, table.schema):
        yield batch.filter(_has_key(batch, applied, handle))


def _has_key(batch: pa.RecordBatch, applied: pa.Table, handle: Handle) -> pa.Array:
    rows = pa.array(range(batch.num_rows), pa.int64())
    columns = [batch.column(name) for name in handle["merge"]["keys"]]
    names = _keys(applied)
    own = pa.table([*columns, rows], [*names, "row"])
    both = own.join(applied.select(names), names, join_type="left semi", use_threads=False)
    return pc.is_in(rows, both["row"].combine_chunks())


def _write(
    target: DeltaTable, uri: str, folder: str, schema: pa.Schema, parts: list[Iterator[pa.RecordBatch]]
) -> list[AddAction]:
    """Each call has a folder of its own: of several that publish at once, the log decides which one counts."""
    own = f"{folder}/{log.COPIES}{uuid.uuid4().hex[:12]}"
    nested = log.create_staged(target, own, True, [], {}, enforce=False)
    rows = pa.RecordBatchReader.from_batches(schema, (batch for part in parts for batch in part if batch.num_rows))
    copy = DeltaTable(nested)
    properties = file_statistics.writer_properties(json.loads(copy.schema().to_json())["fields"])
    write_deltalake(copy, rows, mode="append", writer_properties=properties)
    adds = file_statistics.recount(log.staged_adds(uri, own, 1), log.file_system(nested), copy)
    log.keep(uri, own)
    return log.as_target_adds(adds, own, target)


def _removed(target: DeltaTable, touched: list[ds.ParquetFileFragment]) -> dict[str, int]:
    """Path (as in the log) -> size."""
    files = {unquote(path): (path, size) for path, size in log.active_files(target).items()}
    return dict(files[fragment.path] for fragment in touched)
