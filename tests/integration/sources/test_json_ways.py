"""JSON becomes the same rows in every way of decoding: in this process, on workers, and as before Spark 4.1."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from onceonly.json_values.columns import parse_columns
from onceonly.kafka.registry import make_head
from onceonly.kafka.registry.client import Schema
from onceonly.kafka.registry.json_schema import rules
from onceonly.spark import arrow, decode_results, small_batch
from onceonly.spark.decoding import JsonDecoder

pytestmark = pytest.mark.integration

DDL = (
    "ts TIMESTAMP, n TIMESTAMP_NTZ, d DATE, dec DECIMAL(10,2), f DOUBLE, r FLOAT, s STRING, m MAP<STRING, INT>, "
    "l ARRAY<STRUCT<a: BINARY>>, b TINYINT"
)
GOOD = [
    None,
    b"{}",
    b'{"ts": "2023-08-05T13:11:10.123456+02:00", "n": "9999-12-31T23:59:59.999999", "d": "0001-01-01", "dec": "-1.20"}',
    b'{"ts": "0001-01-01T00:00:00Z", "f": 0.1, "r": 16777216, "s": "\xc3\xa9", "m": {"x": null, "y": 1}, "b": -128}',
    b'{"l": [{"a": null}, null, {"a": "AQI="}], "f": "NaN", "other": [1, {"x": 1e400}]}',
]
BAD = [
    b'{"ts": 1691241070000}',
    b'{"ts": "23456"}',
    b'{"ts": "2023-08-05T13:11:10.123456789Z"}',
    b'{"d": "19000"}',
    b'{"d": "2023-08-05T23:59:59Z"}',
    b'{"dec": 1.239}',
    b'{"f": 1e400}',
    b'{"r": 1e39}',
    b'{"s": 12345678901234567.123456789}',
    b'{"s": {"a": 1.10}}',
    b'{"m": {"a": 1, "a": 2}}',
    b'{"s": "\\ud83d"}',
    b"[" * 100_000,
    b'{"s": "a line\\n. of (onceonly) text", "b": "x"}',
]


@dataclass
class Message:
    """As confluent-kafka's."""

    number: int
    content: bytes | None

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return self.content

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 5

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.number


def rows(decoder: JsonDecoder, frame: Any) -> Any:
    return decode_results.decode_with_errors(frame, [("value", decoder.decode)]).orderBy("offset").toArrow().to_pylist()


def each_way(decoder: JsonDecoder, records: list[bytes | None], spark: Any, monkeypatch: Any) -> list[Any]:
    table = small_batch.to_table([Message(number, record) for number, record in enumerate(records)])
    assert table is not None
    here = small_batch.to_frame(spark, decoder.decode_here(table), {decoder.column: decoder.column_type})
    ways = [rows(decoder, here), rows(decoder, small_batch.to_frame(spark, table))]
    monkeypatch.setattr(arrow, "is_available", lambda: False)
    return [*ways, rows(decoder, small_batch.to_frame(spark, table))]


def test_each_way_has_the_same_rows(spark: Any, monkeypatch: Any) -> None:
    here, workers, older = each_way(JsonDecoder(parse_columns(DDL), "value"), [*GOOD, *BAD], spark, monkeypatch)
    assert str(here) == str(workers) == str(older)  # NaN is not equal to itself
    assert [row["_onceonly_error"] is None for row in here] == [True] * len(GOOD) + [False] * len(BAD)
    assert [row["_onceonly_raw_value"] for row in here] == [None] * len(GOOD) + BAD
    assert here[3]["value"]["m"] == [("x", None), ("y", 1)]


def test_each_way_follows_the_rules_of_a_schema(spark: Any, monkeypatch: Any) -> None:
    schema = {"properties": {"dec": {"multipleOf": 0.01}, "s": {"pattern": "^\\p{L}+$"}}}
    decoder = JsonDecoder(
        parse_columns("dec DOUBLE, s STRING"), "value", ((7, rules(Schema(7, "JSON", json.dumps(schema)))),)
    )
    good = [b'{"dec": 19.99, "s": "\xc3\xa4"}', b'{"dec": 1e400}']
    records = [
        make_head(7) + each for each in (good[0], b'{"dec": 0.005}', b'{"s": "a1"}', good[1], b'{"s": "\\ud83d"}')
    ]
    here, workers, older = each_way(decoder, [*records, make_head(8) + good[0], good[0], None], spark, monkeypatch)
    assert here == workers == older
    assert [row["_onceonly_error"] is None for row in here] == [True, *[False] * 6, True]


def test_a_failing_query_names_the_record_and_why(spark: Any) -> None:
    decoder = JsonDecoder(parse_columns(DDL), "value")
    for record in BAD:
        table = small_batch.to_table([Message(number, each) for number, each in enumerate([b"{}", record])])
        with pytest.raises(Exception, match="onceonly") as caught:
            decode_results.fail_bad_rows(
                decoder.decode(small_batch.to_frame(spark, table), "why"), "value", "why"
            ).collect()
        found = decode_results.find_malformed(caught.value)
        assert found is not None and (found.topic, found.offset, found.part) == ("t", 1, "value")
        assert found.why.startswith(("value.", "The name", "It has")) and found.why.endswith(".")


def test_a_record_of_21_megabytes_is_read_on_workers(spark: Any) -> None:
    text = "concat('{\"s\": \"', repeat('y', 21000000), '\"}')"
    made = spark.range(3).selectExpr("id AS offset", f"CAST({text} AS BINARY) AS value")
    read = JsonDecoder(parse_columns("s STRING"), "value").decode(made, "why")
    assert [tuple(row) for row in read.selectExpr("length(value.s)", "why").collect()] == [(21_000_000, None)] * 3
