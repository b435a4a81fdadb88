"""Which files make changes part of a table: computed from one snapshot, for a commit of exactly the next version.

A change applies unless the table has a row of its key that is not below it. Of the files that hold rows of such keys,
copies without those rows are written beside the staged files. If all changes apply, the staged files become part of the
table as they are; otherwise the changes that apply are copied, too. In memory are keys and order of the changes, and of
one batch of the table at a time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from onceonly.checkpoint.model import Outcome
from onceonly.delta import commits, file_statistics, table_files, table_snapshot
from onceonly.sinks.delta import staged_table
from onceonly.sinks.delta.handle import DeltaHandle, MergeColumns
from onceonly.sinks.staging import row_text
from onceonly.storage.paths import local_path

BATCH_ROWS = 1 << 17  # of the table in memory at a time
READAHEAD_BATCHES = 2
MAX_VALUES_BY_NAME = 100  # values, such as days, by which partitions are looked up one by one
EXACT_TYPES = (pa.types.is_integer, pa.types.is_date)  # their statistics are exact: not shortened, not rounded
PARQUET_READ_OPTIONS = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")


@dataclass(frozen=True)
class MergeResult:
    """What the commit adds and removes, and what it did, for people."""

    adds: list[AddAction]
    removes: dict[str, int]
    detail: dict[str, int]


@dataclass
class MergeCache:
    """What several tries of one publication have to find out only once, because files never change.

    Args:
        changes: keys and order of the staged changes, numbered.
        files: by path, the numbers of the changes of whose keys it has rows, and of those that it makes stale.
        copied: paths and numbers of changes, and the copies that were written for them.
    """

    changes: pa.Table = None
    files: dict[str, tuple[pa.Array, pa.Array]] = field(default_factory=dict)
    copied: tuple[list[str], pa.Array, list[AddAction]] | None = None

    def find_copies(self, paths: list[str], numbers: pa.Array) -> list[AddAction] | None:
        """Return the copies that were written for these files and changes, if the last ones were."""
        if self.copied is None:
            return None
        copied_paths, copied_numbers, copies = self.copied
        return copies if copied_paths == paths and copied_numbers.equals(numbers) else None


@dataclass(frozen=True)
class _Matches:
    """What a comparison with one snapshot shows: files with keys of the changes, and the changes that apply.

    Args:
        files: each with the numbers of the changes of whose keys it has rows.
        applied: the changes that are newer than any row of their key in the table.
    """

    files: list[tuple[ds.ParquetFileFragment, pa.Array]]
    applied: pa.Table

    def files_to_rewrite(self) -> list[ds.ParquetFileFragment]:
        """Return the files with rows that a change replaces, by path."""
        applied_numbers = _numbers(self.applied)
        fragments = []
        for fragment, numbers in self.files:
            if pc.any(pc.is_in(numbers, applied_numbers)).as_py():
                fragments.append(fragment)
        return sorted(fragments, key=lambda fragment: fragment.path)

    def count_updates(self) -> int:
        """Count the changes that apply and have a row in the table. The others are inserts."""
        numbers_by_file = [pa.array([], pa.int64())]
        for _, numbers in self.files:
            numbers_by_file.append(numbers)
        is_update = pc.is_in(self.applied["change"], pa.concat_arrays(numbers_by_file))
        return int(pc.sum(is_update).as_py() or 0)


def publish(
    target: DeltaTable, uri: str, handle: DeltaHandle, version: int, adds: list[dict[str, Any]], cache: MergeCache
) -> Outcome:
    """Merge the staged changes into that snapshot of the table, once.

    What is computed holds for this snapshot alone, so it is committed as exactly the next version, or again.

    Args:
        version: the evidence.
        adds: the add actions of the staged rows.
        cache: of earlier tries of the same publication by this process.
    Raises:
        CommitFailedError: another commit came first.
    """
    merged = compute(target, uri, handle, adds, cache)
    removes = table_files.to_removes(merged.removes)
    commits.commit_entry(target, merged.adds, removes, handle.app_id, version, exactly_next=True)
    return Outcome(detail={"rows": handle.rows, **merged.detail})


def compute(
    target: DeltaTable, uri: str, handle: DeltaHandle, adds: list[dict[str, Any]], cache: MergeCache
) -> MergeResult:
    """Write the copies that are needed, durably, and return what to commit. Nothing is visible before that.

    Args:
        adds: the add actions of the staged rows.
        cache: of earlier tries of the same publication by this process.
    """
    if not adds:
        return MergeResult([], {}, {"inserted": 0, "updated": 0, "older": 0, "rewritten": 0})
    assert handle.merge is not None
    columns, table = handle.merge, _dataset(target)
    staged = _staged_dataset(f"{uri.rstrip('/')}/{handle.rows_folder}", table, adds)
    matches = _search(target, table, staged, columns, cache)
    applied, rewritten = matches.applied, matches.files_to_rewrite()
    older = len(cache.changes) - len(applied)
    paths, numbers = [fragment.path for fragment in rewritten], _numbers(applied)
    # Files never change, so the copies of a try that lost to another writer are right for the same files and changes.
    new_adds = cache.find_copies(paths, numbers)
    if new_adds is None:
        # Generators: a file is read while its copy is written, a batch at a time.
        parts = [_rows_to_keep(table, fragment, applied, columns.keys) for fragment in rewritten]
        if older and len(applied):  # only some of the changes apply, so the staged files cannot be added as they are
            parts += [_changes_to_apply(table, fragment, applied, columns.keys) for fragment in staged.get_fragments()]
        new_adds = []
        if parts:
            new_adds = _write(target, uri, handle.folder, table.schema, parts)
        cache.copied = paths, numbers, new_adds
    if not older:
        new_adds = [*new_adds, *staged_table.to_target_adds(adds, handle.rows_folder, target)]
    updated = matches.count_updates()
    detail = {"inserted": len(applied) - updated, "updated": updated, "older": older, "rewritten": len(rewritten)}
    return MergeResult(list(new_adds), _removes(target, rewritten), detail)


def _dataset(table: DeltaTable) -> ds.FileSystemDataset:
    """Return the rows of the table, to be read by pyarrow's threads.

    A local folder is read by pyarrow's own file system. That of delta-rs is a Python object: if the process ends while
    one of these threads still releases it, the process is aborted ("terminate called without an active exception").
    """
    files = None  # on an object store: that of delta-rs, which knows the sizes of the files
    if local_path(table.table_uri):
        files = table_files.open_folder(table.table_uri)
    return table.to_pyarrow_dataset(filesystem=files, parquet_read_options=PARQUET_READ_OPTIONS)


def _staged_dataset(uri: str, table: ds.FileSystemDataset, adds: list[dict[str, Any]]) -> ds.FileSystemDataset:
    """Return all of the staged rows."""
    try:
        return _dataset(DeltaTable(uri))
    except ValueError:  # of a day after 9999 in Spark's statistics, which are not needed here
        pass
    files, file_format = table_files.open_folder(uri), ds.ParquetFileFormat(read_options=PARQUET_READ_OPTIONS)
    fragments = []
    for add in adds:
        partition = _partition(table.schema, add["partitionValues"])
        fragments.append(file_format.make_fragment(unquote(add["path"]), files, partition))
    return ds.FileSystemDataset(fragments, table.schema, file_format, files)


def _partition(schema: pa.Schema, values: dict[str, str | None]) -> ds.Expression:
    """Return what all rows of a partition meet, by the values of its columns; an empty text is null."""
    expression = ds.scalar(True)
    for name, text in values.items():
        column = row_text.from_folders(pa.array([text or None], pa.string()), schema.field(name).type)
        value = column[0]
        if value.is_valid:
            expression &= ds.field(name) == value
        else:
            expression &= ds.field(name).is_null()
    return expression


def _numbers(table: pa.Table) -> pa.Array:
    return table["change"].combine_chunks()


# ---- which changes apply, and to which files


def _search(
    target: DeltaTable, table: ds.Dataset, staged: ds.Dataset, merged_by: MergeColumns, cache: MergeCache
) -> _Matches:
    """Compare the changes with the rows of their keys in that snapshot. Files that the cache has are not read again."""
    keys, order = merged_by.keys, merged_by.order_by
    if cache.changes is None:
        changes = staged.to_table(columns=_columns_by_role(keys, "key") | _columns_by_role(order, "new"))
        cache.changes = changes.append_column("change", pa.array(range(len(changes)), pa.int64()))
    columns = _columns_by_role(keys, "key") | _columns_by_role(order, "old")
    files, stale = [], [pa.array([], pa.int64())]
    for fragment in _fragments(target, table, keys, cache.changes):
        if fragment.path not in cache.files:
            cache.files[fragment.path] = _match_changes(_batches(fragment, table.schema, columns), cache.changes)
        matched_numbers, stale_numbers = cache.files[fragment.path]
        files.append((fragment, matched_numbers))
        stale.append(stale_numbers)
    is_applied = pc.invert(pc.is_in(cache.changes["change"], pa.concat_arrays(stale)))
    return _Matches(files, cache.changes.filter(is_applied))


def _match_changes(batches: Iterator[pa.RecordBatch], changes: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Return the numbers of the changes of whose keys there are rows, and of those not newer than such a row."""
    matched, stale = [pa.array([], pa.int64())], [pa.array([], pa.int64())]
    for batch in batches:
        keys = _names_of_role(changes, "key")
        both = pa.Table.from_batches([batch]).join(changes, keys, join_type="inner", use_threads=False)
        matched.append(_numbers(both))
        stale.append(_numbers(both.filter(pc.invert(_is_newer(both)))))
    return pc.unique(pa.concat_arrays(matched)), pc.unique(pa.concat_arrays(stale))


