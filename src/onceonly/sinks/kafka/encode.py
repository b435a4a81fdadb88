"""Rows as the bytes of registered schemas, on Spark's workers: JSON Schema and Protobuf need this package there."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from onceonly.errors import InvalidPipeline, OnceonlyError
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka.registered import Heads, Part
from onceonly.spark import arrow
from onceonly.spark.file_formats import MICROS

MARK = "ONCEONLY-ERROR"


def column(config: KafkaSink, part: Part, rows: Any, heads: Heads) -> Any:
    """Return the column of that part, encoded and with its head; null stays null.

    Raises:
        InvalidPipeline: rows of its type cannot have that schema.
    """
    encode = {"avro": _encode_avro, "json": _encode_json, "protobuf": _encode_protobuf}[part.format]
    return _prepend_head(config, encode(config, part, rows), heads)


def worker_error(error: OnceonlyError) -> RuntimeError:
    """Return the error that a worker raises for `error`: Spark only passes on its text."""
    parts = {"kind": type(error).__name__, "what": error.what, "why": error.why, "todo": error.todo}
    return RuntimeError(f"{MARK} {json.dumps(parts)}")


def _prepend_head(config: KafkaSink, encoded: Any, heads: Heads) -> Any:
    """Return the column with the head of its topic before each value; null stays null."""
    from pyspark.sql import functions as F

    if config.topic:
        return F.concat(F.lit(heads[config.topic]), encoded)
    head = F.lit(None).cast("binary")  # of a topic that is not allowed: that row is refused, and named, by `limits`
    for topic, topic_head in heads.items():
        head = F.when(F.col("topic") == topic, F.lit(topic_head)).otherwise(head)
    return F.when(encoded.isNotNull(), F.concat(F.coalesce(head, F.lit(b"")), encoded))


def _encode_avro(config: KafkaSink, part: Part, rows: Any) -> Any:
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import to_avro

    return F.when(F.col(part.name).isNotNull(), to_avro(F.col(part.name), part.text))


def _encode_json(config: KafkaSink, part: Part, rows: Any) -> Any:
    from pyspark.sql import functions as F

    from onceonly.kafka.registry import json_schema
    from onceonly.kafka.registry.client import Schema

    kind = rows.schema[part.name].dataType.typeName()
    if kind not in ("struct", "map", "array"):
        raise _unfit_rows(config, part, f"'{part.name}' is {kind}, and JSON needs a struct, a map or an array")
    rules, sink = json_schema.rules(Schema(0, "JSON", part.text)), config.name

    def encode_texts(values: pa.Array) -> pa.Array:
        from onceonly.kafka.registry import json_schema

        return _encode_values(values, json_schema.writer(rules), sink, part)

    text = F.to_json(F.col(part.name), {"ignoreNullFields": "false", **MICROS})
    return arrow.udf(encode_texts, "binary")(text)


def _encode_protobuf(config: KafkaSink, part: Part, rows: Any) -> Any:
    from pyspark.sql import functions as F

    from onceonly.kafka.registry import protobuf, protobuf_writer

    column_type = rows.schema[part.name].dataType.jsonValue()
    if why := protobuf_writer.misfit(column_type, protobuf.spark_type(part.files, part.record), part.name):
        raise _unfit_rows(config, part, why)
    sink = config.name

    def encode_messages(values: pa.Array) -> pa.Array:
        from onceonly.kafka.registry import protobuf_writer

        return _encode_values(values, protobuf_writer.writer(part.files, part.record), sink, part)

    return arrow.udf(encode_messages, "binary")(F.col(part.name))


def _encode_values(values: pa.Array, write: Callable[[Any], bytes], sink: str, part: Part) -> pa.Array:
    """Return the bytes that `write` makes of each value; null stays null. Runs on a worker.

    Raises:
        RuntimeError: as from `worker_error`: a value cannot be written by the schema.
    """
    from onceonly.kafka.registry.protobuf_writer import Unwritable

    try:
        return pa.array([None if value is None else write(value) for value in values.to_pylist()], pa.binary())
    except (Unwritable, ValueError) as error:
        why = f"{error}." if isinstance(error, Unwritable) else str(error)
        raise worker_error(_unfit_row(sink, part, why)) from None


def _unfit_rows(config: KafkaSink, part: Part, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{config.name}': the rows cannot be written by the schema '{part.file}'.",
        f"{why}.",
        "Correct the transform or the schema. Nothing was staged.",
        code="schema-does-not-fit",
    )


def _unfit_row(sink: str, part: Part, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{sink}': the {part.name} of a row cannot be written by the schema '{part.file}'.",
        why,
        "Correct the transform or the schema. Nothing was published.",
        code="schema-does-not-fit",
    )
