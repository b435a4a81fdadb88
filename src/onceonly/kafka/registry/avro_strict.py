"""A schema by which the same bytes are read without a loss, so that what a usual reader makes of them can be checked.

A usual reader takes each byte but 1 for false, keeps the last of two equal keys of a map, and cuts numbers to 32 bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from onceonly.kafka.registry.avro_schema import Node

FRAME, VALUE, END = "OnceonlyStrict", "value", "end"
MEMBER = "v"  # the only field of the record around a branch of a union
KEY, ITEM = "key", "item"  # fields of the record that stands for an entry of a map


def schema_of(node: Node, end_size: int) -> str:
    """Return the schema of a record of two fields: the value, and `end_size` bytes that follow it."""
    numbers = count()
    end = {"type": "fixed", "name": "OnceonlyEnd", "size": end_size}
    fields = [{"name": VALUE, "type": _type(node, numbers)}, {"name": END, "type": end}]
    return json.dumps({"type": "record", "name": FRAME, "fields": fields})


def _type(node: Node, numbers: Iterator[int]) -> Any:
    """Return the strict type of a node; `numbers` make the names of its records and fixed types unique."""
    match node.kind:
        case "int" | "enum":
            return "long"
        case "boolean":
            return _fixed_type(1, numbers)
        case "fixed":
            return _fixed_type(node.size, numbers)
        case "array":
            return {"type": "array", "items": _type(node.item, numbers)}
        case "map":
            entry = _record([(KEY, "string"), (ITEM, _type(node.item, numbers))], numbers)
            return {"type": "array", "items": entry}
        case "record":
            return _record_of_parts(node, numbers)
        case "union":
            return _union(node, numbers)
        case plain:
            return plain


def _union(node: Node, numbers: Iterator[int]) -> Any:
    if not node.branches:
        return "long"  # of nulls alone: the number of the branch is all that is written
    branches: list[Any] = []
    for _, part in node.parts:
        if part.kind == "null":
            branches.append("null")
        elif len(node.branches) == 1:
            branches.append(_type(part, numbers))
        else:  # Avro allows no two branches of one type, and several may have become "long"
            branches.append(_record([(MEMBER, _type(part, numbers))], numbers))
    return branches


def _fixed_type(size: int, numbers: Iterator[int]) -> Any:
    return {"type": "fixed", "name": f"Fixed{next(numbers)}", "size": size}


def _record_of_parts(node: Node, numbers: Iterator[int]) -> Any:
    fields = []
    for index, (_, part) in enumerate(node.parts):
        fields.append((f"f{index}", _type(part, numbers)))
    return _record(fields, numbers)


def _record(fields: list[tuple[str, Any]], numbers: Iterator[int]) -> Any:
    field_schemas = []
    for name, kind in fields:
        field_schemas.append({"name": name, "type": kind})
    return {"type": "record", "name": f"Record{next(numbers)}", "fields": field_schemas}
