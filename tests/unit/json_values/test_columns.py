"""The columns of a `.ddl` file, as Spark's parser reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceonly.json_values.columns import ALIASES, BadColumns, parse_columns

FIELD = {"nullable": True, "metadata": {}}


def types(ddl: str) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in parse_columns(ddl)["fields"]}


def test_every_plain_type() -> None:
    ddl = ", ".join(f"c{number} {word}" for number, word in enumerate(ALIASES))
    assert list(types(ddl).values()) == list(ALIASES.values())
    assert types("a decimal, b dec(5), c numeric(38, 10)") == {
        "a": "decimal(10,0)",
        "b": "decimal(5,0)",
        "c": "decimal(38,10)",
    }


def test_types_within_types() -> None:
    struct = {"type": "struct", "fields": [{"name": "b", "type": "long", **FIELD}]}
    array = {"type": "array", "elementType": struct, "containsNull": True}
    map_ = {"type": "map", "keyType": "string", "valueType": array, "valueContainsNull": True}
    assert types("a MAP<STRING, ARRAY<STRUCT<b: BIGINT>>>") == {"a": map_}


def test_names_comments_and_constraints() -> None:
    ddl = """-- the orders
    struct<`odd ``name`: INT NOT NULL COMMENT 'it''s, "odd"', /* two
    lines */ value STRING>"""
    odd, value = parse_columns(ddl)["fields"]
    assert (odd["name"], odd["nullable"], odd["metadata"]) == ("odd `name", False, {"comment": "it''s, \"odd\""})
    assert (value["name"], value["nullable"]) == ("value", True)


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        ("", "missing at the end"),
        ("a", "missing at the end"),
        ("a INT b INT", "'b' is not expected"),
        ("a INT,", "missing at the end"),
        ("a VARIANT", "not read as VARIANT, only as"),
        ("a VARCHAR(3)", "not read as VARCHAR"),
        ("a INTERVAL", "not read as INTERVAL"),
        ("a MAP<INT, INT>", "keys of a MAP have to be STRING"),
        ("a ARRAY<INT", "'>' is missing at the end"),
        ("a ARRAY", "'<' is missing"),
        ("a DECIMAL(39)", r"DECIMAL\(39,0\) does not exist"),
        ("a DECIMAL(5,6)", r"DECIMAL\(5,6\) does not exist"),
        ("a INT, a INT", "'a' is there twice"),
        ("a-b INT", "'-b INT' is not understood"),
        (json.dumps({"type": "struct", "fields": []}), "is not understood"),
    ],
)
def test_unusable_columns_are_refused(ddl: str, why: str) -> None:
    with pytest.raises(BadColumns, match=why):
        parse_columns(ddl)
