"""Open transactions of producers on a real broker: whose they are, since when, and what waits behind them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from integration.readers.kafka_reader import until
from patience import PATIENCE

from onceonly.checkpoint.interfaces import OpenTransaction
from onceonly.kafka import transactions as kafka_transactions
from onceonly.pipeline.sources import KafkaSource
from onceonly.sources.kafka import KafkaReader

pytestmark = pytest.mark.integration


@pytest.fixture
def reader(broker: str) -> KafkaReader:
    name = f"open-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    reader = KafkaReader(KafkaSource(name), broker, Path("."))
    until(lambda: len(reader.log().partitions) == 2, PATIENCE, "the topic")
    return reader


@pytest.fixture
def plain(broker: str) -> Producer:
    return Producer({"bootstrap.servers": broker, "log_level": 0})


class Owner:
    """A producer with an open transaction."""

    def __init__(self, broker: str) -> None:
        self.id = f"owner-{uuid.uuid4().hex[:8]}"
        settings = {"bootstrap.servers": broker, "transactional.id": self.id, "log_level": 0}
        self.producer = Producer({**settings, "transaction.timeout.ms": 600_000})
        self.producer.init_transactions()

    def write(self, topic: str, *values: str) -> None:
        for value in values:
            self.producer.produce(topic, value, partition=0)
        assert self.producer.flush(PATIENCE) == 0


@pytest.fixture
def owner(broker: str) -> Iterator[Owner]:
    owner = Owner(broker)
    owner.producer.begin_transaction()
    yield owner
    try:
        owner.producer.abort_transaction(PATIENCE)
    except KafkaException:  # the test has ended it
        return


def put(producer: Producer, reader: KafkaReader, *values: str) -> None:
    for value in values:
        producer.produce(reader._config.topic, value, partition=0)
    assert producer.flush(PATIENCE) == 0


def find(reader: KafkaReader) -> list[OpenTransaction]:
    return reader.await_transactions(reader.log())[1]


def test_committed_records_behind_it_are_hidden(reader: KafkaReader, plain: Producer, owner: Owner) -> None:
    put(plain, reader, "a", "b")
    owner.write(reader._config.topic, "open")
    put(plain, reader, *map(str, range(50)))
    (found,) = find(reader)
    assert (found.partition, found.offset, found.hidden_offsets) == (0, 2, 51)
    assert (found.hides_others, found.is_overdue) == (True, False)
    assert f"transactional id '{owner.id}'" in found.producer
    assert found.since is not None
    assert timedelta(0) <= datetime.now(UTC) - found.since < timedelta(seconds=PATIENCE)
    assert reader.log().hidden_offsets == {0: 51}


def test_records_of_a_transaction_hide_nothing_of_others(reader: KafkaReader, plain: Producer, owner: Owner) -> None:
    put(plain, reader, "a", "b")
    owner.write(reader._config.topic, *map(str, range(50)))
    owner.write(reader._config.topic, "more")
    (found,) = find(reader)
    assert (found.hidden_offsets, found.hides_others, found.is_overdue) == (51, False, False)


def test_two_open_transactions_hide_nothing_of_each_other(reader: KafkaReader, broker: str, owner: Owner) -> None:
    second = Owner(broker)
    second.producer.begin_transaction()
    owner.write(reader._config.topic, "one")
    second.write(reader._config.topic, "two")
    (found,) = find(reader)
    assert (found.hidden_offsets, found.hides_others) == (2, False)
    second.producer.commit_transaction(PATIENCE)
    until(lambda: reader.log().hidden_offsets == {0: 3}, PATIENCE, "the marker")
    (found,) = find(reader)
    assert (found.hidden_offsets, found.hides_others) == (3, True)


def test_what_is_too_much_to_read_counts_as_hidden(
    reader: KafkaReader, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        owner.write(reader._config.topic, "x" * 100)
    monkeypatch.setattr(kafka_transactions, "HOLDER_PAGE_BYTES", 10)
    monkeypatch.setattr(kafka_transactions, "MAX_HOLDER_PAGES", 2)
    assert [found.hides_others for found in find(reader)] == [True]
    monkeypatch.setattr(kafka_transactions, "MAX_HOLDER_PAGES", 4)
    assert [found.hides_others for found in find(reader)] == [False]


def test_transaction_that_ends_within_a_moment_is_waited_for(
    reader: KafkaReader, plain: Producer, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.write(reader._config.topic, "open")
    log = reader.log()
    owner.producer.commit_transaction(PATIENCE)

    def forbidden(*_: Any) -> Any:
        raise AssertionError("nobody is asked for it")

    monkeypatch.setattr("onceonly.sources.kafka_log.find_open_transactions", forbidden)
    now, open_ = reader.await_transactions(log)
    assert (now.partitions[0], open_) == ((0, 2), [])
