"""Staged rows, as a gate reads them: the files of the list, with the columns of the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from onceonly.spark import row_files
from onceonly_iceberg import spark_writer
from onceonly_iceberg.file_store import FileStore
from onceonly_iceberg.staged_files import StagedList


def read_batches(table: Table, store: FileStore, staged: StagedList) -> pa.RecordBatchReader:
    """Return the rows of all files."""
    schema = schema_to_pyarrow(_schema_of(table, staged), include_field_ids=False)

    def batches() -> Iterator[pa.RecordBatch]:
        for file in staged.files:
            for batch in store.open_parquet(file.path).iter_batches():
                columns = [batch.column(field.name).cast(field.type) for field in schema]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def make_frame(table: Table, store: FileStore, staged: StagedList, spark: Any) -> Any:
    """Return the rows as a DataFrame."""
    schema = spark_schema(_schema_of(table, staged))
    if not staged.files:
        return row_files.make_empty_rows(spark, "parquet", schema)
    paths = [row_files.escape_glob(row_files.folder_uri(store.uri(file.path))) for file in staged.files]
    return row_files.in_order(row_files.reader(spark, "parquet", schema).load(paths), schema)


def spark_schema(schema: Schema) -> dict[str, Any]:
    """Return a schema in Spark's JSON form."""
    fields = []
    for column in schema.fields:
        kind = spark_writer.type_json(column.field_type, has_ids=False)
        fields.append({"name": column.name, "type": kind, "nullable": True, "metadata": {}})
    return {"type": "struct", "fields": fields}


def _schema_of(table: Table, staged: StagedList) -> Schema:
    return table.schemas()[staged.schema_id]
