"""Rows become Parquet files in the layout of the table: by Spark, or in this process if they are few."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import DateType, TimestampType, TimestamptzType

from onceonly.errors import InvalidPipeline
from onceonly.sinks import Transaction
from onceonly_iceberg import layout, staged_files
from onceonly_iceberg.columns import check_columns
from onceonly_iceberg.file_store import MAX_PARALLEL_REQUESTS, FileStore
from onceonly_iceberg.metrics import list_leaf_columns, measure
from onceonly_iceberg.staged_files import StagedFile, StagedList

FIELD_ID = b"PARQUET:field_id"
SMALL_BATCH_OPTIONS = {"compression": "zstd", "store_decimal_as_integer": True, "coerce_timestamps": "us"}


def stage_with_spark(sink: str, table: Table, store: FileStore, txn: Transaction, rows: Any) -> StagedList:
    """Write the rows of a DataFrame by Spark's Parquet writer."""
    from onceonly_iceberg import spark_writer

    check_columns(sink, table, spark_writer.arrow_schema(rows))
    is_sorted = spark_writer.write(table, rows, store.uri(txn.name))
    return _describe(sink, table, store, txn, is_sorted)


def stage_in_process(sink: str, table: Table, store: FileStore, txn: Transaction, rows: pa.Table) -> StagedList:
    """Write few rows, which this process has."""
    check_columns(sink, table, rows.schema)
    schema = table.schema()
    columns = schema_to_pyarrow(schema, include_field_ids=True)
    arrays = []
    for column in columns:
        if column.name in rows.column_names:
            arrays.append(rows.column(column.name).cast(column.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, column.type))
    _refuse_nulls(sink, schema, {name: array.null_count for name, array in zip(columns.names, arrays, strict=True)})
    written = pa.Table.from_arrays(arrays, schema=columns)
    for number, part in enumerate(split_by_partition(written, table.spec(), schema)):
        path = f"{txn.name}/part-{number:05}-{uuid.uuid4().hex}.parquet"
        store.write_parquet(path, part, SMALL_BATCH_OPTIONS)
    return _describe(sink, table, store, txn, is_sorted=False)


def split_by_partition(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> list[pa.Table]:
    """Return the rows of each partition; none for no rows."""
    if not rows.num_rows:
        return []
    keys = []
    for part in spec.fields:
        if not isinstance(part.transform, VoidTransform):
            keys.append(_partition_values(rows, schema, part))
    if not keys:
        return [rows]
    indices: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for index, key in enumerate(zip(*keys, strict=True)):
        indices[tuple(map(repr, key))].append(index)
    return [rows.take(pa.array(numbers)) for numbers in indices.values()]


def _partition_values(rows: pa.Table, schema: Schema, part: Any) -> list[Any]:
    kind = schema.find_type(part.source_id)
    name = schema.find_column_name(part.source_id) or ""
    while any(pa.types.is_struct(column.type) for column in rows.schema):
        rows = rows.flatten()
    column = rows.column(name)
    if isinstance(kind, DateType):
        column = column.cast(pa.int32())
    elif isinstance(kind, TimestampType | TimestamptzType):
        column = column.cast(pa.int64())
    transform = part.transform.transform(kind)
    return [transform(value) for value in column.to_pylist()]


def _describe(sink: str, table: Table, store: FileStore, txn: Transaction, is_sorted: bool) -> StagedList:
    """Read the footers of what was written, and let it survive a power failure."""
    found = store.list_parquet_files(txn.name)
    schema, spec = table.schema(), table.spec()

    def describe(entry: tuple[str, int]) -> tuple[StagedFile | None, bool]:
        path, size = entry
        file = store.open_parquet(path)
        if not file.metadata.num_rows:  # of no rows at all, Spark writes one file
            return None, True
        metrics = measure(file, schema, table.properties)
        partition = layout.find_partition(sink, spec, schema, metrics)
        names = {leaf.field_id: leaf.path for leaf in list_leaf_columns(schema)}
        required = {names[i]: metrics.all_nulls[i] for i in names if i in metrics.all_nulls}
        _refuse_nulls(sink, schema, required)
        encoded = staged_files.encode_partition(spec, schema, partition)
        return StagedFile(path, size, encoded, metrics), _has_ids(file.schema_arrow)

    with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
        described = list(pool.map(describe, found))
    files = [file for file, _ in described if file]
    has_ids = all(with_ids for _, with_ids in described)
    store.sync([file.path for file in files])
    sort_order = table.sort_order().order_id if is_sorted else None
    return StagedList(schema.schema_id, spec.spec_id, sort_order, has_ids, files)


def _has_ids(columns: Sequence[pa.Field]) -> bool:
    """Return whether every column carries its field id, at any depth."""
    for column in columns:
        if FIELD_ID not in (column.metadata or {}):
            return False
        kind = column.type
        if pa.types.is_struct(kind):
            inner = [kind.field(number) for number in range(kind.num_fields)]
        elif pa.types.is_map(kind):
            inner = [kind.key_field, kind.item_field]
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            inner = [kind.value_field]
        else:
            inner = []
        if not _has_ids(inner):
            return False
    return True


def _refuse_nulls(sink: str, schema: Schema, nulls: dict[str, int]) -> None:
    for column in schema.fields:
        if column.required and nulls.get(column.name):
            raise InvalidPipeline(
                f"sink '{sink}': the rows have nulls in '{column.name}'.",
                f"The table requires a value in it, and {nulls[column.name]:,} have none.",
                "Fill or drop them in the transform, or make the column optional. Nothing was published.",
                code="iceberg-null-in-required",
            )
