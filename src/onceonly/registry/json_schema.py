"""JSON Schemas of a registry as Spark's types. A schema that allows several types in one place has none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.registry.client import Schema

PLAIN = {"string": "string", "integer": "long", "number": "double", "boolean": "boolean"}
CONNECT = {"int8": "byte", "int16": "short", "int32": "integer", "int64": "long", "float32": "float"}


class NoType(Exception):
    """Where in the schema, and why it has no type in Spark."""


def spark_type(schema: Schema) -> Any:
    """The type of its values, in the JSON form of Spark's types.

    Raises:
        NoType: it has none.
    """
    return _Reading(_document(schema), _documents(schema)).type(_document(schema), "#", ())


def _document(schema: Schema) -> Any:
    return json.loads(schema.text)


def _documents(schema: Schema) -> dict[str, Any]:
    """By name: everything that it refers to, however far."""
    found: dict[str, Any] = {}
    for name, other in schema.references:
        found |= {**_documents(other), name: _document(other)}
    return found


@dataclass(frozen=True)
class _Reading:
    root: Any
    others: Mapping[str, Any]

    def type(self, node: Any, at: str, within: tuple[str, ...]) -> Any:
        if not isinstance(node, dict):
            raise NoType(f"{at} allows any value")
        if "$ref" in node:
            return self._referred(node["$ref"], at, within)
        for word in ("oneOf", "anyOf", "allOf"):
            if word in node:
                return self._only([each for each in node[word] if each != {"type": "null"}], f"{at}/{word}", within)
        match self._kind(node, at):
            case "object":
                return self._object(node, at, within)
            case "array":
                items = self.type(node.get("items"), f"{at}/items", within)
                return {"type": "array", "elementType": items, "containsNull": True}
            case kind:
                return CONNECT.get(node.get("connect.type", ""), PLAIN[kind])

    def _kind(self, node: Mapping[str, Any], at: str) -> str:
        kinds = node.get("type") or self._implied(node)
        found = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
        if len(found) != 1 or found[0] not in (*PLAIN, "object", "array"):
            raise NoType(f"{at} has {'several types' if found else 'no type'}")
        return str(found[0])

    def _implied(self, node: Mapping[str, Any]) -> list[str]:
        values = node.get("enum", [node["const"]] if "const" in node else [])
        if values and all(isinstance(value, str) or value is None for value in values):
            return ["string"]
        return ["object"] if "properties" in node else []

    def _object(self, node: Mapping[str, Any], at: str, within: tuple[str, ...]) -> Any:
        if "properties" in node:
            made = {name: self.type(each, f"{at}/{name}", within) for name, each in node["properties"].items()}
            fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in made.items()]
            return {"type": "struct", "fields": fields}
        values = self.type(node.get("additionalProperties"), f"{at}/additionalProperties", within)
        return {"type": "map", "keyType": "string", "valueType": values, "valueContainsNull": True}

    def _only(self, nodes: list[Any], at: str, within: tuple[str, ...]) -> Any:
        if len(nodes) != 1:
            raise NoType(f"{at} has several types")
        return self.type(nodes[0], at, within)

    def _referred(self, reference: str, at: str, within: tuple[str, ...]) -> Any:
        if reference in within:
            raise NoType(f"{at} contains itself ({reference})")
        name, _, path = reference.partition("#")
        inside = self if not name else _Reading(self.others.get(name), self.others)
        node = inside.root
        for part in filter(None, path.split("/")):
            node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
        if node is None:
            raise NoType(f"{at} refers to {reference}, which is not there")
        return inside.type(node, at, (*within, reference))
