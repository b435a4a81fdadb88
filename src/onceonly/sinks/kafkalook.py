"""What a gate sees of spooled rows: the fields of `value`, where its format tells them, beside key, topic and time."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from onceonly.checkpoint import Handle
from onceonly.errors import InvalidPipeline
from onceonly.sinks import kafkaspool
from onceonly.sinks.kafkahandle import parts_of

BESIDE = {"topic": pa.string(), "partition": pa.int32(), "key": pa.string(), "timestamp": pa.timestamp("ms", "UTC")}


def columns(format: str, schema: str | None) -> list[str] | None:
    """None: JSON tells them row by row."""
    if format == "json":
        return None
    fields = [field["name"] for field in json.loads(schema)["fields"]] if schema else ["value"]
    return [*BESIDE, *fields]


def batches(handle: Handle, format: str, schema: str | None) -> pa.RecordBatchReader:
    """All rows, in this process. A field that is called like a column beside it takes its place."""
    decode = _decoder(format, schema)
    spooled = (batch for part in parts_of(handle) for batch in kafkaspool.read(handle["folder"], part.spool))
    tables = [pa.Table.from_pylist([_row(record, decode) for record in batch.to_pylist()]) for batch in spooled]
    if not tables:
        names = columns(format, schema) or list(BESIDE)
        tables = [pa.table({name: pa.array([], BESIDE.get(name, pa.null())) for name in names})]
    whole = pa.concat_tables(tables, promote_options="permissive")
    return whole.to_reader()


def frame(handle: Handle, format: str, schema: str | None, spark: Any) -> Any:
    """The same on Spark."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    if format == "json":
        raise InvalidPipeline(
            f"a gate cannot look at {handle['rows']:,} JSON records on Spark.",
            "Their fields are known row by row only.",
            "Raise Gate(in_process_rows=…), or write Avro.",
        )
    files = [f"{handle['folder']}/{part.spool}" for part in parts_of(handle)]
    rows = spark.read.parquet(*files).select(
        "topic", "partition", F.col("key").cast("string").alias("key"),
        F.timestamp_millis("timestamp").alias("timestamp"), "value",
    )  # fmt: skip
    if schema is None:
        return rows.withColumn("value", F.col("value").cast("string"))
    names = {field["name"] for field in json.loads(schema)["fields"]}
    beside = [name for name in BESIDE if name not in names]
    return rows.withColumn("value", from_avro("value", schema)).select(*beside, "value.*")


def _row(record: dict[str, Any], decode: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
    value = record["value"]
    beside = {name: record[name] for name in BESIDE} | {"key": _text(record["key"])}
    return beside | (decode(value) if value is not None else {})


def _decoder(format: str, schema: str | None) -> Callable[[bytes], dict[str, Any]]:
    if format == "json":
        return lambda value: _fields(json.loads(value))
    if schema is None:
        return lambda value: {"value": _text(value)}
    from fastavro import parse_schema, schemaless_reader

    parsed = parse_schema(json.loads(schema))
    return lambda value: _fields(schemaless_reader(io.BytesIO(value), parsed, None))


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"value": value}


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")
