"""What of a source's records is decoded by registered schemas, and which of these can be used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import protos
import pytest
from codes import raises
from protos import field, file, message
from schema_registry import FakeRegistry, serving

from onceonly.errors import InvalidPipeline
from onceonly.kafka.registry import protobuf
from onceonly.kafka.registry.client import Registry, RegistryConnection, Schema
from onceonly.pipeline.sources import KafkaSource
from onceonly.sources.registered_values import RegisteredPart, list_registered_parts
from onceonly.spark import arrow

pytestmark = pytest.mark.slow

ORDER = file(message("Order", field(1, "id", "int32")))


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with serving(FakeRegistry()) as running:
        yield running


def values(server: FakeRegistry, file: str | None = None, **source: Any) -> RegisteredPart:
    registry = Registry(RegistryConnection.parse({"url": server.url}, "shop"))
    (part,) = list_registered_parts(KafkaSource(**{"format": "protobuf", "registry": "shop", **source}), registry, file)
    return part


def test_a_pattern_with_a_file_needs_no_subject_and_still_asks_the_registry(server: FakeRegistry) -> None:
    server.forbidden.add("-value")
    of_all = {"topic_pattern": "orders-.*", "format": "avro", "schema": "order.avsc"}
    assert values(server, "{}", **of_all).check() == []
    server.login = "ann:secret"
    with raises(InvalidPipeline, "registry-access-denied"):
        values(server, "{}", **of_all).check()


READ = protobuf.files(Schema(9, "PROTOBUF", protos.text(ORDER)))


@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_a_writers_schema_of_another_type_makes_its_records_bad(server: FakeRegistry, policy: str) -> None:
    texts = file(message("Order", field(1, "id", "string")))
    id = server.register("orders-value", protos.text(texts), "PROTOBUF")
    part = values(server, topic="orders", on_bad_record=policy)
    schemas = {id: part._read_schema(id)}
    if policy == "drop":
        allowed, unfit = part._split_by_fit(schemas, READ, "shop.Order")
        assert allowed == {} and "written as another type" in unfit[id]
        return
    with raises(InvalidPipeline, "schema-unfit", match=f"Schema {id} ") as refused:
        part._split_by_fit(schemas, READ, "shop.Order")
    assert refused.value.code == "schema-unfit"


@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_a_schema_that_cannot_be_used_is_refused_in_every_mode(server: FakeRegistry, policy: str) -> None:
    """Else every record that names it would be dropped, and the run would succeed."""
    broken = file(message("Order", field(1, "id", ".shop.Money")), imports=("money.proto",))
    id = server.register("orders-value", protos.text(broken), "PROTOBUF")
    part = values(server, topic="orders", on_bad_record=policy)
    with raises(InvalidPipeline, "schema-unusable", match=f"Schema {id} ") as refused:
        part._split_by_fit({id: part._read_schema(id)}, READ, "shop.Order")
    assert refused.value.code == "schema-unusable"


RECURSIVE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
UNDEFINED = {"type": "record", "name": "Order", "fields": [{"name": "net", "type": "shop.Money"}]}


@pytest.mark.parametrize("policy", ["fail", "drop"])
@pytest.mark.parametrize(("schema", "field_"), [(RECURSIVE, "next"), (UNDEFINED, "net")])
def test_an_avro_schema_without_a_type_is_refused_by_check(
    server: FakeRegistry, schema: Any, field_: str, policy: str
) -> None:
    server.schemas[1] = {"schema": json.dumps(schema), "schemaType": "AVRO", "references": []}
    server.subjects["orders-value"] = [1]
    part = values(server, topic="orders", format="avro", on_bad_record=policy)
    with raises(InvalidPipeline, "schema-unusable", match=f"field '{field_}'") as refused:
        part.check()
    assert refused.value.code == "schema-unusable"
    with raises(InvalidPipeline, "schema-unusable", match=f"field '{field_}'"):
        part._read_avro_writers({"writers": {"1": part._read_schema(1).sha256}})


def test_a_readers_schema_without_a_message_is_told_in_our_words(server: FakeRegistry) -> None:
    empty = file()
    server.register("orders-value", protos.text(empty), "PROTOBUF")
    part = values(server, topic="orders")
    with raises(InvalidPipeline, "schema-unusable", match="no message"):
        part._make_decoding({"writers": {}, "reader": part._read_latest()})


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ({"topic": "orders"}, True),  # Protobuf
        ({"topic": "orders", "format": "json"}, True),
        ({"topic": "orders", "format": "json", "schema": "order.ddl"}, False),  # no rules to check
        ({"topic": "orders", "format": "avro", "schema": "order.avsc"}, False),
    ],
)
def test_a_spark_that_cannot_decode_a_format_is_named_before_any_work(
    server: FakeRegistry, monkeypatch: pytest.MonkeyPatch, more: Any, refused: bool
) -> None:
    monkeypatch.setattr(arrow, "version", lambda name: "4.0.5")
    part = values(server, "{}" if "schema" in more else None, **more)
    if not refused:
        server.register("orders-value", {"type": "object"}, "JSON")
        assert part.check() == []
        return
    with raises(InvalidPipeline, "pyspark-unsupported", match=r"PySpark 4\.0\.5"):
        part.check()
