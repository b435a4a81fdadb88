"""Avro schema files of sources and sinks."""

from __future__ import annotations

import json


def flaw(text: str) -> Exception | None:
    """Why `text` is not an Avro schema; None if it is one."""
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        parse_schema(json.loads(text))
    except (ValueError, KeyError, SchemaParseException, UnknownType) as error:
        return error
    return None
