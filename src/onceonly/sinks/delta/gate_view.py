"""How a gate reads a staged Delta table. The types are in its log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from onceonly.sinks.delta import log
from onceonly.sinks.staging import row_text, row_types


def batches(uri: str) -> pa.RecordBatchReader | None:
    """Return all rows of a staged table; None if only Spark can read them.

    They are read by pyarrow, because the engine of delta-rs fails on invalid UTF-8.
    """
    table = DeltaTable(uri)
    try:
        schema = row_types.arrow(json.loads(table.schema().to_json()))
    except row_types.OnlySpark:
        return None
    return pa.RecordBatchReader.from_batches(schema, _batches(table, schema))


def _batches(table: DeltaTable, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow.dataset as ds  # with pandas, which takes a second

    paths = sorted(map(unquote, log.active_files(table)))
    partition_fields = pa.schema([(name, pa.string()) for name in table.metadata().partition_columns])
    stored_fields = pa.schema([field for field in schema if field.name not in partition_fields.names])
    file_format = ds.ParquetFileFormat(read_options=row_types.MICROS)
    partitioning = ds.partitioning(partition_fields, flavor="hive")
    files = log.file_system(table.table_uri)
    all_fields = pa.schema([*stored_fields, *partition_fields])
    rows: Any = ()
    if paths:
        dataset = ds.dataset(paths, all_fields, file_format, files, partitioning, partition_base_dir="")
        rows = dataset.to_batches()
    yield from row_text.batches(rows, schema, stored_fields, row_text.as_it_is)
