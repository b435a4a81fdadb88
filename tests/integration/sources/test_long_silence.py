"""A reader that skips what was aborted hands out nothing for long. That is no silence; a broker that hangs is one."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from integration.readers.kafka_reader import until
from patience import PATIENCE

from onceonly.dev.services.far_broker import FETCH, FarBroker, Proxy
from onceonly.errors import NotCommitted
from onceonly.kafka import topic as topics
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.topic import PatientConsumer
from onceonly.pipeline.sources import KafkaSource
from onceonly.sources import json_inference
from onceonly.sources.kafka import KafkaReader

pytestmark = pytest.mark.integration

ABORTED = 40  # records of a megabyte: one fetch brings one or two of them
FETCH_SECONDS = 0.25
TIMEOUT_SECONDS = 1.0  # in place of ten


class SlowLine(Proxy):
    """Each fetch takes its time."""

    def takes(self, api: int, at: str) -> bool:
        if (api, at) == (FETCH, "answer"):
            time.sleep(FETCH_SECONDS)
        return False


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarBroker]:
    line = SlowLine()
    own = FarBroker(tmp_path_factory.mktemp("own"), line)
    own.start()
    try:
        yield own
    finally:
        own.daemon.stop()
        line.close()


def make_topic(address: str) -> str:
    name = f"silent-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    until(lambda: name in admin.list_topics(timeout=PATIENCE).topics, PATIENCE, "the topic")
    return name


@pytest.fixture(scope="module")
def aborted(own: FarBroker) -> str:
    """A topic that begins with aborted records, behind which there is one that readers see."""
    name = make_topic(own.near)
    settings = {"bootstrap.servers": own.near, "transactional.id": uuid.uuid4().hex, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(ABORTED):
        producer.produce(name, os.urandom(900_000))
    assert producer.flush(PATIENCE) == 0
    producer.abort_transaction(PATIENCE)
    producer.begin_transaction()
    producer.produce(name, "seen")
    producer.commit_transaction(PATIENCE)
    reader = KafkaReader(KafkaSource(name), own.near, Path("."))
    until(lambda: reader.log().partitions == {0: (0, ABORTED + 3)}, PATIENCE, "the markers")
    return name


@pytest.fixture
def slow(own: FarBroker, monkeypatch: pytest.MonkeyPatch) -> KafkaConnection:
    """A connection that takes longer than the time-out to fetch all of it."""
    for module in (topics, json_inference):
        monkeypatch.setattr(module, "PatientConsumer", lambda settings, _: PatientConsumer(settings, TIMEOUT_SECONDS))
    return KafkaConnection.plaintext(own.far)


def look_up_a_time(topic: str, kafka: KafkaConnection) -> int:
    reader = KafkaReader(KafkaSource(topic), kafka, Path("."))
    return reader._log._offsets_at(int((datetime.now(UTC) - timedelta(hours=1)).timestamp() * 1000))[0].offset


def pass_over_a_time(topic: str, kafka: KafkaConnection) -> int:
    reader = KafkaReader(KafkaSource(topic), kafka, Path("."))
    ahead = datetime.now(UTC) + timedelta(hours=1)
    return reader._log._pass_over({0: 0}, datetime(2013, 1, 1, tzinfo=UTC), ahead)[0].offset


def read_few_records(topic: str, kafka: KafkaConnection) -> int:
    reader = KafkaReader(KafkaSource(topic), kafka, Path("."))
    (message,) = reader._topic.read_records({0: (0, ABORTED + 3)})
    return int(message.offset())


def take_a_sample(topic: str, kafka: KafkaConnection) -> int:
    assert list(json_inference.read_last_values(topic, kafka, ABORTED + 3)) == [b"seen"]
    return ABORTED + 1


WAYS = [look_up_a_time, pass_over_a_time, read_few_records, take_a_sample]


@pytest.mark.parametrize("read", WAYS)
def test_aborted_records_are_no_silence(
    aborted: str, slow: KafkaConnection, read: Callable[[str, KafkaConnection], int]
) -> None:
    started = time.monotonic()
    assert read(aborted, slow) == ABORTED + 1
    assert time.monotonic() - started > TIMEOUT_SECONDS


def test_broker_that_hangs_is_silent(own: FarBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    started = own.daemon.running()
    assert started is not None and started.pid is not None
    name = make_topic(own.near)
    producer = Producer({"bootstrap.servers": own.near, "log_level": 0})
    producer.produce(name, "seen")
    assert producer.flush(PATIENCE) == 0
    monkeypatch.setattr(topics, "REQUEST_SECONDS", 3.0)
    client = topics.TopicClient(name, KafkaConnection.plaintext(own.near))
    records: Iterator[Any] = client.read_records({0: (0, 5)})
    assert next(records).value() == b"seen"
    os.kill(started.pid, signal.SIGSTOP)
    try:
        stopped = time.monotonic()
        with raises(NotCommitted, "kafka-unreachable", match=r"did not answer|ends at"):
            next(records)
        with raises(NotCommitted, "kafka-unreachable", match="did not answer"):
            next(client.read_records({0: (0, 1)}))
        assert 3 < time.monotonic() - stopped < PATIENCE
    finally:
        os.kill(started.pid, signal.SIGCONT)
