"""Avro schemas as trees, and what a reader's schema makes of a writer's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceonly.kafka.registry import avro_schema
from onceonly.kafka.registry.avro_schema import Unfit, Unusable
from onceonly.spark.avro import make_strict_schema


def record(*fields: Any) -> Any:
    return {"type": "record", "name": "R", "fields": [{"name": f"f{i}", "type": kind} for i, kind in enumerate(fields)]}


def logical(name: str, kind: str = "long", **more: Any) -> Any:
    return {"type": kind, "logicalType": name, **more}


def fit(written: Any, read: Any) -> avro_schema.Node:
    return avro_schema.resolve_writer(avro_schema.parse(json.dumps(written)), avro_schema.parse(json.dumps(read)))


def in_a_map(kind: Any) -> Any:
    return {"type": "map", "values": record(kind)}


DECIMAL = logical("decimal", "bytes", precision=10, scale=2)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (logical("timestamp-millis"), logical("timestamp-micros")),
        (logical("timestamp-micros"), logical("local-timestamp-micros")),
        (logical("date", "int"), logical("timestamp-millis")),
        (logical("time-millis", "int"), logical("time-micros")),
        (DECIMAL, {**DECIMAL, "scale": 3}),
    ],
)
@pytest.mark.parametrize(
    "around",
    [lambda kind: kind, lambda kind: ["null", kind], record, lambda kind: {"type": "map", "values": record(kind)}],
)
def test_another_unit_of_a_number_is_refused(written: Any, read: Any, around: Any) -> None:
    with pytest.raises(Unfit, match="was written as"):
        fit(around(written), around(read))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("long", logical("timestamp-micros")),
        (logical("timestamp-micros"), "long"),
        (DECIMAL, {**DECIMAL, "precision": 12}),
        (DECIMAL, "bytes"),
        ("int", ["null", "double"]),
        (record("int", "string"), record("int")),
    ],
)
def test_the_rules_of_evolution_are_followed(written: Any, read: Any) -> None:
    fit(written, read)


def test_a_field_that_is_not_read_is_not_judged() -> None:
    first, second = (part for _, part in fit(record("string", "string"), record("string")).parts)
    assert (first.is_read, second.is_read) == (True, False)


def test_whole_numbers_keep_the_bits_of_their_new_type() -> None:
    assert [fit("long", read).exact_bits for read in ("long", "float", ["null", "double"])] == [0, 24, 53]


def test_names_are_resolved_with_their_namespaces() -> None:
    money = {"type": "record", "name": "Money", "namespace": "pay", "fields": [{"name": "cents", "type": "long"}]}
    fields = [{"name": "net", "type": money}, {"name": "gross", "type": "pay.Money"}]
    order = {"type": "record", "name": "shop.Order", "fields": fields}
    tree = avro_schema.parse(json.dumps(order))
    assert [part.name for _, part in tree.parts] == ["pay.Money", "pay.Money"]
    with pytest.raises(Unusable, match="'Money', which is not defined"):
        avro_schema.parse(json.dumps({**order, "fields": [fields[0], {"name": "gross", "type": "Money"}]}))


def test_times_of_a_day_are_numbers_and_defaults_stay() -> None:
    schema = record(logical("time-micros"), ["null", logical("time-millis", "int")], logical("timestamp-micros"))
    schema["fields"][0]["default"] = 3
    made = json.loads(avro_schema.with_plain_times(json.dumps(schema)))
    assert [field["type"] for field in made["fields"]] == [
        {"type": "long"}, ["null", {"type": "int"}], logical("timestamp-micros"),
    ]  # fmt: skip
    assert made["fields"][0]["default"] == 3


def test_the_strict_schema_loses_nothing() -> None:
    tree = avro_schema.parse(
        json.dumps(record("boolean", "int", ["null", "boolean"], {"type": "map", "values": "int"}))
    )
    found = json.loads(make_strict_schema(tree, 32))
    value, end = (field["type"] for field in found["fields"])
    kinds = [field["type"] for field in value["fields"]]
    assert (kinds[0]["size"], kinds[1], kinds[2][1]["size"], end["size"]) == (1, "long", 1, 32)
    assert [field["name"] for field in kinds[3]["items"]["fields"]] == ["key", "item"]
    avro_schema.parse(json.dumps(found))
