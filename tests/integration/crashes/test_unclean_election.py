"""Three brokers, and elections of another leader: a clean one loses nothing, and an unclean one is noticed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from integration.projects.kafka_writers import by_each_writer
from integration.readers.kafka_reader import until
from integration.services.brokers import Brokers, brokers
from patience import PATIENCE

from onceonly.checkpoint.offsets import LOG_REPLACED, TopicRange, first_range, next_range
from onceonly.errors import NotCommitted, SourceLost
from onceonly.pipeline.sources import KafkaSource
from onceonly.sources.kafka import KafkaReader

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(600), by_each_writer]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from brokers(tmp_path_factory.mktemp("brokers"))


class Topic:
    """One partition with copies on two of the three brokers; the third one is for the quorum."""

    def __init__(self, cluster: Brokers, first: int, second: int) -> None:
        self.cluster, self.name = cluster, f"elected-{uuid.uuid4().hex[:8]}"
        config = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true", "retention.ms": "-1"}
        topic = NewTopic(self.name, 1, replica_assignment=[[first, second]], config=config)
        admin = cluster.admin
        admin.create_topics([topic])[self.name].result(PATIENCE)
        until(lambda: self.leader() == first, PATIENCE, "its leader")

    @property
    def reader(self) -> KafkaReader:
        return KafkaReader(KafkaSource(self.name), self.cluster.bootstrap, Path("."))

    def leader(self) -> int | None:
        return self.cluster.leaders(self.name).get(0)

    def in_sync(self) -> list[int]:
        found = self.cluster.admin.list_topics(self.name, timeout=PATIENCE).topics[self.name].partitions
        return sorted(found[0].isrs)

    def put(self, name: str, count: int) -> None:
        settings = {"bootstrap.servers": self.cluster.bootstrap, "acks": "all", "log_level": 0}
        for start in range(0, count, 10):
            producer = Producer(settings)
            for number in range(start, start + 10):
                producer.produce(self.name, f"{name}-{number}")
            assert producer.flush(PATIENCE) == 0

    def all_read(self) -> TopicRange:
        reader = self.reader
        return reader.add_mark(first_range(reader.log(), {}), None)

    def next(self, previous: TopicRange) -> TopicRange:
        reader = self.reader
        return reader.add_mark(next_range(previous, reader.log()), previous)

    def elect_uncleanly(self) -> None:
        partition, admin = TopicPartition(self.name, 0), self.cluster.admin  # until it has answered
        try:
            admin.elect_leaders(ElectionType.UNCLEAN, [partition]).result(PATIENCE)
        except KafkaException:  # it leads already
            return

    def answers(self) -> bool:
        try:
            return bool(self.reader.log().partitions)
        except NotCommitted:
            return False


def start(cluster: Brokers, number: int) -> None:
    cluster.nodes[number].launch()
    cluster.nodes[number].wait()


def test_clean_election_keeps_the_log(cluster: Brokers) -> None:
    topic = Topic(cluster, 1, 2)
    topic.put("old", 100)
    read = topic.all_read()
    cluster.kill(1)
    try:
        until(lambda: topic.leader() == 2 and topic.answers(), PATIENCE, "the new leader")
        topic.put("new", 50)
        assert topic.next(read).partitions == {0: (100, 150)}
        topic.reader.verify((read,))
    finally:
        start(cluster, 1)
    until(lambda: topic.in_sync() == [1, 2], PATIENCE, "both copies")


def test_unclean_election_is_noticed(cluster: Brokers) -> None:
    topic = Topic(cluster, 1, 2)
    topic.put("old", 100)
    before = topic.all_read()
    cluster.kill(2)
    until(lambda: topic.in_sync() == [1], PATIENCE, "the one copy that is left")
    topic.put("acknowledged", 100)
    read = topic.next(before)
    assert read.partitions == {0: (100, 200)}
    cluster.kill(1)  # which alone has the last hundred records
    start(cluster, 2)
    until(lambda: topic.elect_uncleanly() or (topic.leader() == 2 and topic.answers()), PATIENCE, "the stale leader")
    assert topic.reader.log().partitions == {0: (0, 100)}
    topic.put("new", 150)
    with pytest.raises(SourceLost) as error:
        topic.next(read)
    assert error.value.code == LOG_REPLACED
    assert "cut off at offset 100" in error.value.why
    assert topic.next(before).partitions == {0: (100, 250)}
    start(cluster, 1)
    until(lambda: topic.in_sync() == [1, 2], PATIENCE, "both copies")
    with pytest.raises(SourceLost):
        topic.next(read)
