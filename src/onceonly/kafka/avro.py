"""Avro schema files of sources and sinks."""

from __future__ import annotations

import json
from typing import Any


def flaw(text: str) -> Exception | None:
    """Why `text` is not an Avro schema; None if it is one."""
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        schema = json.loads(text)
        _check_fields(schema)
        parse_schema(schema)
    except (ValueError, KeyError, TypeError, AttributeError, SchemaParseException, UnknownType) as error:
        return error
    return None


def _check_fields(schema: Any) -> None:
    """Raise ValueError for a record without `fields`, at any depth: fastavro takes it for one of no fields."""
    if isinstance(schema, list):
        for each in schema:
            _check_fields(each)
    if not isinstance(schema, dict):
        return
    if schema.get("type") in ("record", "error") and not isinstance(schema.get("fields"), list):
        raise ValueError(f"record '{schema.get('name')}' has no list of 'fields'")
    for part in (schema.get("type"), schema.get("items"), schema.get("values")):
        _check_fields(part)
    for field in schema.get("fields", ()):
        _check_fields(field.get("type"))
