"""What a real Debezium has said of a real PostgreSQL becomes exactly the rows that the tables had."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from codes import raises
from integration.debezium.recorded import COLUMNS, KEYS, comparable, encodings, said, table

from onceonly.debezium import DELETED, ORDER, Changes
from onceonly.debezium.records import RecordReader, Unreadable, converter
from onceonly.errors import InvalidPipeline

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def reading(ddl: str, keys: list[str], written: dict[str, str] | None = None, without: Any = ()) -> RecordReader:
    kinds = {name: kind.replace(" ", "").lower() for name, kind in re.findall(r"(\w+) (\w+(?:\(.*?\)|<.*?>)?)", ddl)}
    made = {name: (kind, converter(kind, (written or {}).get(name))) for name, kind in kinds.items()}
    assert all(convert for _, convert in made.values())
    return RecordReader(made, keys, without)  # type: ignore[arg-type]


def of(name: str, recording: str, schemas: bool) -> RecordReader:
    fitting = {} if schemas and recording == "default" else encodings(recording, name)
    if schemas or recording == "text" or name == "lines":
        return reading(COLUMNS[name], KEYS.get(name, ["id"]), fitting)
    without = ["balance"]  # a decimal in bytes, of which nothing says the scale
    return reading(COLUMNS[name].replace("balance DECIMAL(12, 2), ", ""), ["id"], fitting, without)


def rows(read: RecordReader, recording: str, name: str, schemas: bool = True) -> list[dict[str, Any]]:
    records = [event.record(schemas) for event in said(recording, name)]
    return [read.read_row(key, value, offset) for offset, (key, value) in enumerate(records) if value is not None]


def newest(rows: list[dict[str, Any]], keys: Any) -> list[dict[str, Any]]:
    """What merging leaves, in Python's types."""
    last = {tuple(row[key] for key in keys): row for row in sorted(rows, key=lambda row: [row[name] for name in ORDER])}
    return [comparable(_times(last[key])) for key in sorted(last) if not last[key][DELETED]]


def _times(row: dict[str, Any]) -> dict[str, Any]:
    found = dict(row)
    for name in {"seen", "called", "changed"} & {name for name, value in row.items() if value is not None}:
        at = EPOCH + timedelta(microseconds=row[name])
        found[name] = at if name == "changed" else at.replace(tzinfo=None)
    if row.get("born") is not None:
        found["born"] = date(1970, 1, 1) + timedelta(days=row["born"])
    return found


@pytest.mark.parametrize("schemas", [True, False])
@pytest.mark.parametrize(("recording", "name"), [("default", "customers"), ("text", "customers"), ("text", "lines")])
def test_the_newest_of_each_key_is_the_table(recording: str, name: str, schemas: bool) -> None:
    read = of(name, recording, schemas)
    wanted = [{column: value for column, value in row.items() if column in read.columns} for row in table(name)]
    assert newest(rows(read, recording, name, schemas), read.keys) == wanted


@pytest.mark.parametrize("name", ["papers", "races"])
def test_whole_rows_in_the_log_and_overlapping_transactions(name: str) -> None:
    assert newest(rows(of(name, "default", True), "default", name), ["id"]) == table(name)


def test_the_place_in_the_log_alone_would_be_wrong() -> None:
    lsn = {row["_deleted"]: row["_lsn"] for row in rows(of("races", "default", True), "default", "races")[-2:]}
    assert lsn[True] > lsn[False], "the recording has the deletion before the insert"


def test_what_is_sent_again_has_the_same_position() -> None:
    found = rows(of("customers", "text", False), "text", "customers", schemas=False)
    again = [{**row, "_offset": row["_offset"] + 1_000} for row in found[-50:]]
    assert newest(found + again, ["id"]) == newest(found, ["id"])
    half = newest(found + again[:20], ["id"])
    assert half == newest(found, ["id"]), "the table went back while changes were sent again"


def test_a_deleted_row_has_its_key_alone() -> None:
    deleted = [row for row in rows(of("customers", "default", True), "default", "customers") if row["_deleted"]]
    assert deleted
    assert all(row["name"] is None and row["id"] is not None for row in deleted)


