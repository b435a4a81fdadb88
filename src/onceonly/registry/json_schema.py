"""JSON Schemas of a registry: as Spark's types, and as checks of values.

A schema that allows several types in one place has no type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import urljoin

from onceonly.json_values.text import NotJson, parser
from onceonly.registry.client import Schema

PLAIN = {"string": "string", "integer": "long", "number": "double", "boolean": "boolean"}
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
        NoType: it is no JSON Schema, or its rules cannot be checked.
    """
    from jsonschema_rs import ReferencingError, ValidationError

    text = json.dumps([schema.text, _texts(schema)])
    try:
        _validator(text)
    except ValidationError as error:
        raise NoType(f"{_place(error.instance_path)} cannot be used: {_first_line(error)}") from None
    except (ReferencingError, ValueError) as error:
        raise NoType(_first_line(error)) from None
    return text


def checker(rules: str) -> Callable[[Any], str | None]:
    """A function of parsed values, which says which rule one breaks, and where: names, and no values.

    Like Confluent's clients, it takes `format` for a comment.

    Raises, that function:
        NotJson: a text of the value has half of a surrogate pair.
    """
    validator, document = _validator(rules), _parsed(json.loads(rules)[0])

    def check(value: Any) -> str | None:
        if _follows(validator, value):
            return None
        error = next(iter(validator.iter_errors(value)))
        return f"At {_place(error.instance_path)} it breaks the rule {_rule(document, error)}."

    return check


def writer(rules: str) -> Callable[[str], bytes]:
    """A function of the text of a JSON value: the value as it is written.

    A null that the schema does not allow is left out: rows have a null for each field that is not there.

    Raises, that function:
        ValueError: the value breaks a rule; names the rule, and no values.
    """
    validator, check, parse = _validator(rules), checker(rules), parser()

    def write(text: str) -> bytes:
        value = parse(text.encode())
        if _follows(validator, value):
            return text.encode()
        nulls = {tuple(error.instance_path) for error in validator.iter_errors(value) if error.instance is None}
        for path in nulls:
            _leave_out(value, path)
        if broken := check(value):
            raise ValueError(broken)
        return _text(value).encode()

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


def _follows(validator: Any, value: Any) -> bool:
    try:
        return bool(validator.is_valid(value))
    except UnicodeEncodeError:
        raise NotJson("It has a text with half of a surrogate pair, which is no character.") from None


def _validator(rules: str) -> Any:
    """It finds what the schema refers to under its name, and fetches nothing."""
    import jsonschema_rs as engine

    text, texts = json.loads(rules)
    document = _parsed(text)
    dialect = document.get("$schema") if isinstance(document, dict) else None
    base = document.get("$id", "") if isinstance(document, dict) else ""
    others = [(uri, _parsed(other)) for name, other in texts.items() for uri in {name, urljoin(base, name)}]
    known = engine.Registry(others, draft=engine.Draft7) if others else None
    make = engine.validator_for if dialect else engine.Draft7Validator
    return make(document, registry=known, validate_formats=False, offline=True)


def _rule(document: Any, error: Any) -> str:
    """Its name, and what it asks for, if that stands in the document itself."""
    name = str(error.schema_path[-1]) if error.schema_path else str(error.kind.name)
    node = document
    for part in error.schema_path:
        try:
            node = node[part]
        except (LookupError, TypeError):
            return name
    return f"{name}: {_text(node)[:LONGEST]}"


def _place(path: list[str | int]) -> str:
    """In the notation of JSONPath."""
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _document(schema: Schema) -> Any:
    return _parsed(schema.text)


def _parsed(text: str) -> Any:
    """With every digit of its numbers.

    Raises:
        NoType: it is not JSON.
    """
    try:
        return json.loads(text, parse_float=Decimal)
    except ValueError as error:
        raise NoType(f"it is not JSON ({error})") from None


def _documents(schema: Schema) -> dict[str, Any]:
    """By name: everything that it refers to, however far."""
    return {name: _parsed(text) for name, text in _texts(schema).items()}


def _texts(schema: Schema) -> dict[str, str]:
    """As `_documents`, as the registry holds them."""
    texts: dict[str, str] = {}
    for name, other in schema.references:
        texts |= {**_texts(other), name: other.text}
    return texts


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
