"""Avro is decoded exactly: consumed to its last byte, and the same value when it is encoded again, else bad."""

from __future__ import annotations

import io
import json
import random
import struct
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from integration.spark import avro_reference
from pyspark.sql import functions as F
from unit.kafka.registry.test_protobuf_wire import mutated

from onceonly.kafka.registry import avro_schema
from onceonly.spark import avro, decode_results, topics
from onceonly.unix_time import FIRST_DAY, LAST_DAY

pytestmark = pytest.mark.integration
SAMPLE = 2_000
LONG = {"type": "long"}
MICROS, MILLIS = ({**LONG, "logicalType": f"timestamp-{unit}"} for unit in ("micros", "millis"))
NANOS = 1700000000123456789
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
PAIR = {
    "type": "record",
    "name": "P",
    "fields": [{"name": "name", "type": "string"}, {"name": "n", "type": "long"}],
}
EVERYTHING = {
    "type": "record", "name": "All",
    "fields": [
        {"name": "yes", "type": "boolean"}, {"name": "small", "type": "int"}, {"name": "big", "type": ["null", "long"]},
        {"name": "single", "type": "float"}, {"name": "double", "type": "double"}, {"name": "text", "type": "string"},
        {"name": "raw", "type": "bytes"}, {"name": "six", "type": {"type": "fixed", "name": "Six", "size": 6}},
        {"name": "kind", "type": ENUM}, {"name": "price", "type": DECIMAL},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "any", "type": ["null", "int", "string", PAIR]},
        {"name": "pairs", "type": {"type": "array", "items": "P"}},
    ],
}  # fmt: skip
ROW = {
    "yes": True, "small": -5, "big": 2**40, "single": 0.5, "double": 1.25, "text": "täxt", "raw": b"raw",
    "six": b"sixsix", "kind": "B", "price": Decimal("12.34"), "at": datetime(2013, 1, 1, tzinfo=UTC), "day": 15_000,
    "tags": ["a", None], "counts": {"a": 1, "b": 2}, "any": "some",
    "pairs": [{"name": "x", "n": 1}, {"name": "y", "n": 2}],
}  # fmt: skip


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def decoded(spark: Any, values: list[bytes], schema: Any, reader: Any = None) -> list[tuple[Any, str | None]]:
    """(value as JSON, or None where it is bad; why)."""
    rows = spark.createDataFrame([(n, bytearray(value)) for n, value in enumerate(values)], "n INT, v BINARY")
    both = avro.decode(F.col("v"), json.dumps(schema), json.dumps(reader or schema))
    shown = F.to_json(F.struct("x.value"), {"ignoreNullFields": "false"})
    found = rows.withColumn("x", both).select("n", shown.alias("json"), "x.why").orderBy("n").collect()
    return [(None if row["why"] else json.loads(row["json"])["value"], row["why"]) for row in found]


def long(number: int) -> bytes:
    return encoded("long", number)


