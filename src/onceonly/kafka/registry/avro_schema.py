"""Avro schemas as trees in which every name is resolved; and of a writer's schema, how it is read as the reader's.

Source: Apache Avro 1.12 specification, "Schema Declaration", "Schema Resolution", "Logical Types".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from onceonly.kafka.registry.client import Schema

PRIMITIVE_TYPES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED = ("record", "error", "enum", "fixed")
LOGICAL = {  # the types on which Spark and we know a logical type; elsewhere it is ignored, as Avro asks for
    "date": ("int",), "time-millis": ("int",), "time-micros": ("long",),
    "timestamp-millis": ("long",), "timestamp-micros": ("long",), "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",), "local-timestamp-micros": ("long",), "local-timestamp-nanos": ("long",),
    "decimal": ("bytes", "fixed"),
}  # fmt: skip
TIME_OF_DAY = ("time-millis", "time-micros")
MOST_DIGITS = 38  # of a decimal in Spark
EXACT_BITS = {"float": 24, "double": 53}  # of a whole number
PROMOTED = {  # written -> read, by Avro's rules
    "int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",),
    "string": ("bytes",), "bytes": ("string",),
}  # fmt: skip


class Unusable(ValueError):
    """Why a schema cannot be used, and at which field."""


class Unfit(ValueError):
    """Why what one schema has written means something else to another one."""


@dataclass(frozen=True)
class Node:
    """One type of a schema.

    Args:
        kind: one of PRIMITIVE_TYPES, or record, enum, fixed, array, map, union.
        logical: its logical type, if it is one of LOGICAL; "decimal" has `digits` and `scale`.
        parts: fields by name, branches of a union, or what an array or a map holds.
        aliases: of a record's fields: (name, its other names).
        defaulted: names of the fields that have a default.
        size: of a fixed: bytes; of an enum: symbols.
        exact_bits: of a whole number that is read as a float or double: the bits that it keeps.
        is_read: whether a reader takes it.
    """

    kind: str
    logical: str = ""
    name: str = ""
    parts: tuple[tuple[str, Node], ...] = ()
    aliases: tuple[tuple[str, tuple[str, ...]], ...] = ()
    defaulted: tuple[str, ...] = ()
    size: int = 0
    digits: int = 0
    scale: int = 0
    exact_bits: int = 0
    is_read: bool = True

    @property
    def item(self) -> Node:
        """What an array or a map holds."""
        return self.parts[0][1]

    @property
    def branches(self) -> list[Node]:
        """The branches of a union that are not null."""
        return [part for _, part in self.parts if part.kind != "null"]


def parse(text: str) -> Node:
    """Return the schema as a tree.

    Raises:
        Unusable: it is no Avro schema, or one that Spark has no type for, such as a record within itself.
    """
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        schema = json.loads(text)
    except ValueError:
        schema = text  # `string`, as some registries show a schema of one word
    tree = _Parser().type(schema, "", "", ())
    try:
        parse_schema(schema)
    except UnknownType as error:
        raise Unusable(f"the type '{error.name}' is not defined") from None
    except (KeyError, TypeError, AttributeError, ValueError, SchemaParseException) as error:
        raise Unusable(f"{type(error).__name__}: {error}") from None
    return tree


def parse_file(text: str) -> Node:
    """Return what `parse` does, of a file, which has to be JSON: a schema of one word is in quotes there."""
    try:
        json.loads(text)
    except ValueError as error:
        raise Unusable(f"it is not JSON: {error}") from None
    return parse(text)


def find_flaw(text: str) -> Exception | None:
    """Return why the text of a schema file is not an Avro schema that Spark can use; None if it is one."""
    try:
        parse_file(text)
    except Unusable as error:
        return error
    return None


def with_plain_times(text: str) -> str:
    """Return the schema with times of a day as the whole numbers that they are written as.

    Spark before 4.1 reads them so; the type TIME, which it has since, cannot be stored in a table.
    """
    try:
        return json.dumps(_with_plain_times(json.loads(text)))
    except ValueError:
        return text


def _with_plain_times(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_plain_times(branch) for branch in node]
    if not isinstance(node, dict):
        return node
    plain = dict(node)
    if "logicalType" in plain and plain["logicalType"] in TIME_OF_DAY:
        del plain["logicalType"]
    for key in ("type", "items", "values"):
        if key in plain:
            plain[key] = _with_plain_times(plain[key])
    if isinstance(plain.get("fields"), list):
        plain["fields"] = [_with_plain_times(field) for field in plain["fields"]]
    return plain


class _Parser:
    """Makes the tree of one schema. In each method `space` is the namespace around the type, `at` the path of its field
    in messages, and `within` the full names of the records around it.
    """

    def __init__(self) -> None:
        self._definitions: dict[str, Node] = {}

    def type(self, schema: Any, space: str, at: str, within: tuple[str, ...]) -> Node:
        if isinstance(schema, str):
            return self._by_name(schema, space, at, within)
        if isinstance(schema, list):
            return self._union(schema, space, at, within)
        if not isinstance(schema, dict) or "type" not in schema:
            raise Unusable(f"{_place(at)} is not a type: {json.dumps(schema)[:100]}")
        match schema["type"]:
            case "array" | "map" as kind:
                key = {"array": "items", "map": "values"}[kind]
                if key not in schema:
                    raise Unusable(f"{_place(at)} is {kind} without '{key}'")
                return Node(kind, parts=((key, self.type(schema[key], space, f"{at}[]", within)),))
            case kind if isinstance(kind, str) and kind in NAMED:
                return self._named_type(schema, kind, space, at, within)
            case str() as kind if kind in PRIMITIVE_TYPES:
                return _with_logical_type(Node(kind), schema, at)
            case inner:
                return self.type(inner, space, at, within)

    def _by_name(self, name: str, space: str, at: str, within: tuple[str, ...]) -> Node:
        if name in PRIMITIVE_TYPES:
            return Node(name)
        full = _qualify(name, space)
        if full in within or name in within:
            raise Unusable(f"{_place(at)} contains its own record '{name}', and no column can do so")
        definition = self._definitions.get(full) or self._definitions.get(name)
        if definition is None:
            raise Unusable(f"{_place(at)} has the type '{name}', which is not defined")
        return definition

    def _union(self, schemas: list[Any], space: str, at: str, within: tuple[str, ...]) -> Node:
        branches = [("", self.type(branch, space, at, within)) for branch in schemas]
        return Node("union", parts=tuple(branches))

    def _named_type(self, schema: Mapping[str, Any], kind: str, space: str, at: str, within: tuple[str, ...]) -> Node:
        if not isinstance(schema.get("name"), str):
            raise Unusable(f"{_place(at)} is {kind} without a name")
        name, space = full_name(schema, space)
        if kind == "fixed":
            size = _check_size(schema.get("size"), at)
            node = _with_logical_type(Node("fixed", name=name, size=size), schema, at)
        elif kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list):
                raise Unusable(f"{_place(at)} is enum '{name}', which has no list of 'symbols'")
            node = Node("enum", name=name, size=len(symbols))
        else:
            node = self._record(schema, name, space, at, (*within, name))
        self._definitions[name] = node
        return node

    def _record(self, schema: Mapping[str, Any], name: str, space: str, at: str, within: tuple[str, ...]) -> Node:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise Unusable(f"record '{name}' has no list of 'fields'")
        parts, aliases, defaulted = [], [], []
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
                raise Unusable(f"record '{name}' has a field without name or type")
            place = f"{at}/{field['name']}".lstrip("/")
            node = self.type(field["type"], space, place, within)
            if "default" in field:
                defaulted.append(field["name"])
                if not is_default(node, field["default"]):
                    raise Unusable(f"{_place(place)} has a default that is not of its type")
            parts.append((field["name"], node))
            aliases.append((field["name"], tuple(map(str, field.get("aliases", ())))))
        return Node("record", name=name, parts=tuple(parts), aliases=tuple(aliases), defaulted=tuple(defaulted))


def full_name(schema: Mapping[str, Any], space: str) -> tuple[str, str]:
    """Return (full name, namespace) of a named type; `space` is the namespace around it."""
    name = str(schema["name"])
    if "." in name:
        return name, name.rpartition(".")[0]
    namespace = str(schema.get("namespace", space) or "")
    return _qualify(name, namespace), namespace


def _qualify(name: str, space: str) -> str:
    """Return the full name of a type; `space` is the namespace around the place where it is named."""
    if "." in name or not space:
        return name
    return f"{space}.{name}"


def is_default(node: Node, value: Any) -> bool:
    """Return whether the JSON value can be the default of a field of that type."""
    match node.kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            bits = {"int": 31, "long": 63}[node.kind]
            return type(value) is int and -(1 << bits) <= value < 1 << bits
        case "float" | "double":
            return type(value) in (int, float) or value in ("NaN", "Infinity", "-Infinity")
        case "array":
            return isinstance(value, list) and all(is_default(node.item, item) for item in value)
        case "map":
            return isinstance(value, dict) and all(is_default(node.item, item) for item in value.values())
        case "record":
            return isinstance(value, dict) and _is_default_record(node, value)
        case "union":
            return any(is_default(part, value) for _, part in node.parts)
        case _:
            return isinstance(value, str)


def _is_default_record(node: Node, value: Mapping[str, Any]) -> bool:
    for name, part in node.parts:
        if name not in value:
            if name not in node.defaulted:
                return False
        elif not is_default(part, value[name]):
            return False
    return True


def _place(at: str) -> str:
    if at:
        return f"field '{at}'"
    return "it"


def _check_size(size: Any, at: str) -> int:
    if type(size) is not int or size < 0:
        raise Unusable(f"{_place(at)} is fixed without a size")
    return size


def _with_logical_type(node: Node, schema: Mapping[str, Any], at: str) -> Node:
    """Return the node with its logical type; without one that is unknown or does not fit, as Avro asks for."""
    logical = str(schema.get("logicalType", ""))
    if node.kind not in LOGICAL.get(logical, ()):
        return node
    if logical != "decimal":
        return replace(node, logical=logical)
    digits, scale = schema.get("precision"), schema.get("scale", 0)
    if type(digits) is not int or type(scale) is not int or not 0 <= scale <= digits or digits == 0:
        return node
    if node.kind == "fixed" and digits > len(str(1 << (8 * node.size - 1))) - 1:
        return node  # more digits than its bytes can hold
    if digits > MOST_DIGITS:
        raise Unusable(f"{_place(at)} is a decimal of {digits} digits, and Spark has at most {MOST_DIGITS}")
    return replace(node, logical=logical, digits=digits, scale=scale)


# ---- resolution


def resolve_writer(written: Node, read: Node, at: str = "") -> Node:
    """Return the writer's tree with what the reader makes of it: its logical types, and which fields it takes.

    Raises:
        Unfit: a number would be taken for something else than was written. Avro leaves logical types out of its rules.
    """
    if written.kind == "union":
        branches = [(name, resolve_writer(part, read, at)) for name, part in written.parts]
        return replace(written, parts=tuple(branches))
    if read.kind == "union":
        branch = _find_branch(written, read)
        if branch is None:
            return written
        return resolve_writer(written, branch, at)
    match written.kind:
        case "record" if read.kind == "record":
            fields = [_fit_field(name, part, read, at) for name, part in written.parts]
            return replace(written, parts=tuple(fields))
        case "array" | "map" if read.kind == written.kind:
            return replace(written, parts=(("", resolve_writer(written.item, read.item, f"{at}[]")),))
        case _:
            return _fit_leaf(written, read, at)


def _fit_field(name: str, part: Node, read: Node, at: str) -> tuple[str, Node]:
    """Return a field of the writer's record as the reader's record takes it: by its name, or else by an alias."""
    read_fields = dict(read.parts)
    place = f"{at}/{name}".lstrip("/")
    if name in read_fields:
        return name, resolve_writer(part, read_fields[name], place)
    for read_name, aliases in read.aliases:
        if name in aliases:
            return name, resolve_writer(part, read_fields[read_name], place)
    return name, replace(part, is_read=False)


def _find_branch(written: Node, read: Node) -> Node | None:
    """Return the branch of the reader's union that takes what is written; None: none does.

    A branch of the same type and name comes first, then one of the same type, then one that it is promoted to.
    """
    same_kind: Node | None = None
    wider: Node | None = None
    for branch in read.branches:
        if branch.kind == written.kind:
            if _last_name(branch) == _last_name(written):
                return branch
            same_kind = same_kind or branch
        elif branch.kind in PROMOTED.get(written.kind, ()):
            wider = wider or branch
    return same_kind or wider


def _last_name(node: Node) -> str:
    """Return the name without its namespace."""
    return node.name.rpartition(".")[2]


def _fit_leaf(written: Node, read: Node, at: str) -> Node:
    if written.logical and read.logical and _unit(written) != _unit(read):
        raise Unfit(f"{_place(at)} was written as {_describe(written)}, and is read as {_describe(read)}")
    logical, exact_bits = read.logical, 0
    if written.kind == "bytes" and read.kind == "string":
        logical = "text"
    if written.kind in ("int", "long"):
        exact_bits = EXACT_BITS.get(read.kind, 0)
    return replace(written, logical=logical, digits=read.digits, scale=read.scale, exact_bits=exact_bits)


def _unit(node: Node) -> tuple[str, int]:
    return node.logical, node.scale


def _describe(node: Node) -> str:
    if node.logical == "decimal":
        return f"decimal({node.digits}, {node.scale})"
    return node.logical


# ---- references


def inline_references(schema: Schema) -> str:
    """Return the text of the schema without references.

    Each named type is defined once, at its first use, as Avro demands.
    """
    if not schema.references:
        return schema.text
    return json.dumps(_Inlining(_definitions(schema)).inline(_parse_json(schema.text), ""))


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # `string`, as some registries show a schema of one word


def _definitions(schema: Schema) -> dict[str, Any]:
    """Return by full name the definitions of everything that the schema refers to, however far."""
    definitions: dict[str, Any] = {}
    for _, referenced in schema.references:
        definitions |= _definitions(referenced)
        definition = _parse_json(referenced.text)
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
            inlined["fields"] = []
            for field in node["fields"]:
                inlined["fields"].append({**field, "type": self.inline(field["type"], space)})
        return inlined

    def _inline_name(self, name: str, space: str) -> Any:
        full = _qualify(name, space)
        if full not in self._definitions or full in self._defined:
            return name
        return self.inline(self._definitions[full], "")
