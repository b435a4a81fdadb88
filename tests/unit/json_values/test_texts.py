"""What is JSON, what is not, and which limits a text has."""

from __future__ import annotations

import pytest
from unit.json_values.records import read

from onceonly.json_values.columns import parse_columns
from onceonly.json_values.text import MAX_DEPTH, MAX_DIGITS

TYPE = parse_columns("id BIGINT, s STRING")


def why(record: bytes) -> str | None:
    return read([record], TYPE)[0][1]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{} {}", "not JSON: extra data at character 3"),
        (b"{'id': 1}", "not JSON"),
        (b'{"id": 01}', "not JSON"),
        (b'{"id": NaN}', "NaN is no JSON number"),
        (b'{"s": "\n"}', "not JSON"),
        (b'{"s": "\xff"}', "byte 7 is not UTF-8"),
        (b'{"s": "\xed\xa0\x80"}', "is not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"null", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b'{"id": 1, "id": 1}', 'name "id" is there twice'),
        (b'{"other": {"a": 1, "a": 2}}', 'name "a" is there twice'),
        (b'{"id": 1' + b"0" * MAX_DIGITS + b"}", "number of more than 1,000 digits"),
        (b'{"other": 1e1001}', "number of more than 1,000 digits"),
        (b'{"other": 1e99999999999999999999}', "number of more than 1,000 digits"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "more than 500 levels deep"),
        (b"[" * 1_000_000, "more than 500 levels deep"),
        (b"[}" * 1_000, "not JSON"),
    ],
)
def test_bad_texts(record: bytes, reason: str) -> None:
    assert reason in str(why(record))


@pytest.mark.parametrize(
    "record",
    [
        b" {\t}\n",
        b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH,
        b'{"s": "' + b"[{" * 1_000 + b'"}',
        b'{"s": "' + b'\\\\\\"[' * 1_000 + b'"}',
        b'{"other": 1e1000, "more": [1, {"\\ud800": "\\udfff"}]}',
        b'{"other": [' + b"[],{}," * 5_000 + b"1]}",
    ],
)
def test_good_texts(record: bytes) -> None:
    assert why(record) is None


def test_a_text_of_21_megabytes_is_read() -> None:
    ((row, why),) = read([b'{"id": 2, "s": "' + b"y" * 21_000_000 + b'"}'], TYPE)
    assert (why, row["id"], len(row["s"])) == (None, 2, 21_000_000)


def test_reasons_name_field_and_value() -> None:
    type_ = parse_columns("a ARRAY<STRUCT<b: MAP<STRING, TINYINT>>>, n INT NOT NULL")
    one, two, three = read(
        [b'{"n": 1, "a": [null, {"b": {"x\\n": 300}}]}', b'{"n": null}', b'{"n": "%s"}' % (b"z" * 100)], type_
    )
    assert one == (None, 'value.a[1].b["x\\n"] is 300, which is not a TINYINT (a whole number in its range).')
    assert two == (None, "value.n is null or missing, and its column is NOT NULL.")
    assert three[1] is not None and three[1].startswith('value.n is "' + "z" * 39 + "..., which is not an INT")
