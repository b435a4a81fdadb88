"""Decode the value of each record, or fail: a malformed record is never dropped and never becomes nulls.

A tombstone (null value) stays null. As in any Spark query, an unused column is not computed: if the transform does not
use `value`, it is not decoded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onceonly.spark import avro as exact_avro
from onceonly.spark import registered

RAISED = re.compile(r"onceonly: malformed record at (\S+) (\d+) (\d+): its (key|value)\. (.*?) \(onceonly\)")
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
    """`rows` with the binary `value` decoded. JSON is decoded in `json_decoding`.

    Args:
        format: 'raw' (unchanged) or 'avro' (`schema` is Avro JSON; plain binary encoding; see `onceonly.spark.avro`).
    """
    if format == "raw" or schema is None:
        return rows
    return registered.failing(plain_avro(rows, WHY, schema), "value", WHY)


def looks_malformed(error: Exception) -> bool:
    return RAISED.search(str(error)) is not None


def find_malformed(error: Exception) -> Malformed | None:
    """The record that made decoding fail, which the error names; None: it is another error."""
    if raised := RAISED.search(str(error)):
        return Malformed(raised[1], int(raised[2]), int(raised[3]), raised[5], raised[4])
    return None


def plain_avro(rows: DataFrame, why: str, schema: str) -> DataFrame:
    """`rows` with the binary `value` decoded, and a text `why` it could not be: null where it was, or is null."""
    taken = f"{why}_taken"
    rows = rows.withColumn(taken, exact_avro.decoded(F.col("value"), schema, schema))
    clause = F.col(taken)["why"]
    problem = F.when(F.col("value").isNotNull() & clause.isNotNull(), F.format_string(NOT_AVRO, clause))
    return rows.withColumns({why: problem, "value": F.col(taken)["value"]}).drop(taken)
