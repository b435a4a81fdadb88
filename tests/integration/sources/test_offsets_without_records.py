"""Ranges of a real topic in which there is nothing to read: aborted records, markers, and what was compacted away."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from integration.readers.kafka_reader import until
from patience import PATIENCE

from onceonly.checkpoint.offsets import TopicRange
from onceonly.pipeline.sources import KafkaSource
from onceonly.sources.kafka import KafkaReader

pytestmark = pytest.mark.integration


class Topic:
    """A topic with two partitions, and a producer of transactions."""

    def __init__(self, broker: str) -> None:
        self.name = f"without-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
        admin.create_topics([NewTopic(self.name, 2, 1)])[self.name].result()
        self.reader = KafkaReader(KafkaSource(self.name), broker, Path("."))
        until(lambda: len(self.reader.log().partitions) == 2, PATIENCE, "the topic")
        self.producer = Producer({"bootstrap.servers": broker, "transactional.id": uuid.uuid4().hex, "log_level": 0})
        self.producer.init_transactions()

    def write(self, *values: str, partition: int = 0, commit: bool = True) -> None:
        end = self.reader.log().high_watermarks[partition] + len(values) + 1
        self.producer.begin_transaction()
        for value in values:
            self.producer.produce(self.name, value, partition=partition)
        assert self.producer.flush(PATIENCE) == 0
        self.producer.commit_transaction(PATIENCE) if commit else self.producer.abort_transaction(PATIENCE)
        until(lambda: self.reader.log().partitions[partition][1] == end, PATIENCE, "the marker")

    def range(self, **partitions: tuple[int, int]) -> TopicRange:
        spans = {int(name[1:]): span for name, span in partitions.items()}
        return TopicRange(self.name, self.reader.log().topic_id, spans)


def test_records_are_told_from_other_offsets(broker: str) -> None:
    topic = Topic(broker)
    topic.write("a", "b")  # 0, 1, and the marker 2
    topic.write("never", "never", commit=False)  # 3, 4, and the marker 5
    topic.write("c")  # 6, and the marker 7
    topic.write("never", partition=1, commit=False)  # 0, and the marker 1

    def has_records(**partitions: tuple[int, int]) -> bool:
        return topic.reader.has_records(topic.range(**partitions))

    assert has_records(p0=(0, 8), p1=(0, 2))
    assert has_records(p0=(1, 2), p1=(0, 2))
    assert has_records(p0=(2, 7))
    assert not has_records(p0=(2, 6), p1=(0, 2))
    assert not has_records(p0=(7, 8))
    assert not has_records(p0=(8, 8), p1=(2, 2))
    assert topic.reader.first_offsets(topic.range(p0=(2, 8), p1=(0, 2))) == {0: 6, 1: 2}
    assert topic.reader.first_offsets(topic.range(p0=(2, 6), p1=(2, 2))) == {0: 6, 1: 2}