@pytest.mark.parametrize("recording", ["default", "text"])
@pytest.mark.parametrize("column", ["body", "bytes", "words", "numbers", "extra"])
def test_a_value_that_was_not_sent_never_becomes_a_row(recording: str, column: str) -> None:
    kept = next(part for part in COLUMNS["documents"].split(", ") if part.startswith(f"{column} "))
    others = {"title", "body", "bytes", "words", "numbers", "extra"} - {column}
    read = reading(f"id INT, {kept}", ["id"], {"bytes": "hex"}, sorted(others))
    with pytest.raises(Unreadable, match=f"column '{column}' was not sent"):
        rows(read, recording, "documents")


def test_an_emptied_table_is_refused() -> None:
    with pytest.raises(Unreadable, match="emptied"):
        rows(of("visits", "default", True), "default", "visits")


FLAWS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "message": ({"op": "m"}, {}, "a message"),
    "unknown op": ({"op": "x"}, {}, "its op is not known: x"),
    "no envelope": ({"op": None}, {}, "not a Debezium envelope"),
    "other database": ({"source": {"connector": "mysql", "lsn": 1, "sequence": '["1","1"]'}}, {}, "no position"),
    "no position": ({"source": {"connector": "postgresql"}}, {}, "no position"),
    "other key": ({}, {"keys": ["who"]}, "its key is .'id'. and not"),
    "unknown column": ({"after": {"id": 1, "who": "a", "new": 1}}, {}, "its column .'new'. is not known"),
    "changed key": ({"op": "u", "before": {"id": 2, "who": "a"}}, {}, "an update has changed 'id'"),
    "no number": ({"after": {"id": "x", "who": "a"}}, {}, "column 'id' is a text and not int"),
    "no row": ({"after": None}, {}, "its row is null"),
    "an op that is no text": ({"op": ["c"]}, {}, "its op is not known"),
    "a key that is null": ({"after": {"id": None, "who": "a"}}, {}, "its key 'id' is null or missing"),
    "no key": ({"after": {"who": "a"}}, {}, "its key 'id' is null or missing"),
    "a deletion without its key": ({"op": "d", "before": {"who": "a"}, "after": None}, {}, "its key 'id' is null"),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_what_is_no_change_is_refused(flaw: str) -> None:
    other, options, why = FLAWS[flaw]
    plain = {"before": None, "after": {"id": 1, "who": "a"}, "op": "c"}
    plain["source"] = {"connector": "postgresql", "lsn": 2, "sequence": '["1","2"]'}
    read = reading("id INT, who STRING", **{"keys": ["id"], **options})
    with pytest.raises(Unreadable, match=why):
        read.read_row(b'{"id":1}', json.dumps({**plain, **other}).encode(), 0)


@pytest.mark.parametrize("schema", ["x", [1], {"fields": 1}, {"fields": ["after"]}, {"fields": [{"field": "after"}]}])
def test_a_schema_that_is_none_is_refused(schema: Any) -> None:
    text = json.dumps({"schema": schema, "payload": {"op": "c"}}).encode()
    with pytest.raises(Unreadable, match="its schema is not one of Debezium"):
        reading("id INT", ["id"]).read_row(None, text, 0)


@pytest.mark.parametrize("told", [{"name": "org.apache.kafka.connect.data.Decimal"}, {"name": ["x"]}])
def test_a_value_whose_schema_is_broken_is_refused(told: dict[str, Any]) -> None:
    """It is one of many records, so it has to be named, not to end the whole batch."""
    after = {"field": "after", "fields": [{"field": "id", "type": "int32"}, {"field": "paid", "type": "bytes", **told}]}
    source = {"lsn": 2, "sequence": '["1","2"]'}
    payload = {"op": "c", "after": {"id": 1, "paid": "AQ=="}, "source": source}
    text = json.dumps({"schema": {"fields": [after]}, "payload": payload}).encode()
    with pytest.raises(Unreadable, match="column 'paid' is a text and not decimal"):
        reading("id INT, paid DECIMAL(9, 2)", ["id"]).read_row(None, text, 0)


@pytest.mark.parametrize("text", [b"", b"no json", b"[]", b"\xff", b"{} {}", b"[" * 100_000])
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(Unreadable, match="not a single JSON object"):
        reading("id INT", ["id"]).read_row(None, text, 0)


