"""Topics whose values begin with the id of a registered schema: a real broker and Spark, a registry over HTTP."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable
from integration.kafka_reader import create_topic
from patience import PATIENCE
from schema_registry import FakeRegistry, serving

from onceonly.checkpoint.model import State
from onceonly.errors import BadRecord, InvalidPipeline, NotCommitted
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import factory
from onceonly.runtime.factory import LiveParts
from onceonly.runtime.owners import nobody
from onceonly.settings import Settings
from onceonly.statetable import location
from onceonly.statetable.table import StateTable

pytestmark = pytest.mark.integration

V1 = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "int"}, {"name": "note", "type": ["null", "string"], "default": None}],
}
V2 = {
    **V1,
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "double", "default": 0.5},
        {"name": "customer", "type": ["null", "string"], "default": None},
    ],
}
TRANSFORM = """
from pathlib import Path


def orders(batch):
    if (Path(__file__).parent / "dies").exists():
        raise RuntimeError("it dies here")
    shown = ["key.*"] if batch.schema["key"].dataType.typeName() == "struct" else []
    return batch.select("partition", "offset", *shown, "value.*")
"""
OBJECT = {
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": ["null", "string"]}},
}


class Shop:
    """A topic of orders, a registry, and a project that reads the one by the other."""

    def __init__(self, folder: Path, broker: str, spark: str, registry: FakeRegistry) -> None:
        self.folder, self.broker, self.registry = folder, broker, registry
        self.topic = f"orders_{uuid.uuid4().hex[:8]}"
        create_topic(broker, self.topic)
        (folder / f"transforms_{self.topic}.py").write_text(TRANSFORM)
        env = {"ONCEONLY_HOME": str(folder / "home"), "ONCEONLY_PROJECT": str(folder), "SPARK_REMOTE": spark}
        self.settings = Settings.from_env({**env, "ONCEONLY_KAFKA_BOOTSTRAP": broker})
        StateTable.make(self.settings.state)
        self.extra: dict[str, str] = {"url": registry.url}
        self.parts = LiveParts(self.settings, lambda _: self.extra)
        self.through = factory.coordinator(self.parts)

    def written(self, schema: Any, *values: Any) -> list[bytes]:
        """As Confluent's own client writes them, which registers the schema."""
        context = SerializationContext(self.topic, MessageField.VALUE)
        with SchemaRegistryClient({"url": self.registry.url}) as client:
            serializer = AvroSerializer(client, json.dumps(schema))
            return [serializer(value, context) or b"" for value in values]

    def json(self, schema: Any, *values: Any) -> list[bytes]:
        context = SerializationContext(self.topic, MessageField.VALUE)
        with SchemaRegistryClient({"url": self.registry.url}) as client:
            serializer = JSONSerializer(json.dumps(schema), client)
            return [serializer(value, context) or b"" for value in values]

    def produce(self, *values: bytes | None, key: bytes | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.broker, "log_level": 0})
        for value in values:
            producer.produce(self.topic, value, key, partition=0)
        assert producer.flush(PATIENCE) == 0

    def pipeline(self, format: Any = "avro", **source: Any) -> Pipeline:
        return Pipeline(
            name="orders",
            source=KafkaSource(self.topic, format, registry="registry", **source),
            transform=f"transforms_{self.topic}:orders",
            sinks=[DeltaSink("orders", path="lake/orders")],
        )

    def plan(self, **source: Any) -> None:
        self.through.plan(self.pipeline(**source), "cli", nobody)

    def stage(self) -> Any:
        return factory.stage(self.parts, self.through, "orders", 1, None)

    def run(self, **source: Any) -> None:
        self.plan(**source)
        self.stage()
        self.through.commit("orders", 1)

    def rows(self) -> list[dict[str, Any]]:
        folder = self.folder / "home" / "lake" / "orders"
        if not (folder / "_delta_log").exists():
            return []
        found = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: (row["partition"], row["offset"]))

    @property
    def checkpoint(self) -> Any:
        return self.through.state.view("orders").require(1)

    def dies(self) -> None:
        """An attempt that ends after its schemas were pinned."""
        (self.folder / "dies").touch()
        self.refused(NotCommitted, "it dies here")
        (self.folder / "dies").unlink()

    def refused(self, kind: type[Exception], match: str) -> Exception:
        """Staging is refused: nothing was written, and nothing is left."""
        with pytest.raises(kind, match=match) as caught:
            self.stage()
        assert self.rows() == []
        assert list((self.folder / "home" / "lake").glob("orders/staged-*")) == []
        assert self.checkpoint.state is State.PLANNED
        return caught.value


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serving(FakeRegistry()) as running:
        yield running


@pytest.fixture
def shop(tmp_path: Path, broker: str, spark: Any, spark_server: str, registry: FakeRegistry) -> Shop:
    return Shop(tmp_path, broker, spark_server, registry)


