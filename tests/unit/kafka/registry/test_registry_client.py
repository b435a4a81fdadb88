"""A schema registry that is asked over HTTP: what is found, what is refused, and what is never shown."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from codes import raises
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from schema_registry import FakeRegistry, serving

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.kafka.registry import avro_schema
from onceonly.kafka.registry.client import Registry, RegistryConnection
from onceonly.runtime.live_services import LiveServices

pytestmark = pytest.mark.slow

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with serving(FakeRegistry()) as running:
        yield running


def registry(server: FakeRegistry, **more: str) -> Registry:
    return Registry(RegistryConnection.parse({"url": server.url, **more}, "shop"))


def test_an_id_is_asked_for_once(server: FakeRegistry) -> None:
    id = server.register("orders-value", ORDER)
    asked = registry(server)
    assert asked.find_schema(id) is asked.find_schema(id)
    assert asked.find_schema(99) is asked.find_schema(99) is None
    assert len(server.requests) == 2


def test_the_latest_version_of_a_subject(server: FakeRegistry) -> None:
    server.register("shop/orders value", ORDER)
    id = server.register("shop/orders value", {**ORDER, "doc": "more"})
    found = registry(server).find_latest("shop/orders value")
    assert found and (found.version, found.schema.id) == (2, id)
    assert registry(server).find_latest("nobody") is None


def compiled(name: str) -> str:
    made = FileDescriptorProto(name="default", package="shop", syntax="proto3")
    made.message_type.add(name=name).field.add(name="id", number=1, type=3, label=1)
    return base64.b64encode(made.SerializeToString()).decode()


@pytest.mark.parametrize("versions_are_text", [False, True])
def test_a_compiled_schema_is_asked_for_by_its_id(server: FakeRegistry, versions_are_text: bool) -> None:
    """Karapace shows the text of a version, whatever is asked for."""
    server.versions_are_text = versions_are_text
    id = server.register("orders-value", compiled("Order"), "PROTOBUF")
    found = registry(server).find_latest("orders-value", compiled=True)
    assert found and (found.schema.id, found.schema.text) == (id, compiled("Order"))
    asked = registry(server).find_schema(id, compiled=True)
    assert asked and asked.sha256 == found.schema.sha256


@pytest.mark.parametrize("versions_are_text", [False, True])
def test_compiled_references_are_asked_for_by_their_ids(server: FakeRegistry, versions_are_text: bool) -> None:
    server.versions_are_text = versions_are_text
    server.register("money", compiled("Money"), "PROTOBUF")
    reference = {"name": "money.proto", "subject": "money", "version": 1}
    id = server.register("orders-value", compiled("Order"), "PROTOBUF", references=[reference])
    found = registry(server).find_schema(id, compiled=True)
    assert found and [(name, other.text) for name, other in found.references] == [("money.proto", compiled("Money"))]


def test_the_text_of_a_schema_is_not_taken_for_its_compiled_form(server: FakeRegistry) -> None:
    id = server.register("orders-value", compiled("Order"), "PROTOBUF")
    asked = registry(server)
    text = asked.find_schema(id)
    found = asked.find_schema(id, compiled=True)
    assert text and found and found.text == compiled("Order") != text.text


def test_references_are_part_of_a_schema_and_of_its_hash(server: FakeRegistry) -> None:
    hashes = []
    for doc in ("one", "two"):
        server.subjects.pop("money", None)
        money = {"type": "enum", "name": "Money", "namespace": "pay", "symbols": ["EUR"], "doc": doc}
        server.register("money", money)
        order = {**ORDER, "namespace": "shop", "fields": [{"name": "in", "type": "pay.Money"}], "doc": doc}
        reference = {"name": "pay.Money", "subject": "money", "version": 1}
        id = server.register(f"orders-{doc}", {**order, "doc": ""}, references=[reference])
        found = Registry(registry(server).connection).find_schema(id)
        assert found and [name for name, _ in found.references] == ["pay.Money"]
        hashes.append(found.sha256)
    assert hashes[0] != hashes[1]


def test_a_type_is_put_in_where_it_is_used_first(server: FakeRegistry) -> None:
    server.register("unit", {"type": "enum", "name": "Unit", "namespace": "base", "symbols": ["EUR"]})
    unit = {"name": "base.Unit", "subject": "unit", "version": 1}
    amount = {"type": "record", "name": "pay.Amount", "fields": [{"name": "unit", "type": "base.Unit"}]}
    server.register("amount", amount, references=[unit])
    both = [{"name": "pay.Amount", "subject": "amount", "version": 1}, unit]
    amounts = {"type": "array", "items": "pay.Amount"}
    fields = [{"name": "a", "type": ["null", amounts]}, {"name": "b", "type": "pay.Amount"}]
    schema = registry(server).find_schema(server.register("o", {**ORDER, "fields": fields}, references=both))
    assert schema
    found = json.loads(avro_schema.inline_references(schema))
    first = found["fields"][0]["type"][1]["items"]
    assert first["name"] == "pay.Amount"
    assert first["fields"][0]["type"] == {"type": "enum", "name": "Unit", "symbols": ["EUR"], "namespace": "base"}
    assert found["fields"][1]["type"] == "pay.Amount"


def test_basic_authentication_from_the_extra_or_the_address(server: FakeRegistry) -> None:
    id = server.register("orders-value", ORDER)
    server.login = "ann:a:secret"
    address = server.url.replace("//", "//ann:a%3Asecret@")
    for settings in ({"basic.auth.user.info": "ann:a:secret"}, {"url": address}):
        asked = registry(server, **settings)
        assert asked.find_schema(id)
        assert "secret" not in repr(asked.connection) + asked.connection.describe()


@pytest.mark.parametrize("settings", [{}, {"basic.auth.user.info": "ann:wrong-one"}])
def test_refused_credentials_are_for_the_user_and_not_shown(server: FakeRegistry, settings: dict[str, str]) -> None:
    server.login = "ann:right-one"
    with raises(InvalidPipeline, "registry-access-denied", r"schema id 1(.|\n)*401") as caught:
        registry(server, **settings).find_schema(1)
    assert "-one" not in str(caught.value)


def test_a_subject_without_rights(server: FakeRegistry) -> None:
    server.forbidden.add("orders-value")
    with raises(InvalidPipeline, "registry-access-denied", r"'orders-value'(.|\n)*403"):
        registry(server).find_latest("orders-value")


def test_trouble_of_the_registry_may_be_retried(server: FakeRegistry) -> None:
    server.failing = 503
    with raises(NotCommitted, "registry-unreachable", "503") as caught:
        registry(server).find_schema(1)
    assert not isinstance(caught.value, InvalidPipeline)


def test_a_registry_that_is_not_there_may_be_retried() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # taken, and nobody listens
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with raises(NotCommitted, "registry-unreachable", url) as caught:
            Registry(RegistryConnection.parse({"url": url}, "shop")).find_schema(1)
    assert not isinstance(caught.value, InvalidPipeline)


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({}, "'url'"),
        ({"url": "registry:8081"}, "'url'"),
        ({"url": "http://r", "basic.auth": "ann:secret"}, "'basic.auth'"),
        ({"url": "http://r", "basic.auth.user.info": "secret"}, "'basic.auth.user.info'"),
        ({"url": "http://ann:secret@r", "basic.auth.user.info": "bob:secret"}, "'basic.auth.user.info'"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(settings: dict[str, Any], setting: str) -> None:
    with raises(InvalidPipeline, "registry-connection-invalid", f"'shop'(.|\n)*{setting}") as caught:
        RegistryConnection.parse(settings, "shop")
    assert "secret" not in str(caught.value)


def test_a_certificate_that_is_not_there_is_named() -> None:
    connection = RegistryConnection.parse({"url": "https://localhost", "ssl.ca.location": "/nowhere.pem"}, "shop")
    with raises(InvalidPipeline, "registry-connection-invalid", "'shop'"):
        Registry(connection).find_schema(1)


def test_a_connection_that_is_not_there_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SHOP", raising=False)
    with raises(InvalidPipeline, "connection-missing", "AIRFLOW_CONN_SHOP"):
        LiveServices().registry("shop")
