"""Decode the value of each record, or fail: a malformed record is never dropped and never becomes nulls.

A tombstone (null value) stays null. As in any Spark query, an unused column is not computed: if the transform does not
use `value`, it is not decoded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onceonly.spark import avro as exact_avro
from onceonly.spark.text import is_valid

CORRUPT = "_onceonly_corrupt"
RAISED = re.compile(
    r"onceonly: malformed record at (\S+) (\d+) (\d+)(?:: its (key|value)\. ([^\n]*?\.)(?= SQLSTATE|[\s'\"]*$))?",
    re.MULTILINE,
)
VALUE_RAISED = "onceonly: malformed record at %s %s %s: its value. %s"
NOT_AVRO = "It is not a value of the schema: %s."
WHY = "_onceonly_avro_why"


@dataclass(frozen=True)
class Malformed:
    """The position of a malformed record, and what is wrong with it, as far as known."""

    topic: str
    partition: int
    offset: int
    why: str
    part: str = "value"


def decode(rows: DataFrame, format: str, schema: str | None) -> DataFrame:
    """`rows` with the binary `value` decoded.

    Args:
        format: 'raw' (unchanged), 'json' (`schema` is Spark DDL) or 'avro' (`schema` is Avro JSON; plain binary
            encoding; see `onceonly.spark.avro`).
    """
    if format == "raw" or schema is None:
        return rows
    return rows.withColumn("value", _json(rows, schema)) if format == "json" else _avro(rows, schema)


def looks_malformed(error: Exception) -> bool:
    return RAISED.search(str(error)) is not None


def find_malformed(error: Exception) -> Malformed | None:
    """The record that made decoding fail, which the error names; None: it is another error."""
    if raised := RAISED.search(str(error)):
        why = raised[5] or "It is not a single JSON object of that schema."
        return Malformed(raised[1], int(raised[2]), int(raised[3]), why, raised[4] or "value")
    return None


def _json(rows: DataFrame, ddl: str) -> Column:
    """The failure names the record. The check is part of the value, so it cannot be pruned."""
    value, sound = json_value(rows, ddl)
    where = F.format_string("onceonly: malformed record at %s %s %s", "topic", "partition", "offset")
    return F.when(sound, value).otherwise(F.raise_error(where))


def json_value(rows: DataFrame, ddl: str) -> tuple[Column, Column]:
    """The value of each record, and whether it could be read; one that is null, was.

    from_json ignores anything after the first object, and reads an empty text as null. Neither is sound.
    """
    schema = rows.sparkSession.createDataFrame([], ddl).schema.add(CORRUPT, "string")
    text = F.col("value").cast("string")
    parsed = F.from_json(text, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})
    sound = text.isNull() | (parsed[CORRUPT].isNull() & single_object(text))
    return parsed.dropFields(CORRUPT), sound


def single_object(text: Column) -> Column:
    """Whether the text is one JSON value; false for null."""
    one = F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1
    return F.coalesce(is_valid(text) & one, F.lit(False))


def avro_value(schema: str) -> Column:
    """Of each value: a struct as from `exact_avro.decoded`."""
    return exact_avro.decoded(F.col("value"), schema, schema)


def avro_problem(taken: str) -> Column:
    """Why a value is bad: a sentence, or null. `taken`: the column of `avro_value`."""
    clause = F.col(taken)["why"]
    return F.when(F.col("value").isNotNull() & clause.isNotNull(), F.format_string(NOT_AVRO, clause))


def _avro(rows: DataFrame, schema: str) -> DataFrame:
    taken = "_onceonly_avro_taken"
    rows = rows.withColumn(taken, avro_value(schema)).withColumn(WHY, avro_problem(taken))
    raised = F.raise_error(F.format_string(VALUE_RAISED, "topic", "partition", "offset", WHY))
    value = F.when(F.col(WHY).isNull(), F.col(taken)["value"]).otherwise(raised)
    return rows.withColumn("value", value).drop(taken, WHY)
