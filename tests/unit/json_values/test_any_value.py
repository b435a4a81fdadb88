"""Any JSON value in any column is equal, by an independent reading, or a bad record."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from unit.json_values.records import BAD, Number, expected, is_equal, parse, read

PLAIN = [
    *("boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary"),
    *("date", "timestamp", "timestamp_ntz", "decimal(10,2)", "decimal(38,0)", "decimal(38,38)", "decimal(3,3)"),
]
DIGITS = st.text("0123456789", min_size=1, max_size=24)
NEAR = st.builds(
    lambda power, sign, near: str(sign * power + near),
    st.sampled_from([2**7, 2**15, 2**24, 2**31, 2**53, 2**63, 10**8, 10**38, 0]),
    st.sampled_from([-1, 1]),
    st.integers(-2, 2),
)
FRACTIONS = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole.lstrip('0') or '0'}{fraction}{exponent}",
    st.sampled_from(["", "-"]),
    DIGITS,
    st.just("") | DIGITS.map(lambda digits: f".{digits}"),
    st.just("") | st.integers(-400, 400).map(lambda number: f"e{number}"),
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.floats(
    allow_nan=False, allow_infinity=False, width=32
).map(repr)
NUMBERS = NEAR | FRACTIONS | FLOATS | st.integers(-(2**70), 2**70).map(str)
TIMES = st.builds(
    lambda day, mark, time, fraction, zone: f"{day}{mark}{time}{fraction}{zone}",
    st.dates().map(str) | st.sampled_from(["2023-02-29", "0000-01-01", "10000-01-01", "1582-10-10", "2024-02-29"]),
    st.sampled_from("T T_"),
    st.times().map(lambda time: time.strftime("%H:%M:%S")) | st.sampled_from(["24:00:00", "23:59:60", "05:10", "5:10"]),
    st.just("") | DIGITS.map(lambda digits: f".{digits[:10]}"),
    st.sampled_from(["", "Z", "z", "+01:00", "-0930", "+14", "+24:00", "+01:60", "-00:00", " UTC", "[UTC]"]),
)
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=6),
    st.sampled_from(
        ["NaN", "Infinity", "-Infinity", "INF", "true", "null", "AQI=", "AQJ=", "AQI", "_-8=", "\ud83d", "\n1"]
    ),
    TIMES,
    st.dates().map(str),
    NUMBERS,
).map(json.dumps)
LEAVES = st.sampled_from(["null", "true", "false"]) | NUMBERS | TEXTS
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(st.sampled_from(["a", "b", "é", "\ud800"]), inner, max_size=3).map(
            lambda items: "{" + ", ".join(f"{json.dumps(name)}: {item}" for name, item in items.items()) + "}"
        )
    ),
    max_leaves=5,
)


def field(name: str, type_: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "nullable": True, "metadata": {}}


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda type_: {"type": "array", "elementType": type_, "containsNull": True}),
        inner.map(lambda type_: {"type": "map", "keyType": "string", "valueType": type_, "valueContainsNull": True}),
        st.dictionaries(st.sampled_from("ab"), inner, min_size=1, max_size=2).map(
            lambda fields: {"type": "struct", "fields": [field(name, type_) for name, type_ in fields.items()]}
        ),
    )


TYPES = st.recursive(st.sampled_from(PLAIN), nested, max_leaves=3)
PAIRS = st.lists(st.tuples(VALUES, TYPES), min_size=8, max_size=8)


def check(text: str, type_: Any) -> None:
    """Beside a record that is good in any case, which has to stay so."""
    whole = {"type": "struct", "fields": [field("x", type_)]}
    (row, why), beside = read([b'{"x": %s}' % text.encode(), b"{}"], whole)
    assert beside == ({"x": None}, None)
    wanted = expected(parse(text), type_)
    if wanted is BAD:
        assert row is None and why and why.startswith("value.x")
    else:
        assert why is None and is_equal(row["x"], wanted), (text, type_, row, wanted)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(PAIRS)
def test_any_value_in_any_type(pairs: list[tuple[str, Any]]) -> None:
    """1,200 pairs."""
    for text, type_ in pairs:
        check(text, type_)


@pytest.mark.slow
@pytest.mark.heavy
@settings(max_examples=3_000, deadline=None)
@given(PAIRS)
def test_many_values_in_any_type(pairs: list[tuple[str, Any]]) -> None:
    """24,000 pairs."""
    for text, type_ in pairs:
        check(text, type_)


@settings(max_examples=300, deadline=None)
@given(LEAVES, st.sampled_from(PLAIN))
@example("1.00000017881393432617187499", "float")  # rounded twice, it becomes the other neighbour
@example("1.00000017881393432617187501", "float")
@example("-1.00000017881393432617187501", "float")
@example("1e-46", "float")
@example("3.4028235677973366e38", "float")
@example("9007199254740993", "double")
@example("9007199254740993.0", "double")
@example("1e400", "double")
@example("1.0", "long")
@example("1e2", "byte")
@example("0e8", "byte")
@example("-0.0e400", "long")
@example("0e400", "decimal(3,3)")
@example("0e-400", "float")
@example("1.5", "long")
@example("1.230", "decimal(10,2)")
@example("1.239", "decimal(10,2)")
@example('"9999-12-31T23:59:59-01:00"', "timestamp")
@example('"2023-08-05T13:11:10.123456000Z"', "timestamp")
@example('"2023-08-05T13:11:10.1234567Z"', "timestamp")
@example('"2023-08-05T13:11:10"', "timestamp")
@example("1691241070000", "timestamp")
@example('"19000"', "date")
@example('"2023-08-05T23:59:59Z"', "date")
@example('"\\ud83d"', "string")
@example('"\\ud83d\\ude00"', "string")
@example("1.10", "string")
@example("true", "integer")
def test_each_plain_type(text: str, type_: str) -> None:
    check(text, type_)


def test_the_reading_that_it_is_compared_with() -> None:
    assert is_equal(expected(Number("0.1"), "double"), 0.1)
    assert expected(Number("0.1"), "double") == 0.1
    assert is_equal(0.1, expected(Number("0.1"), "double"))
    assert not is_equal(0.2, expected(Number("0.1"), "double"))
    assert expected("2023-02-29", "date") is BAD
