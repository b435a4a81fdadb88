"""What comes of decoding records: rows, and for each why it could not be decoded. Either fails, or is set apart.

A malformed record is never dropped and never becomes nulls. A tombstone (null value) stays null. As in any Spark query,
an unused column is not computed: if the transform does not use `value`, it is not decoded, and does not fail.

Where bad records are set apart, they and the good ones come from one decoding: both are read from the same DataFrame,
which the caller persists. Nothing in it depends on when or where it is computed: only on the record's bytes and on
schemas that are pinned, or were read once. So if a part of it is computed again, it says the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from onceonly.pipeline.dead_letters import REJECTION_COLUMNS
from onceonly.spark.avro import decode_plain_avro
from onceonly.spark.topics import COLUMNS, PLACE

Decode = Callable[[DataFrame, str], DataFrame]  # decodes a part of the rows; a column of that name says why it failed
TOPIC_PARTITION = ("topic", "partition")
TopicPartition = tuple[str, int]
ERROR_COLUMN = "_onceonly_error"
IS_IN_BATCH = "_onceonly_found"
PARTS = ("key", "value")
NO_REASON = "The transform has given no reason."
HEADER_PREFIX = "onceonly."
FAILURE = "onceonly: malformed record at %s %s %s: its %s. %s (onceonly)"
FAILURE_PATTERN = re.compile(r"onceonly: malformed record at (\S+) (\d+) (\d+): its (key|value)\. (.*?) \(onceonly\)")
WHY = "_onceonly_avro_why"
HEADERS = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True)
class Malformed:
    """The position of a malformed record, and what is wrong with it, as far as known."""

    topic: str
    partition: int
    offset: int
    why: str
    part: str = "value"


def decode_or_fail(rows: DataFrame, format: str, schema: str | None) -> DataFrame:
    """Return `rows` with the binary `value` decoded; a bad one fails the query. JSON is decoded in `decoding`.

    Args:
        format: 'raw' (unchanged) or 'avro' (`schema` is Avro JSON; plain binary encoding; see `onceonly.spark.avro`).
    """
    if format == "raw" or schema is None:
        return rows
    return fail_bad_rows(decode_plain_avro(rows, WHY, schema), "value", WHY)


def fail_bad_rows(rows: DataFrame, column: str, why: str) -> DataFrame:
    """Return the rows without `why`; a row that has one fails the query.

    The failure is a part of the column, so it cannot be pruned alone.
    """
    failure = F.raise_error(F.format_string(FAILURE, *PLACE, F.lit(column), why))
    return rows.withColumn(column, F.when(F.col(why).isNull(), F.col(column)).otherwise(failure)).drop(why)


def looks_malformed(error: Exception) -> bool:
    """Return whether a record made decoding fail."""
    return FAILURE_PATTERN.search(str(error)) is not None


def find_malformed(error: Exception) -> Malformed | None:
    """Return the record that made decoding fail, which the error names; None: it is another error."""
    match = FAILURE_PATTERN.search(str(error))
    if match is None:
        return None
    topic, partition, offset, part, why = match.groups()
    return Malformed(topic, int(partition), int(offset), why, part)


def decode_with_errors(rows: DataFrame, decodes: Iterable[tuple[str, Decode]]) -> DataFrame:
    """Decode the rows of a source and add a text ERROR_COLUMN, null where that succeeded. Bad rows keep their bytes.

    Args:
        decodes: by part ('key' or 'value').
    """
    reasons: list[Column] = []
    is_bad = F.lit(False)
    for part in PARTS:
        rows = rows.withColumn(_raw_column(part), F.col(part))
    for part, decode in decodes:
        why = f"_onceonly_why_{part}"
        rows = decode(rows, why)
        reason = F.concat(F.lit(f"The {part} cannot be decoded. "), F.col(why))
        reasons.append(reason)
        is_bad = is_bad | reason.isNotNull()
    rows = rows.withColumn(ERROR_COLUMN, F.when(is_bad, F.concat_ws(" ", *reasons)))
    raw_if_bad = []
    for name in map(_raw_column, PARTS):
        raw_if_bad.append(F.when(F.col(ERROR_COLUMN).isNotNull(), F.col(name)).alias(name))
    return rows.select(*COLUMNS, ERROR_COLUMN, *raw_if_bad)


def select_decoded(rows: DataFrame) -> DataFrame:
    """Return the rows that could be decoded, from those of `decode_with_errors`."""
    return rows.where(F.col(ERROR_COLUMN).isNull()).select(*COLUMNS)


def select_failed(rows: DataFrame) -> DataFrame:
    """Return the rows that could not be decoded, as dead letters: as they were read, and why."""
    raw = [F.col(_raw_column(part)).alias(part) for part in PARTS]
    letters = rows.where(F.col(ERROR_COLUMN).isNotNull())
    return letters.select(*raw, "headers", *PLACE, "timestamp", F.col(ERROR_COLUMN).alias("error"))


def count_failures(rows: DataFrame) -> dict[TopicPartition, tuple[int, int]]:
    """Count all rows, and those that could not be decoded, by topic and partition; those without a row are left out."""
    counts = rows.groupBy(*TOPIC_PARTITION).agg(F.count(F.lit(1)).alias("all"), F.count(ERROR_COLUMN).alias("bad"))
    return {(row["topic"], row["partition"]): (row["all"], row["bad"]) for row in counts.collect()}


def count_decoded(rows: DataFrame) -> dict[TopicPartition, tuple[int, int]]:
    """Count the rows of a source whose bad records fail the query, as `count_failures` does it."""
    counts = rows.groupBy(*TOPIC_PARTITION).agg(F.count(F.lit(1)).alias("all"))
    return {(row["topic"], row["partition"]): (row["all"], 0) for row in counts.collect()}


def find_rejected_records(letters: DataFrame, read: DataFrame, bad: DataFrame) -> DataFrame:
    """Find the records that a transform has rejected, each once; IS_IN_BATCH is null for one that does not exist.

    Args:
        letters: what the transform says; its columns are REJECTION_COLUMNS.
        read: the records, not decoded.
        bad: the dead letters that there are in any case, and what was dropped: such a record has its place.
    """
    why = F.coalesce(F.nullif(F.concat_ws("; ", F.sort_array(F.collect_set("error"))), F.lit("")), F.lit(NO_REASON))
    types = {"partition": "int", "offset": "bigint"}
    columns = []
    for name in REJECTION_COLUMNS:
        columns.append(F.col(name).cast(types.get(name, "string")).alias(name))
    letters_by_place = letters.select(*columns).groupBy(*PLACE).agg(why.alias("error"))
    good_records = read.join(bad.select(*PLACE), list(PLACE), "left_anti").withColumn(IS_IN_BATCH, F.lit(True))
    rows = letters_by_place.join(good_records, list(PLACE), "left")
    return rows.select(*PARTS, "headers", *PLACE, "timestamp", "error", IS_IN_BATCH)


def find_unknown_record(rejected: DataFrame) -> Row | None:
    """Return a record of `find_rejected_records` that is no good record of the batch, if there is one."""
    return rejected.where(F.col(IS_IN_BATCH).isNull()).orderBy(*PLACE).first()


def to_letters(rejected: DataFrame) -> DataFrame:
    """Return the records of `find_rejected_records` as dead letters."""
    return rejected.drop(IS_IN_BATCH)


def to_records(letters: DataFrame) -> DataFrame:
    """Convert dead letters to records for a topic: key, value and headers as they were read, and more headers."""
    origin = []
    for name in (*PLACE, "error"):
        origin.append(_make_header(name, F.col(name).cast("string")))
    origin.append(_make_header("timestamp", F.unix_millis("timestamp").cast("string")))
    headers = F.concat(F.coalesce(F.col("headers"), F.array().cast(HEADERS)), F.array(*origin).cast(HEADERS))
    return letters.select(*PARTS, headers.cast(HEADERS).alias("headers"))


def _make_header(name: str, value: Column) -> Column:
    return F.struct(F.lit(f"{HEADER_PREFIX}{name}").alias("key"), value.cast("binary").alias("value"))


def _raw_column(part: str) -> str:
    return f"_onceonly_raw_{part}"
