"""Text that is not UTF-8: found by the jar's check and by Spark's own, wherever it is in a row."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from onceonly.errors import InvalidPipeline
from onceonly.spark import text

pytestmark = pytest.mark.integration
# Whole characters of each length, and bytes at the borders of what may follow what (table 3-7 of the Unicode standard).
WHOLE = [
    b"\x00",
    b"abcdefgh",
    b"\x7f",
    *(character.encode() for character in "\x80\u07ff\u0800\ud7ff\ue000\uffff\U0001f600"),
]
BYTES = [
    bytes([byte]) for byte in (0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xE0, 0xED, 0xF0, 0xF4, 0xF5, 0xFF)
]


TEXTS = {
    "a column": "CAST(v AS STRING) AS t",
    "a field": "NAMED_STRUCT('a', 1, 'b', CAST(v AS STRING)) AS t",
    "an item": "ARRAY('a', CAST(v AS STRING)) AS t",
    "a key": "MAP(CAST(v AS STRING), 1) AS t",
    "a value": "MAP('a', CAST(v AS STRING)) AS t",
    "a list of structs": "ARRAY(NAMED_STRUCT('b', MAP(1, CAST(v AS STRING)))) AS t",
}


@pytest.fixture(params=["jar", "spark"])
def is_valid(request: pytest.FixtureRequest, spark: Any) -> text.IsValid:
    """Each of the checks that a session may have."""
    return text.find_check(spark) if request.param == "jar" else text.is_valid


@pytest.mark.parametrize("place", TEXTS)
def test_text_that_is_not_utf8_is_refused_at_any_depth(spark: Any, is_valid: text.IsValid, place: str) -> None:
    def checked(value: bytes) -> Callable[[], Any]:
        rows = spark.createDataFrame([(bytearray(value),)], "v BINARY").selectExpr(TEXTS[place], "7L AS offset")
        assert text.check_text(rows, "orders", is_valid).dtypes == rows.dtypes
        return text.check_text(rows, "orders", is_valid).collect

    checked("ä".encode())()
    with pytest.raises(Exception) as caught:
        checked(b"\xff\xfe")()
    told = text.explain_text_error(caught.value)
    assert isinstance(told, InvalidPipeline) and told.code == "text-not-utf8"
    assert "sink 'orders'" in told.what and "Column 't'" in told.why and "offset 7" in told.why


def test_rows_without_text_and_nulls_stay_as_they_are(spark: Any, is_valid: text.IsValid) -> None:
    rows = spark.range(3).selectExpr("id", "CAST(NULL AS STRING) AS t", "CAST(NULL AS ARRAY<STRING>) AS l")
    assert text.check_text(rows, "orders", is_valid).collect() == rows.collect()
    plain = spark.range(3)
    assert text.check_text(plain, "orders", is_valid).collect() == plain.collect()


def test_both_checks_agree_with_python(spark: Any) -> None:
    chosen = random.Random(7)
    values = [b"".join(chosen.choices(WHOLE + BYTES, k=chosen.randint(0, 6))) for _ in range(20_000)]
    rows = spark.createDataFrame([(bytearray(value),) for value in values], "v BINARY")
    column = rows.v.cast("string")
    found = rows.select("v", text.find_check(spark)(column), text.is_valid(column)).collect()
    assert len(found) == len(values) and any(_is_text(value) for value in values)
    for value, by_jar, by_spark in found:
        assert by_jar is by_spark is _is_text(bytes(value)), value


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
