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

from onceonly.json_values.reader import Read, ReadOne, reader
from onceonly.json_values.text import NotJson, parser
from onceonly.kafka.registry import HEAD, UNFRAMED, UNKNOWN, make_head, read_id
from onceonly.kafka.registry.client import Schema

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
SCALAR_TYPES = {"string": "string", "integer": "long", "number": "double", "boolean": "boolean"}
MAX_RULE_CHARACTERS = 200  # of a rule in a message
CONNECT = {"int8": "byte", "int16": "short", "int32": "integer", "int64": "long", "float32": "float"}


class NoType(Exception):
    """Where in the schema, and why it has no type in Spark."""


def spark_type(schema: Schema) -> Any:
    """Return the type of its values, in the JSON form of Spark's types.

    Raises:
        NoType: it has none.
    """
    document = _parse(schema.text)
    documents = {name: _parse(text) for name, text in _referenced_texts(schema).items()}
    return _TypeReader(document, documents).type(document, "#", ())


def rules(schema: Schema) -> str:
    """Return the schema with all that it refers to, as one text for `checker`.

    Raises:
        NoType: it is no JSON Schema, or its rules cannot be checked.
    """
    from jsonschema_rs import ReferencingError, ValidationError

    text = json.dumps([schema.text, _referenced_texts(schema)])
    try:
        _validator(text)
    except ValidationError as error:
        raise NoType(f"{_place(error.instance_path)} cannot be used: {_first_line(error)}") from None
    except (ReferencingError, ValueError) as error:
        raise NoType(_first_line(error)) from None
    return text


def checker(rules: str) -> Callable[[Any], str | None]:
    """Return a function of parsed values, which says which rule one breaks, and where: names, and no values.

    Like Confluent's clients, it takes `format` for a comment.

    Raises, that function:
        NotJson: a text of the value has half of a surrogate pair.
    """
    validator, document = _validator(rules), _parse(json.loads(rules)[0])

    def check(value: Any) -> str | None:
        if _is_valid(validator, value):
            return None
        error = next(iter(validator.iter_errors(value)))
        return f"At {_place(error.instance_path)} it breaks the rule {_rule(document, error)}."

    return check


_cached_checker = lru_cache(1_000)(checker)  # of the ids in one checkpoint


def framed_reader(type_: Any, part: str, rules: Mapping[int, str | None]) -> ReadOne:
    """Return a function that reads one record.

    Args:
        rules: by schema id: what its values have to follow, from `json_schema.rules`; None: the columns alone.
    """
    readers = {}
    for id, text in rules.items():
        check = _cached_checker(text) if text else None
        readers[make_head(id)] = reader(type_, part, check)

    def read(data: bytes | None) -> Read:
        if data is None:
            return None, None
        if read_payload := readers.get(data[:HEAD]):
            return read_payload(data[HEAD:])
        id = read_id(data)
        return None, UNFRAMED if id is None else UNKNOWN % id

    return read


def writer(rules: str) -> Callable[[str], bytes]:
    """Return a function of the text of a JSON value: the value as it is written.

    A null that the schema does not allow is left out: rows have a null for each field that is not there.

    Raises, that function:
        ValueError: the value breaks a rule; names the rule, and no values.
    """
    validator, check, parse = _validator(rules), checker(rules), parser()

    def write(text: str) -> bytes:
        value = parse(text.encode())
        if _is_valid(validator, value):
            return text.encode()
        paths_of_nulls = set()
        for error in validator.iter_errors(value):
            if error.instance is None:
                paths_of_nulls.add(tuple(error.instance_path))
        for path in paths_of_nulls:
            _remove_field(value, path)
        if broken_rule := check(value):
            raise ValueError(broken_rule)
        return _to_json(value).encode()

    return write


def _remove_field(value: Any, path: tuple[str | int, ...]) -> None:
    """Remove what is at that path within the value, if it is a field; items of arrays stay."""
    *parents, name = path or ("",)
    for part in parents:
        value = value[part]
    if isinstance(value, dict):
        value.pop(name, None)


def _to_json(value: Any) -> str:
    """Return the value as JSON, with every digit of a number."""
    if isinstance(value, dict):
        members = (f"{json.dumps(key)}:{_to_json(member)}" for key, member in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_to_json, value)) + "]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def _is_valid(validator: Any, value: Any) -> bool:
    """Return whether the value follows all rules. Raises NotJson, as `checker` says."""
    try:
        return bool(validator.is_valid(value))
    except UnicodeEncodeError:
        raise NotJson("It has a text with half of a surrogate pair, which is no character.") from None


def _validator(rules: str) -> Any:
    """Return a validator of values. It finds what the schema refers to under its name, and fetches nothing."""
    import jsonschema_rs as engine

    text, referenced_texts = json.loads(rules)
    document = _parse(text)
    dialect, base = None, ""
    if isinstance(document, dict):
        dialect, base = document.get("$schema"), document.get("$id", "")
    resources = []
    for name, referenced_text in referenced_texts.items():
        for uri in {name, urljoin(base, name)}:
            resources.append((uri, _with_draft(_parse(referenced_text))))
    registry = None
    if resources:
        registry = engine.Registry(resources)
    make_validator: Any = engine.Draft7Validator
    if dialect:
        make_validator = engine.validator_for
    return make_validator(document, registry=registry, validate_formats=False, offline=True)


