"""Topics whose values begin with the id of a registered schema: a real broker and Spark, a registry over HTTP."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import protos
import pytest
from codes import raises
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable
from fastavro import parse_schema, schemaless_writer
from google.protobuf.descriptor_pb2 import EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet
from integration.readers.kafka_reader import committed, create_topic, values
from patience import PATIENCE
from protos import field, file, message
from schema_registry import FakeRegistry, serving

from onceonly.checkpoint.model import State
from onceonly.errors import BadRecord, InvalidPipeline, NotCommitted, OnceonlyError
from onceonly.kafka.registry import avro_schema
from onceonly.kafka.registry.client import Registry, RegistryConnection
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, spark_stage
from onceonly.runtime.live_services import LiveServices
from onceonly.runtime.owners import is_never_alive
from onceonly.settings import Settings
from onceonly.spark import avro as avro_on_spark
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


def late(batch):
    return batch.selectExpr("IF(value IS NULL, NULL, STRUCT(CAST(value.id AS BIGINT) AS id)) AS value")
"""
STRING, NULLABLE = {"type": "string"}, ["null", "string"]
DAY, AT = {"type": "int", "logicalType": "date"}, {"type": "long", "logicalType": "timestamp-micros"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
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
        self.parts = LiveServices(self.settings, lambda _: self.extra)
        self.through = live_services.open_coordinator(self.parts)

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

    def pipeline(self, format: Any = "avro", dead_letters: Any = None, **source: Any) -> Pipeline:
        return Pipeline(
            name="orders",
            source=KafkaSource(self.topic, format, registry="registry", **source),
            transform=f"transforms_{self.topic}:orders",
            sinks=[DeltaSink("orders", path="lake/orders")],
            dead_letters=dead_letters,
        )

    def plan(self, **source: Any) -> None:
        self.through.plan(self.pipeline(**source), "cli", is_never_alive)

    def stage(self) -> Any:
        return spark_stage.stage(self.parts, self.through, "orders", 1, None)

    def run(self, **source: Any) -> None:
        self.plan(**source)
        self.stage()
        self.through.commit("orders", 1)

    def rows(self, sink: str = "orders") -> list[dict[str, Any]]:
        folder = self.folder / "home" / "lake" / sink
        if not (folder / "_delta_log").exists():
            return []
        found = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: (row["partition"], row["offset"]))

    @property
    def checkpoint(self) -> Any:
        return self.through.state_table.view("orders").require(1)

    def dies(self) -> None:
        """An attempt that ends after its schemas were pinned."""
        (self.folder / "dies").touch()
        self.refused(NotCommitted, "it dies here")
        (self.folder / "dies").unlink()

    def refused(self, kind: type[OnceonlyError], match: str) -> OnceonlyError:
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


def framed(id: int, rest: bytes) -> bytes:
    return b"\0" + id.to_bytes(4, "big") + rest


def test_a_retried_stage_finds_the_same_records_bad(shop: Shop) -> None:
    """Between the two, the id that was unknown gets a schema: that record would be good now."""
    (good,) = shop.written(V1, {"id": 1, "note": "old"})
    other = shop.registry.register("others", OBJECT, "JSON")
    garbage = [b"plain text", b"", framed(other + 1, good[5:]), framed(other, b"{}"), good[:-1]]
    shop.produce(good, *garbage, None, key=b"k")
    shop.plan(on_bad_record="dead_letter", dead_letters=DeltaSink("dead", "lake/dead"))
    shop.dies()
    assert shop.registry.register("later", V1 | {"name": "Later"}) == other + 1
    shop.stage()
    shop.through.commit("orders", 1)
    assert [(row["offset"], row["id"]) for row in shop.rows()] == [(0, 1), (6, None)]
    dead = shop.rows("dead")
    assert [(row["offset"], row["key"], row["value"]) for row in dead] == [
        (number, b"k", value) for number, value in enumerate(garbage, 1)
    ]
    whole = "The value cannot be decoded. "
    unframed = (
        whole + "It does not begin with a zero byte and the id of a schema, as clients of a schema registry write."
    )
    unknown = whole + "The registry has no schema of that format with its id {}."
    unreadable = f"{whole}It is not a value of schema 1: {avro_on_spark.UNREADABLE}."
    said = [unframed, unframed, unknown.format(other + 1), unknown.format(other), unreadable]
    assert [row["error"] for row in dead] == said
    assert shop.checkpoint.bad == {"records": 7, "undecoded": {shop.topic: 5}, "rejected": 0}


