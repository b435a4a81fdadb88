"""Killed at every durable step between a schema registry and its readers, while schemas and topics are added.

The truth is read by clients of others: deltalake, and a plain consumer with Confluent's deserializers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable
from integration.programs.children import output
from integration.projects.project import TRANSFORM, Project, make_project
from integration.readers.kafka_reader import committed, create_topic
from patience import PATIENCE
from schema_registry import FakeRegistry, serving

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.timeout(2700)]

STEPS = ["schemas", "pinned row", "stage", "staged row", "committing row", "commit", "commit to Delta", "published row"]
POINTS = [
    *("before register", "after register"),
    *(f"{side} {step}" for step in [*STEPS, "committed row"] for side in ("before", "after")),
]
SAMPLE = ["after pinned row"]
KILLED = -9
BATCH = 8  # numbers before each kill
ORDERS = """

def copies_of_orders(batch):
    n = "CAST(value.n AS BIGINT) AS n"
    copies = batch.selectExpr(f"NAMED_STRUCT('n', CAST(value.n AS BIGINT)) AS key", f"STRUCT({n}, value.note) AS value")
    return {"orders": batch.selectExpr(n, "value.note", "topic"), "copies": copies}
"""
KEY = {"type": "record", "name": "Key", "namespace": "shop", "fields": [{"name": "n", "type": "long"}]}
COPY = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}, "note": {"type": "string"}}}


def version(number: int) -> dict[str, Any]:
    """Each version has one field more."""
    more = [{"name": f"more{k}", "type": "int", "default": 0} for k in range(number)]
    fields = [{"name": "n", "type": "int"}, {"name": "note", "type": ["null", "string"], "default": None}, *more]
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serving(FakeRegistry()) as running:
        yield running


@pytest.fixture
def project(
    tmp_path: Path, broker: str, spark_server: str, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> Project:
    extra = json.dumps({"conn_type": "http", "extra": {"url": registry.url}})
    monkeypatch.setenv("AIRFLOW_CONN_REGISTRY", extra)
    made = make_project(tmp_path, broker, spark_server, "registry_crash")
    (tmp_path / f"transforms_{made.topic}.py").write_text(TRANSFORM + ORDERS)
    (tmp_path / "key.avsc").write_text(json.dumps(KEY))
    (tmp_path / "copy.json").write_text(json.dumps(COPY))
    create_topic(broker, f"copies_{made.topic}", 2)
    return made


def produce(project: Project, registry: FakeRegistry, topic: str, schema: Any, numbers: range) -> None:
    context, producer = (
        SerializationContext(topic, MessageField.VALUE),
        Producer({"bootstrap.servers": project.bootstrap}),
    )
    config: dict[str, Any] = {"subject.name.strategy": lambda _, record: record}
    with SchemaRegistryClient({"url": registry.url}) as client:
        serializer = AvroSerializer(client, json.dumps(schema), conf=config)
        for n in numbers:
            value = serializer({"n": n, "note": None if n % 3 else f"note {n}"}, context)
            producer.produce(topic, value, partition=n % 4)
    assert producer.flush(PATIENCE) == 0


def in_table(project: Project) -> Counter[tuple[int, str | None]]:
    folder = project.folder / "home" / "lake" / "orders"
    if not (folder / "_delta_log").exists():
        return Counter()
    return Counter((row["n"], row["note"]) for row in DeltaTable(str(folder)).to_pyarrow_table().to_pylist())


def in_topic(project: Project, registry: FakeRegistry) -> Counter[tuple[int, str | None]]:
    topic = f"copies_{project.topic}"
    found: Counter[tuple[int, str | None]] = Counter()
    with SchemaRegistryClient({"url": registry.url}) as client:
        keys, values = AvroDeserializer(client), JSONDeserializer(None, schema_registry_client=client)
        for record in committed(project.bootstrap, topic):
            key: Any = keys(record.key, SerializationContext(topic, MessageField.KEY))
            value: Any = values(record.value or b"", SerializationContext(topic, MessageField.VALUE))
            assert key["n"] == value["n"]
            found[value["n"], value.get("note")] += 1
    return found


def test_every_record_comes_once_after_a_kill(project: Project, registry: FakeRegistry) -> None:
    """Between the schemas that were pinned and the rows that are decoded by them."""
    storm(project, registry, SAMPLE)


@pytest.mark.heavy
def test_every_record_comes_once_wherever_it_dies(project: Project, registry: FakeRegistry) -> None:
    storm(project, registry, POINTS)


def storm(project: Project, registry: FakeRegistry, points: list[str]) -> None:
    total = 0
    for number, point in enumerate(points):
        topic = project.topic if number % 3 else f"{project.topic}-{number}"  # every third time a new one appears
        if topic != project.topic:
            create_topic(project.bootstrap, topic)
        produce(project, registry, topic, version(number // 2), range(total, total := total + BATCH))
        child = project.child("victims/mortal_registry.py", point)
        printed = output(child)
        assert child.returncode == KILLED, f"'{point}' was not reached: {printed}"
        registry.register("shop.Order", version(number // 2 + 1))  # the latest, for everybody but the open checkpoint
    child = project.child("victims/mortal_registry.py", "-")
    printed = output(child)
    assert child.returncode == 0, printed
    truth = Counter((n, None if n % 3 else f"note {n}") for n in range(total))
    assert in_table(project) == truth
    assert in_topic(project, registry) == truth
