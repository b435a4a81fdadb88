"""Decode what begins with the id of a registered schema (Confluent's wire format): a zero byte, then four of the id.

Each decoding says per row why it failed, in a column of its own. What follows from that is not decided here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

MAGIC = b"\0"
HEAD = 5  # bytes
MOST = 1_000  # ids in one checkpoint; more are bytes of something else
FRAME = "OnceonlyFrame"
UNFRAMED = "It does not begin with a zero byte and the id of a schema, as clients of a schema registry write."
UNKNOWN = "The registry has no schema of its id %s."
UNREADABLE = "Its bytes do not match schema %s, or cannot become what the reader's schema asks for."
RAISED = "onceonly: malformed record at %s %s %s: %s"
Decode = Callable[[Column], Column]  # of what follows the head: struct<value, sound>; sound is null where it failed


def ids(rows: DataFrame, column: str) -> list[int] | None:
    """Every schema id in a binary column, sorted; None: more than a topic of one registry has."""
    head = rows.select(F.substring(F.col(column), 1, HEAD).alias("head")).where(_framed(F.col("head")))
    found = head.distinct().limit(MOST + 1).collect()
    return sorted(int.from_bytes(row["head"][1:], "big") for row in found) if len(found) <= MOST else None


def of_id(rows: DataFrame, column: str, id: int) -> DataFrame:
    """The rows in which the column names that schema."""
    return rows.where(F.substring(F.col(column), 1, HEAD) == F.lit(head_of(id)))


def head_of(id: int) -> bytes:
    return MAGIC + id.to_bytes(HEAD - 1, "big")


def decoded(rows: DataFrame, column: str, by_id: Mapping[int, Decode], reader: Decode, why: str) -> DataFrame:
    """`rows` with the binary `column` decoded, and a text `why` it could not be: null where it was, or is null.

    Args:
        by_id: how what names that schema is read.
        reader: for its type: it is also that of a column in which nothing names a schema.
    """
    bytes_, taken = F.col(column), F.col(f"{why}_taken")
    head, payload = F.substring(bytes_, 1, HEAD), F.expr(f"substring(`{column}`, {HEAD + 1})")
    chosen = F.when(F.lit(False), reader(payload))
    for id, decode in by_id.items():
        chosen = chosen.when(head == F.lit(head_of(id)), decode(payload))
    known = head.isin([F.lit(head_of(id)) for id in by_id]) if by_id else F.lit(False)
    id_text = F.conv(F.hex(F.substring(bytes_, 2, HEAD - 1)), 16, 10)
    problem = (
        F.when(bytes_.isNull() | taken["sound"], F.lit(None).cast("string"))
        .when(~_framed(head), F.lit(UNFRAMED))
        .when(~known, F.format_string(UNKNOWN, id_text))
        .otherwise(F.format_string(UNREADABLE, id_text))
    )
    # A column of its own: used twice, and computed once.
    both = rows.withColumn(f"{why}_taken", chosen).withColumn(why, problem)
    return both.withColumn(column, taken["value"]).drop(f"{why}_taken")


def failing(rows: DataFrame, column: str, why: str) -> DataFrame:
    """The rows without `why`; a row that has one fails the query. Part of the column, so it cannot be pruned alone."""
    raised = F.raise_error(F.format_string(RAISED, "topic", "partition", "offset", why))
    return rows.withColumn(column, F.when(F.col(why).isNull(), F.col(column)).otherwise(raised)).drop(why)


def _framed(head: Column) -> Column:
    return (F.length(head) == HEAD) & (F.substring(head, 1, 1) == F.lit(MAGIC))


def avro(writer: str, reader: str) -> Decode:
    """By a writer's schema into the reader's, by Avro's rules.

    Both are put into a record of one field, which has the same bytes. The reader's has a second one with a default: it
    is there exactly if the bytes could be read, so that a record of nulls is told from a failure.
    """
    sound = {"name": "sound", "type": "boolean", "default": True}
    written, wanted = _framing(writer), _framing(reader, sound)

    def decode(payload: Column) -> Column:
        return from_avro(payload, written, {"mode": "PERMISSIVE", "avroSchema": wanted})

    return decode


def _framing(schema: str, *more: Mapping[str, object]) -> str:
    fields = [{"name": "value", "type": json.loads(schema)}, *more]
    return json.dumps({"type": "record", "name": FRAME, "fields": fields})