def _columns_by_role(columns: Sequence[str], role: str) -> dict[str, ds.Expression]:
    """Name columns by their role and place, such as "key 0", whatever they are called in the table."""
    return {f"{role} {number}": ds.field(name) for number, name in enumerate(columns)}


def _names_of_role(table: pa.Table, role: str) -> list[str]:
    return [name for name in table.schema.names if name.startswith(f"{role} ")]


def _batches(fragment: ds.Fragment, schema: pa.Schema, columns: Any = None) -> Iterator[pa.RecordBatch]:
    batches: Iterator[pa.RecordBatch] = fragment.to_batches(
        schema,
        columns,
        batch_size=BATCH_ROWS,
        batch_readahead=READAHEAD_BATCHES,
        fragment_readahead=1,
        use_threads=False,
    )
    return batches


def _fragments(
    target: DeltaTable, table: ds.FileSystemDataset, keys: Sequence[str], changes: pa.Table
) -> Iterator[ds.ParquetFileFragment]:
    """Yield the files that may have rows with keys of the changes.

    To a dataset, a bound that a file does not have is null, and it leaves the file out. So such files are always read.
    """
    paths = _paths_without_bounds(target, keys)
    for fragment in table.get_fragments(filter=_bounds(target, table, keys, changes)):
        paths.add(fragment.path)
    for fragment in table.get_fragments():
        if fragment.path in paths:
            yield fragment


