"""Avro schemas of a registry as one text: the types that a schema takes from others are put in where they are used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onceonly.registry.avro_schema import full_name
from onceonly.registry.client import Schema

NAMED = ("record", "error", "enum", "fixed")


def whole(schema: Schema) -> str:
    """The schema without references."""
    return json.dumps(_whole(schema)) if schema.references else schema.text


def _whole(schema: Schema) -> Any:
    """Each named type is defined once, at its first use, as Avro demands."""
    return _Inlining(_definitions(schema)).walk(_parsed(schema.text), "")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # `string`, as some registries show a schema of one word


def _definitions(schema: Schema) -> dict[str, Any]:
    """Full name -> definition, of everything that it refers to, however far."""
    found: dict[str, Any] = {}
    for _, other in schema.references:
        found |= _definitions(other)
        definition = _parsed(other.text)
        if isinstance(definition, dict) and "name" in definition:
            name, space = full_name(definition, "")
            found[name] = {**definition, "namespace": space}
    return found


class _Inlining:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions, self._defined = definitions, set[str]()

    def walk(self, node: Any, space: str) -> Any:
        if isinstance(node, str):
            return self._name(node, space)
        if isinstance(node, list):
            return [self.walk(each, space) for each in node]
        if node.get("type") in NAMED:
            name, space = full_name(node, space)
            self._defined.add(name)
        made = {key: self.walk(node[key], space) for key in ("type", "items", "values") if key in node}
        if "fields" in node:
            made["fields"] = [{**field, "type": self.walk(field["type"], space)} for field in node["fields"]]
        return {**node, **made}

    def _name(self, name: str, space: str) -> Any:
        full = name if "." in name or not space else f"{space}.{name}"
        if full not in self._definitions or full in self._defined:
            return name
        return self.walk(self._definitions[full], "")