def test_several_schemas_in_one_batch_become_the_latest(shop: Shop) -> None:
    old = shop.written(V1, {"id": 1, "note": "old"})
    new = shop.written(V2, {"id": 2**40, "price": 2.5, "customer": "ann"})
    shop.produce(*old, *new, None)
    shop.run()
    assert shop.rows() == [
        {"partition": 0, "offset": 0, "id": 1, "price": 0.5, "customer": None},
        {"partition": 0, "offset": 1, "id": 2**40, "price": 2.5, "customer": "ann"},
        {"partition": 0, "offset": 2, "id": None, "price": None, "customer": None},
    ]
    pins = shop.checkpoint.schemas[shop.topic]["value"]
    assert sorted(pins["writers"]) == ["1", "2"]
    assert (pins["reader"]["subject"], pins["reader"]["version"], pins["reader"]["id"]) == (
        f"{shop.topic}-value",
        2,
        2,
    )


def test_a_reader_of_the_users_own(shop: Shop) -> None:
    (shop.folder / "order.avsc").write_text(json.dumps({**V1, "fields": V2["fields"][:1]}))
    shop.produce(*shop.written(V1, {"id": 1, "note": "old"}), *shop.written(V2, {"id": 2, "price": 2.5}))
    shop.run(schema="order.avsc")
    assert [(row["id"], set(row)) for row in shop.rows()] == [
        (1, {"partition", "offset", "id"}),
        (2, {"partition", "offset", "id"}),
    ]
    assert "reader" not in shop.checkpoint.schemas[shop.topic]["value"]


def test_a_retried_stage_decodes_as_the_first_one(shop: Shop) -> None:
    """Between the two a version is registered, which is the latest for everybody else."""
    shop.produce(*shop.written(V1, {"id": 1, "note": "old"}))
    shop.plan()
    shop.dies()
    shop.registry.register(f"{shop.topic}-value", V2)
    shop.stage()
    shop.through.commit("orders", 1)
    assert shop.rows() == [{"partition": 0, "offset": 0, "id": 1, "note": "old"}]


def test_another_registry_is_noticed(shop: Shop) -> None:
    """Its ids name other schemas: what an attempt has pinned shows that."""
    shop.produce(*shop.written(V1, {"id": 1, "note": "old"}))
    shop.plan()
    shop.dies()
    shop.registry.schemas[1]["schema"] = json.dumps(V2)
    shop.refused(InvalidPipeline, "schema 1 of topic (.|\n)*not the one that was pinned(.|\n)*Nothing was written")


def test_types_of_other_subjects(shop: Shop) -> None:
    shop.registry.register("money", {"type": "record", "name": "Money", "namespace": "pay", "fields": [
        {"name": "cents", "type": "long"}]})  # fmt: skip
    fields = [{"name": "net", "type": "pay.Money"}, {"name": "gross", "type": ["null", "pay.Money"]}]
    priced = {"type": "record", "name": "Priced", "namespace": "shop", "fields": fields}
    id = shop.registry.register(
        f"{shop.topic}-value", priced, references=[{"name": "pay.Money", "subject": "money", "version": 1}]
    )
    shop.produce(b"\0" + id.to_bytes(4, "big") + b"\x0e" + b"\x02\x12")
    shop.run()
    assert [(row["net"], row["gross"]) for row in shop.rows()] == [({"cents": 7}, {"cents": 9})]


def test_json_of_several_schemas(shop: Shop) -> None:
    more = {**OBJECT, "properties": {**OBJECT["properties"], "tags": {"type": "array", "items": {"type": "string"}}}}
    shop.registry.levels[f"{shop.topic}-value"] = "NONE"
    old = shop.json(OBJECT, {"id": 1, "note": "old"})
    new = shop.json(more, {"id": 2, "note": None, "tags": ["a", "b"]})
    shop.produce(*old, *new, None)
    shop.run(format="json")
    assert [(row["id"], row["note"], row["tags"]) for row in shop.rows()] == [
        (1, "old", None),
        (2, None, ["a", "b"]),
        (None, None, None),
    ]


def test_json_by_columns_of_the_users_own(shop: Shop) -> None:
    (shop.folder / "order.ddl").write_text("id INT")
    shop.produce(*shop.json(OBJECT, {"id": 1, "note": "old"}))
    shop.run(format="json", schema="order.ddl")
    assert shop.rows() == [{"partition": 0, "offset": 0, "id": 1}]


@pytest.mark.parametrize("text", [b'{"id": "one"}', b'{"id": 1} {"id": 2}', b'{"id": 1', b"", b"null", b"\xff"])
def test_json_that_does_not_fit(shop: Shop, text: bytes) -> None:
    id = shop.registry.register(f"{shop.topic}-value", OBJECT, "JSON")
    shop.produce(b"\0" + id.to_bytes(4, "big") + text)
    shop.plan(format="json")
    shop.refused(BadRecord, "partition 0 offset 0(.|\n)*do not match schema 1")


