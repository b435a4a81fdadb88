"""What a gate sees of a staged Delta table, whose own log has its types."""

from __future__ import annotations

import json

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from onceonly.sinks import rowtypes

MICROS = "SET datafusion.execution.parquet.coerce_int96 = 'us'"  # Spark's times, as nanoseconds, would wrap in 2262


def batches(uri: str) -> pa.RecordBatchReader | None:
    """Every row of a table, by delta-rs's own engine; None: only Spark can read them."""
    table = DeltaTable(uri)
    try:
        schema = rowtypes.arrow(json.loads(table.schema().to_json()))
    except rowtypes.OnlySpark:
        return None
    engine = QueryBuilder().register("staged", table)
    engine.execute(MICROS)
    rows = pa.RecordBatchReader.from_stream(engine.execute("SELECT * FROM staged"))
    return pa.RecordBatchReader.from_batches(schema, (_typed(batch, schema) for batch in rows))


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The engine has types of its own for text."""
    return pa.RecordBatch.from_arrays([batch.column(field.name).cast(field.type) for field in schema], schema=schema)