def _paths_without_bounds(target: DeltaTable, keys: Sequence[str]) -> set[str]:
    """Return the files of which the log lacks a bound of a key, as after a change of what has statistics."""
    adds = pa.table(target.get_add_actions(flatten=True))
    paths: set[str] = set()
    for key in keys:
        for name in (f"min.{key}", f"max.{key}"):
            if name in adds.column_names:
                paths.update(map(unquote, adds["path"].filter(pc.is_null(adds[name])).to_pylist()))
    return paths


def _bounds(target: DeltaTable, table: ds.Dataset, keys: Sequence[str], changes: pa.Table) -> ds.Expression | None:
    """Return what every row with a key of the changes meets: files and partitions that cannot are not read."""
    partition_columns = target.metadata().partition_columns
    bounds = None
    for number, name in enumerate(keys):
        if name in partition_columns or _is_exact(table.schema.field(name).type):
            is_in_range = _is_in_range(name, changes[f"key {number}"])
            bounds = is_in_range if bounds is None else bounds & is_in_range
    return bounds


def _is_exact(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in EXACT_TYPES)


def _is_in_range(name: str, values: pa.ChunkedArray) -> ds.Expression:
    span, distinct = pc.min_max(values), pc.unique(values)  # of scalars: Python has no day after 9999
    is_in_span = (ds.field(name) >= span["min"]) & (ds.field(name) <= span["max"])
    if len(distinct) > MAX_VALUES_BY_NAME:
        return is_in_span
    return is_in_span & ds.field(name).isin(distinct)


