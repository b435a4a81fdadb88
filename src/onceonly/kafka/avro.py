"""Avro schema files of sources and sinks."""

from __future__ import annotations

from onceonly.kafka.registry import avro_schema


def flaw(text: str) -> Exception | None:
    """Return why `text` is not an Avro schema that Spark can use; None if it is one."""
    try:
        avro_schema.parse_file(text)
    except avro_schema.Unusable as error:
        return error
    return None
