"""The columns of JSON values, from a sample of them."""

import json
from typing import Any

import pytest

from onceonly.sources.json_inference import infer_columns, list_case_clashes


def of(*values: Any) -> str:
    return infer_columns(json.dumps(value).encode() for value in values).ddl


@pytest.mark.parametrize(
    ("values", "ddl"),
    [
        ([{"a": 1, "b": "x", "c": True, "d": 1.5}], "a BIGINT, b STRING, c BOOLEAN, d DOUBLE"),
        ([{"a": 1}, {"a": 1.5}, {"b": None}], "a DOUBLE, b STRING"),
        ([{"a": None}, {"a": 2**63}, {"a": 1}], "a DECIMAL(38,0)"),
        ([{"a": 10**38}], "a STRING"),
        ([{"a": {"b": 1}}, {"a": {"c": [1, None, 2.5]}}], "a STRUCT<b: BIGINT, c: ARRAY<DOUBLE>>"),
        ([{"a": []}, {"a": [{"b": "x"}]}], "a ARRAY<STRUCT<b: STRING>>"),
        ([{"a": []}, {"b": {}}], "a ARRAY<STRING>, b STRING"),
        ([{"odd name": 1, "a`b": 2}], "`odd name` BIGINT, `a``b` BIGINT"),
    ],
)
def test_types_that_take_every_value(values: list[Any], ddl: str) -> None:
    assert of(*values) == ddl


def test_what_leaves_a_choice_is_told() -> None:
    found = infer_columns(
        [b'{"a": 1, "b": null}', b'{"a": "x", "b": null}', b'{"a": [1]}', None, b"no", b"[1]", b'{"c": NaN}']
    )
    assert found.ddl == "a STRING, b STRING"
    assert (found.values, found.broken) == (6, 3)
    assert found.notes == [
        "value.a: values of different types, taken for STRING",
        "value.b: only nulls were seen, taken for STRING",
        "2 values of 6 would be a bad record. The first: value.a is 1, which is not a STRING (a text of valid "
        "characters).",
    ]


def test_names_that_are_one_for_spark() -> None:
    assert list_case_clashes(infer_columns([b'{"id": 1, "Id": 2, "x": {"a": 1, "A": 1}}']).fields) == [
        "value.id",
        "value.Id",
        "value.x.a",
        "value.x.A",
    ]
