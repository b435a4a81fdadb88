"""A digest of the records of one sink: the sum of their hashes, which depends on no order and on no partition.

A record's hash is xxHash64 of its key and then, with that as the seed, of its value; the first seed is 42, and what is
null is left out. So a reader computes it without Spark:

    hash = xxhash.xxh64_intdigest(key, 42); hash = xxhash.xxh64_intdigest(value, hash); total = (total + hash) % 2**64

Source: Spark's `xxhash64`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa

HASH = "onceonly_hash"  # the column
LOW_BITS = 32  # sums of halves stay within 64 bits for 2**31 rows


def add_hash(records: Any) -> Any:
    """Return a DataFrame of records with the column of their hashes."""
    from pyspark.sql import functions as F

    return records.withColumn(HASH, F.xxhash64(*_list_hashed_columns(records)))


def take_hashes(table: pa.Table) -> tuple[str, pa.Table]:
    """Return the digest of records with their hashes, and the records without."""
    total = sum(table.column(HASH).to_pylist())
    return to_text(total), table.drop_columns([HASH])


def observe(records: Any) -> tuple[Any, Callable[[], str]]:
    """Return the records, and what tells their digest after an action on them has ended."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    hash = F.xxhash64(*_list_hashed_columns(records))
    observation = Observation(uuid.uuid4().hex)
    observed = records.observe(
        observation,
        F.sum(F.shiftrightunsigned(hash, LOW_BITS)).alias("high"),
        F.sum(hash.bitwiseAND(F.lit(2**LOW_BITS - 1))).alias("low"),
    )

    def digest() -> str:
        halves = observation.get
        return to_text(((halves["high"] or 0) << LOW_BITS) + (halves["low"] or 0))

    return observed, digest


def _list_hashed_columns(records: Any) -> list[str]:
    return [name for name in ("key", "value") if name in records.columns]


def to_text(total: int) -> str:
    """Return the digest for a sum of hashes."""
    return f"{total % 2**64:016x}"
