"""JSON Schemas compiled to functions, for the words that most of them use; `jsonschema` takes five times as long.

What is not here leaves the whole schema to `jsonschema`, which is also what the tests compare with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any

Rule = Callable[[Any], bool]
DIALECTS = ("http://json-schema.org/draft-07/schema", "https://json-schema.org/draft/2020-12/schema")
NEWER = DIALECTS[1]
BASES = ("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema")  # which change what a $ref means
SILENT = ("$ref", "format", "definitions", "$defs", "additionalProperties")  # seen to elsewhere, or only a comment
TYPES: Mapping[str, Rule] = {
    "null": lambda value: value is None,
    "boolean": lambda value: value is True or value is False,
    "string": lambda value: isinstance(value, str),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "number": lambda value: _is_number(value),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
}


class NotHere(Exception):
    """A word of the schema is not known here."""


def compiled(document: Any, others: Mapping[str, Any], words: Mapping[str, Any]) -> Rule:
    """Whether a value follows the document.

    Args:
        others: documents that it refers to, by name.
        words: all that its dialect gives a meaning to.
    Raises:
        NotHere: it has to be left to `jsonschema`.
    """
    if not isinstance(document, dict) or document.get("$schema", DIALECTS[0]).rstrip("#") not in DIALECTS:
        raise NotHere
    if any(isinstance(each, dict) and set(BASES) & set(each) for each in others.values()):
        raise NotHere
    newer = document.get("$schema", "").rstrip("#") == NEWER
    root = {key: value for key, value in document.items() if key not in ("$id", "$schema")}
    return _Compiling(root, {"": root, **others}, frozenset(words), newer).rule(root)


@dataclass(frozen=True)
class _Compiling:
    root: Any
    documents: Mapping[str, Any]
    words: frozenset[str]
    newer: bool
    known: dict[tuple[str, str], list[Rule]] = field(default_factory=dict)  # a list is empty until its rule is made
    name: str = ""

    def rule(self, node: Any) -> Rule:
        if isinstance(node, bool):
            return lambda _: node
        if not isinstance(node, dict) or set(BASES) & set(node):
            raise NotHere
        if "$ref" in node:
            if self.newer and (set(node) & self.words) - {"$ref"}:
                raise NotHere  # older dialects ignore what is beside it
            return self._referred(node["$ref"])
        if set(node) & self.words - set(MAKE) - set(SILENT):
            raise NotHere
        rules = [MAKE[word](self, node[word], node) for word in MAKE if word in node]
        if "additionalProperties" in node:
            rules.append(self._others(node))
        return rules[0] if len(rules) == 1 else lambda value: all(rule(value) for rule in rules)

    def _referred(self, reference: str) -> Rule:
        """Made once, and looked up when it is used: it may be part of itself."""
        name, _, path = reference.partition("#")
        key = (name or self.name, path)
        if key not in self.known:
            made = self.known[key] = []
            inside = self._inside(name) if name else self
            made.append(inside.rule(inside._at(path)))
        found = self.known[key]
        return lambda value: found[0](value)

    def _inside(self, name: str) -> _Compiling:
        if name not in self.documents:
            raise NotHere
        return _Compiling(self.documents[name], self.documents, self.words, self.newer, self.known, name)

    def _at(self, path: str) -> Any:
        node = self.root
        if (path and not path.startswith("/")) or "%" in path:
            raise NotHere
        for part in path.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or part not in node:
                raise NotHere
            node = node[part]
        return node

    def _others(self, node: Mapping[str, Any]) -> Rule:
        """Of properties that are not named."""
        if "patternProperties" in node:
            raise NotHere
        named, rule = frozenset(node.get("properties", ())), self.rule(node["additionalProperties"])
        return lambda value: (
            not isinstance(value, dict) or all(rule(each) for key, each in value.items() if key not in named)
        )


def _type(compiling: _Compiling, kinds: Any, node: Any) -> Rule:
    rules = [TYPES[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    return rules[0] if len(rules) == 1 else lambda value: any(rule(value) for rule in rules)


def _one_of_texts(compiling: _Compiling, values: list[Any], node: Any) -> Rule:
    """Texts and null only: what else is equal is not as plain."""
    if not all(value is None or isinstance(value, str) for value in values):
        raise NotHere
    allowed = frozenset(values)
    return lambda value: (value is None or isinstance(value, str)) and value in allowed


def _properties(compiling: _Compiling, properties: Mapping[str, Any], node: Any) -> Rule:
    rules = {name: compiling.rule(each) for name, each in properties.items()}
    return lambda value: (
        not isinstance(value, dict) or all(rule(value[name]) for name, rule in rules.items() if name in value)
    )


def _required(compiling: _Compiling, names: list[str], node: Any) -> Rule:
    return lambda value: not isinstance(value, dict) or all(name in value for name in names)


def _items(compiling: _Compiling, items: Any, node: Any) -> Rule:
    rule = compiling.rule(items)
    return lambda value: not isinstance(value, list) or all(rule(each) for each in value)


def _pattern(compiling: _Compiling, pattern: str, node: Any) -> Rule:
    search = re.compile(pattern).search
    return lambda value: not isinstance(value, str) or search(value) is not None


def _all(compiling: _Compiling, nodes: list[Any], node: Any) -> Rule:
    rules = [compiling.rule(each) for each in nodes]
    return lambda value: all(rule(value) for rule in rules)


def _any(compiling: _Compiling, nodes: list[Any], node: Any) -> Rule:
    rules = [compiling.rule(each) for each in nodes]
    return lambda value: any(rule(value) for rule in rules)


def _one(compiling: _Compiling, nodes: list[Any], node: Any) -> Rule:
    rules = [compiling.rule(each) for each in nodes]
    return lambda value: sum(rule(value) for rule in rules) == 1


def _not(compiling: _Compiling, other: Any, node: Any) -> Rule:
    rule = compiling.rule(other)
    return lambda value: not rule(value)


def _number(outside: Callable[[Any, Any], bool]) -> Make:
    return lambda _, limit, __: lambda value: not _is_number(value) or not outside(value, limit)


def _size(kind: type[Sized], outside: Callable[[int, Any], bool]) -> Make:
    return lambda _, limit, __: lambda value: not isinstance(value, kind) or not outside(len(value), limit)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


Make = Callable[[_Compiling, Any, Any], Rule]
MAKE: Mapping[str, Make] = {
    "type": _type,
    "enum": _one_of_texts,
    "const": lambda compiling, value, node: _one_of_texts(compiling, [value], node),
    "required": _required,
    "properties": _properties,
    "items": _items,
    "pattern": _pattern,
    "allOf": _all,
    "anyOf": _any,
    "oneOf": _one,
    "not": _not,
    "minimum": _number(lambda value, limit: value < limit),
    "maximum": _number(lambda value, limit: value > limit),
    "exclusiveMinimum": _number(lambda value, limit: value <= limit),
    "exclusiveMaximum": _number(lambda value, limit: value >= limit),
    "minLength": _size(str, lambda size, limit: size < limit),
    "maxLength": _size(str, lambda size, limit: size > limit),
    "minItems": _size(list, lambda size, limit: size < limit),
    "maxItems": _size(list, lambda size, limit: size > limit),
    "minProperties": _size(dict, lambda size, limit: size < limit),
    "maxProperties": _size(dict, lambda size, limit: size > limit),
}