@pytest.mark.parametrize(
    ("type_", "value", "encoding"),
    [
        ("decimal(12,2)", "1234", None),  # 1234.00, or the base64 of another number
        ("decimal(12,2)", "1.234", "string"),
        ("decimal(3,2)", "12.00", "string"),
        ("decimal(12,2)", "NaN", "string"),
        ("decimal(12,2)", 12.5, None),
        ("timestamp_ntz", 1704070800123456, None),
        ("timestamp_ntz", 1704070800123456789, "nanos"),
        ("timestamp_ntz", "2024-01-01T00:00:00+01:00", None),
        ("binary", "beef", None),
        ("double", "1234", None),
        ("int", 1 << 31, None),
        ("bigint", True, None),
        ("boolean", 1, None),
        ("date", "never", None),
        ("date", 1 << 31, None),
        ("timestamp", 1 << 62, "millis"),
        ("timestamp", "2024-01-01T00:00:00.1234567Z", None),
        ("array<int>", [1, "2"], None),
        ("date", -622191234, None),  # PostgreSQL's 'infinity', and what follows the year 9999
        ("date", 2932897, None),
        ("date", -719163, None),
        ("date", "+292278994-08-16Z", None),
        ("timestamp_ntz", 9223372036825200000, "micros"),
        ("timestamp_ntz", 568971820800000000, "micros"),
        ("timestamp_ntz", 253402300800000000000, "nanos"),
        ("timestamp", 253402300800000, "millis"),
        ("timestamp", -62135596800001, "millis"),
        ("double", (1 << 53) + 1, None),
        ("double", 10**400, None),
        ("float", (1 << 24) + 1, None),
        ("float", 1e39, None),
    ],
)
def test_what_can_be_read_in_two_ways_or_would_be_cut_is_refused(type_: str, value: Any, encoding: str | None) -> None:
    convert = converter(type_, encoding)
    assert convert
    with pytest.raises((ValueError, ArithmeticError)):
        convert(value, {})


@pytest.mark.parametrize(
    ("type_", "value", "encoding", "wanted"),
    [
        ("timestamp_ntz", -1, "millis", -1000),
        ("timestamp_ntz", 1_000, "nanos", 1),
        ("timestamp", "1969-12-31T23:59:59.999999Z", None, -1),
        ("timestamp", "1970-01-01T01:00:00+01:00", None, 0),
        ("timestamp", "1970-01-01T00:00:00.000001000Z", None, 1),
        ("date", -1, None, -1),
        ("binary", "beef", "hex", b"\xbe\xef"),
        ("binary", "vu8=", "base64", b"\xbe\xef"),
        ("string", 5, None, "5"),
        ("double", 1, None, 1.0),
        ("double", "Infinity", None, float("inf")),
        ("float", 16777216, None, 16777216.0),
        ("date", 2932896, None, 2932896),
        ("timestamp", 253402300799999, "millis", 253402300799999000),
    ],
)
def test_values(type_: str, value: Any, encoding: str | None, wanted: Any) -> None:
    convert = converter(type_, encoding)
    assert convert and convert(value, {}) == wanted


NAME = "__debezium_unavailable_value"
PLACEHOLDERS: list[tuple[str, Any]] = [  # as Debezium 3.6.1 has sent them for PostgreSQL 15
    ("string", NAME),
    ("binary", NAME.encode()),
    ("binary", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
    ("binary", NAME.encode().hex()),
    ("array<string>", [NAME]),
    ("array<string>", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
    ("array<binary>", ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]),
    ("array<int>", list(NAME.encode())),
    ("array<bigint>", list(NAME.encode())),
    ("string", {NAME: NAME}),
    ("string", [(NAME, NAME)]),
    ("string", f'{{"{NAME}":"{NAME}"}}'),
]


@pytest.mark.parametrize(("type_", "value"), PLACEHOLDERS)
def test_every_placeholder_is_refused(type_: str, value: Any) -> None:
    source = {"lsn": 2, "sequence": '["1","2"]'}
    envelope = {"op": "u", "before": None, "after": {"id": 1, "c": value}, "source": source}
    with pytest.raises(Unreadable, match="column 'c' was not sent"):
        reading(f"id INT, c {type_}", ["id"]).read_row({"id": 1}, envelope, 0)


def test_a_number_beyond_a_double_is_refused() -> None:
    text = b'{"op":"c","after":{"id":1,"c":1e400},"source":{"lsn":2,"sequence":"[\\"1\\",\\"2\\"]"}}'
    with pytest.raises(Unreadable, match="not a single JSON object"):
        reading("id INT, c DOUBLE", ["id"]).read_row(None, text, 0)


def test_a_definition_that_says_nothing_is_refused() -> None:
    with raises(InvalidPipeline, "option-invalid", "keys="):
        Changes("id INT", keys="id")
    with raises(InvalidPipeline, "option-invalid", "'roman'"):
        Changes("id INT", ["id"], {"id": "roman"})