def _with_draft(document: Any) -> Any:
    """Return a referenced schema with the draft that it follows: its own, or draft 7, as Confluent's clients read it.

    The engine's registry takes a draft for all of its schemas only, whatever they say themselves.
    """
    if not isinstance(document, dict) or "$schema" in document:
        return document
    return {"$schema": DRAFT_7, **document}


def _rule(document: Any, error: Any) -> str:
    """Return the name of the rule, and what it asks for, if that stands in the document itself."""
    name = str(error.kind.name)
    if error.schema_path:
        name = str(error.schema_path[-1])
    node = document
    for part in error.schema_path:
        try:
            node = node[part]
        except (LookupError, TypeError):
            return name
    return f"{name}: {_to_json(node)[:MAX_RULE_CHARACTERS]}"


def _place(path: list[str | int]) -> str:
    """Return a path in the notation of JSONPath."""
    text = "$"
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}"
    return text


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _parse(text: str) -> Any:
    """Return the value of a JSON text, with every digit of its numbers.

    Raises:
        NoType: it is not JSON.
    """
    try:
        return json.loads(text, parse_float=Decimal)
    except ValueError as error:
        raise NoType(f"it is not JSON ({error})") from None


def _referenced_texts(schema: Schema) -> dict[str, str]:
    """Return by name everything that the schema refers to, however far, as the registry holds it."""
    texts: dict[str, str] = {}
    for name, referenced in schema.references:
        texts |= {**_referenced_texts(referenced), name: referenced.text}
    return texts


@dataclass(frozen=True)
class _TypeReader:
    """Reads Spark's types from one document.

    In each method `at` is the place of the node in messages, and `within` the references that led to it.

    Args:
        root: the document.
        documents: by name: everything that it refers to.
    """

    root: Any
    documents: Mapping[str, Any]

    def type(self, node: Any, at: str, within: tuple[str, ...]) -> Any:
        """Return the type of the values that a node allows. Raises NoType."""
        if not isinstance(node, dict):
            raise NoType(f"{at} allows any value")
        if "$ref" in node:
            return self._type_of_reference(node["$ref"], at, within)
        for word in ("oneOf", "anyOf", "allOf"):
            if word in node:
                alternatives = [alternative for alternative in node[word] if alternative != {"type": "null"}]
                return self._type_of_only(alternatives, f"{at}/{word}", within)
        match self._kind(node, at):
            case "object":
                return self._type_of_object(node, at, within)
            case "array":
                items = self.type(node.get("items"), f"{at}/items", within)
                return {"type": "array", "elementType": items, "containsNull": True}
            case kind:
                return CONNECT.get(node.get("connect.type", ""), SCALAR_TYPES[kind])

    def _kind(self, node: Mapping[str, Any], at: str) -> str:
        """Return JSON Schema's word for the node's only type beside null. Raises NoType."""
        kinds = node.get("type") or self._implied_kinds(node)
        if isinstance(kinds, str):
            kinds = [kinds]
        kinds = [kind for kind in kinds if kind != "null"]
        if len(kinds) != 1 or kinds[0] not in (*SCALAR_TYPES, "object", "array"):
            problem = "several types" if kinds else "no type"
            raise NoType(f"{at} has {problem}")
        return str(kinds[0])

    def _implied_kinds(self, node: Mapping[str, Any]) -> list[str]:
        """Return the type of a node that does not say it: that of its values, or of a thing with properties."""
        values = []
        if "enum" in node:
            values = node["enum"]
        elif "const" in node:
            values = [node["const"]]
        if values and all(isinstance(value, str) or value is None for value in values):
            return ["string"]
        if "properties" in node:
            return ["object"]
        return []

    def _type_of_object(self, node: Mapping[str, Any], at: str, within: tuple[str, ...]) -> Any:
        """Return a struct where the node names properties, else a map of texts."""
        if "properties" in node:
            fields = []
            for name, property_node in node["properties"].items():
                type_ = self.type(property_node, f"{at}/{name}", within)
                fields.append({"name": name, "type": type_, "nullable": True, "metadata": {}})
            return {"type": "struct", "fields": fields}
        values = self.type(node.get("additionalProperties"), f"{at}/additionalProperties", within)
        return {"type": "map", "keyType": "string", "valueType": values, "valueContainsNull": True}

    def _type_of_only(self, nodes: list[Any], at: str, within: tuple[str, ...]) -> Any:
        if len(nodes) != 1:
            raise NoType(f"{at} has several types")
        return self.type(nodes[0], at, within)

    def _type_of_reference(self, reference: str, at: str, within: tuple[str, ...]) -> Any:
        """Return the type of what a reference names, as 'document#/path' or '#/path'. Raises NoType."""
        if reference in within:
            raise NoType(f"{at} contains itself ({reference})")
        name, _, path = reference.partition("#")
        reader = self
        if name:
            reader = _TypeReader(self.documents.get(name), self.documents)
        node = reader.root
        for part in filter(None, path.split("/")):
            key = part.replace("~1", "/").replace("~0", "~")  # as JSON Pointer escapes them
            node = node.get(key) if isinstance(node, dict) else None
        if node is None:
            raise NoType(f"{at} refers to {reference}, which does not exist")
        return reader.type(node, at, (*within, reference))
