"""Stages rows for Kafka on Spark: converts columns to records, then spools them and, if needed, writes them to Kafka.

Spark's JVM writes them itself where it can (`jvm_writer`), and its Python workers else (`python_writer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.pipeline.sinks import KafkaSink
from onceonly.settings import Writer
from onceonly.sinks.kafka import digest, jvm_writer, python_writer, registered_schemas
from onceonly.sinks.kafka.job import Job, Receipt
from onceonly.sinks.kafka.registered_schemas import Heads, SchemaPart
from onceonly.sinks.kafka.spool import SPOOL_SCHEMA
from onceonly.sinks.staging.worker_errors import find_worker_error
from onceonly.spark.row_files import MICROSECOND_FORMATS
from onceonly.spark.small_batch import collect_small_batch

HEADERS = "array<struct<key:string,value:binary>>"
TYPES = {
    "key": ("binary", ("binary", "string")),
    "topic": ("string", ("string",)),
    "partition": ("int", ("int", "smallint", "tinyint")),
    "timestamp": ("timestamp", ("timestamp",)),
    "headers": (HEADERS, (HEADERS,)),
}


def records(
    config: KafkaSink, rows: Any, schema: str | None, registered: Sequence[tuple[SchemaPart, Heads]] = ()
) -> Any:
    """Return a DataFrame with the names and types of the spool's columns.

    A writer adds those that are missing.

    Args:
        registered: what begins with the id of a schema in a registry.
    Raises:
        InvalidPipeline: a column is missing, unknown or of another type.
    """
    from pyspark.sql import functions as F

    _check_columns(config, rows)
    has_registered_values = config.registry and config.format != "raw"
    columns = {
        "topic": F.col("topic"),
        "partition": F.col("partition").cast("int"),
        "key": F.col("key").cast("binary"),
        "value": F.lit(None) if has_registered_values else _value(config, schema),
        "timestamp": F.unix_millis(F.col("timestamp")),
        "headers": F.coalesce(F.col("headers"), F.array().cast(HEADERS)),  # a null list takes Spark 4 µs per row
    }
    for part, heads in registered:
        if part.name in rows.columns:
            columns[part.name] = registered_schemas.encode_column(config, part, rows, heads)
    return rows.select(*(columns[name].alias(name) for name in SPOOL_SCHEMA.names if name in rows.columns))


@dataclass(frozen=True)
class Staged:
    """What was staged, by whom, and the digest of its records."""

    writer: Literal["jvm", "python"]
    receipts: list[Receipt]
    digest: str


def run(job: Job, rows: Any, writer: Writer, is_small_batch: bool = False) -> Staged:
    """Stage `rows` (the result of `records`) in one Spark job.

    Args:
        writer: who is to write the rows; "auto": Spark's JVM where it can.
        is_small_batch: they are made of few records. If they are few themselves, this process writes them, but for the
            JVM if that is asked for.
    Raises:
        InvalidPipeline: a row cannot be written, or is not allowed; the message names it.
        NotCommitted: the brokers did not accept the rows.
    """
    try:
        few = is_small_batch and writer != "jvm"
        table = collect_small_batch(digest.add_hash(rows)) if few else None
        if table is not None:
            total, table = digest.take_hashes(table)
            return Staged("python", python_writer.run_here(job, table), total)
        jvm_settings = jvm_writer.find_settings(rows.sparkSession, job, writer)
        if jvm_settings is not None:
            receipts = jvm_writer.run(job, rows, jvm_settings)
            return Staged("jvm", receipts, digest.to_text(sum(receipt.hashes for receipt in receipts)))
        observed, read_digest = digest.observe(rows)
        return Staged("python", python_writer.run(job, observed), read_digest())
    except Exception as error:
        text = str(error)
        raise find_worker_error(text) or jvm_writer.find_error(job, text) or error from error


def _check_columns(config: KafkaSink, rows: Any) -> None:
    """Raise InvalidPipeline if the columns are not those of a record."""
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    problems = _problems_of_topic(config, types) + _problems_of_types(config, types)
    if problems:
        raise InvalidPipeline(
            f"sink '{config.name}': the rows cannot be written to Kafka.",
            f"Columns: {'; '.join(problems)}.",
            "Select value, and optionally key, headers, timestamp, partition, topic. Nothing was staged.",
            code="columns-unsuitable",
        )


def _problems_of_topic(config: KafkaSink, types: Mapping[str, str]) -> list[str]:
    """Say whether value and topic are missing, or the topic is one too many."""
    problems = []
    if "value" not in types:
        problems.append("'value' is missing")
    if not config.topic and "topic" not in types:
        problems.append("'topic' is missing, and the sink has several topics")
    if config.topic and "topic" in types:
        problems.append(f"'topic' is not allowed, because every row goes to '{config.topic}'")
    return problems


def _problems_of_types(config: KafkaSink, types: Mapping[str, str]) -> list[str]:
    """Say which columns have another type than that part of a record, or are none of its parts."""
    problems = []
    for name, kind in types.items():
        if name == "key" and config.key_format != "raw":
            continue  # of any type; see `encode`
        if name in TYPES and kind not in TYPES[name][1]:
            problems.append(f"'{name}' is {kind}, not {TYPES[name][0]}")
        elif name not in TYPES and name != "value":
            problems.append(f"'{name}' is not a part of a record")
    if config.format == "json" and not types.get("value", "struct").startswith(("struct", "map", "array")):
        problems.append(f"'value' is {types['value']}, and JSON needs a struct, a map or an array")
    if config.format == "raw" and types.get("value", "binary") not in ("binary", "string"):
        problems.append(f"'value' is {types['value']}, and format='raw' needs binary or string")
    return problems


def _value(config: KafkaSink, schema: str | None) -> Any:
    """Return the column with the values as bytes, for a sink without a registry."""
    from pyspark.sql import functions as F

    value = F.col("value")
    if config.format == "avro":
        from pyspark.sql.avro.functions import to_avro

        return F.when(value.isNotNull(), to_avro(value, schema or ""))  # a null value is a tombstone
    if config.format == "json":
        value = F.to_json(value, {"ignoreNullFields": "false", **MICROSECOND_FORMATS})
    return value.cast("binary")


def recreated_topic_error(sink: str, place: Mapping[str, Any]) -> NotCommitted:
    return NotCommitted(
        f"sink '{sink}': a topic was dropped or created again while rows were staged for it.",
        f"The rows were written for {place}, which is not there any more.",
        "Nothing of it is published. Retry, when nobody is changing the topics.",
        "target-recreated",
    )
