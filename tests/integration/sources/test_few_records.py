"""Few records are read by this process: the same rows as by Spark's Kafka source."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from integration.readers.kafka_reader import new_topic, until
from patience import PATIENCE

from onceonly.checkpoint.offsets import TopicRange
from onceonly.pipeline.sources import KafkaSource
from onceonly.sources.kafka import KafkaReader
from onceonly.spark import small_batch

pytestmark = pytest.mark.integration
Range = tuple[TopicRange, ...]
HEADERS: list[tuple[str, Any]] = [("a", None), ("a", b"x"), ("", b"\xff")]


class Topic:
    """Two partitions; what is produced goes to one of them."""

    def __init__(self, broker: str, folder: Path) -> None:
        self.broker, self.name, self.folder = broker, new_topic(broker, 2), folder
        self.reader = KafkaReader(KafkaSource(self.name), broker, folder)

    def produce(self, partition: int, *records: dict[str, Any], end: str | None = None) -> None:
        """`end`: commit or abort, of a transaction; None: without one."""
        more = {"transactional.id": uuid.uuid4().hex} if end else {}
        producer = Producer({"bootstrap.servers": self.broker, **more})
        if end:
            producer.init_transactions()
            producer.begin_transaction()
        for record in records:
            producer.produce(self.name, partition=partition, **record)
        assert producer.flush(PATIENCE) == 0
        if end:
            getattr(producer, f"{end}_transaction")()
            seen, unseen = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
            until(lambda: self.end(partition, seen) == self.end(partition, unseen), what="the marker, which follows")

    def end(self, partition: int, isolation: IsolationLevel) -> int:
        key = TopicPartition(self.name, partition)
        admin = AdminClient({"bootstrap.servers": self.broker})
        found = admin.list_offsets({key: OffsetSpec.latest()}, isolation_level=isolation)
        return int(found[key].result(PATIENCE).offset)

    def all(self) -> Range:
        log = self.reader.log()
        return (TopicRange(log.topic, log.topic_id, log.partitions),)

    def read(self, spark: Any, ranges: Range, is_small_batch: bool) -> Any:
        reader = KafkaReader(KafkaSource(self.name), self.broker, self.folder)
        if is_small_batch:
            reader.read_small_batch(ranges)
        return reader.read(spark, ranges)


@pytest.fixture
def topic(broker: str, tmp_path: Path) -> Topic:
    return Topic(broker, tmp_path)


def rows(frame: Any) -> list[Any]:
    return sorted(map(tuple, frame.collect()), key=lambda row: (row[3], row[4]))


def is_local(frame: Any) -> bool:
    return "kafka" not in frame._explain_string().lower().replace("kafka.", "")


def test_a_range_is_read_as_spark_reads_it(spark: Any, topic: Topic) -> None:
    """Values and keys that are empty or missing, headers, times, and what no read_committed reader sees."""
    topic.produce(0, {"value": b"before the range"}, {"value": b"\x00\xff", "key": b"k", "timestamp": 1})
    topic.produce(0, {"value": b"", "key": b"", "headers": HEADERS}, {"value": None, "key": b"gone"})
    topic.produce(0, {"value": b"aborted"}, end="abort")
    topic.produce(0, {"value": b"committed"}, end="commit")
    topic.produce(1, {"value": b"other"}, {"value": b"beyond the range"})
    (whole,) = topic.all()
    (start, end), (other, _) = whole.partitions[0], whole.partitions[1]
    ranges = (TopicRange(whole.topic, whole.topic_id, {0: (start + 1, end), 1: (other, other + 1)}),)
    ours, theirs = topic.read(spark, ranges, True), topic.read(spark, ranges, False)
    assert (is_local(ours), is_local(theirs)) == (True, False)
    assert ours.schema == theirs.schema
    assert rows(ours) == rows(theirs)
    assert [row[1] for row in rows(ours)] == [b"\x00\xff", b"", None, b"committed", b"other"]


def test_a_range_of_nothing_but_markers_is_empty(spark: Any, topic: Topic) -> None:
    topic.produce(0, {"value": b"aborted"}, end="abort")
    ours = topic.read(spark, topic.all(), True)
    assert (is_local(ours), rows(ours)) == (True, [])


def test_other_batches_are_read_by_spark(spark: Any, topic: Topic) -> None:
    topic.produce(0, {"value": b"1"})
    assert not is_local(topic.read(spark, topic.all(), False))


def test_large_records_are_read_by_spark(spark: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_batch, "MAX_BYTES", 1000)
    topic.produce(0, {"value": b"x" * 900}, {"value": b"x", "headers": [("h", b"x" * 100)]})
    ours = topic.read(spark, topic.all(), True)
    assert (is_local(ours), len(rows(ours))) == (False, 2)


def test_records_that_were_deleted_are_left_to_spark_which_says_so(spark: Any, topic: Topic) -> None:
    topic.produce(0, {"value": b"1"}, {"value": b"2"})
    ranges = topic.all()
    key = TopicPartition(topic.name, 0, 1)
    admin = AdminClient({"bootstrap.servers": topic.broker})  # has to exist until the response has arrived
    admin.delete_records([key])[key].result(PATIENCE)
    assert not is_local(topic.read(spark, ranges, True))
