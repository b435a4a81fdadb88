"""The rows of single checkpoints, found wherever they lie by the column that names their transaction.

A file that holds nothing else is removed whole. Of any other, a copy without those rows is written beside the staged
files. Rows that a deletion vector hides are neither counted nor copied.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake

from onceonly.delta import file_statistics, table_files, table_snapshot, txn_identifiers
from onceonly.sinks.delta import staged_table
from onceonly.sinks.delta.row_cache import Holder, RowCache

FILE_BATCH_ROWS = 1 << 17
FILE_READAHEAD = 2
MAX_PARALLEL_FILES = 8  # of files
READ_OPTIONS = {"coerce_int96_timestamp_unit": "us"}
Names = Mapping[str, frozenset[str]]  # by column, the transactions whose rows are looked for
Add = Mapping[str, Any]


class OutsideFile(ValueError):
    """A file of the table is outside of its folder."""


class RowFinder:
    """Reads files of one snapshot of a table."""

    def __init__(self, target: DeltaTable, names: Names, cache: RowCache) -> None:
        self._target, self._names, self._cache = target, names, cache
        cache.use_for(names)
        self._files = table_files.open_folder(target.table_uri)
        self._schema = _stored_schema(target)
        self._masks = _read_masks(target)

    @property
    def missing_columns(self) -> list[str]:
        """Return the columns that the table no longer has as text."""
        missing = []
        for name in self._names:
            if name not in self._schema.names or not pa.types.is_string(self._schema.field(name).type):
                missing.append(name)
        return sorted(missing)

    def find(self, paths: Collection[str]) -> dict[str, Holder]:
        """Return by path which of these files hold such rows; paths are decoded."""
        for path in paths:
            if path not in self._cache.holders and (urlsplit(path).scheme or path.startswith("/")):
                raise OutsideFile(path)
        ordered = sorted(paths)
        with ThreadPoolExecutor(MAX_PARALLEL_FILES) as pool:
            holders = dict(zip(ordered, pool.map(self._read_holder, ordered), strict=True))
        return {path: holder for path, holder in holders.items() if holder.matches}

    def _read_holder(self, path: str) -> Holder:
        mask = self._masks.get(_file_name(path))
        if mask is None and path in self._cache.holders:
            return self._cache.holders[path]
        fragment, matches = self._open(path), Counter[str]()
        rows = fragment.metadata.num_rows
        if mask is not None:
            rows -= int(pc.sum(pc.invert(mask)).as_py() or 0)
        for column, names in self._names.items():
            for values in self._read_names(fragment, column, names, mask):
                for pair in pc.value_counts(values).to_pylist():
                    if pair["values"] in names:
                        matches[pair["values"]] += pair["counts"]
        holder = Holder(dict(matches), rows)
        if mask is None:
            self._cache.holders[path] = holder
        return holder

    def _read_names(
        self, fragment: ds.ParquetFileFragment, column: str, names: Collection[str], mask: pa.Array | None
    ) -> Iterator[pa.Array]:
        """Yield the values of a column, by batches. Without a vector, Parquet's statistics skip parts of the file."""
        if mask is None:
            fragment = fragment.subset(row_group_ids=_list_possible_groups(fragment, column, names))
        for batch in _batches(fragment, self._schema, mask, [column]):
            yield batch.column(column)

    def _open(self, path: str) -> ds.ParquetFileFragment:
        return ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(**READ_OPTIONS)).make_fragment(path, self._files)

    # ---- copies

    def copy_others(self, folder: str, adds: Sequence[Add]) -> list[dict[str, Any]]:
        """Copy the other rows of these files, durably; returns what adds the copies to the table.

        Each call has folders of its own: of several that publish at once, the log decides which one counts.

        Args:
            folder: the staged one of the rows that come in the place of those left out.
            adds: of the files, as the table's log has them. Their values of partition columns are kept as they are.
        """
        by_partition = defaultdict[str, list[Add]](list)
        for add in adds:
            by_partition[json.dumps(add["partitionValues"], sort_keys=True)].append(add)
        copies = []
        for partition, group in sorted(by_partition.items()):
            key = json.dumps([partition, sorted([add["path"], str(add.get("deletionVector"))] for add in group)])
            if key not in self._cache.copies:
                self._cache.copies[key] = self._copy_partition(folder, group)
            copies += self._cache.copies[key]
        return copies

    def _copy_partition(self, folder: str, adds: list[Add]) -> list[dict[str, Any]]:
        uri = self._target.table_uri.rstrip("/")
        copy_folder = f"{folder}/{txn_identifiers.KEPT_PREFIX}{uuid.uuid4().hex[:12]}"
        copy_uri = staged_table.create(self._target, copy_folder, True, [], {}, enforce=False, partitioned=False)
        copy = DeltaTable(copy_uri)
        properties = file_statistics.writer_properties(table_snapshot.column_fields(copy))
        rows = pa.RecordBatchReader.from_batches(self._schema, self._rows_to_keep(adds))
        write_deltalake(copy, rows, mode="append", writer_properties=properties)
        written = staged_table.read_adds(uri, copy_folder, 1)
        copies = []
        for add in file_statistics.recount(written, table_files.open_folder(copy_uri), copy):
            path = f"{copy_folder}/{add['path']}"
            copies.append({**add, "path": path, "partitionValues": adds[0]["partitionValues"]})
        table_files.sync_to_disk(uri, copy_folder)
        return copies

    def _rows_to_keep(self, adds: list[Add]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of others, file by file: a generator, so that they are read while the copy is written."""
        for add in adds:
            path = unquote(add["path"])
            for batch in _batches(self._open(path), self._schema, self._masks.get(_file_name(path))):
                is_ours = pa.array([False] * batch.num_rows, pa.bool_())
                for column, names in self._names.items():
                    is_ours = pc.or_(is_ours, pc.is_in(batch.column(column), pa.array(sorted(names), pa.string())))
                other_rows = batch.filter(pc.invert(is_ours))
                if other_rows.num_rows:
                    yield other_rows


def list_possible(target: DeltaTable, names: Names) -> set[str]:
    """List the files that may hold such rows, by the statistics in the log: decoded paths."""
    adds = pa.table(target.get_add_actions(flatten=True))
    possible = pa.chunked_array([pa.array([False] * len(adds), pa.bool_())])
    for column, transactions in names.items():
        for name in sorted(transactions):
            is_in_range = pc.and_(
                _is_bound(adds, f"min.{column}", pc.less_equal, name),
                _is_bound(adds, f"max.{column}", pc.greater_equal, name),
            )
            possible = pc.or_(possible, is_in_range)
    return {unquote(path) for path in adds["path"].filter(possible).to_pylist()}


def _is_bound(adds: pa.Table, bound: str, compare: Any, name: str) -> Any:
    """Return, file by file, whether its bound leaves room for a name; where the log has none, it does."""
    if bound not in adds.column_names:
        return pa.chunked_array([pa.array([True] * len(adds), pa.bool_())])
    return pc.fill_null(compare(adds[bound].cast(pa.string()), name), True)


def _stored_schema(target: DeltaTable) -> pa.Schema:
    """Return the columns that the table's files have."""
    partitions = target.metadata().partition_columns
    schema = pa.schema(target.schema().to_arrow())
    return pa.schema([column for column in schema if column.name not in partitions])


def _read_masks(target: DeltaTable) -> dict[str, pa.Array]:
    """Return by a file's name, which holds a UUID, which of its rows are there, if a deletion vector hides some."""
    if "deletionVectors" not in (target.protocol().reader_features or []):
        return {}
    vectors = pa.RecordBatchReader.from_stream(target.deletion_vectors()).read_all()
    masks = {}
    for number, uri in enumerate(vectors["filepath"].to_pylist()):
        masks[_file_name(uri)] = vectors["selection_vector"][number].values
    return masks


def _list_possible_groups(fragment: ds.ParquetFileFragment, column: str, names: Collection[str]) -> list[int]:
    """List the row groups that may hold one of the names. (pyarrow's filter compares no `string_view` of delta-rs.)"""
    possible = []
    for group in range(fragment.metadata.num_row_groups):
        for place in range(fragment.metadata.num_columns):
            chunk = fragment.metadata.row_group(group).column(place)
            if chunk.path_in_schema == column and _may_hold(chunk.statistics, names):
                possible.append(group)
    return possible


def _may_hold(statistics: Any, names: Collection[str]) -> bool:
    if statistics is None or not statistics.has_min_max or not isinstance(statistics.min, str):
        return True
    return any(statistics.min <= name <= statistics.max for name in names)


def _file_name(path: str) -> str:
    return unquote(path).rpartition("/")[2]


def _batches(
    fragment: ds.ParquetFileFragment,
    schema: pa.Schema,
    mask: pa.Array | None,
    columns: list[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the file's rows in their order, without those that the mask leaves out. It may end before the file."""
    start = 0
    for batch in fragment.to_batches(
        schema,
        columns,
        batch_size=FILE_BATCH_ROWS,
        batch_readahead=FILE_READAHEAD,
        fragment_readahead=1,
        use_threads=False,
    ):
        if mask is not None:
            part = mask.slice(start, batch.num_rows)
            start += batch.num_rows
            rest = pa.array([True] * (batch.num_rows - len(part)), pa.bool_())
            batch = batch.filter(pa.concat_arrays([part, rest]))
        yield batch
