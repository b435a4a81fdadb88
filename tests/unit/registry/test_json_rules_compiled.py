"""Compiled rules and `jsonschema` judge every value alike."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from onceonly.registry import json_rules

NAMES, NUMBERS = st.sampled_from("ab"), st.sampled_from([-1, 0, 1, 1.0, 1.5, 2])
TYPE = st.sampled_from(["null", "boolean", "string", "object", "array", "number", "integer"])
SIZE = st.integers(0, 2)
TEXT = st.sampled_from(["", "a", "ab", "1"])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


def of_schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One or two words each."""
    words: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPE | st.lists(TYPE, min_size=1, max_size=2, unique=True),
        "enum": st.lists(TEXT | st.none(), min_size=1, max_size=2, unique=True),
        "const": TEXT | st.none(),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "properties": st.dictionaries(NAMES, inner, max_size=2),
        "additionalProperties": inner,
        "items": inner,
        "pattern": st.sampled_from(["a", "^a$", "[0-9]"]),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), SIZE),
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), st.lists(inner, min_size=1, max_size=2)),
        "not": inner,
        "$ref": st.sampled_from(["#", "#/$defs/one", "other.json", "other.json#/$defs/two"]),
        "title": TEXT,
    }
    some = st.lists(st.sampled_from(sorted(words)), min_size=1, max_size=3, unique=True)
    return some.flatmap(lambda chosen: st.fixed_dictionaries({word: words[word] for word in chosen}))


SCHEMAS = st.recursive(st.booleans() | of_schemas(st.booleans()), of_schemas, max_leaves=4)
SELF = {"properties": {"a": {"$ref": "#"}}, "required": ["b"]}


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(of_schemas(SCHEMAS), SCHEMAS, SCHEMAS, st.lists(VALUES, min_size=1, max_size=8), st.booleans())
@example(SELF, True, True, [{"b": 1, "a": {"a": {"b": 2}}}, {"b": 1, "a": {"b": 2, "a": {"b": 3}}}], False)
@example({"type": "integer"}, True, True, [1.0, True, 1.5, "1"], False)
@example({"$ref": "other.json#/$defs/two", "type": "null"}, True, {"type": "string"}, ["a", None], False)
def test_both_judge_alike(document: Any, one: Any, two: Any, values: list[Any], newer: bool) -> None:
    document = {**document, "$defs": {"one": one}}
    other = {"properties": {"a": {"$ref": "#/$defs/two"}}, "$defs": {"two": two}}
    kind: Any = Draft202012Validator if newer else Draft7Validator
    if newer:
        document["$schema"] = Draft202012Validator.META_SCHEMA["$id"]
    known = Registry().with_resource("other.json", Resource.from_contents(other, default_specification=DRAFT7))
    validator = kind(document, registry=known)
    try:
        kind.check_schema(document)
        follows = json_rules.compiled(document, {"other.json": other}, validator.VALIDATORS)
    except (json_rules.NotHere, SchemaError):
        return
    for value in json.loads(json.dumps(values)):
        try:
            both = follows(value), validator.is_valid(value)
        except RecursionError:  # it refers to itself without end: no value is judged by it, or by one of the two only
            continue
        assert both[0] == both[1], (document, other, value)


@pytest.mark.parametrize(
    "document",
    [
        {"multipleOf": 2},
        {"properties": {"a": {"uniqueItems": True}}},
        {"patternProperties": {"^a": True}, "additionalProperties": False},
        {"enum": [1, True]},
        {"if": True},
        {"items": [True]},
        {"properties": {"a": {"$id": "inner.json"}}},
        {"$ref": "https://elsewhere.example/x.json"},
        {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": "#/$defs/a", "type": "null"},
        True,
    ],
)
def test_what_is_left_to_jsonschema(document: Any) -> None:
    with pytest.raises(json_rules.NotHere):
        json_rules.compiled(document, {}, {**Draft7Validator.VALIDATORS, **Draft202012Validator.VALIDATORS})
