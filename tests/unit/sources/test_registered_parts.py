"""What of a source's records is decoded by registered schemas, and which of these can be used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import protos
import pytest
from protos import field, file, message
from schema_registry import FakeRegistry, serving

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sources import KafkaSource
from onceonly.registry import protobuf
from onceonly.registry.client import Registry
from onceonly.registry.connection import RegistryConnection
from onceonly.sources.registered import Registered, parts_of
from onceonly.spark import arrow

ORDER = file(message("Order", field(1, "id", "int32")))


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with serving(FakeRegistry()) as running:
        yield running


def values(server: FakeRegistry, file: str | None = None, **source: Any) -> Registered:
    registry = Registry(RegistryConnection.parse({"url": server.url}, "shop"))
    (part,) = parts_of(KafkaSource(**{"format": "protobuf", "registry": "shop", **source}), registry, file)
    return part


def test_a_pattern_with_a_file_needs_no_subject_and_still_asks_the_registry(server: FakeRegistry) -> None:
    server.forbidden.add("-value")
    of_all = {"topic_pattern": "orders-.*", "format": "avro", "schema": "order.avsc"}
    assert values(server, "{}", **of_all).check() == []
    server.login = "ann:secret"
    with pytest.raises(InvalidPipeline, match="refuses"):
        values(server, "{}", **of_all).check()


@pytest.mark.parametrize(
    "written",
    [
        file(message("Order", field(1, "id", "string"))),  # another type
        file(message("Order", field(1, "id", ".shop.Money")), imports=("money.proto",)),  # no such reference
    ],
    ids=["another type", "imports what is not there"],
)
def test_a_writers_schema_that_cannot_be_used_makes_its_records_bad_where_that_is_asked_for(
    server: FakeRegistry, written: Any
) -> None:
    id = server.register("orders-value", protos.text(written), "PROTOBUF")
    read = protobuf.files(values(server, topic="orders")._schema(server.register("o", protos.text(ORDER), "PROTOBUF")))
    lenient = values(server, topic="orders", on_bad_record="drop")
    assert lenient._indexes(lenient._schema(id), read, "shop.Order") == ()
    strict = values(server, topic="orders")
    with pytest.raises(InvalidPipeline, match=f"Protobuf schema {id} "):
        strict._indexes(strict._schema(id), read, "shop.Order")


def test_a_readers_schema_without_a_message_is_told_in_our_words(server: FakeRegistry) -> None:
    empty = file()
    server.register("orders-value", protos.text(empty), "PROTOBUF")
    part = values(server, topic="orders")
    with pytest.raises(InvalidPipeline, match=r"cannot be decoded(.|\n)*no message"):
        part._decoding({"writers": {}, "reader": part._latest()})


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
    with pytest.raises(InvalidPipeline, match=r"PySpark 4\.0\.5"):
        part.check()
