"""Which files make changes part of a table: computed from one snapshot, for a commit of exactly the next version.

A change applies unless the table has a row of its key that is not below it. Of the files that hold rows of such keys,
copies without those rows are written beside the staged files. If all changes apply, the staged files become part of the
table as they are; otherwise the changes that apply are copied, too. In memory are keys and order of the changes, and of
one batch of the table at a time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from onceonly.checkpoint.model import Handle
from onceonly.sinks.delta import log

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
class _Search:
    """The changes, and what the table has of their keys.

    Args:
        stale: numbers of changes that have no effect.
        found: by fragment, the numbers of the changes of whose keys it has rows.
    """

    changes: pa.Table
    stale: list[pa.Array] = field(default_factory=list)
    found: list[tuple[ds.ParquetFileFragment, pa.Array]] = field(default_factory=list)

    def look_into(self, fragment: ds.ParquetFileFragment, batches: Iterable[pa.Table]) -> None:
        matches = []
        for batch in batches:
            both = batch.join(self.changes, _keys(self.changes), join_type="inner", use_threads=False)
            matches.append(_numbers(both))
            self.stale.append(_numbers(both.filter(pc.invert(_is_newer(both)))))
        if any(len(part) for part in matches):
            self.found.append((fragment, pc.unique(pa.concat_arrays(matches))))

    def applied(self) -> pa.Table:
        stale = pa.concat_arrays([pa.array([], pa.int64()), *self.stale])
        return self.changes.filter(pc.invert(pc.is_in(self.changes["change"], stale)))

    def touched(self, applied: pa.Table) -> list[ds.ParquetFileFragment]:
        """The files with rows that a change replaces."""
        numbers = _numbers(applied)
        return [fragment for fragment, found in self.found if pc.any(pc.is_in(found, numbers)).as_py()]

    def updated(self, applied: pa.Table) -> int:
        matched = pa.concat_arrays([pa.array([], pa.int64()), *(found for _, found in self.found)])
        return int(pc.sum(pc.is_in(applied["change"], matched)).as_py() or 0)


def compute(target: DeltaTable, uri: str, handle: Handle, adds: list[dict[str, Any]]) -> Merged:
    """Write the copies that are needed, durably, and return what to commit. Nothing is visible before that.

    Args:
        adds: the add actions of the staged rows.
    """
    staged_uri = f"{uri.rstrip('/')}/{handle['folder']}"
    if not adds:
        return Merged([], {}, {"inserted": 0, "updated": 0, "older": 0, "rewritten": 0})
    table, staged = _dataset(target), _dataset(DeltaTable(staged_uri))
    search = _searched(target, table, staged, handle)
    applied = search.applied()
    touched, older = search.touched(applied), len(search.changes) - len(applied)
    copied = list(staged.get_fragments()) if older and len(applied) else []
    parts = [_without(table, part, applied, handle) for part in touched]
    parts += [_only(table, part, applied, handle) for part in copied]
    written = _write(target, uri, handle["folder"], table.schema, parts) if parts else []
    updated = search.updated(applied)
    return Merged(
        [*written, *([] if older else log.as_target_adds(adds, handle["folder"]))],
        _removed(target, touched),
        {"inserted": len(applied) - updated, "updated": updated, "older": older, "rewritten": len(touched)},
    )


def _dataset(table: DeltaTable) -> ds.FileSystemDataset:
    return table.to_pyarrow_dataset(parquet_read_options=OPTIONS)


def _numbers(table: pa.Table) -> pa.Array:
    return table["change"].combine_chunks()


# ---- which changes apply, and to which files


def _searched(target: DeltaTable, table: ds.Dataset, staged: ds.Dataset, handle: Handle) -> _Search:
    keys, order = handle["merge"]["keys"], handle["merge"]["order_by"]
    changes = staged.to_table(columns=_named(keys, "key") | _named(order, "new"))
    changes = changes.append_column("change", pa.array(range(len(changes)), pa.int64()))
    search = _Search(changes)
    columns = _named(keys, "key") | _named(order, "old")
    for fragment in table.get_fragments(filter=_bounds(target, table, keys, changes)):
        batches = _batches(fragment, table.schema, columns)
        search.look_into(fragment, (pa.Table.from_batches([batch]) for batch in batches))
    return search


def _named(columns: list[str], role: str) -> dict[str, ds.Expression]:
    return {f"{role} {number}": ds.field(name) for number, name in enumerate(columns)}


def _keys(table: pa.Table) -> list[str]:
    return [name for name in table.schema.names if name.startswith("key ")]


def _batches(fragment: ds.Fragment, schema: pa.Schema, columns: Any = None) -> Iterator[pa.RecordBatch]:
    read: Iterator[pa.RecordBatch] = fragment.to_batches(
        schema, columns, batch_size=ROWS, batch_readahead=READAHEAD, fragment_readahead=1, use_threads=False
    )
    return read


def _bounds(target: DeltaTable, table: ds.Dataset, keys: list[str], changes: pa.Table) -> ds.Expression | None:
    """What every row with a key of the changes meets: files and partitions that cannot are not read."""
    exact = {name for name in keys if any(is_kind(table.schema.field(name).type) for is_kind in BOUNDED)}
    exact |= set(target.metadata().partition_columns)
    parts = [_between(name, changes[f"key {number}"]) for number, name in enumerate(keys) if name in exact]
    return reduce(lambda one, other: one & other, parts) if parts else None


def _between(name: str, values: pa.ChunkedArray) -> ds.Expression:
    span, some = pc.min_max(values).as_py(), pc.unique(values)
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
    write_deltalake(nested, rows, mode="append")
    adds = log.staged_adds(uri, own, 1)
    log.keep(uri, own)
    return log.as_target_adds(adds, own)


def _removed(target: DeltaTable, touched: list[ds.ParquetFileFragment]) -> dict[str, int]:
    """Path (as in the log) -> size."""
    files = {unquote(path): (path, size) for path, size in log.active_files(target).items()}
    return dict(files[fragment.path] for fragment in touched)
