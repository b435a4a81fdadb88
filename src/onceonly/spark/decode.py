"""Decoding of each record's value, or failing: a malformed record is never dropped and never becomes nulls.

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
    """Return `rows` with the binary `value` decoded. JSON is decoded in `json_decoding`.

    Args:
        format: 'raw' (unchanged) or 'avro' (`schema` is Avro JSON; plain binary encoding; see `onceonly.spark.avro`).
    """
    if format == "raw" or schema is None:
        return rows
    return registered.fail_bad_rows(decode_plain_avro(rows, WHY, schema), "value", WHY)


def looks_malformed(error: Exception) -> bool:
    """Return whether a record made decoding fail."""
    return RAISED.search(str(error)) is not None


def find_malformed(error: Exception) -> Malformed | None:
    """Return the record that made decoding fail, which the error names; None: it is another error."""
    match = RAISED.search(str(error))
    if match is None:
        return None
    topic, partition, offset, part, why = match.groups()
    return Malformed(topic, int(partition), int(offset), why, part)


def decode_plain_avro(rows: DataFrame, why: str, schema: str) -> DataFrame:
    """Return `rows` with the binary `value` decoded, and a text `why` it could not be.

    `why` is null where the value could be decoded, or is null.
    """
    column = f"{why}_taken"
    rows = rows.withColumn(column, exact_avro.decode(F.col("value"), schema, schema))
    clause = F.col(column)["why"]
    problem = F.when(F.col("value").isNotNull() & clause.isNotNull(), F.format_string(NOT_AVRO, clause))
    return rows.withColumns({why: problem, "value": F.col(column)["value"]}).drop(column)
