"""Schema registries, and how their clients begin what they write: a zero byte, and the id of the schema in four.

Source: Confluent's wire format.
"""

from __future__ import annotations

MAGIC = b"\0"
HEAD = 5  # bytes
UNFRAMED = "It does not begin with a zero byte and the id of a schema, as clients of a schema registry write."
UNKNOWN = "The registry has no schema of that format with its id %s."
SCHEMA_TYPES = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}  # formats, as registries call them


def make_head(id: int) -> bytes:
    """Return how values begin that are written by the schema with that id."""
    return MAGIC + id.to_bytes(HEAD - 1, "big")


def read_id(value: bytes) -> int | None:
    """Return the id that the value begins with; None: it begins with something else."""
    if value[:1] != MAGIC or len(value) < HEAD:
        return None
    return int.from_bytes(value[1:HEAD], "big")
