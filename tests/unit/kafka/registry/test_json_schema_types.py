"""JSON Schemas as types of Spark."""

import json
from typing import Any

import pytest

from onceonly.kafka.registry.client import Schema
from onceonly.kafka.registry.json_schema import NoType, spark_type


def schema(text: Any, *references: tuple[str, Schema]) -> Schema:
    return Schema(1, "JSON", json.dumps(text), references)


def of(**properties: Any) -> dict[str, Any]:
    """The fields of an object with these properties, by name."""
    found = spark_type(schema({"type": "object", "properties": properties}))
    return {field["name"]: field["type"] for field in found["fields"]}


def test_plain_types_and_those_that_may_be_null() -> None:
    assert of(
        a={"type": "integer"},
        b={"type": "number"},
        c={"type": ["null", "string"]},
        d={"oneOf": [{"type": "null"}, {"type": "boolean"}]},
        e={"enum": ["x", "y"]},
        f={"type": "integer", "connect.type": "int16"},
    ) == {"a": "long", "b": "double", "c": "string", "d": "boolean", "e": "string", "f": "short"}


def test_nested_types() -> None:
    made = of(
        lines={"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        tags={"type": "object", "additionalProperties": {"type": "integer"}},
    )
    field = {"name": "sku", "type": "string", "nullable": True, "metadata": {}}
    assert made["lines"]["elementType"] == {"type": "struct", "fields": [field]}
    assert (made["tags"]["keyType"], made["tags"]["valueType"]) == ("string", "long")


def test_references_within_it_and_to_others() -> None:
    money = schema({"$defs": {"m": {"type": "object", "properties": {"cents": {"type": "integer"}}}}})
    both = {
        "type": "object",
        "properties": {"net": {"$ref": "money.json#/$defs/m"}, "id": {"$ref": "#/definitions/id"}},
        "definitions": {"id": {"type": "string"}},
    }
    net, id = spark_type(schema(both, ("money.json", money)))["fields"]
    assert (net["type"]["fields"][0]["name"], id["type"]) == ("cents", "string")


@pytest.mark.parametrize(
    ("property", "why"),
    [
        ({"type": ["integer", "string"]}, "#/a has several types"),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "#/a/oneOf has several types"),
        ({}, "#/a has no type"),
        (True, "#/a allows any value"),
        ({"type": "array"}, "#/a/items allows any value"),
        ({"$ref": "#/nowhere"}, "refers to #/nowhere, which does not exist"),
        ({"$ref": "#"}, "contains itself"),
    ],
)
def test_what_has_no_single_type_is_refused_where_it_is(property: Any, why: str) -> None:
    with pytest.raises(NoType, match=why):
        of(a=property)
