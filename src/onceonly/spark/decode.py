"""Decode the value of each record, or fail: a malformed record is never dropped and never becomes nulls.

A tombstone (null value) stays null. As in any Spark query, an unused column is not computed: if the transform does not
use `value`, it is not decoded.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StructType

RAISED = re.compile(r"onceonly: malformed record at (\S+) (\d+) (\d+): its (key|value)\. (.*?) \(onceonly\)")
MALFORMED_AVRO = re.compile(r"MALFORMED_AVRO_MESSAGE|Malformed (Avro )?(messages|records) are detected")


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
        format: 'raw' (unchanged) or 'avro' (`schema` is Avro JSON; plain binary encoding, logical types as Spark maps
            them).
    """
    if format == "raw" or schema is None:
        return rows
    return rows.withColumn("value", _avro(schema, "FAILFAST"))


def looks_malformed(error: Exception) -> bool:
    return RAISED.search(str(error)) is not None or MALFORMED_AVRO.search(str(error)) is not None


def find_malformed(error: Exception, rows: DataFrame, format: str, schema: str | None) -> Malformed | None:
    """The record that made decoding `rows` (undecoded) fail; None if none is found.

    Mostly the error names it. For Avro without a registry the rows are read again, to find the first malformed one.
    """
    if raised := RAISED.search(str(error)):
        return Malformed(raised[1], int(raised[2]), int(raised[3]), raised[5], raised[4])
    if format != "avro" or schema is None:
        return None
    return next(_malformed_avro(rows, schema), None)


def _avro(schema: str, mode: str) -> Column:
    return from_avro(F.col("value"), schema, {"mode": mode})


def _malformed_avro(rows: DataFrame, schema: str) -> Iterator[Malformed]:
    """PERMISSIVE turns a malformed record into nulls. fastavro then tells it from a valid record of nulls."""
    from fastavro import parse_schema

    parsed = parse_schema(json.loads(schema))
    decoded = rows.where(F.col("value").isNotNull()).withColumn("decoded", _avro(schema, "PERMISSIVE"))
    candidates = decoded.where(_only_nulls(decoded)).select("topic", "partition", "offset", "value")
    for row in candidates.orderBy("topic", "partition", "offset").toLocalIterator():
        if why := _why_not_avro(bytes(row["value"]), parsed):
            yield Malformed(row["topic"], row["partition"], row["offset"], why)


def _only_nulls(decoded: DataFrame) -> Column:
    type_ = decoded.schema["decoded"].dataType
    names = type_.names if isinstance(type_, StructType) else []
    nulls = [F.col("decoded").getField(name).isNull() for name in names]
    return F.col("decoded").isNull() | (reduce(and_, nulls) if nulls else F.lit(False))


def _why_not_avro(value: bytes, schema: object) -> str | None:
    from fastavro import schemaless_reader

    try:
        schemaless_reader(io.BytesIO(value), schema, None)  # type: ignore[arg-type]
    except Exception as error:  # a decoder may raise anything for malformed bytes
        framed = " It starts like the Confluent wire format." if value[:1] == b"\0" and len(value) > 5 else ""
        return f"Its {len(value)} bytes end before the record does, or do not match the schema ({error!r}).{framed}"
    return None