def _is_newer(both: pa.Table) -> pa.ChunkedArray:
    """Return, row by row, whether the change is above the table's row. A null in the table is below everything."""
    names = _names_of_role(both, "new")
    newer = pa.chunked_array([pa.array([False] * len(both), pa.bool_())])
    # From the last column of the order to the first: a column decides, and where it is equal, those after it.
    for name in reversed(names):
        new, old = both[name], both[f"old {name[4:]}"]
        above = pc.fill_null(pc.greater(new, old), True)
        newer = pc.or_(above, pc.and_(pc.fill_null(pc.equal(new, old), False), newer))
    return newer


# ---- copies


def _rows_to_keep(
    table: ds.Dataset, fragment: ds.Fragment, applied: pa.Table, keys: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the file's rows that no change replaces."""
    for batch in _batches(fragment, table.schema):
        yield batch.filter(pc.invert(_has_applied_key(batch, applied, keys)))


def _changes_to_apply(
    table: ds.Dataset, fragment: ds.Fragment, applied: pa.Table, keys: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the staged changes that apply."""
    for batch in _batches(fragment, table.schema):
        yield batch.filter(_has_applied_key(batch, applied, keys))


def _has_applied_key(batch: pa.RecordBatch, applied: pa.Table, keys: Sequence[str]) -> pa.Array:
    """Return, row by row, whether a change that applies has its key."""
    row_numbers = pa.array(range(batch.num_rows), pa.int64())
    columns = [batch.column(name) for name in keys]
    names = _names_of_role(applied, "key")
    keys_of_rows = pa.table([*columns, row_numbers], [*names, "row"])
    matching = keys_of_rows.join(applied.select(names), names, join_type="left semi", use_threads=False)
    return pc.is_in(row_numbers, matching["row"].combine_chunks())


def _write(
    target: DeltaTable, uri: str, folder: str, schema: pa.Schema, parts: list[Iterator[pa.RecordBatch]]
) -> list[AddAction]:
    """Write the batches into a new table in the staged folder, durably; returns what adds its files to the target.

    Each call has a folder of its own: of several that publish at once, the log decides which one counts.
    """
    copy_folder = f"{folder}/{staged_table.COPY_PREFIX}{uuid.uuid4().hex[:12]}"
    copy_uri = staged_table.create(target, copy_folder, True, [], {}, enforce=False)
    rows = pa.RecordBatchReader.from_batches(schema, _batches_with_rows(parts))
    copy = DeltaTable(copy_uri)
    properties = file_statistics.writer_properties(table_snapshot.column_fields(copy))
    write_deltalake(copy, rows, mode="append", writer_properties=properties)
    adds = file_statistics.recount(staged_table.read_adds(uri, copy_folder, 1), table_files.open_folder(copy_uri), copy)
    table_files.sync_to_disk(uri, copy_folder)
    return staged_table.to_target_adds(adds, copy_folder, target)


def _batches_with_rows(parts: list[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        for batch in part:
            if batch.num_rows:
                yield batch


def _removes(target: DeltaTable, fragments: list[ds.ParquetFileFragment]) -> dict[str, int]:
    """Return path (as in the log) -> size of these files."""
    files = {}
    for path, size in table_files.list_active_files(target).items():
        files[unquote(path)] = path, size
    removes = {}
    for fragment in fragments:
        path, size = files[fragment.path]
        removes[path] = size
    return removes
