"""Records and, of each, why it cannot be decoded: the good ones and the bad ones come from one decoding.

Both are read from the same DataFrame, which the caller persists. Nothing in it depends on when or where it is computed:
only on the record's bytes and on schemas that are pinned, or were read once. So if a part of it is computed again, it
says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from onceonly.pipeline.dead_letters import CHOSEN
from onceonly.spark.read import COLUMNS

Decode = Callable[[DataFrame, str], DataFrame]  # decodes a part of the rows, and says in a column of that name why not
PLACE = ("topic", "partition", "offset")
ERROR = "_onceonly_error"
FOUND = "_onceonly_found"
PARTS = ("key", "value")
NO_REASON = "The transform has given no reason."
FROM = "onceonly."  # begins the names of headers
BYTES = "binary"
HEADERS = "array<struct<key:string,value:binary>>"


def judged(rows: DataFrame, decodes: Iterable[tuple[str, Decode]]) -> DataFrame:
    """The rows of a source, decoded, with a text ERROR: null where that succeeded. Bad ones keep their bytes.

    Args:
        decodes: by part ('key' or 'value').
    """
    told: list[Column] = []
    for part in PARTS:
        rows = rows.withColumn(_raw(part), F.col(part))
    for part, decode in decodes:
        why = f"_onceonly_why_{part}"
        rows = decode(rows, why)
        told.append(F.concat(F.lit(f"The {part} cannot be decoded. "), F.col(why)))
    bad = reduce(lambda one, other: one | other, [each.isNotNull() for each in told], F.lit(False))
    rows = rows.withColumn(ERROR, F.when(bad, F.concat_ws(" ", *told)))
    kept = [F.when(F.col(ERROR).isNotNull(), F.col(_raw(part))).alias(_raw(part)) for part in PARTS]
    return rows.select(*COLUMNS, ERROR, *kept)


def good(rows: DataFrame) -> DataFrame:
    """Those of the judged rows that could be decoded."""
    return rows.where(F.col(ERROR).isNull()).select(*COLUMNS)


def bad(rows: DataFrame) -> DataFrame:
    """The others as dead letters: as they were read, and why."""
    raw = [F.col(_raw(part)).alias(part) for part in PARTS]
    others = ("headers", *PLACE, "timestamp")
    return rows.where(F.col(ERROR).isNotNull()).select(*raw, *others, F.col(ERROR).alias("error"))


def counts(rows: DataFrame) -> tuple[int, int]:
    """The number of judged rows, and of the bad ones among them."""
    found = rows.agg(F.count(F.lit(1)).alias("all"), F.count(ERROR).alias("bad")).first()
    assert found is not None
    return found["all"], found["bad"]


def chosen(letters: DataFrame, read: DataFrame, bad: DataFrame) -> DataFrame:
    """The dead letters that a transform names, each once, with what was read; FOUND says whether that was there.

    Args:
        letters: its columns are CHOSEN.
        read: the records, not decoded.
        bad: the dead letters that there are in any case, and what was dropped: such a record has its place.
    """
    why = F.coalesce(F.nullif(F.concat_ws("; ", F.sort_array(F.collect_set("error"))), F.lit("")), F.lit(NO_REASON))
    types = {"partition": "int", "offset": "bigint"}
    named = letters.select(*(F.col(name).cast(types.get(name, "string")).alias(name) for name in CHOSEN))
    once = named.groupBy(*PLACE).agg(why.alias("error"))
    there = read.join(bad.select(*PLACE), list(PLACE), "left_anti").withColumn(FOUND, F.lit(True))
    return once.join(there, list(PLACE), "left").select(*PARTS, "headers", *PLACE, "timestamp", "error", FOUND)


def lost(chosen: DataFrame) -> Row | None:
    """One of the chosen letters that is no good record of the batch."""
    return chosen.where(F.col(FOUND).isNull()).orderBy(*PLACE).first()


def found(chosen: DataFrame) -> DataFrame:
    return chosen.drop(FOUND)


def as_records(letters: DataFrame) -> DataFrame:
    """Dead letters as records for a topic: key, value and headers as they were read, and the rest in more headers."""
    told = [_header(name, F.col(name).cast("string")) for name in (*PLACE, "error")]
    told.append(_header("timestamp", F.unix_millis("timestamp").cast("string")))
    more = F.array(*told).cast(HEADERS)
    headers = F.concat(F.coalesce(F.col("headers"), F.array().cast(HEADERS)), more)
    return letters.select(*PARTS, headers.cast(HEADERS).alias("headers"))


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(f"{FROM}{name}").alias("key"), value.cast(BYTES).alias("value"))


def _raw(part: str) -> str:
    return f"_onceonly_raw_{part}"
