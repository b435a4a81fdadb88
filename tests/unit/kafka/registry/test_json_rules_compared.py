"""The rules of JSON Schemas are judged as by `jsonschema`, which is another implementation."""

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

from onceonly.json_values.text import parser
from onceonly.kafka.registry.client import Schema
from onceonly.kafka.registry.json_schema import NoType, checker, rules

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
@example({"$ref": "other.json#/$defs/two"}, True, {"$ref": "#", "const": ""}, [None], True)
def test_rules_are_judged_as_by_jsonschema(document: Any, one: Any, two: Any, values: list[Any], newer: bool) -> None:
    document = {**document, "$defs": {"one": one}}
    other = {"properties": {"a": {"$ref": "#/$defs/two"}}, "$defs": {"two": two}}
    kind: Any = Draft202012Validator if newer else Draft7Validator
    if newer:
        document["$schema"] = Draft202012Validator.META_SCHEMA["$id"]
        # An older draft ignores what stands beside a $ref. Of drafts that refer to each other, `jsonschema` judges all
        # by the keywords of the first.
        other["$schema"] = Draft202012Validator.META_SCHEMA["$id"]
    known = Registry().with_resource("other.json", Resource.from_contents(other, default_specification=DRAFT7))
    validator = kind(document, registry=known)
    try:
        kind.check_schema(document)
        check = checker(rules(Schema(1, "JSON", json.dumps(document), (("other.json", of(other)),))))
    except (NoType, SchemaError):
        return
    for value in json.loads(json.dumps(values)):
        try:
            valid = validator.is_valid(value)
        except RecursionError:  # it refers to itself without end
            continue
        assert (check(value) is None) == valid, (document, other, value)


def of(document: Any) -> Schema:
    return Schema(1, "JSON", json.dumps(document))


@pytest.mark.parametrize(
    ("document", "good", "bad"),
    [
        (
            {"multipleOf": 0.01},
            "19.99 10.1 0.07 4.35 -0.29 5 1e400 12345678901234567890.01",
            "0.005 1e-400 0.010000000001",
        ),
        ({"multipleOf": 0.5}, "1.5 1e400", "1.25"),
        ({"maximum": 9007199254740993}, "9007199254740993", "9007199254740994"),
        ({"exclusiveMinimum": 0.1}, "0.10000000000000000001", "0.1 0.09999999999999999999"),
        ({"const": 1}, "1 1.0 1e0", "true 1.00000000000000000001"),
        ({"enum": [0.1, 10]}, "0.1 0.10 10.0", "0.1000000000000000055511151231257827"),
        ({"type": "integer"}, "1.0 1e400 -0", "1.5"),
        ({"uniqueItems": True}, "[1,true] [9007199254740992,9007199254740993]", "[1,1.0] [0.1,0.10]"),
        ({"pattern": r"^\d+$"}, '"12"', '"12\\n" "\u0661"'),
        ({"pattern": r"^\p{L}+$"}, '"abc" "\u00e4"', '"a1"'),
        ({"maxLength": 1}, '"\U0001f600"', '"ab"'),
    ],
)
def test_rules_are_exact_and_patterns_are_ecma(document: Any, good: str, bad: str) -> None:
    check, parse = checker(rules(of(document))), parser()
    assert [check(parse(text.encode())) for text in good.split()] == [None] * len(good.split())
    assert all(check(parse(text.encode())) for text in bad.split())


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"properties": {"a": {"pattern": "["}}}, r"\$\.properties\.a\.pattern cannot be used: "),
        ({"patternProperties": {"(?<": True}}, "patternProperties cannot be used"),
        ({"type": "objekt"}, r"\$\.type cannot be used"),
        ({"$ref": "#/nowhere"}, "Pointer '/nowhere' does not exist"),
        ({"$ref": "https://elsewhere.example/x.json"}, "Retrieval is disabled"),
        ({"$ref": "other.json"}, "other.json"),
        ({"$schema": "https://json-schema.org/draft/2099/schema"}, "Unknown meta-schema"),
        (5, "5 is not of types"),
    ],
)
def test_unusable_rules_are_the_schemas_fault(document: Any, why: str) -> None:
    with pytest.raises(NoType, match=why):
        rules(of(document))


def test_a_reference_with_an_unusable_pattern() -> None:
    with pytest.raises(NoType, match="regex"):
        rules(Schema(1, "JSON", '{"$ref": "other.json"}', (("other.json", of({"pattern": "["})),)))


def test_schemas_that_are_not_json() -> None:
    with pytest.raises(NoType, match="not JSON"):
        rules(Schema(1, "JSON", "{"))
