"""A pattern of topics on a real broker: those that exist, and those that appear while the pipeline runs."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable
from integration.readers.kafka_reader import create_topic, until
from patience import PATIENCE
from schema_registry import FakeRegistry, serving

from onceonly.errors import BadRecord, InvalidPipeline
from onceonly.kafka.registry import make_head
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, spark_stage
from onceonly.runtime.live_services import LiveServices
from onceonly.runtime.owners import is_never_alive
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

pytestmark = pytest.mark.integration
ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}
TRANSFORM = "def orders(batch):\n    return batch.select('topic', 'partition', 'value.*')\n"


class Shop:
    """Topics of one prefix, with registered orders, read into one table."""

    def __init__(self, folder: Path, broker: str, spark: str, registry: FakeRegistry) -> None:
        self.folder, self.broker, self.registry, self.prefix = folder, broker, registry, f"o{uuid.uuid4().hex[:8]}"
        (folder / f"transforms_{self.prefix}.py").write_text(TRANSFORM)
        env = {"ONCEONLY_HOME": str(folder / "home"), "ONCEONLY_PROJECT": str(folder), "SPARK_REMOTE": spark}
        settings = Settings.from_env({**env, "ONCEONLY_KAFKA_BOOTSTRAP": broker})
        StateTable.make(settings.state)
        self.parts = LiveServices(settings, lambda _: {"url": registry.url})
        self.through = live_services.open_coordinator(self.parts)
        self.pipeline = Pipeline(
            name="orders",
            source=KafkaSource(
                topic_pattern=f"{self.prefix}[.].*", format="avro", registry="registry", subject="shop.Order"
            ),
            transform=f"transforms_{self.prefix}:orders",
            sinks=[DeltaSink("orders", path="lake/orders")],
        )

    def topic(self, name: str, partitions: int = 1) -> str:
        return create_topic(self.broker, f"{self.prefix}.{name}", partitions)

    def produce(self, topic: str, *ids: int, partition: int = 0) -> None:
        """As a producer of the record's own subject writes it."""
        context = SerializationContext(topic, MessageField.VALUE)
        producer = Producer({"bootstrap.servers": self.broker, "log_level": 0})
        config: dict[str, Any] = {"subject.name.strategy": lambda _, record: record}
        with SchemaRegistryClient({"url": self.registry.url}) as client:
            serializer = AvroSerializer(client, json.dumps(ORDER), conf=config)
            for id in ids:
                producer.produce(topic, serializer({"id": id}, context), partition=partition)
        assert producer.flush(PATIENCE) == 0

    def run(self, number: int) -> Any:
        planned = self.through.plan(self.pipeline, f"run-{number}", is_never_alive).checkpoint
        assert planned
        spark_stage.stage(self.parts, self.through, "orders", planned.epoch, None)
        return self.through.commit("orders", planned.epoch)

    def rows(self) -> list[tuple[str, int, int]]:
        found = DeltaTable(str(self.folder / "home" / "lake" / "orders")).to_pyarrow_table().to_pylist()
        return sorted((row["topic"].partition(".")[2], row["partition"], row["id"]) for row in found)


@pytest.fixture
def shop(tmp_path: Path, broker: str, spark: Any, spark_server: str) -> Any:
    with serving(FakeRegistry()) as registry:
        yield Shop(tmp_path, broker, spark_server, registry)


def test_topics_and_partitions_that_appear_lose_no_record(shop: Shop) -> None:
    with raises(InvalidPipeline, "no-topic-matches", match="no topic matches"):
        live_services.check_pipeline(shop.pipeline, shop.parts)
    eu, us = shop.topic("eu"), shop.topic("us")
    shop.produce(eu, 1, 2)
    shop.produce(us, 3)
    notes = "\n".join(live_services.check_pipeline(shop.pipeline, shop.parts))
    assert f"matches 2 topics: {eu}, {us}" in notes
    shop.run(1)
    assert shop.rows() == [("eu", 0, 1), ("eu", 0, 2), ("us", 0, 3)]
    assert list(shop.through.state_table.view("orders").require(1).schemas) == [shop.pipeline.source.input_name]  # type: ignore[union-attr]
    shop.produce(shop.topic("cn"), 4)
    admin = AdminClient({"bootstrap.servers": shop.broker})
    admin.create_partitions([NewPartitions(us, 2)])[us].result(PATIENCE)
    until(lambda: len(admin.list_topics(us, timeout=PATIENCE).topics[us].partitions) == 2, PATIENCE, "the partition")
    shop.produce(us, 5, partition=1)
    shop.run(2)
    assert shop.rows() == [("cn", 0, 4), ("eu", 0, 1), ("eu", 0, 2), ("us", 0, 3), ("us", 1, 5)]
    producer = Producer({"bootstrap.servers": shop.broker, "log_level": 0})
    producer.produce(eu, make_head(1))
    assert producer.flush(PATIENCE) == 0
    for other in (us, f"{shop.prefix}.cn"):  # good ones at the same offset
        shop.produce(other, 6, 7)
    with raises(BadRecord, "record-undecodable", match=rf"(?s)topic '{eu}' partition 0 offset 2: the value.*EOFError"):
        shop.run(3)
    admin.delete_topics([us])[us].result(PATIENCE)
    until(lambda: us not in admin.list_topics(timeout=PATIENCE).topics, PATIENCE, "the deletion")
    shop.through.abort("orders", 3, "broken")
    shop.topic("us")
    with pytest.raises(Exception, match=f"'{us}' is not the one"):
        shop.run(4)
