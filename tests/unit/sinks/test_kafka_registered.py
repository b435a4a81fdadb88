"""The id that a Kafka sink's values begin with: looked up, or registered where that was chosen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import protos
import pyarrow as pa
import pytest
from codes import raises
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from schema_registry import FakeRegistry, serving

from onceonly.errors import InvalidPipeline
from onceonly.kafka.registry import HEAD
from onceonly.kafka.registry.client import Registry, RegistryConnection
from onceonly.pipeline.registry import sink_from_json, sink_json
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka import gate_view, registered_schemas
from onceonly.sinks.kafka.registered_schemas import read_parts, require_heads
from onceonly.spark import arrow

pytestmark = pytest.mark.slow

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


def part(schema: Any = LATE) -> registered_schemas.SchemaPart:
    return registered_schemas.SchemaPart("value", "avro", "late.avsc", json.dumps(schema, indent=2), "shop.Late")


def heads(server: FakeRegistry, schema: Any, **more: Any) -> dict[str, bytes]:
    return dict(require_heads(sink(**more), registry(server), part(schema)))


def check(server: FakeRegistry, schema: Any, **more: Any) -> list[str]:
    return registered_schemas.check(sink(**more), registry(server), [part(schema)])


def test_a_registered_schema_is_looked_up(server: FakeRegistry) -> None:
    server.register("late-value", LATE)
    assert heads(server, LATE) == {"late": b"\0\0\0\x01\x2c"}
    assert server.requests == ["POST /subjects/late-value"]


def test_a_spark_that_cannot_write_a_format_is_named_before_any_work(
    server: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "version", lambda name: "3.5.9")
    server.register("late-value", LATE)
    assert check(server, LATE)
    message = registered_schemas.SchemaPart("value", "protobuf", "late.proto", "", "shop.Late")
    with raises(InvalidPipeline, "pyspark-unsupported", match=r"PySpark 3\.5\.9"):
        registered_schemas.check(sink(), registry(server), [message])


@pytest.mark.parametrize(
    ("subjects", "expected"),
    [("topic", ["a-value", "b-value"]), ("record", ["shop.Late"]), ("topic-record", ["a-shop.Late", "b-shop.Late"])],
)
def test_subjects_by_topic_and_by_record(server: FakeRegistry, subjects: Any, expected: list[str]) -> None:
    assert set(heads(server, LATE, topics=["a", "b"], subjects=subjects, register=True)) == {"a", "b"}
    assert sorted(server.subjects) == expected


def test_nothing_is_registered_unless_that_was_chosen(server: FakeRegistry) -> None:
    for ask in (
        lambda: require_heads(sink(), registry(server), part()),
        lambda: check(server, LATE),
    ):
        with raises(InvalidPipeline, "schema-not-registered"):
            ask()
    assert server.subjects == {}


def test_a_check_registers_nothing(server: FakeRegistry) -> None:
    (note,) = check(server, LATE, register=True)
    assert "that staging will register" in note
    assert server.subjects == {}


def test_registering_again_is_the_same(server: FakeRegistry) -> None:
    assert heads(server, LATE, register=True) == heads(server, LATE, register=True)
    assert server.subjects == {"late-value": [300]}


def test_what_is_not_compatible_is_refused(server: FakeRegistry) -> None:
    server.register("late-value", LATE)
    for ask in (heads, check):
        with raises(InvalidPipeline, "schema-incompatible"):
            ask(server, MORE, register=True)
    assert server.subjects == {"late-value": [300]}


def test_a_registry_that_takes_nothing_new(server: FakeRegistry) -> None:
    server.modes[""] = "READONLY"
    with raises(InvalidPipeline, "registry-request-refused", match=r"42205(.|\n)*read-only(.|\n)*Nothing was written"):
        heads(server, LATE, register=True)


@pytest.mark.parametrize(
    ("fields", "code", "why"),
    [
        ({"format": "json", "schema": None}, "option-invalid", "needs a schema file ending in .json"),
        ({"format": "raw", "schema": None}, "options-conflict", "writes keys and values as they are"),
        ({"format": "protobuf"}, "option-invalid", "needs a schema file ending in .desc"),
        ({"message": "shop.Late"}, "options-conflict", "message 'shop.Late' is of Protobuf"),
        ({"key_format": "json", "key_schema": "late.avsc"}, "option-invalid", "needs a schema file ending in .json"),
        ({"key_schema": "id.avsc"}, "option-invalid", "takes no schema"),
        ({"registry": None, "key_format": "avro", "key_schema": "id.avsc"}, "option-missing", "names no registry"),
        ({"registry": None, "register": True}, "option-missing", "names no registry"),
        ({"registry": None, "subjects": "record"}, "option-missing", "names no registry"),
        ({"registry": "http://ann:secret@r"}, "option-invalid", "is not an Airflow connection id"),
        ({"subjects": "table"}, "option-invalid", "subjects 'table' is not known"),
    ],
)
def test_definitions_that_do_not_fit(fields: dict[str, Any], code: str, why: str) -> None:
    with raises(InvalidPipeline, code, match=why):
        sink(**fields)


def test_keys_have_subjects_of_their_own(server: FakeRegistry, tmp_path: Path) -> None:
    (tmp_path / "late.avsc").write_text(json.dumps(LATE))
    (tmp_path / "id.json").write_text(json.dumps({"title": "Id", "type": "object"}))
    both = sink(key_format="json", key_schema="id.json", register=True)
    key, value = read_parts(both, tmp_path)
    assert [require_heads(both, registry(server), each)["late"][4] for each in (key, value)] == [
        44,
        45,
    ]
    assert sorted(server.subjects) == ["late-key", "late-value"]
    named = sink(key_format="json", key_schema="id.json", register=True, subjects="topic-record")
    require_heads(named, registry(server), key)
    assert "late-Id" in server.subjects


def test_a_message_is_named_by_its_indexes(server: FakeRegistry, tmp_path: Path) -> None:
    shop = protos.file(protos.message("Other"), protos.message("Late", nested=[protos.message("Line")]))
    (tmp_path / "late.desc").write_bytes(FileDescriptorSet(file=[shop]).SerializeToString())
    for message, indexes in {None: b"\0", "shop.Late": b"\2\2", "shop.Late.Line": b"\4\2\0"}.items():
        config = sink(format="protobuf", schema="late.desc", message=message, register=True)
        (found,) = read_parts(config, tmp_path)
        assert require_heads(config, registry(server), found)["late"] == b"\0\0\0\x01\x2c" + indexes


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("late.json", b"{", "is not JSON"),
        ("late.json", b'{"type": "objekt"}', r"\$\.type cannot be used"),
        ("late.avsc", b"{}", "is not a type"),
        ("late.desc", b"not compiled", "not a FileDescriptorSet"),
        ("late.desc", b"", "describes no message"),
        ("none.json", None, "FileNotFoundError"),
    ],
)
def test_schema_files_that_cannot_be_used(tmp_path: Path, name: str, content: bytes | None, why: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    format = {"json": "json", "avsc": "avro", "desc": "protobuf"}[name.rpartition(".")[2]]
    with raises(InvalidPipeline, "schema-unusable"):
        read_parts(sink(format=format, schema=name), tmp_path)


def test_a_message_of_another_file_is_refused(tmp_path: Path) -> None:
    shop = protos.file(protos.message("Late"), imports=("money.proto",))
    (tmp_path / "late.desc").write_bytes(FileDescriptorSet(file=[shop]).SerializeToString())
    with raises(InvalidPipeline, "schema-unusable"):
        read_parts(sink(format="protobuf", schema="late.desc"), tmp_path)


def test_a_sink_without_keys_is_stored_as_before() -> None:
    stored = sink_json(sink())
    assert not {"message", "key_format", "key_schema"} & set(stored)
    assert sink_from_json(sink_json(sink(key_format="avro", key_schema="id.avsc"))).key_format == "avro"


@pytest.mark.parametrize("value", [b"a", b"abc", b'{"id":1}', b"", b"x" * 50, None])
def test_a_gate_sees_values_of_any_length_without_their_ids(value: bytes | None) -> None:
    """pyarrow's binary_slice fails for some of them."""
    decode = gate_view._strip_head(HEAD, lambda values: values.to_pylist())
    with_head = None if value is None else b"\0\0\0\0\1" + value
    assert decode(pa.array([with_head], pa.binary())) == [value]
