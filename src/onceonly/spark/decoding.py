"""Decoding of keys and values: JSON, and bytes that begin with the id of a registered schema.

Each decoding says per row why it failed, in a column of its own. What follows from that is not decided here. JSON and
Protobuf are decoded in Python: on Spark's workers, or in this process where few records of JSON are read here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onceonly import json_values
from onceonly.json_values.reader import VALUE, WHY, ReadOne, nullable, plain_reader, read_all, reader
from onceonly.kafka.registry import HEAD, MAGIC, UNFRAMED, UNKNOWN, make_head
from onceonly.spark import arrow, avro

MAX_IDS = 1_000  # in one checkpoint; more are bytes of something else
UNREADABLE = "Its bytes do not match schema %s, or cannot become what the reader's schema asks for."
UNFIT = "Its schema %s cannot become the reader's: %s."
NO_VALUE = "It is not a value of schema %s: %s."
ColumnFunction = Callable[[Column], Column]

cloudpickle.register_pickle_by_value(json_values)  # type: ignore[no-untyped-call]  # so that workers need not have this package


# ---- JSON: Spark's own `from_json` alters what is not of the declared type


@dataclass(frozen=True)
class JsonDecoder:
    """The decoder of a column of JSON.

    Args:
        type: of the rows, in the JSON form of Spark's types.
        part: the column, 'key' or 'value'.
        rules: where records begin with ids of a registry: what has to be followed, by id; see `framed_reader`. Workers
            need this package then.
    """

    type: Any
    part: str
    rules: tuple[tuple[int, str | None], ...] | None = None

    def decode(self, rows: DataFrame, why: str) -> DataFrame:
        """Return `rows` with the binary column decoded, and a text `why` it could not be.

        `why` is null where the column could be decoded, or is null.
        """
        if self.column not in rows.columns:  # a column of its own: used twice, and computed once
            rows = rows.withColumn(self.column, self._make_udf()(F.col(self.part)))
        decoded = F.col(self.column)
        return rows.withColumns({self.part: decoded[VALUE], why: decoded[WHY]}).drop(self.column)

    def decode_here(self, table: pa.Table) -> pa.Table:
        """Return the records with a further column `column`, which `decode` then takes."""
        make_reader = self._reader_factory()
        decoded = read_all(make_reader(), table[self.part].to_pylist(), nullable(self.type))
        return table.append_column(self.column, decoded)

    @property
    def column(self) -> str:
        return f"_onceonly_json_{self.part}"

    @property
    def column_type(self) -> StructType:
        value = StructType.fromJson(nullable(self.type))
        return StructType().add(VALUE, value).add(WHY, "string")

    def _reader_factory(self) -> Callable[[], ReadOne]:
        """Return a function that is sent to workers, where it makes the reader of one value."""
        type_, part, rules = self.type, self.part, self.rules  # so that the functions carry these, and not the decoder
        if rules is None:
            return lambda: reader(type_, part)

        def make_reader() -> ReadOne:
            from onceonly.kafka.registry.json_schema import framed_reader

            return framed_reader(type_, part, dict(rules))

        return make_reader

    def _make_udf(self) -> Callable[..., Column]:
        type_, make_reader = nullable(self.type), self._reader_factory()
        if not arrow.is_available():
            udf: Callable[..., Column] = F.udf(plain_reader(make_reader, type_), self.column_type, useArrow=False)
            return udf

        def read_batch(values: pa.Array) -> pa.Array:
            return read_all(make_reader(), values.to_pylist(), type_)

        return arrow.udf(read_batch, self.column_type)


# ---- bytes that begin with the id of a registered schema: a zero byte, then four of the id


@dataclass(frozen=True)
class Decoding:
    """The way from the bytes after the head to a value: by a first column, from which value and soundness are taken.

    Args:
        ids: the schemas that it reads; bytes that name another one have failed.
        take: makes the first column of the whole bytes.
        value: takes the value from the first column.
        sound: of the first column and the bytes after the head: true where they could be read.
        why: of the first column: what is wrong, as a clause, if that is known.
        unfit: by schema id: why no value of that schema can become one of the reader's, as a clause.
    """

    ids: Collection[int]
    take: ColumnFunction
    value: ColumnFunction
    sound: Callable[[Column, Column], Column]
    why: ColumnFunction | None = None
    unfit: Mapping[int, str] = field(default_factory=dict)


def collect_ids(rows: DataFrame, column: str) -> list[int] | None:
    """Collect every schema id in a binary column, sorted; None: more than a topic of one registry has."""
    heads = rows.select(F.substring(F.col(column), 1, HEAD).alias("head")).where(_is_framed(F.col("head")))
    distinct_heads = heads.distinct().limit(MAX_IDS + 1).collect()
    if len(distinct_heads) > MAX_IDS:
        return None
    return sorted(int.from_bytes(row["head"][1:], "big") for row in distinct_heads)


def select_id(rows: DataFrame, column: str, id: int) -> DataFrame:
    """Return the rows in which the column names that schema."""
    return rows.where(F.substring(F.col(column), 1, HEAD) == F.lit(make_head(id)))


def decode_registered(rows: DataFrame, column: str, decoding: Decoding, why: str) -> DataFrame:
    """Return `rows` with the binary `column` decoded, and a text `why` it could not be.

    `why` is null where the column could be decoded, or is null.
    """
    bytes_, first_column = F.col(column), F.col(f"{why}_taken")
    id_text = F.conv(F.hex(F.substring(bytes_, 2, HEAD - 1)), 16, 10)
    is_sound = bytes_.isNull() | decoding.sound(first_column, _payload(bytes_))
    problem = F.when(is_sound, F.lit(None).cast("string")).when(~_is_framed(_head(bytes_)), F.lit(UNFRAMED))
    for id, clause in decoding.unfit.items():
        problem = problem.when(_names_any(bytes_, [id]), F.lit(UNFIT % (id, clause)))
    problem = problem.when(~_names_any(bytes_, decoding.ids), F.format_string(UNKNOWN, id_text))
    unreadable = F.format_string(UNREADABLE, id_text)
    if decoding.why:
        why_clause = decoding.why(first_column)
        problem = problem.when(why_clause.isNotNull(), F.format_string(NO_VALUE, id_text, why_clause))
    problem = problem.otherwise(unreadable)
    # A column of its own: used twice, and computed once.
    rows = rows.withColumn(f"{why}_taken", decoding.take(bytes_)).withColumn(why, problem)
    return rows.withColumn(column, decoding.value(first_column)).drop(f"{why}_taken")


def _head(bytes_: Column) -> Column:
    return F.substring(bytes_, 1, HEAD)


def _payload(bytes_: Column) -> Column:
    return F.substring(bytes_, HEAD + 1, 2**31 - 1)


def _names_any(bytes_: Column, ids: Collection[int]) -> Column:
    """Return whether the bytes begin with one of these ids."""
    if not ids:
        return F.lit(False)
    return _head(bytes_).isin([F.lit(make_head(id)) for id in ids])


def _is_framed(head: Column) -> Column:
    return (F.length(head) == HEAD) & (F.substring(head, 1, 1) == F.lit(MAGIC))


def make_avro_decoding(writers: Mapping[int, str], reader: str, unfit: Mapping[int, str]) -> Decoding:
    """Return a decoding by each writer's schema into the reader's, by Avro's rules.

    Args:
        writers: schema id -> schema.
        unfit: of other ids, see `Decoding`.
    """

    def take(bytes_: Column) -> Column:
        payload = _payload(bytes_)
        typed = avro.decode(payload, reader, reader)
        value = F.when(F.lit(False), typed)  # for the type, should nothing name a schema
        for id, writer in writers.items():
            value = value.when(_head(bytes_) == F.lit(make_head(id)), avro.decode(payload, writer, reader))
        return value

    return Decoding(writers, take, _value_field, _is_sound, _why_field, unfit)


def make_protobuf_decoding(
    allowed: Mapping[int, tuple[int, ...]], files: bytes, message: str, type_: StructType, unfit: Mapping[int, str]
) -> Decoding:
    """Return a decoding by the reader's message, in Python on the workers.

    They need this package, protobuf and pyarrow.

    Args:
        allowed, files, message: see `onceonly.kafka.registry.protobuf.reader`.
        unfit: see `Decoding`.
    """
    row_type = StructType().add("value", type_).add("why", "string")

    def read_messages(values: pa.Array) -> pa.Array:
        from pyspark.sql.pandas.types import to_arrow_type

        from onceonly.kafka.registry import protobuf

        read = protobuf.reader(files, message, allowed)
        return to_arrow_array(list(map(read, values.to_pylist())), to_arrow_type(row_type, timezone="UTC"))

    take = arrow.udf(read_messages, row_type)
    return Decoding(allowed, take, _value_field, _is_sound, _why_field, unfit)


def _value_field(first_column: Column) -> Column:
    return first_column["value"]


def _why_field(first_column: Column) -> Column:
    return first_column["why"]


def _is_sound(first_column: Column, _: Column) -> Column:
    return first_column.isNotNull() & first_column["why"].isNull()


def to_arrow_array(rows: list[dict[str, Any] | None], kind: pa.DataType) -> pa.Array:
    """Return the rows in Arrow; one that Arrow does not take is bad, and none of the others."""
    try:
        return pa.array(rows, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return pa.concat_arrays([_to_arrow_or_bad(row, kind) for row in rows])


def _to_arrow_or_bad(row: dict[str, Any] | None, kind: pa.DataType) -> pa.Array:
    try:
        return pa.array([row], kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return pa.array([{"value": None, "why": "it has a value that its type cannot hold"}], kind)