@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_bad_values_and_keys_of_other_formats(shop: Shop, format: str) -> None:
    named = {"type": "record", "name": "Key", "fields": [{"name": "code", "type": "int"}]}
    key = framed(shop.registry.register(f"{shop.topic}-key", named), b"\x02")
    shop.registry.levels[f"{shop.topic}-value"] = "NONE"
    if format == "json":
        (good,) = shop.json(OBJECT, {"id": 7, "note": None})
    else:
        (good,) = proto(shop, "shop.Order", OLD, {"id": 7})
    shop.produce(good, good[:-1], key=key)
    shop.produce(good, key=b"no key")
    source = {"key_format": "avro", "on_bad_record": "dead_letter", "dead_letters": DeltaSink("dead", "lake/dead")}
    shop.run(format=format, **source)
    dead = [(row["offset"], row["key"], row["value"], row["error"].split(".")[0]) for row in shop.rows("dead")]
    assert dead == [
        (1, key, good[:-1], "The value cannot be decoded"),
        (2, b"no key", good, "The key cannot be decoded"),
    ]


def test_another_registry_is_noticed(shop: Shop) -> None:
    """Its ids name other schemas: what an attempt has pinned shows that."""
    shop.produce(*shop.written(V1, {"id": 1, "note": "old"}))
    shop.plan()
    shop.dies()
    shop.registry.schemas[1]["schema"] = json.dumps(V2)
    refused = shop.refused(
        InvalidPipeline, "schema 1 of topic (.|\n)*not the one that was pinned(.|\n)*Nothing was written"
    )
    assert refused.code == "registry-changed"


