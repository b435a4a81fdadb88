"""Decoded records, each with why it could not be decoded: the good ones and the bad ones come from one decoding.

Both are read from the same DataFrame, which the caller persists. Nothing in it depends on when or where it is computed:
only on the record's bytes and on schemas that are pinned, or were read once. So if a part of it is computed again, it
says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from onceonly.pipeline.dead_letters import CHOSEN
from onceonly.spark.read import COLUMNS

Decode = Callable[[DataFrame, str], DataFrame]  # decodes a part of the rows; a column of that name says why it failed
PLACE = ("topic", "partition", "offset")
ERROR = "_onceonly_error"
FOUND = "_onceonly_found"
PARTS = ("key", "value")
NO_REASON = "The transform has given no reason."
FROM = "onceonly."  # begins the names of headers
BYTES = "binary"
HEADERS = "array<struct<key:string,value:binary>>"


def decode_with_errors(rows: DataFrame, decodes: Iterable[tuple[str, Decode]]) -> DataFrame:
    """Decode the rows of a source and add a text ERROR, null where that succeeded. Bad rows keep their bytes.

    Args:
        decodes: by part ('key' or 'value').
    """
    reasons: list[Column] = []
    for part in PARTS:
        rows = rows.withColumn(_raw_column(part), F.col(part))
    for part, decode in decodes:
        why = f"_onceonly_why_{part}"
        rows = decode(rows, why)
        reasons.append(F.concat(F.lit(f"The {part} cannot be decoded. "), F.col(why)))
    is_bad = reduce(or_, [reason.isNotNull() for reason in reasons], F.lit(False))
    rows = rows.withColumn(ERROR, F.when(is_bad, F.concat_ws(" ", *reasons)))
    raw_if_bad = []
    for name in map(_raw_column, PARTS):
        raw_if_bad.append(F.when(F.col(ERROR).isNotNull(), F.col(name)).alias(name))
    return rows.select(*COLUMNS, ERROR, *raw_if_bad)


def good(rows: DataFrame) -> DataFrame:
    """Return the rows that could be decoded, from those of `decode_with_errors`."""
    return rows.where(F.col(ERROR).isNull()).select(*COLUMNS)


def bad(rows: DataFrame) -> DataFrame:
    """Return the other rows as dead letters: as they were read, and why."""
    raw = [F.col(_raw_column(part)).alias(part) for part in PARTS]
    letters = rows.where(F.col(ERROR).isNotNull())
    return letters.select(*raw, "headers", *PLACE, "timestamp", F.col(ERROR).alias("error"))


def counts(rows: DataFrame) -> tuple[int, int]:
    """Count all rows, and the bad ones among them."""
    row = rows.agg(F.count(F.lit(1)).alias("all"), F.count(ERROR).alias("bad")).first()
    assert row is not None
    return row["all"], row["bad"]


def chosen(letters: DataFrame, read: DataFrame, bad: DataFrame) -> DataFrame:
    """Return the dead letters that a transform names, each once, with the record; FOUND tells if there is one.

    Args:
        letters: its columns are CHOSEN.
        read: the records, not decoded.
        bad: the dead letters that there are in any case, and what was dropped: such a record has its place.
    """
    why = F.coalesce(F.nullif(F.concat_ws("; ", F.sort_array(F.collect_set("error"))), F.lit("")), F.lit(NO_REASON))
    types = {"partition": "int", "offset": "bigint"}
    typed_letters = letters.select(*(F.col(name).cast(types.get(name, "string")).alias(name) for name in CHOSEN))
    letters_by_place = typed_letters.groupBy(*PLACE).agg(why.alias("error"))
    good_records = read.join(bad.select(*PLACE), list(PLACE), "left_anti").withColumn(FOUND, F.lit(True))
    rows = letters_by_place.join(good_records, list(PLACE), "left")
    return rows.select(*PARTS, "headers", *PLACE, "timestamp", "error", FOUND)


def lost(chosen: DataFrame) -> Row | None:
    """Return one of the chosen letters that is no good record of the batch, if there is one."""
    return chosen.where(F.col(FOUND).isNull()).orderBy(*PLACE).first()


def found(chosen: DataFrame) -> DataFrame:
    """Return the chosen letters without FOUND."""
    return chosen.drop(FOUND)


def as_records(letters: DataFrame) -> DataFrame:
    """Convert dead letters to records for a topic: key, value and headers as they were read, and more headers."""
    origin = [_make_header(name, F.col(name).cast("string")) for name in (*PLACE, "error")]
    origin.append(_make_header("timestamp", F.unix_millis("timestamp").cast("string")))
    headers = F.concat(F.coalesce(F.col("headers"), F.array().cast(HEADERS)), F.array(*origin).cast(HEADERS))
    return letters.select(*PARTS, headers.cast(HEADERS).alias("headers"))


def _make_header(name: str, value: Column) -> Column:
    return F.struct(F.lit(f"{FROM}{name}").alias("key"), value.cast(BYTES).alias("value"))


def _raw_column(part: str) -> str:
    return f"_onceonly_raw_{part}"
