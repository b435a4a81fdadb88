"""Values that break the rules of their JSON Schema are told from those that follow them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from onceonly.json_values.text import parser
from onceonly.kafka.registry.client import Schema
from onceonly.kafka.registry.json_schema import NoType, checker, rules, writer

ORDER = {
    "$id": "https://shop.example/order.json",
    "type": "object",
    "required": ["id"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "customer": {"type": "string", "pattern": "^c[0-9]+$"},
        "state": {"enum": ["new", "paid"]},
        "note": {"oneOf": [{"type": "null"}, {"type": "string", "maxLength": 5}]},
        "price": {"$ref": "money.json#/$defs/money"},
        "day": {"type": "string", "format": "date"},
    },
}
MONEY = {"$defs": {"money": {"type": "object", "required": ["cents"], "properties": {"cents": {"type": "integer"}}}}}


def schema(text: Any, *references: tuple[str, Schema]) -> Schema:
    return Schema(1, "JSON", json.dumps(text), references)


def broken(text: str, value: str) -> str | None:
    return checker(text)(parser()(value.encode()))


def of_orders() -> str:
    return rules(schema(ORDER, ("money.json", schema(MONEY))))


@pytest.mark.parametrize(
    "value",
    [
        {"id": 1},
        {"id": 2.0, "customer": "c7", "state": "paid", "note": None, "price": {"cents": 5}},
        {"id": 1, "day": "no day: a format is a comment"},
    ],
)
def test_values_that_follow(value: Any) -> None:
    assert broken(of_orders(), json.dumps(value)) is None


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ({}, r"At \$ it breaks the rule required: \["),
        ({"id": 0}, r"At \$.id it breaks the rule minimum: 1"),
        ({"id": "1"}, "rule type"),
        ({"id": 1, "customer": "secret"}, r"At \$.customer it breaks the rule pattern"),
        ({"id": 1, "state": "secret"}, "rule enum"),
        ({"id": 1, "note": "secret note"}, "rule oneOf"),
        ({"id": 1, "price": {}}, r"At \$.price it breaks the rule required"),
        ({"id": 1, "more": 1}, "rule additionalProperties"),
        ([], "rule type"),
    ],
)
def test_values_that_break_a_rule(value: Any, rule: str) -> None:
    told = broken(of_orders(), json.dumps(value)) or ""
    assert re.search(rule, told)
    assert "secret" not in told


def test_what_is_no_schema() -> None:
    with pytest.raises(NoType, match=r"\$.type cannot be used"):
        rules(schema({"type": "objekt"}))


def test_the_dialect_that_a_schema_names() -> None:
    """`prefixItems` is a word of 2020-12, and none of draft 7."""
    words = {"prefixItems": [{"type": "integer"}]}
    newer = {**words, "$schema": "https://json-schema.org/draft/2020-12/schema"}
    assert broken(rules(schema(words)), '["a"]') is None
    assert "rule type" in str(broken(rules(schema(newer)), '["a"]'))


NOTE = {
    "type": "object",
    "required": ["id", "note"],
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["null", "string"]},
        "price": {"type": "number"},
        "line": {"type": "object", "properties": {"sku": {"type": "string"}}},
    },
}


def test_a_null_that_is_not_allowed_is_left_out_when_written() -> None:
    write = writer(rules(schema(NOTE)))
    whole = '{"id":1,"note":null,"price":1.10,"line":{"sku":"a"}}'
    assert write(whole) == whole.encode()
    assert write('{"id":1,"note":null,"price":null,"line":{"sku":null}}') == b'{"id":1,"note":null,"line":{}}'
    many = '{"id":1,"note":null,"price":12345678901234567890.12345678901234567890,"line":null}'
    assert write(many) == b'{"id":1,"note":null,"price":12345678901234567890.12345678901234567890}'


def test_what_breaks_a_rule_is_not_written() -> None:
    for text in ('{"id":null,"note":null}', '{"id":1}', '{"id":1,"note":7}', "null", "[null]"):
        with pytest.raises(ValueError, match="breaks the rule"):
            writer(rules(schema(NOTE)))(text)
