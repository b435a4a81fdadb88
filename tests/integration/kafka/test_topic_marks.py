"""Marks of topics on a real broker: which batch ends a log, and what is still known of it when it is gone."""

from __future__ import annotations

import os
import signal
import uuid
import warnings
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest
from codes import raises
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, NewTopic, ResourceType
from integration.faults.lost_ends import lose_end
from integration.readers.kafka_reader import until
from integration.services.own_broker import running
from patience import PATIENCE

from onceonly.checkpoint.offsets import LOG_REPLACED, TopicRange, first_range, next_range
from onceonly.dev.services import machine
from onceonly.dev.services.kafka import KafkaBroker
from onceonly.errors import NotCommitted, SourceLost
from onceonly.kafka import log_ends
from onceonly.kafka.admin import BrokerClient
from onceonly.kafka.topic import NoTopic
from onceonly.pipeline.sources import KafkaSource
from onceonly.sources.kafka import KafkaReader

pytestmark = pytest.mark.integration


class Topic:
    """A topic whose records are written in batches of ten."""

    def __init__(self, broker: str, partitions: int = 1, **config: str) -> None:
        self.broker, self.name = broker, f"marks-{uuid.uuid4().hex[:8]}"
        self.reader = KafkaReader(KafkaSource(self.name), broker, Path("."))
        settings = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
        self.admin.create_topics([NewTopic(self.name, partitions, 1, config=settings)])[self.name].result()
        until(lambda: self._count_partitions() == partitions, PATIENCE, "the topic")

    def _count_partitions(self) -> int:
        try:
            return len(self.reader.log().partitions)
        except NoTopic:  # the broker that was asked has not heard of it yet
            return 0

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker, "log_level": 0})

    def put(self, *values: str, partition: int = 0, key: str | None = None, bytes_: int = 0) -> None:
        for start in range(0, len(values), 10):
            producer = Producer({"bootstrap.servers": self.broker, "acks": "all", "log_level": 0})
            for value in values[start : start + 10]:
                producer.produce(self.name, value.ljust(bytes_), key or value, partition=partition)
            assert producer.flush(PATIENCE) == 0

    def all_read(self) -> TopicRange:
        return self.reader.add_mark(first_range(self.reader.log(), {}), None)

    def next(self, previous: TopicRange) -> TopicRange:
        return self.reader.add_mark(next_range(previous, self.reader.log()), previous)

    def configure(self, **settings: str) -> None:
        resource = ConfigResource(ResourceType.TOPIC, self.name)
        for key, value in settings.items():
            resource.add_incremental_config(ConfigEntry(key.replace("_", "."), value))
        for result in self.admin.incremental_alter_configs([resource]).values():
            result.result(PATIENCE)

    def delete_records(self, before: int) -> None:
        self.admin.delete_records([TopicPartition(self.name, 0, before)])[TopicPartition(self.name, 0)].result(PATIENCE)

    def held(self, partition: int = 0) -> list[int]:
        """The offsets that a reader finds."""
        settings = {"group.id": "reads", "enable.partition.eof": True, "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": self.broker, "auto.offset.reset": "earliest", **settings})
        consumer.assign([TopicPartition(self.name, partition, 0)])
        found: list[int] = []
        while (message := consumer.poll(PATIENCE)) and not message.error():
            found.append(message.offset() or 0)
        consumer.close()
        return found


