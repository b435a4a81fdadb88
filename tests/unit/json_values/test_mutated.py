"""Whatever bytes a record has, it is read or bad: no exception leaves the decoder, and its neighbours stay good."""

from __future__ import annotations

import json
import random

import pytest
from unit.json_values.records import read

from onceonly.json_values import text
from onceonly.json_values.columns import parse_columns
from onceonly.kafka.registry import make_head
from onceonly.kafka.registry.client import Schema
from onceonly.kafka.registry.json_schema import framed_reader, rules

counts = pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.heavy)])
DDL = (
    "id BIGINT, price DECIMAL(10,2), share DOUBLE, part FLOAT, note STRING, day DATE, at TIMESTAMP, "
    "local TIMESTAMP_NTZ, tags MAP<STRING, TINYINT>, lines ARRAY<STRUCT<sku: STRING, data: BINARY>>, paid BOOLEAN"
)
GOOD = {
    "id": 9007199254740993,
    "price": 19.99,
    "share": 0.1,
    "part": 1e-3,
    "note": 'caf\u00e9 "\U0001f600" \\ \n',
    "day": "2023-08-05",
    "at": "2023-08-05T13:11:10.123456+02:00",
    "local": "2023-08-05T13:11:10",
    "tags": {"a": 1, "b": None},
    "lines": [{"sku": "x", "data": "AQI="}, None],
    "paid": True,
}
SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "price": {"multipleOf": 0.01},
        "note": {"type": "string", "pattern": "^caf\\p{L}"},
        "lines": {"uniqueItems": True},
    },
}
PIECES = [
    *(b'{}[],:"\\0-+.eE \n\t\x00\xff\xc3\xed\xa0\x80', b"\\ud83d", b"1e400", b"-1e-400", b"1e999999999999999999999"),
    *(b"NaN", b"Infinity", b"null", b"true", b'"id":1,', b"[" * 600, b'{"a":' * 600, b"9" * 5000, b"0.123456789"),
    *(b"+00:99", b"10000-01-01", b"\\u0000", b"\xf0\x9f\x98", b"//", b"'", b"\xef\xbb\xbf", b"\\", b"1E5", b"-0"),
]
PIECES = [bytes([piece]) if isinstance(piece, int) else piece for piece in PIECES]


def mutated(chance: random.Random) -> bytes:
    data = bytearray(json.dumps(GOOD, ensure_ascii=chance.random() < 0.5).encode())
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice([0, 0, 1, 1, 2, 5, 20]))
        data[start:end] = chance.choice(
            [chance.choice(PIECES), chance.randbytes(chance.randrange(4)), bytes(data[start:end]) * 2]
        )
    return bytes(data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@counts
def test_mutated_records_are_good_or_bad(count: int) -> None:
    chance = random.Random(7)
    good, bad = json.dumps(GOOD).encode(), 0
    type_ = parse_columns(DDL)
    for _ in range(0, count, 1000):
        records = [mutated(chance) for _ in range(1000)]
        rows = read([good, *records, good], type_)
        assert rows[0] == rows[-1] and rows[0][1] is None
        assert all((row is None) == bool(why) for row, why in rows)
        bad += sum(row is None for row, _ in rows)
    assert count / 3 < bad < count


@pytest.mark.slow
@pytest.mark.timeout(3600)
@counts
def test_mutated_records_of_a_schema_are_good_or_bad(count: int) -> None:
    chance = random.Random(8)
    framed = framed_reader(parse_columns(DDL), "value", {7: rules(Schema(7, "JSON", json.dumps(SCHEMA))), 8: None})
    assert framed(make_head(7) + json.dumps(GOOD).encode())[1] is None
    for _ in range(count):
        record = make_head(chance.choice([7, 7, 7, 7, 8, 9])) + mutated(chance)
        if chance.random() < 0.05:
            record = record[chance.randrange(5) :]
        row, why = framed(record)
        assert (row is None) == bool(why)


def test_a_surprise_is_a_bad_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def surprise(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(text, "_is_too_deep", surprise)
    assert read([b"{}", None], parse_columns("a INT")) == [
        (None, "It cannot be decoded: RecursionError."),
        (None, None),
    ]
