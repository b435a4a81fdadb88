"""Topics and what a plain read_committed consumer finds in them: independent of the code under test."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from patience import PATIENCE


@dataclass(frozen=True)
class Record:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def create_topic(bootstrap: str, name: str, partitions: int = 4, **config: str) -> str:
    config = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values():
        made.result(PATIENCE)
    until(lambda: _is_known(admin, name), PATIENCE, f"topic {name}")  # created first, told to everybody a moment later
    return name


def _is_known(admin: AdminClient, name: str) -> bool:
    topic = admin.list_topics(timeout=PATIENCE).topics.get(name)
    return topic is not None and all(partition.leader >= 0 for partition in topic.partitions.values())


def new_topic(bootstrap: str, partitions: int = 4, **config: str) -> str:
    return create_topic(bootstrap, f"out-{uuid.uuid4().hex[:8]}", partitions, **config)


def committed(bootstrap: str, *topics: str, seconds: float = PATIENCE) -> list[Record]:
    """Every record that a read_committed consumer sees, partition by partition in order; aborted ones it does not."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        waiting = _partitions(consumer, topics)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in waiting])
        found, deadline = [], monotonic() + seconds
        while waiting:
            assert monotonic() < deadline, f"no end of {waiting}"
            for message in consumer.consume(1000, 0.2):
                if message.error() is None:
                    found.append(_record(message))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    waiting.discard((message.topic(), message.partition()))
        return sorted(found, key=lambda record: (record.topic, record.partition, record.offset))
    finally:
        consumer.close()


def values(bootstrap: str, *topics: str) -> list[bytes | None]:
    return [record.value for record in committed(bootstrap, *topics)]


def until(condition: Any, seconds: float = PATIENCE, what: str = "the condition") -> Any:
    """The first true answer of `condition()`."""
    deadline = monotonic() + seconds
    while not (answer := condition()):
        assert monotonic() < deadline, f"{what} did not come true in {seconds} s"
        sleep(0.02)
    return answer


def ends(bootstrap: str, topic: str, stable: bool) -> dict[int, int]:
    """Of each partition: the last stable offset, where read_committed readers end; or the end of the log."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
    partitions = admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}
    found = admin.list_offsets(asked, isolation_level=level)
    return {key.partition: answer.result(PATIENCE).offset for key, answer in found.items()}


def set_config(bootstrap: str, topic: str, **config: str) -> None:
    """Change settings of a topic; returns when the brokers tell of them."""
    wanted = {key.replace("_", "."): value for key, value in config.items()}
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in wanted.items()]
    admin, resource = AdminClient({"bootstrap.servers": bootstrap}), ConfigResource(ResourceType.TOPIC, topic)
    altered = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for done in admin.incremental_alter_configs([altered]).values():
        done.result(PATIENCE)

    def is_told() -> bool:
        (described,) = admin.describe_configs([resource]).values()
        settings = described.result(PATIENCE)
        return all(settings[key].value == value for key, value in wanted.items())

    until(is_told, PATIENCE, f"the settings of {topic}")


def _partitions(consumer: Consumer, topics: Iterable[str]) -> set[tuple[str, int]]:
    return {
        (topic, partition)
        for topic in topics
        for partition in consumer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
    }


def _record(message: Any) -> Record:
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.timestamp()[1],
        tuple(message.headers() or ()),
    )