def test_every_type_and_types_of_other_subjects(shop: Shop) -> None:
    shop.registry.register("money", {"type": "record", "name": "Money", "namespace": "pay", "fields": [
        {"name": "cents", "type": "long"}]})  # fmt: skip
    fields = [
        {"name": "net", "type": "pay.Money"}, {"name": "gross", "type": ["null", "pay.Money"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "any", "type": ["null", "int", "string"]}, {"name": "price", "type": PRICE},
        {"name": "day", "type": DAY}, {"name": "at", "type": AT},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
    ]  # fmt: skip
    priced = {"type": "record", "name": "Priced", "namespace": "shop", "fields": fields}
    id = shop.registry.register(
        f"{shop.topic}-value", priced, references=[{"name": "pay.Money", "subject": "money", "version": 1}]
    )
    at = datetime(2013, 1, 1, 0, 0, 0, 123456, UTC)
    row = {"state": "PAID", "price": Decimal("12.34"), "day": date(2013, 1, 1), "at": at}
    whole = avro_schema.inline_references(
        Registry(RegistryConnection.parse({"url": shop.registry.url}, "r")).find_schema(id) or pytest.fail()
    )
    buffer = io.BytesIO()
    order = {**row, "net": {"cents": 7}, "gross": {"cents": 9}, "any": "seven", "counts": {"x": 1}}
    schemaless_writer(buffer, parse_schema(json.loads(whole)), order)
    shop.produce(b"\0" + id.to_bytes(4, "big") + buffer.getvalue())
    shop.run()
    (found,) = shop.rows()
    assert {name: found[name] for name in row} == row
    assert (found["net"], found["gross"]) == ({"cents": 7}, {"cents": 9})
    assert (found["any"], dict(found["counts"])) == ({"member0": None, "member1": "seven"}, {"x": 1})


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
    shop.refused(
        BadRecord, r"partition 0 offset 0(.|\n)*(is not JSON|not a JSON object|At \$\.id it breaks the rule type)"
    )


def test_json_that_breaks_a_rule_of_its_schema(shop: Shop) -> None:
    id = shop.registry.register(f"{shop.topic}-value", {**OBJECT, "required": ["id"]}, "JSON")
    shop.produce(*(b"\0" + id.to_bytes(4, "big") + text for text in (b'{"id": 1}', b'{"note": "n"}')))
    shop.plan(format="json")
    shop.refused(BadRecord, r"partition 0 offset 1(.|\n)*breaks the rule required: \[")


def test_a_schema_of_another_format_is_refused(shop: Shop) -> None:
    shop.registry.register(f"{shop.topic}-value", OBJECT, "JSON")
    with raises(InvalidPipeline, "format-differs", match="is JSON"):
        live_services.check_pipeline(shop.pipeline(), shop.parts)


def test_keys_have_schemas_too(shop: Shop) -> None:
    shop.registry.register(f"{shop.topic}-key", {**V1, "name": "Id", "fields": [{"name": "shop", "type": "string"}]})
    shop.produce(*shop.written(V1, {"id": 1, "note": "n"}), key=b"\0\0\0\0\x01\x06abc")
    shop.produce(*shop.written(V1, {"id": 2, "note": "n"}))
    shop.run(key_format="avro")
    assert [(row["shop"], row["id"]) for row in shop.rows()] == [("abc", 1), (None, 2)]
    assert sorted(shop.checkpoint.schemas[shop.topic]) == ["key", "value"]


# ---- Protobuf

LINE = message("Line", field(1, "sku", "string"), field(2, "n", "int64"))
PROTO = message("Order", field(1, "id", "int32"), field(2, "lines", ".shop.Order.Line", repeated=True), nested=[LINE])
OLD = file(PROTO)
NEW_PROTO = message("Order", *PROTO.field, field(3, "note", "string", optional=True), nested=[LINE])
NEW = file(NEW_PROTO, message("Other", field(1, "id", "string")))


def proto(shop: Shop, name: str, made: Any, *values: dict[str, Any]) -> list[bytes]:
    """As Confluent's own client writes them."""
    shop.registry.levels[f"{shop.topic}-value"] = "NONE"
    kind = protos.of(name, made)
    context = SerializationContext(shop.topic, MessageField.VALUE)
    with SchemaRegistryClient({"url": shop.registry.url}) as client:
        serializer = ProtobufSerializer(kind, client, {"use.deprecated.format": False})
        return [serializer(kind(**value), context) or b"" for value in values]


def test_protobuf_of_several_schemas(shop: Shop) -> None:
    old = proto(shop, "shop.Order", OLD, {"id": 1, "lines": [{"sku": "a", "n": 2**40}, {}]})
    new = proto(shop, "shop.Order", NEW, {"note": "n"})
    shop.produce(*old, *new, None)
    shop.run(format="protobuf")
    assert [(row["id"], row["lines"], row["note"]) for row in shop.rows()] == [
        (1, [{"sku": "a", "n": 2**40}, {"sku": "", "n": 0}], None),
        (0, [], "n"),
        (None, None, None),
    ]
    assert sorted(shop.checkpoint.schemas[shop.topic]["value"]["writers"]) == ["1", "2"]


def test_a_nested_message_with_types_of_another_file(shop: Shop) -> None:
    money = file(message("Money", field(1, "cents", "int64")), name="money.proto")
    tags = message("TagsEntry", field(1, "key", "string"), field(2, "value", "int64"))
    tags.options.map_entry = True
    line = message(
        "Line", field(1, "net", ".shop.Money"), field(2, "at", ".google.protobuf.Timestamp"),
        field(3, "rebate", ".google.protobuf.Int64Value"), field(4, "none", ".google.protobuf.Int64Value"),
        field(5, "tags", ".shop.Order.Line.TagsEntry", repeated=True), nested=[tags],
    )  # fmt: skip
    common = ("google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto")
    order = file(message("Empty"), message("Order", nested=[line]), imports=("money.proto", *common))
    shop.registry.register("money", protos.text(money), "PROTOBUF")
    reference = {"name": "money.proto", "subject": "money", "version": 1}
    id = shop.registry.register(f"{shop.topic}-value", protos.text(order), "PROTOBUF", [reference])
    at = datetime(2013, 1, 1, 0, 0, 0, 123456, UTC)
    made = protos.of("shop.Order.Line", money, order)(net={"cents": 5}, rebate={"value": 0}, at=at, tags={"x": 1})
    shop.produce(b"\0" + id.to_bytes(4, "big") + b"\4\2\0" + made.SerializeToString())
    shop.run(format="protobuf", message="shop.Order.Line")
    (row,) = shop.rows()
    assert (row["net"], row["at"], row["rebate"], row["none"]) == ({"cents": 5}, at, 0, None)
    assert dict(row["tags"]) == {"x": 1}


def test_another_message_of_the_same_schema_is_not_taken_for_it(shop: Shop) -> None:
    shop.produce(*proto(shop, "shop.Order", NEW, {"id": 1}), *proto(shop, "shop.Other", NEW, {"id": "x"}))
    shop.plan(format="protobuf")
    shop.refused(BadRecord, "partition 0 offset 1(.|\n)*not a value of schema 1: it is another message")


def test_a_field_that_was_written_as_another_type(shop: Shop) -> None:
    texts = file(message("Order", field(1, "id", "string")))
    shop.produce(*proto(shop, "shop.Order", texts, {"id": "one"}), *proto(shop, "shop.Order", OLD, {"id": 1}))
    shop.plan(format="protobuf")
    shop.refused(InvalidPipeline, "Schema 1 (.|\n)*field 1 (.|\n)*written as another type")


# ---- written

LATE = {**V1, "name": "Late", "fields": [{"name": "id", "type": "long"}]}


def writing(shop: Shop, schema: Any, **more: Any) -> Pipeline:
    """The ids of the orders, to another topic."""
    (shop.folder / "late.avsc").write_text(json.dumps(schema))
    to = f"late_{shop.topic}"
    sink = KafkaSink(name="late", topic=to, format="avro", schema="late.avsc", registry="registry", **more)
    return Pipeline(**{**vars(shop.pipeline()), "transform": f"transforms_{shop.topic}:late", "sinks": [sink]})


def test_what_is_written_is_read_by_others(shop: Shop) -> None:
    """Confluent's own deserializer reads it, and the gate sees the values without their ids."""
    to = create_topic(shop.broker, f"late_{shop.topic}")
    shop.produce(*shop.written(V1, {"id": 1, "note": "n"}, {"id": 2, "note": "n"}), None)
    pipeline = writing(shop, LATE, register=True)
    assert "that staging will register" in "".join(live_services.check_pipeline(pipeline, shop.parts))
    shop.through.plan(pipeline, "cli", is_never_alive)
    handle = shop.stage().handles["late"]
    writer: Any = shop.parts.sink(pipeline, "late")
    assert sorted(row["id"] or 0 for row in writer.read_staged(handle).read_all().to_pylist()) == [0, 1, 2]
    assert sorted(row["id"] or 0 for row in writer.staged_frame(handle, shop.parts.spark()).collect()) == [0, 1, 2]
    shop.through.commit("orders", 1)
    context = SerializationContext(to, MessageField.VALUE)
    with SchemaRegistryClient({"url": shop.registry.url}) as client:
        deserialize = AvroDeserializer(client)
        found = [value and deserialize(value, context) for value in values(shop.broker, to)]
    assert sorted(value["id"] for value in found if value) == [1, 2]
    assert (len(found), shop.registry.subjects[f"{to}-value"]) == (3, [2])


WRITES = """
def every(batch):
    key = "NAMED_STRUCT('shop', CAST(value.id AS STRING)) AS key"
    time = "TIMESTAMP '2013-01-01 00:00:00.123456Z'"
    plain = f"value.id AS id, value.note AS note, ARRAY('a', 'b') AS tags, MAP('x', 1L) AS counts"
    avro = f"STRUCT({plain}, CAST(12.34 AS DECIMAL(10, 2)) AS price, DATE '2013-01-01' AS day, {time} AS at) AS value"
    proto = f"STRUCT({plain}, {time} AS at, 'PAID' AS state) AS value"
    return {
        "avro": batch.selectExpr(key, avro),
        "json": batch.selectExpr(key, f"STRUCT({plain}) AS value"),
        "protobuf": batch.selectExpr(key, proto),
    }
"""
ALL = {
    "type": "record", "name": "All", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"}, {"name": "note", "type": NULLABLE},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "price", "type": PRICE}, {"name": "day", "type": DAY}, {"name": "at", "type": AT},
    ],
}  # fmt: skip
ALL_JSON = {
    "title": "All", "type": "object", "required": ["id"],
    "properties": {
        "id": {"type": "integer"}, "note": STRING, "tags": {"type": "array", "items": STRING},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
}  # fmt: skip
KEYS = {
    "avro": {"type": "record", "name": "Key", "namespace": "shop", "fields": [{"name": "shop", "type": "string"}]},
    "json": {"title": "Key", "type": "object", "properties": {"shop": STRING}},
}


def all_of_protobuf() -> FileDescriptorProto:
    counts = message("CountsEntry", field(1, "key", "string"), field(2, "value", "int64"))
    counts.options.map_entry = True
    made = file(
        message("Key", field(1, "shop", "string")),
        message(
            "All", field(1, "id", "int32"), field(2, "note", ".google.protobuf.StringValue"),
            field(3, "tags", "string", repeated=True), field(4, "counts", ".shop.All.CountsEntry", repeated=True),
            field(5, "at", ".google.protobuf.Timestamp"), field(6, "state", "enum .shop.State"), nested=[counts],
        ),
        imports=("google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"),
    )  # fmt: skip
    made.enum_type.append(EnumDescriptorProto(name="State", value=[{"name": "NEW"}, {"name": "PAID", "number": 2}]))
    return made


def read_back(shop: Shop, topic: str, format: str) -> list[tuple[Any, Any]]:
    """Keys and values by Confluent's own deserializers."""
    proto = all_of_protobuf()
    with SchemaRegistryClient({"url": shop.registry.url}) as client:
        made: dict[str, Any] = {
            "avro": lambda _: AvroDeserializer(client),
            "json": lambda _: JSONDeserializer(None, schema_registry_client=client),
            "protobuf": lambda name: ProtobufDeserializer(
                protos.of(f"shop.{name}", proto), schema_registry_client=client
            ),
        }
        key, value = made[format]("Key"), made[format]("All")
        fields = SerializationContext(topic, MessageField.KEY), SerializationContext(topic, MessageField.VALUE)
        found = committed(shop.broker, topic)
        return [(key(record.key, fields[0]), value(record.value, fields[1])) for record in found]


def sink_of(shop: Shop, format: Any, suffix: str, **more: Any) -> KafkaSink:
    topic = create_topic(shop.broker, f"{format}_{shop.topic}", 1)
    both = {"format": format, "schema": f"all.{suffix}", "key_format": format, "key_schema": f"key.{suffix}"}
    return KafkaSink(name=format, topic=topic, registry="registry", register=True, **{**both, **more})


def test_every_format_is_read_back_by_confluents_deserializers(shop: Shop) -> None:
    """Keys and values, in one checkpoint; registered by one subject strategy each."""
    (shop.folder / f"all_{shop.topic}.py").write_text(WRITES)
    for name, schema in {
        "all.avsc": ALL,
        "all.json": ALL_JSON,
        "key.avsc": KEYS["avro"],
        "key.json": KEYS["json"],
    }.items():
        (shop.folder / name).write_text(json.dumps(schema))
    (shop.folder / "all.desc").write_bytes(FileDescriptorSet(file=[all_of_protobuf()]).SerializeToString())
    sinks = [
        sink_of(shop, "avro", "avsc", subjects="topic-record"),
        sink_of(shop, "json", "json"),
        sink_of(shop, "protobuf", "desc", key_schema="all.desc", message="shop.All"),
    ]
    shop.produce(*shop.written(V1, {"id": 1, "note": "n"}, {"id": 2, "note": None}))
    pipeline = Pipeline(**{**vars(shop.pipeline()), "transform": f"all_{shop.topic}:every", "sinks": sinks})
    shop.through.plan(pipeline, "cli", is_never_alive)
    handles = shop.stage().handles
    writer: Any = shop.parts.sink(pipeline, "json")
    assert [row["tags"] for row in writer.read_staged(handles["json"]).read_all().to_pylist()] == [["a", "b"]] * 2
    assert [row["id"] for row in writer.staged_frame(handles["json"], shop.parts.spark()).collect()] == [1, 2]
    proto: Any = shop.parts.sink(pipeline, "protobuf")
    in_process = proto.read_staged(handles["protobuf"]).read_all()
    on_spark = proto.staged_frame(handles["protobuf"], shop.parts.spark()).toArrow()
    seen_by_gate = [sorted(rows.select(proto.columns()).to_pylist(), key=str) for rows in (in_process, on_spark)]
    assert seen_by_gate[0] == seen_by_gate[1]
    assert [(row["id"], row["counts"], row["state"]) for row in in_process.to_pylist()] == [
        (1, [("x", 1)], "PAID"), (2, [("x", 1)], "PAID")
    ]  # fmt: skip
    shop.through.commit("orders", 1)
    plain = [{"id": 1, "note": "n"}, {"id": 2, "note": None}]
    rest = {"tags": ["a", "b"], "counts": {"x": 1}}
    at = datetime(2013, 1, 1, 0, 0, 0, 123456, UTC)
    more = {"price": Decimal("12.34"), "day": date(2013, 1, 1), "at": at}
    keys = [{"shop": "1"}, {"shop": "2"}]
    assert read_back(shop, f"avro_{shop.topic}", "avro") == [
        (key, {**row, **rest, **more}) for key, row in zip(keys, plain, strict=True)
    ]
    assert read_back(shop, f"json_{shop.topic}", "json") == [
        (keys[0], {**plain[0], **rest}), (keys[1], {"id": 2, **rest})
    ]  # fmt: skip
    found = read_back(shop, f"protobuf_{shop.topic}", "protobuf")
    assert [(key.shop, value.id, value.HasField("note"), value.note.value) for key, value in found] == [
        ("1", 1, True, "n"), ("2", 2, False, "")
    ]  # fmt: skip
    assert [(list(v.tags), dict(v.counts), v.at.ToDatetime(UTC), v.state) for _, v in found] == [
        (["a", "b"], {"x": 1}, at, 2)
    ] * 2
    assert {f"avro_{shop.topic}-shop.All", f"avro_{shop.topic}-shop.Key", f"json_{shop.topic}-key"} <= set(
        shop.registry.subjects
    )


def test_a_row_that_its_schema_does_not_take_is_refused_while_staging(shop: Shop) -> None:
    to = create_topic(shop.broker, f"late_{shop.topic}")
    (shop.folder / "late.json").write_text(json.dumps({"type": "object", "properties": {"id": {"maximum": 1}}}))
    shop.produce(*shop.written(V1, {"id": 1, "note": "n"}, {"id": 2, "note": "n"}))
    sink = KafkaSink(
        name="late", topic=to, format="json", schema="late.json", registry="registry", register=True
    )  # fmt: skip
    pipeline = Pipeline(**{**vars(shop.pipeline()), "transform": f"transforms_{shop.topic}:late", "sinks": [sink]})
    shop.through.plan(pipeline, "cli", is_never_alive)
    shop.refused(InvalidPipeline, r"sink 'late'(.|\n)*'late.json'(.|\n)*\$.id it breaks the rule maximum: 1")
    assert values(shop.broker, to) == []


def test_a_schema_that_is_not_compatible_is_refused_while_staging(shop: Shop) -> None:
    to = create_topic(shop.broker, f"late_{shop.topic}")
    shop.registry.register(f"{to}-value", {**LATE, "fields": [{"name": "id", "type": "string"}]})
    shop.produce(*shop.written(V1, {"id": 1, "note": "n"}))
    shop.through.plan(writing(shop, LATE, register=True), "cli", is_never_alive)
    shop.refused(InvalidPipeline, "cannot be registered(.|\n)*not compatible")
    assert values(shop.broker, to) == []


# ---- bad input: nothing is written


def test_a_key_without_an_id(shop: Shop) -> None:
    shop.registry.register(f"{shop.topic}-key", {**V1, "name": "Id", "fields": [{"name": "shop", "type": "string"}]})
    shop.produce(*shop.written(V1, {"id": 1, "note": "n"}), key=b"abc")
    shop.plan(key_format="avro")
    shop.refused(BadRecord, "partition 0 offset 0: the key (.|\n)*does not begin with a zero byte")


def test_an_id_that_the_registry_does_not_have(shop: Shop) -> None:
    shop.produce(*shop.written(V1, {"id": 1}), b"\0\0\0\x03\xe7ab")
    shop.plan()
    refused = shop.refused(BadRecord, "partition 0 offset 1(.|\n)*no schema with its id 999(.|\n)*Nothing was written")
    assert refused.code == "schema-unknown"


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
    shop.refused(BadRecord, "partition 0 offset 0(.|\n)*not a value of schema 1: its bytes end")


def test_a_topic_without_a_subject(shop: Shop) -> None:
    shop.produce(b"\0\0\0\0\x01\x02\0")
    with raises(InvalidPipeline, "subject-missing", match=f"'{shop.topic}-value'"):
        live_services.check_pipeline(shop.pipeline(), shop.parts)


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
    recorded = DeltaTable(location.table_folder(shop.settings.state, "orders")).to_pyarrow_table().to_pylist()
    assert recorded
    assert "secret" not in str(recorded) + "".join(capfd.readouterr())
