"""JSON Schemas of a registry: as Spark's types, and as checks of values.

A schema that allows several types in one place has no type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any
from urllib.parse import urljoin

from onceonly.registry import json_rules
from onceonly.registry.client import Schema

PLAIN = {"string": "string", "integer": "long", "number": "double", "boolean": "boolean"}
NOTHING = "[false, {}]"  # rules that no value follows
LONGEST = 200  # characters of a rule in a message
CONNECT = {"int8": "byte", "int16": "short", "int32": "integer", "int64": "long", "float32": "float"}


class NoType(Exception):
    """Where in the schema, and why it has no type in Spark."""


def spark_type(schema: Schema) -> Any:
    """The type of its values, in the JSON form of Spark's types.

    Raises:
        NoType: it has none.
    """
    return _Reading(_document(schema), _documents(schema)).type(_document(schema), "#", ())


def rules(schema: Schema) -> str:
    """The schema with all that it refers to, as one text for `checker`.

    Raises:
        NoType: it is no JSON Schema.
    """
    from jsonschema.exceptions import SchemaError

    document = _document(schema)
    try:
        _kind_of(document).check_schema(document)
    except SchemaError as error:
        raise NoType(f"{error.json_path} is not valid: {error.message}") from None
    return json.dumps([document, _documents(schema)])


@lru_cache(64)
def checker(rules: str) -> Callable[[bytes], bool]:
    """Whether a value follows these rules. Like Confluent's clients, it takes `format` for a comment."""
    follows = _rule(rules)
    return lambda value: _is_valid(follows, value)


def _rule(rules: str) -> Callable[[Any], bool]:
    """Of parsed values."""
    document, others = json.loads(rules)
    validator = _validator(rules)
    try:
        return json_rules.compiled(document, others, validator.VALIDATORS)
    except json_rules.NotHere:
        return lambda value: bool(validator.is_valid(value))


def broken_rule(rules: str, value: bytes) -> str | None:
    """Which rule a value breaks, and where: names, and no values."""
    try:
        error = next(iter(_validator(rules).iter_errors(json.loads(value))), None)
    except (ValueError, RecursionError):
        return "It is not JSON, or nested too deeply."
    if error is None:
        return None
    return f"At {error.json_path} it breaks the rule {error.validator}: {json.dumps(error.validator_value)[:LONGEST]}."


def writer(rules: str) -> Callable[[str], bytes]:
    """A function of the text of a JSON value: the value as it is written.

    A null that the schema does not allow is left out: rows have a null for each field that is not there.

    Raises, that function:
        ValueError: the value breaks a rule; names the rule, and no values.
    """
    validator, follows = _validator(rules), _rule(rules)

    def write(text: str) -> bytes:
        value = json.loads(text)
        if follows(value):
            return text.encode()
        nulls = {tuple(error.absolute_path) for error in validator.iter_errors(value) if error.instance is None}
        exact = json.loads(text, parse_float=Decimal)
        for path in nulls:
            _leave_out(value, path)
            _leave_out(exact, path)
        if not follows(value):
            raise ValueError(broken_rule(rules, json.dumps(value).encode()))
        return _text(exact).encode()

    return write


def _leave_out(value: Any, path: tuple[str | int, ...]) -> None:
    *parents, name = path or ("",)
    for part in parents:
        value = value[part]
    if isinstance(value, dict):
        value.pop(name, None)


def _text(value: Any) -> str:
    """As JSON, with every digit of a number."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def _is_valid(follows: Callable[[Any], bool], value: bytes) -> bool:
    try:
        return follows(json.loads(value))
    except (ValueError, RecursionError):  # also of values that are nested too deep to be read
        return False


def _validator(rules: str) -> Any:
    """It finds what the schema refers to under its name, and fetches nothing."""
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    document, others = json.loads(rules)
    base = document.get("$id", "") if isinstance(document, dict) else ""
    found = Registry().with_resources(
        (uri, Resource.from_contents(other, default_specification=DRAFT7))
        for name, other in others.items()
        for uri in {name, urljoin(base, name)}
    )
    return _kind_of(document)(document, registry=found)


def _kind_of(document: Any) -> Any:
    from jsonschema import Draft7Validator
    from jsonschema.validators import validator_for

    return validator_for(document, default=Draft7Validator)


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
            raise NoType(f"{at} refers to {reference}, which does not exist")
        return inside.type(node, at, (*within, reference))
