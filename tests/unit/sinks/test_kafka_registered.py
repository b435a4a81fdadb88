"""The id that a Kafka sink's values begin with: looked up, or registered where that was chosen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from schema_registry import FakeRegistry, serving

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import KafkaSink
from onceonly.registry.client import Registry
from onceonly.registry.connection import RegistryConnection
from onceonly.sinks.kafka import registered

LATE = {"type": "record", "name": "Late", "namespace": "shop", "fields": [{"name": "id", "type": "int"}]}
MORE = {**LATE, "fields": [*LATE["fields"], {"name": "price", "type": "double"}]}  # cannot read older values


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with serving(FakeRegistry(first_id=300)) as running:
        yield running


def registry(server: FakeRegistry) -> Registry:
    return Registry(RegistryConnection.parse({"url": server.url}, "shop"))


def sink(**more: Any) -> KafkaSink:
    given = {"name": "late", "format": "avro", "schema": "late.avsc", "registry": "shop", **more}
    return KafkaSink(**({"topic": "late"} | given if "topics" not in more else given))


def heads(server: FakeRegistry, schema: Any, **more: Any) -> dict[str, bytes]:
    return dict(registered.heads(sink(**more), registry(server), json.dumps(schema, indent=2)))


def test_a_registered_schema_is_looked_up(server: FakeRegistry) -> None:
    server.register("late-value", LATE)
    assert heads(server, LATE) == {"late": b"\0\0\0\x01\x2c"}
    assert server.requests == ["POST /subjects/late-value"]


@pytest.mark.parametrize(
    ("subjects", "expected"),
    [("topic", ["a-value", "b-value"]), ("record", ["shop.Late"]), ("topic-record", ["a-shop.Late", "b-shop.Late"])],
)
def test_subjects_by_topic_and_by_record(server: FakeRegistry, subjects: Any, expected: list[str]) -> None:
    assert set(heads(server, LATE, topics=["a", "b"], subjects=subjects, register=True)) == {"a", "b"}
    assert sorted(server.subjects) == expected


def test_nothing_is_registered_unless_that_was_chosen(server: FakeRegistry) -> None:
    for ask in (registered.heads, registered.check):
        with pytest.raises(InvalidPipeline, match=r"is not registered(.|\n)*late-value(.|\n)*register=True"):
            ask(sink(), registry(server), json.dumps(LATE))
    assert server.subjects == {}


def test_a_check_registers_nothing(server: FakeRegistry) -> None:
    (note,) = registered.check(sink(register=True), registry(server), json.dumps(LATE))
    assert "that staging will register" in note
    assert server.subjects == {}


def test_registering_again_is_the_same(server: FakeRegistry) -> None:
    assert heads(server, LATE, register=True) == heads(server, LATE, register=True)
    assert server.subjects == {"late-value": [300]}


def test_what_is_not_compatible_is_refused(server: FakeRegistry) -> None:
    server.register("late-value", LATE)
    for ask in (registered.heads, registered.check):
        with pytest.raises(
            InvalidPipeline, match=r"cannot be registered(.|\n)*not compatible(.|\n)*Nothing was written"
        ):
            ask(sink(register=True), registry(server), json.dumps(MORE))
    assert server.subjects == {"late-value": [300]}


def test_a_registry_that_takes_nothing_new(server: FakeRegistry) -> None:
    server.modes[""] = "READONLY"
    with pytest.raises(InvalidPipeline, match=r"42205(.|\n)*read-only(.|\n)*Nothing was written"):
        heads(server, LATE, register=True)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"format": "json", "schema": None}, "only Avro values"),
        ({"registry": None, "register": True}, "names no registry"),
        ({"registry": None, "subjects": "record"}, "names no registry"),
        ({"registry": "http://ann:secret@r"}, "is not an Airflow connection id"),
        ({"subjects": "table"}, "subjects 'table' is not known"),
    ],
)
def test_definitions_that_do_not_fit(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidPipeline, match=why):
        sink(**fields)