def test_a_schema_of_another_format_is_refused(shop: Shop) -> None:
    shop.registry.register(f"{shop.topic}-value", OBJECT, "JSON")
    with pytest.raises(InvalidPipeline, match=r"cannot be read as avro(.|\n)*is JSON"):
        factory.check(shop.pipeline(), shop.parts)


def test_keys_have_schemas_too(shop: Shop) -> None:
    shop.registry.register(f"{shop.topic}-key", {**V1, "name": "Id", "fields": [{"name": "shop", "type": "string"}]})
    shop.produce(*shop.written(V1, {"id": 1, "note": "n"}), key=b"\0\0\0\0\x01\x06abc")
    shop.produce(*shop.written(V1, {"id": 2, "note": "n"}))
    shop.run(key_format="avro")
    assert [(row["shop"], row["id"]) for row in shop.rows()] == [("abc", 1), (None, 2)]
    assert sorted(shop.checkpoint.schemas[shop.topic]) == ["key", "value"]


# ---- bad input: nothing is written


def test_a_key_without_an_id(shop: Shop) -> None:
    shop.registry.register(f"{shop.topic}-key", {**V1, "name": "Id", "fields": [{"name": "shop", "type": "string"}]})
    shop.produce(*shop.written(V1, {"id": 1, "note": "n"}), key=b"abc")
    shop.plan(key_format="avro")
    shop.refused(BadRecord, "partition 0 offset 0: the key (.|\n)*does not begin with a zero byte")


def test_an_id_that_the_registry_does_not_have(shop: Shop) -> None:
    shop.produce(*shop.written(V1, {"id": 1}), b"\0\0\0\x03\xe7ab")
    shop.plan()
    shop.refused(BadRecord, "partition 0 offset 1(.|\n)*no schema of its id 999(.|\n)*Nothing was written")


@pytest.mark.parametrize("value", [b'{"id": 1}', b"\0\0", b""])
def test_a_value_without_an_id(shop: Shop, value: bytes) -> None:
    shop.produce(*shop.written(V1, {"id": 1}), value)
    shop.plan()
    shop.refused(BadRecord, "partition 0 offset 1(.|\n)*does not begin with a zero byte")


def test_a_writer_that_the_reader_does_not_understand(shop: Shop) -> None:
    shop.registry.levels[f"{shop.topic}-value"] = "NONE"
    texts = {**V1, "fields": [{"name": "id", "type": "string"}]}
    shop.produce(*shop.written(texts, {"id": "one"}), *shop.written(V1, {"id": 1}))
    shop.plan()
    shop.refused(BadRecord, "partition 0 offset 0(.|\n)*schema 1(.|\n)*Schema(.|\n)*Nothing was published")


def test_a_value_that_ends_too_early(shop: Shop) -> None:
    shop.produce(*[value[:-2] for value in shop.written(V1, {"id": 1, "note": "long enough"})])
    shop.plan()
    shop.refused(BadRecord, "partition 0 offset 0(.|\n)*do not match schema 1")


def test_a_topic_without_a_subject(shop: Shop) -> None:
    shop.produce(b"\0\0\0\0\x01\x02\0")
    with pytest.raises(InvalidPipeline, match=f"has no subject '{shop.topic}-value'"):
        factory.check(shop.pipeline(), shop.parts)


def test_a_registry_that_does_not_answer(shop: Shop) -> None:
    shop.produce(*shop.written(V1, {"id": 1}))
    shop.plan()
    shop.registry.failing = 500
    error = shop.refused(NotCommitted, "fails(.|\n)*500(.|\n)*Retry")
    assert not isinstance(error, InvalidPipeline)
    shop.extra = {"url": "http://127.0.0.1:9"}
    error = shop.refused(NotCommitted, "127.0.0.1:9 (.|\n)*does not answer(.|\n)*Retry")
    assert not isinstance(error, InvalidPipeline)


def test_credentials_that_are_refused_are_not_shown(shop: Shop, capfd: Any) -> None:
    shop.produce(*shop.written(V1, {"id": 1}))
    shop.plan()
    shop.registry.login = "ann:right-secret"
    shop.extra = {"url": shop.registry.url.replace("//", "//ann:wrong-secret@")}
    error = shop.refused(InvalidPipeline, "refuses (.|\n)*401")
    assert "secret" not in str(error)
    shop.extra = {"url": shop.registry.url, "basic.auth.user.info": "ann:right-secret"}
    shop.registry.forbidden.add(f"{shop.topic}-value")
    shop.refused(InvalidPipeline, "refuses subject (.|\n)*403")
    shop.registry.forbidden.clear()
    shop.stage()
    shop.through.commit("orders", 1)
    assert [row["id"] for row in shop.rows()] == [1]
    recorded = DeltaTable(location.folder(shop.settings.state, "orders")).to_pyarrow_table().to_pylist()
    assert recorded
    assert "secret" not in str(recorded) + "".join(capfd.readouterr())
