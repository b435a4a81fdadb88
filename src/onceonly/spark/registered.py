"""Decode what begins with the id of a registered schema (Confluent's wire format): a zero byte, then four of the id.

Each decoding says per row why it failed, in a column of its own. What follows from that is not decided here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StructType

from onceonly.registry.wire import HEAD, MAGIC, UNFRAMED, UNKNOWN, head_of
from onceonly.spark import arrow

MOST = 1_000  # ids in one checkpoint; more are bytes of something else
FRAME = "OnceonlyFrame"
UNREADABLE = "Its bytes do not match schema %s, or cannot become what the reader's schema asks for."
RAISED = "onceonly: malformed record at %s %s %s: its %s. %s (onceonly)"
Decode = Callable[[Column], Column]


@dataclass(frozen=True)
class Decoding:
    """How the bytes after the head become a value: in a first column, from which value and soundness are taken.

    Args:
        ids: those that it reads; what names another schema has failed.
        take: of the whole bytes: the first column.
        value: of the first column.
        sound: of the first column and the bytes after the head: true where they could be read.
    """

    ids: Collection[int]
    take: Decode
    value: Decode
    sound: Callable[[Column, Column], Column]


def ids(rows: DataFrame, column: str) -> list[int] | None:
    """Every schema id in a binary column, sorted; None: more than a topic of one registry has."""
    head = rows.select(F.substring(F.col(column), 1, HEAD).alias("head")).where(_framed(F.col("head")))
    found = head.distinct().limit(MOST + 1).collect()
    return sorted(int.from_bytes(row["head"][1:], "big") for row in found) if len(found) <= MOST else None


def of_id(rows: DataFrame, column: str, id: int) -> DataFrame:
    """The rows in which the column names that schema."""
    return rows.where(F.substring(F.col(column), 1, HEAD) == F.lit(head_of(id)))


def decoded(rows: DataFrame, column: str, decoding: Decoding, why: str) -> DataFrame:
    """`rows` with the binary `column` decoded, and a text `why` it could not be: null where it was, or is null."""
    bytes_, taken = F.col(column), F.col(f"{why}_taken")
    id_text = F.conv(F.hex(F.substring(bytes_, 2, HEAD - 1)), 16, 10)
    problem = (
        F.when(bytes_.isNull() | decoding.sound(taken, _payload(bytes_)), F.lit(None).cast("string"))
        .when(~_framed(_head(bytes_)), F.lit(UNFRAMED))
        .when(~_names(bytes_, decoding.ids), F.format_string(UNKNOWN, id_text))
        .otherwise(F.format_string(UNREADABLE, id_text))
    )
    # A column of its own: used twice, and computed once.
    both = rows.withColumn(f"{why}_taken", decoding.take(bytes_)).withColumn(why, problem)
    return both.withColumn(column, decoding.value(taken)).drop(f"{why}_taken")


def failing(rows: DataFrame, column: str, why: str) -> DataFrame:
    """The rows without `why`; a row that has one fails the query. Part of the column, so it cannot be pruned alone."""
    raised = F.raise_error(F.format_string(RAISED, "topic", "partition", "offset", F.lit(column), why))
    return rows.withColumn(column, F.when(F.col(why).isNull(), F.col(column)).otherwise(raised)).drop(why)


def _head(bytes_: Column) -> Column:
    return F.substring(bytes_, 1, HEAD)


def _payload(bytes_: Column) -> Column:
    return F.substring(bytes_, HEAD + 1, 2**31 - 1)


def _names(bytes_: Column, ids: Collection[int]) -> Column:
    """Whether it begins with one of these ids."""
    return _head(bytes_).isin([F.lit(head_of(id)) for id in ids]) if ids else F.lit(False)


def _framed(head: Column) -> Column:
    return (F.length(head) == HEAD) & (F.substring(head, 1, 1) == F.lit(MAGIC))


def avro(writers: Mapping[int, str], reader: str) -> Decoding:
    """By each writer's schema into the reader's, by Avro's rules.

    All are put into a record of one field, which has the same bytes. The reader's has a second one with a default: it
    is there exactly if the bytes could be read, so that a record of nulls is told from a failure.
    """
    wanted = sounding(reader)

    def decode(bytes_: Column, writer: str) -> Column:
        return framed_avro(_payload(bytes_), writer, wanted)

    def take(bytes_: Column) -> Column:
        chosen = F.when(F.lit(False), decode(bytes_, reader))  # for the type, should nothing name a schema
        for id, writer in writers.items():
            chosen = chosen.when(_head(bytes_) == F.lit(head_of(id)), decode(bytes_, writer))
        return chosen

    return Decoding(writers, take, lambda taken: taken["value"], lambda taken, _: taken["sound"])


def protobuf(allowed: Mapping[int, tuple[int, ...]], files: bytes, message: str, type_: StructType) -> Decoding:
    """Protobuf by the reader's message, in Python on the workers, which need this package, protobuf and pyarrow.

    Args:
        allowed, files, message: see `onceonly.registry.protobuf.reader`.
    """
    both = StructType().add("value", type_).add("sound", "boolean")

    def read_all(values: pa.Array) -> pa.Array:
        from pyspark.sql.pandas.types import to_arrow_type

        from onceonly.registry import protobuf

        read = protobuf.reader(files, message, allowed)
        return pa.array(map(read, values.to_pylist()), to_arrow_type(both, timezone="UTC"))

    return Decoding(allowed, arrow.udf(read_all, both), lambda taken: taken["value"], lambda taken, _: taken["sound"])


def sounding(reader: str) -> str:
    return _framing(reader, {"name": "sound", "type": "boolean", "default": True})


def framed_avro(bytes_: Column, writer: str, wanted: str) -> Column:
    """Decoded into `wanted` (see `sounding`): null, or not sound, where the bytes could not be read."""
    return from_avro(bytes_, _framing(writer), {"mode": "PERMISSIVE", "avroSchema": wanted})


def _framing(schema: str, *more: Mapping[str, object]) -> str:
    fields = [{"name": "value", "type": json.loads(schema)}, *more]
    return json.dumps({"type": "record", "name": FRAME, "fields": fields})