BAD: dict[str, tuple[Any, bytes, str]] = {
    "a registry's header": (PAIR, b"\0" + struct.pack(">I", 7) + encoded(PAIR, {"name": "x", "n": 1}), "left over"),
    "bytes after it": (PAIR, encoded(PAIR, {"name": "x", "n": 1}) + b"j", "left over"),
    "an end within": (PAIR, encoded(PAIR, {"name": "xyz", "n": 300})[:-1], "end before"),
    "nothing": (PAIR, b"", "end before"),
    "no UTF-8": (PAIR, b"\x04\xff\xfe\x02", "field 'name' is not UTF-8"),
    "no UTF-8 in a list": ({"type": "array", "items": PAIR}, b"\x02\x02\xff\x02\0", "field '[]/name' is not UTF-8"),
    "no UTF-8 in a key": ({"type": "map", "values": "int"}, b"\x02\x02\xff\x02\0", "a key that is not UTF-8"),
    "a key twice": ({"type": "map", "values": "int"}, b"\x04\x02a\x02\x02a\x04\0", "a key twice"),
    "a boolean of two": ("boolean", b"\x02", "neither true nor false"),
    "an int of 33 bits": ("int", long(1 << 31), "does not fit"),
    "an unknown symbol": (ENUM, b"\x04", "does not fit"),
    "an unknown branch": (["null", "int"], b"\x04\x02", "end before"),
    "nanoseconds as micros": (
        {**LONG, "logicalType": "timestamp-micros"},
        long(1700000000123456789),
        "years 1 to 9999",
    ),
    "nanoseconds as millis": (
        {**LONG, "logicalType": "timestamp-millis"},
        long(1700000000123456789),
        "years 1 to 9999",
    ),
    "the day after 9999": ({"type": "int", "logicalType": "date"}, long(2932897), "years 1 to 9999"),
    "a decimal of 65 bits": (DECIMAL, encoded("bytes", b"\x01" + b"\0" * 7 + b"\x01"), "too many digits"),
    "a decimal of 11 digits": (DECIMAL, encoded("bytes", (10**10).to_bytes(6, "big")), "reader's schema"),
    "a decimal of no bytes": (DECIMAL, b"\0", "reader's schema"),
    "a billion items": ({"type": "array", "items": "int"}, long(2**30) + b"abc", "end before"),
    "a text of two gigabytes": ("string", long(2**31 - 9) + b"abc", "end before"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_that_value_is_bad(spark: Any, name: str) -> None:
    schema, value, why = BAD[name]
    [(found, told)] = decoded(spark, [value], schema)
    assert found is None and told and why in told


GOOD: dict[str, tuple[Any, bytes, Any]] = {
    "items in blocks with sizes": ({"type": "array", "items": "int"}, long(-2) + long(2) + b"\2\4\0", [1, 2]),
    "a longer number": ("int", b"\x82\x00", 1),
    "a decimal with its sign repeated": (DECIMAL, encoded("bytes", b"\xff" * 20), -0.01),
    "a time of a day": ({**LONG, "logicalType": "time-micros"}, long(3_723_000_000), 3_723_000_000),
    "a time of a day in millis": ({"type": "int", "logicalType": "time-millis"}, long(64), 64),
    "nanoseconds": ({**LONG, "logicalType": "timestamp-nanos"}, long(1700000000123456789), 1700000000123456789),
    "the first day": ({"type": "int", "logicalType": "date"}, long(-719162), "0001-01-01"),
    "a null": (["null", "string"], b"\0", None),
}


@pytest.mark.parametrize("name", GOOD)
def test_other_ways_to_write_a_value_are_read(spark: Any, name: str) -> None:
    schema, value, wanted = GOOD[name]
    assert decoded(spark, [value], schema) == [(wanted, None)]


def test_the_rules_of_evolution(spark: Any) -> None:
    """A field that the reader does not have is left out, one that the writer did not have has its default."""
    added = {"name": "more", "type": "int", "default": 5}
    reader = {**PAIR, "fields": [{"name": "n", "type": ["null", "double"]}, added]}
    values = [encoded(PAIR, {"name": "x", "n": n}) for n in (7, 2**53, 2**53 + 1)]
    assert decoded(spark, values, PAIR, reader) == [
        ({"n": 7.0, "more": 5}, None),
        ({"n": 2.0**53, "more": 5}, None),
        (None, "field 'n' is a whole number of too many digits for its type"),
    ]
    assert decoded(spark, [b"\x02\xff\x02"], PAIR, reader) == [({"n": 1.0, "more": 5}, None)]  # a text that is not read
    [(_, why)] = decoded(spark, values[:1], PAIR, {**PAIR, "fields": [{"name": "other", "type": "int"}]})
    assert why == avro.UNRESOLVED


def test_a_whole_record(spark: Any) -> None:
    [(found, why)] = decoded(spark, [encoded(EVERYTHING, ROW)], EVERYTHING)
    assert why is None
    assert found["counts"] == ROW["counts"] and found["tags"] == ["a", None] and found["price"] == 12.34


def fuzz(spark: Any, number: int, seed: int = 0) -> tuple[int, int]:
    """How many of the mutated records were good, and how many bad: exactly as the specification has it."""
    random_, data = random.Random(seed), encoded(EVERYTHING, ROW)
    values = [mutated(data, random_) for _ in range(number)]
    found = decoded(spark, values, EVERYTHING)
    tree = avro_schema.parse(json.dumps(EVERYTHING))
    good = 0
    for value, (row, why) in zip(values, found, strict=True):
        wanted = reference(tree, value)
        assert (wanted is None) == (why is not None), (value.hex(), why)
        if wanted is not None:
            assert {name: row[name] for name in SAME} == {name: wanted[name] for name in SAME}, value.hex()
            good += 1
    return good, number - good


SAME = ("yes", "small", "big", "text", "tags", "counts", "pairs")


def reference(tree: avro_schema.Node, value: bytes) -> Any:
    """None: it is bad, also because a date, a time or a decimal does not fit."""
    try:
        row = avro_reference.decode(tree, value)
    except avro_reference.Bad:
        return None
    is_price = bool(row["price"]) and abs(int.from_bytes(row["price"], "big", signed=True)) < 10**10
    is_day, is_time = FIRST_DAY <= row["day"] <= LAST_DAY, avro.SECONDS[0] * 1000 <= row["at"]
    return row if is_price and is_day and is_time and row["at"] < (avro.SECONDS[1] + 1) * 1000 else None


def test_mutated_records_raise_nothing(spark: Any) -> None:
    good, bad = fuzz(spark, SAMPLE)
    assert good > SAMPLE / 50 and bad > SAMPLE / 2


def test_each_policy_says_the_same_of_the_same_records(spark: Any) -> None:
    """Judged, a record is bad exactly if it fails a query that decodes it, which names it."""
    values = [value for schema, value, _ in BAD.values() if schema is PAIR] + [
        encoded(PAIR, {"name": "x", "n": 1}),
        None,
    ]
    rows = spark.createDataFrame([(None, v, "t", 0, n, None, None) for n, v in enumerate(values)], topics.SCHEMA)
    decode_value = partial(avro.decode_plain_avro, schema=json.dumps(PAIR))
    both = decode_results.decode_with_errors(rows, [("value", decode_value)])
    bad = {row["offset"]: row["error"] for row in decode_results.select_failed(both).collect()}
    assert set(bad) == set(range(len(values) - 2))
    for n in range(len(values)):
        alone = decode_results.decode_or_fail(rows.where(f"offset = {n}"), "avro", json.dumps(PAIR)).select("value")
        if n not in bad:
            alone.collect()
            continue
        with pytest.raises(Exception) as caught:
            alone.collect()
        record = decode_results.find_malformed(caught.value)
        assert record and (record.topic, record.partition, record.offset) == ("t", 0, n)
        assert bad[n] == f"The value cannot be decoded. {record.why}"
