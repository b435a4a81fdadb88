"""What counts as an Avro schema file."""

from __future__ import annotations

import json

import pytest

from onceonly.kafka.registry import avro_schema

INNER = {"type": "record", "name": "inner"}


@pytest.mark.parametrize(
    "schema",
    [
        INNER,
        {"type": "record", "name": "outer", "fields": {"n": "int"}},
        {"type": "record", "name": "outer", "fields": [{"name": "n", "type": INNER}]},
        {"type": "record", "name": "outer", "fields": [{"name": "n", "type": ["null", INNER]}]},
        {"type": "array", "items": INNER},
        {"type": "map", "values": INNER},
        {"type": INNER},
    ],
)
def test_a_record_without_fields_is_refused_at_any_depth(schema):
    flaw = avro_schema.find_flaw(json.dumps(schema))
    assert flaw is not None
    assert "has no list of 'fields'" in str(flaw)


@pytest.mark.parametrize(
    "schema",
    [
        "long",
        {"type": "record", "name": "empty", "fields": []},
        {"type": "map", "values": {"type": "array", "items": "string"}},
    ],
)
def test_these_are_schemas(schema):
    assert avro_schema.find_flaw(json.dumps(schema)) is None


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (
            {"type": "record", "name": "list", "fields": [{"name": "next", "type": ["null", "list"]}]},
            "field 'next' contains",
        ),
        ({"type": "record", "name": "r", "fields": [{"name": "n", "type": "Other"}]}, "field 'n' has the type 'Other'"),
        (
            {"type": "record", "name": "r", "fields": [{"name": "n", "type": "int", "default": "1"}]},
            "field 'n' has a default",
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 60}, "a decimal of 60 digits"),
        ({"type": "fixed", "name": "f"}, "fixed without a size"),
        ({"type": "array"}, "array without 'items'"),
        ({"type": "enum", "name": "e"}, "no list of 'symbols'"),
        ({"type": "record", "name": "r", "fields": [{"type": "int"}]}, "a field without name or type"),
        (3, "is not a type"),
    ],
)
def test_these_are_not_schemas_that_can_be_used(schema, why):
    assert why in str(avro_schema.find_flaw(json.dumps(schema)))