def numbers(name: str, count: int) -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that may be killed."""
    with running(KafkaBroker(tmp_path_factory.mktemp("own"), machine.free_port())) as own:
        yield own


def test_log_that_was_cut_and_grew_again_is_recognised(own: KafkaBroker) -> None:
    started = own.daemon.running()
    assert started is not None
    topic = Topic(own.address(started.port))
    topic.put(*numbers("old", 200))
    read = topic.all_read()
    lose_end(own, topic.name, 150)
    assert topic.reader.log().partitions == {0: (0, 150)}
    topic.put(*numbers("new", 100))
    with pytest.raises(SourceLost) as error:
        topic.next(read)
    assert error.value.code == LOG_REPLACED
    assert "up to offset 200" in error.value.why
    assert "cut off at offset 150" in error.value.why
    with pytest.raises(SourceLost) as error:
        topic.reader.verify((read,))
    assert error.value.code == LOG_REPLACED
    accepted = topic.reader.mark_left_out(TopicRange(topic.name, read.topic_id, {0: (200, 250)}), read)
    assert topic.next(accepted).partitions == {0: (250, 250)}


def test_broker_that_restarts_keeps_its_log(own: KafkaBroker) -> None:
    started = own.daemon.running()
    assert started is not None
    topic = Topic(own.address(started.port))
    topic.put(*numbers("old", 50))
    read = topic.all_read()
    lose_end(own, topic.name, 1_000)  # killed, and nothing is lost
    topic.put(*numbers("new", 50))
    assert topic.next(read).partitions == {0: (50, 100)}
    topic.reader.verify((read,))


def test_deleted_records_below_the_end_change_nothing(broker: str) -> None:
    topic = Topic(broker)
    topic.put(*numbers("old", 100))
    read = topic.all_read()
    topic.delete_records(60)
    assert topic.next(read).mark == read.mark
    topic.delete_records(100)
    topic.put(*numbers("new", 10))
    assert topic.next(read).partitions == {0: (100, 110)}


def test_retention_of_the_end_lets_it_go_on(broker: str) -> None:
    topic = Topic(broker, segment_bytes="1048576")
    topic.put(*numbers("old", 10))
    read = topic.all_read()
    topic.put(*numbers("new", 10))
    topic.delete_records(15)
    with raises(SourceLost, "records-expired", match="no longer exist") as error:  # of the records, and not of the mark
        topic.next(read)
    assert error.value.code != LOG_REPLACED
    skipped = TopicRange(topic.name, read.topic_id, {0: (15, 15)})
    assert topic.reader.add_mark(skipped, read).partitions == {0: (15, 15)}


def test_compaction_of_the_end_lets_it_go_on(own: KafkaBroker) -> None:
    """The batch is rewritten without some of its records, and later it is gone."""
    started = own.daemon.running()
    assert started is not None
    quick = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.001"}
    topic = Topic(own.address(started.port), **quick)
    topic.put("kept", *["a"] * 4, *["b"] * 4, "also kept")
    read = topic.all_read()

    def compacted() -> bool:
        topic.put("again")
        return topic.held()[:4] == [0, 4, 8, 9]

    until(compacted, PATIENCE, "the compaction of the first batch")
    assert topic.next(read).starts == {0: 10}
    topic.reader.verify((read,))

    def gone() -> bool:
        topic.put("kept", "a", "b", "also kept", "again")
        return topic.held()[0] > 9

    until(gone, PATIENCE, "the removal of the first batch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the leader epoch says enough
        assert topic.next(read).starts == {0: 10}


def test_batches_of_any_size_are_found_in_one_answer_or_several(broker: str) -> None:
    topic = Topic(broker, partitions=5)
    for partition in range(4):
        topic.put(*numbers("r", 10), partition=partition, bytes_=80_000 if partition % 2 else 1)
    read = topic.all_read()
    assert read.mark is not None
    assert read.mark.startswith('{"0":[0,')
    assert set(log_marks(read)) == {0, 1, 2, 3}
    topic.reader.verify((read,))


def log_marks(range_: TopicRange) -> list[int]:
    import json

    return [int(partition) for partition in json.loads(range_.mark or "{}")]


def test_leader_epochs_end_where_the_log_says(own: KafkaBroker) -> None:
    started = own.daemon.running()
    assert started is not None
    topic = Topic(own.address(started.port))
    topic.put(*numbers("old", 30))
    epoch = log_ends_of(topic, 30).epoch
    lose_end(own, topic.name, 1_000)
    topic.put(*numbers("new", 10))
    later = log_ends_of(topic, 40).epoch
    assert later > epoch
    name = (topic.name, topic.reader.log().topic_id)
    with_client = BrokerClient({"bootstrap_servers": topic.broker})
    try:
        assert log_ends.read_epoch_ends(with_client, name, {0: epoch}) == {0: 30}
        assert log_ends.read_epoch_ends(with_client, name, {0: later}) == {0: 40}
        assert log_ends.read_epoch_ends(with_client, name, {0: later + 9}) == {0: None}
    finally:
        with_client.close()


def log_ends_of(topic: Topic, end: int) -> log_ends.Batch:
    client = BrokerClient({"bootstrap_servers": topic.broker})
    try:
        batch = log_ends.read_end_batches(client, (topic.name, topic.reader.log().topic_id), {0: end})[0]
    finally:
        client.close()
    assert batch is not None
    return batch


def test_silent_broker_is_no_answer(own: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    started = own.daemon.running()
    assert started is not None and started.pid is not None
    topic = Topic(own.address(started.port))
    topic.put(*numbers("old", 10))
    read = topic.all_read()
    monkeypatch.setattr(BrokerClient, "timeout", 3.0)
    os.kill(started.pid, signal.SIGSTOP)
    try:
        with pytest.raises(NotCommitted) as error:
            topic.reader._marks.check(read)
    finally:
        os.kill(started.pid, signal.SIGCONT)
    assert not isinstance(error.value, SourceLost)
