"""Values with the ids of registered schemas, beside the same records decoded by Spark's from_avro alone."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.ratio import against, alternate
from benchmarks.results import Result
from benchmarks.world import PARTITIONS, create, world
from onceonly.checkpoint.offsets import TopicRange
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.registry.client import Registry, RegistryConnection
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.live_services import LiveServices
from onceonly.sources.kafka import KafkaReader

ROWS = 200_000
TEXT, COUNT = {"type": "string"}, {"type": "long"}
NAMES = ("order", "customer", "shop", "currency")
OLD: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": COUNT}, *({"name": name, "type": TEXT} for name in NAMES)],
}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "cents", "type": COUNT, "default": 0}]}
Encode = Callable[[dict[str, Any]], bytes]
ONE, TWO = "one-schema", "two-schemas"
BARE = "from_avro alone"
DECODED, FOUND, FOUND_TWO = "one schema, pinned", "one schema, found first", "two schemas, found first"
JSON, PROTO = "as-json", "as-protobuf"
RULES, COLUMNS, MESSAGES = "JSON Schema, pinned", "JSON by columns, pinned", "Protobuf, pinned"
AS_JSON = {
    "type": "object",
    "required": ["id", *NAMES],
    "properties": {"id": {"type": "integer"}, "cents": {"type": "integer"}, **dict.fromkeys(NAMES, TEXT)},
}
DDL = ", ".join(["id BIGINT", "cents BIGINT", *(f"{name} STRING" for name in NAMES)])


def registry(folder: Path, rows: int = ROWS, rounds: int = 3) -> Result:
    """All sides read the same topics in one warm session and write nothing."""
    with _registered() as known, world(folder, 1, ()) as parts:
        ids = [known.register("orders", OLD), known.register("orders", NEW)]
        for topic, used in ((ONE, ids[1:]), (TWO, ids)):
            create(parts.settings.brokers(None), topic)
            _fill(parts.settings.brokers(None), topic, _avro(used), rows)
        for topic, encode in ((JSON, _json(known)), (PROTO, _protobuf(known))):
            create(parts.settings.brokers(None), topic)
            _fill(parts.settings.brokers(None), topic, encode, rows)
        (folder / "order.ddl").write_text(DDL)
        sides = {
            FOUND: lambda: _ours(parts, known.url, ONE),
            FOUND_TWO: lambda: _ours(parts, known.url, TWO),
            DECODED: lambda: _ours(parts, known.url, ONE, pinned=True),
            RULES: lambda: _ours(parts, known.url, JSON, pinned=True, format="json"),
            COLUMNS: lambda: _ours(
                parts, known.url, JSON, pinned=True, format="json", schema=str(folder / "order.ddl")
            ),
            MESSAGES: lambda: _ours(parts, known.url, PROTO, pinned=True, format="protobuf"),
            BARE: lambda: _bare(parts),
        }
        timed = alternate(sides, rounds)
        pairs = [against([row for row in timed if row.measure.startswith((side, BARE))]) for side in sides]
        measured = {row.measure: row for pair in pairs[:-1] for row in pair}
    return Result(
        "Schema registry",
        f"{rows:,} Avro records of six fields are read from Kafka and decoded, by the ids of registered schemas (one, "
        "or two in turns), beside Spark's `from_avro` of the same bytes by one schema, which looks at no id. *Found "
        "first*: with the job that looks up which ids there are. A retried attempt has them pinned. The same as "
        "JSON whose schema asks for types and required fields, by its rules or by columns of the user's own, and as "
        "Protobuf, are compared with Spark's `from_avro`, too.",
        list(measured.values()),
        settings={BARE: {**peers.READ, "mode": "FAILFAST"}},
    )


@contextmanager
def _registered() -> Iterator[Any]:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from schema_registry import FakeRegistry, serving

    with serving(FakeRegistry()) as known:
        yield known


def _avro(ids: list[int]) -> Encode:
    from fastavro import parse_schema, schemaless_writer

    schemas = {id: parse_schema(schema) for id, schema in zip((1, 2), (OLD, NEW), strict=True)}

    def encode(order: dict[str, Any]) -> bytes:
        id, buffer = ids[order["id"] % len(ids)], io.BytesIO()
        schemaless_writer(buffer, schemas[id], order)
        return _head(id) + buffer.getvalue()

    return encode


def _json(known: Any) -> Encode:
    head = _head(known.register(f"{JSON}-value", AS_JSON, "JSON"))
    return lambda order: head + json.dumps(order).encode()


def _protobuf(known: Any) -> Encode:
    import protos

    fields = [protos.field(1, "id", "int64"), protos.field(2, "cents", "int64")]
    fields += [protos.field(number, name, "string") for number, name in enumerate(NAMES, 3)]
    made = protos.file(protos.message("Order", *fields))
    kind, head = protos.of("shop.Order", made), _head(known.register(f"{PROTO}-value", protos.text(made), "PROTOBUF"))
    return lambda order: bytes(head + b"\0" + kind(**order).SerializeToString())


def _head(id: int) -> bytes:
    return b"\0" + id.to_bytes(4, "big")


def _fill(bootstrap: str, topic: str, encode: Encode, rows: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    for number in range(rows):
        order = {"id": number, "cents": number % 1000, **{name: f"{name}-{number % 977}" for name in NAMES}}
        producer.produce(topic, encode(order), partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.flush(60)
    if producer.flush(120):
        raise RuntimeError("the broker did not take all records")


def _ours(
    parts: LiveServices, url: str, topic: str, pinned: bool = False, format: Any = "avro", schema: str | None = None
) -> None:
    known = Registry(RegistryConnection.parse({"url": url}, "bench"))
    kafka = KafkaConnection.plaintext(parts.settings.brokers(None))
    subject = "orders" if format == "avro" else None
    config = KafkaSource(topic, format, schema, registry="bench", subject=subject)
    source = KafkaReader(config, kafka, parts.settings.project, known)
    log = source.log()
    ranges = (TopicRange(log.topic, log.topic_id, log.partitions),)
    if pinned:
        name = subject or f"{topic}-value"
        latest = known.find_latest(name, compiled=format == "protobuf")
        assert latest
        version = {"subject": name, "version": latest.version, "id": latest.schema.id, "sha256": latest.schema.sha256}
        pins = {"value": {"reader": version, "writers": {str(latest.schema.id): latest.schema.sha256}}}
    else:
        pins = dict(source.schemas(parts.spark(), ranges))
    _nowhere(source.pinned_to(pins).read(parts.spark(), ranges))


def _bare(parts: LiveServices) -> None:
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    options = {**peers.source(parts), **peers.READ, "subscribe": ONE}
    rows = parts.spark().read.format("kafka").options(**options).load()
    payload = F.expr("substring(value, 6)")
    _nowhere(rows.withColumn("value", from_avro(payload, json.dumps(NEW), {"mode": "FAILFAST"})))


def _nowhere(rows: Any) -> None:
    rows.select("value.*").write.format("noop").mode("overwrite").save()
