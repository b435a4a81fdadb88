"""Avro schemas of a registry as one text: the types that a schema takes from others are put in where they are used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onceonly.kafka.registry.avro_schema import full_name
from onceonly.kafka.registry.client import Schema

NAMED = ("record", "error", "enum", "fixed")


def whole(schema: Schema) -> str:
    """Return the text of the schema without references.

    Each named type is defined once, at its first use, as Avro demands.
    """
    if not schema.references:
        return schema.text
    return json.dumps(_Inlining(_definitions(schema)).inline(_parse(schema.text), ""))


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # `string`, as some registries show a schema of one word


def _definitions(schema: Schema) -> dict[str, Any]:
    """Return by full name the definitions of everything that the schema refers to, however far."""
    definitions: dict[str, Any] = {}
    for _, referenced in schema.references:
        definitions |= _definitions(referenced)
        definition = _parse(referenced.text)
        if isinstance(definition, dict) and "name" in definition:
            name, space = full_name(definition, "")
            definitions[name] = {**definition, "namespace": space}
    return definitions


class _Inlining:
    """Puts definitions into a schema, each at the first use of its name."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions, self._defined = definitions, set[str]()

    def inline(self, node: Any, space: str) -> Any:
        """Return the type with the definitions that it uses; `space` is the namespace around it."""
        if isinstance(node, str):
            return self._inline_name(node, space)
        if isinstance(node, list):
            return [self.inline(branch, space) for branch in node]
        if node.get("type") in NAMED:
            name, space = full_name(node, space)
            self._defined.add(name)
        inlined = dict(node)
        for key in ("type", "items", "values"):
            if key in node:
                inlined[key] = self.inline(node[key], space)
        if "fields" in node:
            inlined["fields"] = [{**field, "type": self.inline(field["type"], space)} for field in node["fields"]]
        return inlined

    def _inline_name(self, name: str, space: str) -> Any:
        full = name if "." in name or not space else f"{space}.{name}"
        if full not in self._definitions or full in self._defined:
            return name
        return self.inline(self._definitions[full], "")
