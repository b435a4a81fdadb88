"""What counts as an Avro schema file."""

from __future__ import annotations

import json

import pytest

from onceonly.kafka import avro

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
    flaw = avro.flaw(json.dumps(schema))
    assert flaw is not None
    assert "has no list of 'fields'" in str(flaw)


@pytest.mark.parametrize(
    "schema",
    [
        "long",
        {"type": "record", "name": "empty", "fields": []},
        {"type": "record", "name": "list", "fields": [{"name": "next", "type": ["null", "list"]}]},
        {"type": "map", "values": {"type": "array", "items": "string"}},
    ],
)
def test_these_are_schemas(schema):
    assert avro.flaw(json.dumps(schema)) is None
