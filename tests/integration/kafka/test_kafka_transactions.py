"""Transactions against a real broker: ended from outside, and how they ended read from the log.

kafka-python's non-public parts are used by `onceonly.kafka` alone; what is pinned here breaks first when they change.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from codes import raises
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from integration.services.own_broker import running
from patience import PATIENCE

with warnings.catch_warnings():  # its own, while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

from kafka.errors import KafkaConnectionError
from kafka.net.connection import KafkaConnection
from kafka.net.inet import KafkaNetSocket
from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer.transaction import EndTxnRequest, InitProducerIdRequest
from kafka.record.default_records import ControlRecord, DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from onceonly.dev.services import machine
from onceonly.dev.services.kafka import KafkaBroker
from onceonly.errors import InvalidPipeline, NotCommitted, OutcomeUnknown
from onceonly.kafka import markers
from onceonly.kafka.admin import BrokerClient, id_text
from onceonly.kafka.transactions import EndRefused, MarkerState, Transactions, _EndRequest

pytestmark = pytest.mark.integration

CHILD = """
import os, signal, sys
from confluent_kafka import Producer
bootstrap, topic, id, count = sys.argv[1:]
producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": id, "log_level": 0})
producer.init_transactions()
producer.begin_transaction()
for number in range(int(count)):
    producer.produce(topic, str(number), partition=0)
assert producer.flush() == 0
os.kill(os.getpid(), signal.SIGKILL)
"""


class Topic:
    """A topic of its own for each test."""

    def __init__(self, broker: str, partitions: int = 1, **config: str) -> None:
        self.broker, self.name = broker, f"transactions-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
        self.create(partitions, {key.replace("_", "."): value for key, value in config.items()})

    def create(self, partitions: int, config: dict[str, str]) -> None:
        """Again, too: an older topic of this name may still be on its way out."""
        until(lambda: self._created(NewTopic(self.name, partitions, 1, config=config)))
        until(
            lambda: len(self.admin.list_topics(self.name, timeout=PATIENCE).topics[self.name].partitions) == partitions
        )

    def _created(self, topic: NewTopic) -> bool:
        try:
            return self.admin.create_topics([topic])[self.name].result() is None
        except KafkaException:
            return False

    def produce(self, *values: bytes | str, key: str | None = None, **config: Any) -> None:
        """By a producer without transactions."""
        producer = Producer({"bootstrap.servers": self.broker, "log_level": 0, **config})
        for value in values:
            producer.produce(self.name, value, key, partition=0)
        assert producer.flush(PATIENCE) == 0

    def read(self, isolation: str = "read_committed") -> list[tuple[int, bytes]]:
        """Offsets and values of partition 0, up to the end that such a reader sees."""
        config = {"bootstrap.servers": self.broker, "group.id": "test", "isolation.level": isolation, "log_level": 0}
        consumer = Consumer({**config, "enable.partition.eof": True, "enable.auto.commit": False})
        consumer.assign([TopicPartition(self.name, 0, 0)])
        found = []
        while (message := consumer.poll(PATIENCE)) and not message.error():
            found.append((message.offset(), message.value()))
        consumer.close()
        assert message is not None
        return found

    def stable(self) -> int:
        """The last stable offset of partition 0."""
        key = TopicPartition(self.name, 0)
        answer = self.admin.list_offsets({key: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
        return int(answer[key].result().offset)


class Open:
    """A transaction that a producer has written and left open, with what a handle would keep of it."""

    def __init__(self, transactions: Transactions, topic: Topic, *values: str, key: str | None = None, **config: Any):
        self.id, self.topic, self._transactions = f"{topic.name}-{uuid.uuid4().hex[:6]}", topic, transactions
        identity = {"bootstrap.servers": topic.broker, "transactional.id": self.id, "log_level": 0}
        self.producer = Producer({**identity, "error_cb": lambda _: None, **config})
        self.producer.init_transactions()
        self.producer.begin_transaction()
        self.partition = (topic.name, 0)
        self.write(*values or ("a row",), key=key)

    def write(self, *values: str, key: str | None = None) -> None:
        for value in values:
            self.producer.produce(self.topic.name, value, key, partition=0)
        assert self.producer.flush(PATIENCE) == 0
        described = self._transactions.describe([self.id])[self.id]
        self.producer_id, self.epoch = described.producer_id, described.epoch
        self.since = self._transactions.read_ends([self.partition])[self.partition]

    def end(self, commit: bool) -> None:
        self._transactions.end(self.id, self.producer_id, self.epoch, commit=commit)

    @property
    def identity(self) -> markers.Producer:
        return self.producer_id, self.epoch

    @property
    def log(self) -> markers.PartitionLog:
        return markers.PartitionLog(
            *self.partition, self._transactions.read_topic_ids([self.topic.name])[self.topic.name]
        )

    def look(self, topic_id: str | None = None) -> MarkerState:
        return read_marker_state(self._transactions, self.partition, self.identity, self.since, topic_id)

    def settled(self) -> MarkerState:
        """EndTxn is answered before the marker is in the log."""
        until(lambda: self.look() is not MarkerState.NONE)
        return self.look()


def read_marker_state(
    transactions: Transactions,
    partition: markers.Partition,
    producer: markers.Producer,
    start: int,
    topic_id: str | None = None,
    has_one_transaction: bool = True,
) -> MarkerState:
    """How the producer's transaction ended in one partition, read alone. Without an id, of the present topic."""
    topic, _ = partition
    log = markers.PartitionLog(*partition, topic_id or transactions.read_topic_ids([topic])[topic])
    scan = markers.MarkerScan(log, start, [producer[0]])
    return markers.read_state(transactions._client, scan, producer, has_one_transaction)


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met in {seconds} s"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def transactions(broker: str) -> Iterator[Transactions]:
    with Transactions({"bootstrap_servers": broker}) as transactions:
        yield transactions


@pytest.fixture
def topic(broker: str) -> Topic:
    return Topic(broker)


@pytest.fixture
def busy_cleaner(broker: str) -> Iterator[None]:
    """The log cleaner looks for work at once instead of every 15 s."""
    admin, key = AdminClient({"bootstrap.servers": broker, "log_level": 0}), "log.cleaner.backoff.ms"

    def alter(operation: AlterConfigOpType, value: str | None) -> None:
        entry = ConfigEntry(key, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result()

    alter(AlterConfigOpType.SET, "100")
    yield
    alter(AlterConfigOpType.DELETE, None)


# --- ended from another process


def test_what_a_killed_producer_left_is_committed_from_here(transactions: Transactions, topic: Topic) -> None:
    id, before = f"{topic.name}-killed", datetime.now(UTC)
    child = subprocess.run([sys.executable, "-c", CHILD, topic.broker, topic.name, id, "100"])
    assert child.returncode == -signal.SIGKILL

    found = transactions.describe([id, "never heard of"])
    assert list(found) == [id]
    left = found[id]
    assert (left.state, left.timeout, left.partitions) == ("Ongoing", 60.0, frozenset({(topic.name, 0)}))
    assert left.started_at is not None
    assert before - timedelta(seconds=1) < left.started_at < datetime.now(UTC) + timedelta(seconds=1)
    assert transactions.read_starts(left.producer_id, [(topic.name, 0)]) == {(topic.name, 0): 0}
    assert transactions.read_starts(left.producer_id + 1000, [(topic.name, 0)]) == {}
    assert topic.read() == []

    for _ in range(3):  # said again, the answer is the same
        transactions.end(id, left.producer_id, left.epoch, commit=True)
    until(lambda: topic.stable() == 101)
    assert [value for _, value in topic.read()] == [str(number).encode() for number in range(100)]
    assert transactions.describe([id])[id].partitions == frozenset()
    assert transactions.read_starts(left.producer_id, [(topic.name, 0)]) == {}


@pytest.mark.parametrize(("commit", "sighting"), [(True, MarkerState.COMMITTED), (False, MarkerState.ABORTED)])
def test_an_end_cannot_be_taken_back(transactions: Transactions, topic: Topic, commit: bool, sighting: MarkerState):
    transaction = Open(transactions, topic)
    assert transaction.look() is MarkerState.NONE
    transaction.end(commit)
    with raises(EndRefused, "transaction-end-refused") as refused:
        transaction.end(not commit)
    assert refused.value.why.startswith("INVALID_TXN_STATE: ")
    assert transaction.id in str(refused.value)
    assert transaction.settled() is sighting
    assert len(topic.read()) == (1 if commit else 0)


def test_below_transaction_version_2_the_epoch_stays(transactions: Transactions, topic: Topic) -> None:
    transaction = Open(transactions, topic)
    with Transactions({"bootstrap_servers": topic.broker}) as older:
        older._version = 1
        older.end(transaction.id, transaction.producer_id, transaction.epoch, commit=True)
        older.end(transaction.id, transaction.producer_id, transaction.epoch, commit=True)
    assert transaction.settled() is MarkerState.COMMITTED
    assert transactions.describe([transaction.id])[transaction.id].epoch == transaction.epoch


def test_fencing_aborts_and_stops_the_zombie(transactions: Transactions, topic: Topic) -> None:
    transaction = Open(transactions, topic)
    transactions.fence(transaction.id)

    assert transaction.look() is MarkerState.ABORTED  # at once: nothing of this id is open after a fence
    with raises(EndRefused, "transaction-end-refused", "PRODUCER_FENCED"):
        transaction.end(commit=True)
    with pytest.raises(KafkaException):
        transaction.producer.produce(topic.name, "too late", partition=0)
        transaction.producer.flush(PATIENCE)
        transaction.producer.commit_transaction(PATIENCE)
    topic.produce("another's")
    assert [value for _, value in topic.read()] == [b"another's"]


def test_a_fence_waits_for_a_commit_that_has_begun(transactions: Transactions, topic: Topic) -> None:
    for _ in range(5):
        transaction = Open(transactions, topic)
        transaction.end(commit=True)
        transactions.fence(transaction.id)
        assert transaction.look() is MarkerState.COMMITTED


def test_an_id_that_nobody_used_can_be_fenced(transactions: Transactions) -> None:
    id = f"unused-{uuid.uuid4().hex}"
    transactions.fence(id)
    described = transactions.describe([id])[id]
    assert (described.state, described.started_at, described.partitions) == ("Empty", None, frozenset())


def test_a_transaction_that_timed_out_is_seen_aborted(transactions: Transactions, topic: Topic) -> None:
    transaction = Open(transactions, topic, **{"transaction.timeout.ms": 1000})
    assert transactions.describe([transaction.id])[transaction.id].timeout == 1.0
    assert transaction.settled() is MarkerState.ABORTED
    with raises(EndRefused, "transaction-end-refused"):
        transaction.end(commit=True)


def test_open_lists_exactly_what_is_ours_and_not_ended(transactions: Transactions, topic: Topic, broker: str) -> None:
    ended, left, other = Open(transactions, topic), Open(transactions, topic), Open(transactions, Topic(broker))
    ended.end(commit=True)
    ended.settled()
    pattern = re.escape(topic.name) + "-.*"
    until(lambda: transactions.list_open(pattern) == [left.id])
    assert transactions.list_open(re.escape(left.id)) == [left.id]
    assert transactions.list_open(re.escape(left.id[:-1])) == []  # the whole id
    assert {left.id, other.id} <= set(transactions.list_open(".*"))

    with Transactions({"bootstrap_servers": broker}) as old:  # as if this were Kafka 3.8
        versions = old._client.admin._manager.broker_version_data.api_versions
        versions[66] = (0, 1)
        assert old.list_open(pattern) == [left.id]


# --- the evidence


def test_an_empty_partition_shows_nothing(transactions: Transactions, broker: str) -> None:
    topic = Topic(broker, partitions=2)
    transaction = Open(transactions, topic)
    empty = (topic.name, 1)
    assert transactions.read_ends([empty]) == {empty: 0}
    assert read_marker_state(transactions, empty, transaction.identity, 0) is MarkerState.NONE
    assert read_marker_state(transactions, (topic.name, 2), transaction.identity, 0) is MarkerState.UNKNOWN
    assert (
        read_marker_state(transactions, ("no-such-topic", 0), transaction.identity, 0, another_id())
        is MarkerState.UNKNOWN
    )
    assert read_marker_state(transactions, empty, transaction.identity, 1) is MarkerState.UNKNOWN  # cut off


def test_each_of_many_interleaved_transactions_has_its_own_marker(transactions: Transactions, topic: Topic) -> None:
    committed, aborted, left = (Open(transactions, topic) for _ in range(3))
    for number in range(3):
        for transaction in (left, aborted, committed):
            transaction.write(f"row {number}")
    topic.produce("another's")
    aborted.end(commit=False)
    committed.end(commit=True)
    assert aborted.settled() is MarkerState.ABORTED
    assert committed.settled() is MarkerState.COMMITTED
    assert left.look() is MarkerState.NONE


def test_an_older_open_transaction_of_another_hides_nothing(transactions: Transactions, topic: Topic) -> None:
    blocker, transaction = Open(transactions, topic), Open(transactions, topic)
    transaction.end(commit=True)
    assert transaction.settled() is MarkerState.COMMITTED
    assert topic.read() == []  # a read_committed reader still waits
    assert blocker.look() is MarkerState.NONE


def test_an_earlier_epoch_of_the_same_producer_is_another_transaction(transactions: Transactions, topic: Topic) -> None:
    transaction = Open(transactions, topic)
    transaction.end(commit=False)
    assert transaction.settled() is MarkerState.ABORTED
    later = transaction.epoch + 5
    assert (
        read_marker_state(transactions, transaction.partition, (transaction.producer_id, later), 0) is MarkerState.NONE
    )


def test_the_marker_is_found_behind_much_of_others(
    transactions: Transactions, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(broker, max_message_bytes=str(16 << 20))
    transaction = Open(transactions, topic)
    topic.produce(*(os.urandom(900_000) for _ in range(20)))
    topic.produce(os.urandom(12 << 20), **{"message.max.bytes": 16 << 20})  # more than is asked for at once
    topic.produce(*(os.urandom(100_000) for _ in range(30)))
    fetched = count_fetches(monkeypatch)
    assert transaction.look() is MarkerState.NONE
    assert len(fetched) > 3
    transaction.end(commit=True)
    assert transaction.settled() is MarkerState.COMMITTED


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_marker_is_found_among_compressed_batches_cut_anywhere(
    transactions: Transactions, topic: Topic, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [os.urandom(500).hex() for _ in range(2000)]
    transaction = Open(transactions, topic, **{"compression.type": codec})
    topic.produce(*rows, **{"compression.type": codec, "batch.size": 10_000, "linger.ms": 5})
    transaction.end(commit=False)
    transaction.settled()
    topic.produce(*rows[:50], **{"compression.type": codec})
    for size in (1, 7_777, 65_536):
        monkeypatch.setattr(markers, "PAGE_BYTES", size)
        fetched = count_fetches(monkeypatch)
        assert transaction.look() is MarkerState.ABORTED
        assert len(fetched) > 5


@pytest.mark.parametrize("page", [markers.PAGE_BYTES, 100])  # 100 bytes: the others have no room in the common fetch
def test_all_partitions_are_looked_at_together_and_each_says_what_it_says_alone(
    transactions: Transactions, broker: str, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(markers, "PAGE_BYTES", page)
    topic, other = Topic(broker, partitions=3), Topic(broker)
    transaction = Open(transactions, topic)
    transaction.producer.produce(topic.name, "another", partition=1)
    transaction.write("a last one")
    empty, unknown = (topic.name, 2), ("no-such-topic", 0)
    since = transactions.read_ends([(topic.name, 0), (topic.name, 1), empty]) | {(other.name, 0): 0, unknown: 0}
    ids = transactions.read_topic_ids([topic.name]) | {other.name: another_id(), unknown[0]: another_id()}
    who = (transaction.identity, ids, True)
    assert set(transactions.read_marker_states(since, *who).values()) == {MarkerState.NONE, MarkerState.UNKNOWN}
    transaction.end(commit=True)
    until(
        lambda: read_marker_state(transactions, (topic.name, 1), who[0], since[topic.name, 1]) is MarkerState.COMMITTED
    )
    transaction.settled()

    fetched = count_fetches(monkeypatch)
    seen = transactions.read_marker_states(since, *who)
    assert seen == {
        (topic.name, 0): MarkerState.COMMITTED,
        (topic.name, 1): MarkerState.COMMITTED,
        empty: MarkerState.NONE,
        (other.name, 0): MarkerState.UNKNOWN,
        unknown: MarkerState.UNKNOWN,
    }
    assert seen == {at: read_marker_state(transactions, at, who[0], since[at], ids[at[0]]) for at in since}
    assert len(fetched) == 2 + (page == 100) + len(since)  # alone: the two that are gone, and what had no room


def another_id() -> str:
    """That of no topic."""
    return id_text(str(uuid.uuid4()))


def test_what_several_transactions_ask_first_is_asked_once(
    transactions: Transactions, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(broker, partitions=2)
    opened = [Open(transactions, topic) for _ in range(3)]
    ids = transactions.read_topic_ids([topic.name])
    ends = transactions.read_ends([(topic.name, 0)])
    since = {(transaction.producer_id, transaction.epoch): ends for transaction in opened[:2]}
    since[opened[2].producer_id, opened[2].epoch] = {(topic.name, 0): ends[topic.name, 0] - 1}  # another start
    requests = count_requests(monkeypatch)
    transactions.prefetch_pages(since, ids)
    transactions.prefetch_coordinators(transaction.id for transaction in opened)
    assert requests == ["MetadataRequest", "FetchRequest", "FindCoordinatorRequest"]

    requests.clear()
    looks = [transactions.read_marker_states(starts, who, ids, True) for who, starts in since.items()]
    assert {state for look in looks for state in look.values()} == {MarkerState.NONE}
    assert requests == ["MetadataRequest", "FetchRequest"]  # of the one that begins elsewhere
    requests.clear()
    for transaction in opened:
        transactions.end(transaction.id, transaction.producer_id, transaction.epoch, commit=True)
    assert requests == ["EndTxnRequest"] * 3
    for who, starts in since.items():  # what was fetched before shows no marker, and is used for one look alone
        until(lambda: set(transactions.read_marker_states(starts, who, ids, True).values()) == {MarkerState.COMMITTED})  # noqa: B023


def test_several_transactions_read_the_log_once(
    transactions: Transactions, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, ids = (topic.name, 0), transactions.read_topic_ids([topic.name])
    opened = [Open(transactions, topic) for _ in range(3)]
    start = transactions.read_ends([at])
    since = {(transaction.producer_id, transaction.epoch): start for transaction in opened}
    transactions.share_scans(since, ids)
    transactions.prefetch_pages(since, ids)
    assert [transactions.read_marker_states(start, who, ids, True)[at] for who in since] == [MarkerState.NONE] * 3
    for transaction in opened:
        topic.produce("between")
        transaction.end(commit=transaction is not opened[1])
    alone = [transaction.settled() for transaction in opened]
    assert alone == [MarkerState.COMMITTED, MarkerState.ABORTED, MarkerState.COMMITTED]

    requests = count_requests(monkeypatch)
    assert [transactions.read_marker_states(start, who, ids, True)[at] for who in since] == alone
    assert requests == ["FetchRequest"]  # the first of them saw the markers of all
    unannounced = Open(transactions, topic)
    who = (unannounced.producer_id, unannounced.epoch)
    assert transactions.read_marker_states(start, who, ids, True)[at] is MarkerState.NONE
    unannounced.end(commit=True)
    until(lambda: transactions.read_marker_states(start, who, ids, True)[at] is MarkerState.COMMITTED)


def test_shared_scan_finds_every_marker(
    transactions: Transactions, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that was fetched for one position says nothing at the position to which another thread has moved on."""
    monkeypatch.setattr(markers, "PAGE_BYTES", 20_000)
    at, ids = (topic.name, 0), transactions.read_topic_ids([topic.name])
    opened = [Open(transactions, topic) for _ in range(8)]
    start = transactions.read_ends([at])
    since = {(transaction.producer_id, transaction.epoch): start for transaction in opened}
    for transaction in opened:
        topic.produce(*["x" * 9_000] * 4, **{"linger.ms": 0, "batch.size": 10_000})
        transaction.end(commit=True)
    assert {transaction.settled() for transaction in opened} == {MarkerState.COMMITTED}
    for _ in range(5):
        transactions.share_scans(since, ids)
        transactions.prefetch_pages(since, ids)
        with ThreadPoolExecutor(len(since)) as pool:
            looks = list(pool.map(lambda who: transactions.read_marker_states(start, who, ids, True)[at], since))
        assert looks == [MarkerState.COMMITTED] * len(since)


def test_a_coordinator_that_has_moved_meanwhile_is_looked_up_again(transactions: Transactions, topic: Topic) -> None:
    transaction = Open(transactions, topic)
    transactions.prefetch_coordinators([transaction.id])
    transactions._coordinators[transaction.id] = 4711
    transactions.end(transaction.id, transaction.producer_id, transaction.epoch, commit=True)
    assert transaction.settled() is MarkerState.COMMITTED


def test_a_leader_that_has_moved_meanwhile_is_looked_up_again(transactions: Transactions, topic: Topic) -> None:
    transaction = Open(transactions, topic)
    at = (topic.name, 0)
    since, ids = transactions.read_ends([at]), transactions.read_topic_ids([topic.name])
    log = markers.PartitionLog(*at, ids[topic.name])
    transactions._leaders[log] = 4711
    seen = transactions.read_marker_states(since, transaction.identity, ids, True)
    assert seen == {at: MarkerState.NONE}
    assert transactions._leaders[log] != 4711


def count_requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all that are sent."""
    found: list[str] = []
    inner = KafkaConnection.send_request

    def counted(self: Any, request: Any, *arguments: Any, **more: Any) -> Any:
        found.append(type(request).__name__)
        return inner(self, request, *arguments, **more)

    monkeypatch.setattr(KafkaConnection, "send_request", counted)
    return found


def count_fetches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    fetched: list[int] = []
    inner = markers.fetch_page

    def page(*arguments: Any) -> Any:
        fetched.append(arguments[2])
        return inner(*arguments)

    monkeypatch.setattr(markers, "fetch_page", page)
    return fetched


# --- evidence that is gone


def test_deleted_records_take_the_evidence_with_them(transactions: Transactions, topic: Topic) -> None:
    transaction = Open(transactions, topic)
    topic.produce("another's")
    transaction.end(commit=True)
    assert transaction.settled() is MarkerState.COMMITTED

    def delete(before: int) -> None:
        key = TopicPartition(topic.name, 0, before)
        topic.admin.delete_records([key])[key].result()

    delete(transaction.since)  # the rows, not the marker
    assert transaction.look() is MarkerState.COMMITTED
    delete(transaction.since + 1)  # what stood before the marker: now it could have been there
    assert transaction.look() is MarkerState.UNKNOWN


def test_another_topic_of_that_name_is_no_evidence(transactions: Transactions, topic: Topic) -> None:
    transaction = Open(transactions, topic)
    before = transactions.read_topic_ids([topic.name])[topic.name]
    topic.admin.delete_topics([topic.name])[topic.name].result()
    until(lambda: topic.name not in transactions.read_topic_ids([topic.name]))
    assert transaction.look(before) is MarkerState.UNKNOWN
    topic.create(1, {})
    assert transactions.read_topic_ids([topic.name])[topic.name] != before
    assert transaction.look() is MarkerState.UNKNOWN  # it ends below what was recorded

    topic.produce("new")
    transaction.end(commit=True)  # the marker goes into the new topic, which has none of the rows
    transaction.since = 0
    assert transaction.settled() is MarkerState.COMMITTED
    assert transaction.look(before) is MarkerState.UNKNOWN


def test_a_deleted_topic_is_waited_for_once(
    transactions: Transactions, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each of its logs, and each transaction: a commit would take hours to say that a topic is gone."""
    topic, producers = Topic(broker, partitions=6), [(number, 0) for number in range(10)]
    ids = transactions.read_topic_ids([topic.name])
    starts = {(topic.name, number): 0 for number in range(6)}
    topic.admin.delete_topics([topic.name])[topic.name].result()
    until(lambda: topic.name not in transactions.read_topic_ids([topic.name]))
    pauses: list[float] = []
    monkeypatch.setattr(markers, "sleep", lambda seconds: (pauses.append(seconds), time.sleep(seconds)))
    for _ in range(2):
        transactions.share_scans(dict.fromkeys(producers, starts), ids)
        for producer in producers:
            states = transactions.read_marker_states(starts, producer, ids, True)
            assert states == dict.fromkeys(starts, MarkerState.UNKNOWN)
        assert 0 < sum(pauses) < markers.MISSING_SECONDS + 2 * markers.RETRY_SECONDS
        pauses.clear()


COMPACT = {"cleanup_policy": "compact", "segment_ms": "50", "min_cleanable_dirty_ratio": "0.0"}


def test_compaction_of_the_rows_leaves_the_marker(transactions: Transactions, broker: str, busy_cleaner: None) -> None:
    topic = Topic(broker, **COMPACT)
    transaction = Open(transactions, topic, "1", "2", "3", key="k")
    transaction.end(commit=True)
    assert transaction.settled() is MarkerState.COMMITTED

    def compacted() -> bool:
        topic.produce("newer", key="k")
        return all(offset >= transaction.since for offset, _ in topic.read("read_uncommitted"))

    until(compacted)
    assert transaction.look() is MarkerState.COMMITTED


def until_the_marker_is_gone(transaction: Open) -> None:
    """Never NONE on the way."""
    seen: list[MarkerState] = []

    def gone() -> bool:
        transaction.topic.produce("newer", key="k")
        seen.append(transaction.look())
        return seen[-1] is not MarkerState.COMMITTED

    until(gone)
    assert seen[-1] is MarkerState.UNKNOWN


def committed_and_emptied(transactions: Transactions, broker: str) -> Open:
    """Its marker was there, and compaction has taken what it said."""
    transaction = Open(transactions, Topic(broker, **COMPACT, delete_retention_ms="0"), key="k")
    transaction.end(commit=True)
    assert transaction.settled() is MarkerState.COMMITTED
    until_the_marker_is_gone(transaction)
    return transaction


def test_a_marker_that_compaction_has_emptied_says_nothing(
    transactions: Transactions, broker: str, busy_cleaner: None
) -> None:
    transaction = committed_and_emptied(transactions, broker)

    page = markers.fetch_page(transactions._client, transaction.log, transaction.since)
    assert page is not None
    emptied = next(MemoryRecords(page.records))  # kept because it is its producer's last
    assert (emptied.base_offset, emptied.is_control_batch, emptied.records_count) == (transaction.since, True, 0)
    scan = markers.MarkerScan(transaction.log, transaction.since, [transaction.producer_id])
    scan.read(replace(page, records=page.records[: emptied.size_in_bytes]))
    assert scan.find_state(transaction.identity, has_one_transaction=True) is MarkerState.UNKNOWN


def test_a_marker_that_compaction_has_removed_is_not_taken_for_none(
    transactions: Transactions, broker: str, busy_cleaner: None
) -> None:
    transaction = committed_and_emptied(transactions, broker)
    time.sleep(0.2)  # segment.ms: the next row begins a segment, and the cleaner has work before it
    heir = Producer({"bootstrap.servers": broker, "transactional.id": transaction.id, "log_level": 0})
    heir.init_transactions()
    heir.begin_transaction()  # the emptied batch is not its producer's last any more, and may go
    heir.produce(transaction.topic.name, "left open", "k", partition=0)
    assert heir.flush(PATIENCE) == 0
    assert transactions.describe([transaction.id])[transaction.id].producer_id == transaction.producer_id

    def first() -> int:
        page = markers.fetch_page(transactions._client, transaction.log, transaction.since)
        assert page is not None
        return int(next(MemoryRecords(page.records)).base_offset)

    until(lambda: first() > transaction.since)
    assert transaction.look() is MarkerState.UNKNOWN

    heir.abort_transaction(PATIENCE)  # where ids are shared, this marker is another's
    ours = (transaction.partition, transaction.identity, transaction.since)
    until(lambda: read_marker_state(transactions, *ours) is MarkerState.ABORTED)
    assert read_marker_state(transactions, *ours, has_one_transaction=False) is MarkerState.UNKNOWN


def test_a_tail_that_compaction_has_taken_whole_is_no_end_of_the_log(
    transactions: Transactions, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a roll: the active segment is empty, and nothing before it is left."""
    monkeypatch.setattr(markers, "fetch_page", lambda _, log, offset, *__: markers.Page(log, offset, 5, True, b""))
    assert read_marker_state(transactions, (topic.name, 0), (1, 0), 3) is MarkerState.UNKNOWN
    assert read_marker_state(transactions, (topic.name, 0), (1, 0), 5) is MarkerState.NONE


KIND = 61 + 5 + 3  # in a marker's batch: behind the batch header, the record's header, and version and kind in its key


def test_a_damaged_marker_is_not_believed(
    transactions: Transactions, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = Open(transactions, topic)
    transaction.end(commit=True)
    assert transaction.settled() is MarkerState.COMMITTED
    inner = markers.fetch_page

    def damaged(*arguments: Any) -> Any:
        page = inner(*arguments)
        records = bytearray(page.records)
        assert records[KIND] == 1
        records[KIND] = 0
        return replace(page, records=bytes(records))

    monkeypatch.setattr(markers, "fetch_page", damaged)
    with raises(NotCommitted, "log-damaged", topic.name):
        transaction.look()
    monkeypatch.setattr(markers, "fetch_first_pages", lambda *_: {})
    who, start = transaction.identity, {transaction.partition: transaction.since}
    transactions.share_scans({who: start}, transactions.read_topic_ids([topic.name]))
    for _ in range(2):  # nor is it passed by, as if there were none
        with raises(NotCommitted, "log-damaged", topic.name):
            transactions.read_marker_states(start, who, transactions.read_topic_ids([topic.name]), True)


# --- topics and the cluster


def test_what_a_check_wants_to_know(transactions: Transactions, broker: str) -> None:
    topic = Topic(broker, partitions=3, min_insync_replicas="1", max_message_bytes="123456")
    Open(transactions, topic)
    names = [topic.name, "no-such-topic"]
    assert transactions.count_partitions(names) == {topic.name: 3}
    assert transactions.read_replication_factors(names) == {topic.name: 1}
    config = transactions.read_topic_config(topic.name)
    keys = ("cleanup.policy", "max.message.bytes", "min.insync.replicas")
    assert [config[key] for key in keys] == ["delete", "123456", "1"]
    assert (transactions.read_transaction_version(), transactions.read_max_transaction_timeout()) == (2, 900.0)
    assert (transactions.read_state_log_replication(), transactions.list_brokers()) == (1, [1])
    with raises(InvalidPipeline, "topic-not-describable", "no-such-topic"):
        transactions.read_topic_config("no-such-topic")
    with raises(InvalidPipeline, "topic-missing", "no-such-topic"):
        transactions.read_ends([("no-such-topic", 0)])
    with raises(InvalidPipeline, "topic-missing"):
        transactions.read_starts(1, [(topic.name, 3)])
    assert (transactions.read_topic_ids([]), transactions.describe([]), transactions.read_ends([])) == ({}, {}, {})


def test_ids_are_written_as_the_source_writes_them(transactions: Transactions, topic: Topic) -> None:
    described = topic.admin.describe_topics(TopicCollection([topic.name]))[topic.name].result()
    assert transactions.read_topic_ids([topic.name]) == {topic.name: str(described.topic_id)}
    for high, low in ((-1, -1), (1 << 62, 0), (0x3FEFFBEFBEFBEFBE, 1)):
        assert id_text(str(UUID(int=(high % 2**64) << 64 | low % 2**64))) == str(Uuid(high, low))
    assert transactions.read_cluster_id() == topic.admin.describe_cluster().result().cluster_id


# --- what goes wrong on the way


def test_a_missing_broker_is_reported_with_its_address_and_leaves_nothing(
    recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerClient, "timeout", 1.0)
    threads, nowhere = set(threading.enumerate()), f"127.0.0.1:{machine.free_port()}"
    with Transactions({"bootstrap_servers": nowhere, "bootstrap_timeout_ms": 500}) as transactions:
        transactions._version = 2
        with raises(NotCommitted, "kafka-unreachable", nowhere):
            transactions.list_brokers()
        with raises(NotCommitted, "kafka-unreachable", nowhere):  # nothing was sent
            transactions.end("id", 1, 0, commit=True)
        assert set(threading.enumerate()) <= threads  # a thread of another test may end meanwhile
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []
    assert caplog.messages == [], "the error tells it, once"


def test_kafka_python_is_imported_late_and_also_where_warnings_are_errors() -> None:
    code = """
import sys
from onceonly.kafka.transactions import Transactions
assert "kafka" not in sys.modules
Transactions({"bootstrap_servers": "nowhere:1"}).close()
assert "kafka" in sys.modules
"""
    assert subprocess.run([sys.executable, "-W", "error", "-c", code]).returncode == 0


def test_closing_leaves_no_thread_and_no_socket(broker: str) -> None:
    def opened() -> tuple[set[threading.Thread], int]:
        gc.collect()  # what other tests left may end meanwhile
        return set(threading.enumerate()) - threads, max(0, len(os.listdir("/proc/self/fd")) - sockets)

    Transactions({"bootstrap_servers": broker}).close()  # never used
    gc.collect()
    threads, sockets = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    with Transactions({"bootstrap_servers": [broker]}) as transactions:
        for _ in range(2):  # and may be used again
            assert transactions.list_brokers() == [1]
            assert opened() != (set(), 0)
            transactions.close()
            assert opened() == (set(), 0)


def test_after_a_lost_response_nothing_is_sent_again(
    transactions: Transactions, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = Open(transactions, topic)
    sent = on_end_txn(monkeypatch, lambda connection: connection.close(KafkaConnectionError("cut")))
    with raises(OutcomeUnknown, "transaction-end-unconfirmed", "cut") as unknown:
        transaction.end(commit=True)
    assert not isinstance(unknown.value, EndRefused)
    assert len(sent) == 1
    monkeypatch.undo()
    transaction.end(commit=True)  # once the evidence says that it may
    assert transaction.settled() is MarkerState.COMMITTED


@pytest.mark.parametrize("name", ["ConcurrentTransactions", "CoordinatorLoadInProgress", "NotCoordinator"])
def test_a_response_not_now_is_retried(
    transactions: Transactions, topic: Topic, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    transaction = Open(transactions, topic)
    sent: list[int] = []
    inner = _EndRequest._check

    def judge(ending: _EndRequest, code: int) -> None:
        sent.append(code)
        inner(ending, getattr(kafka.errors, f"{name}Error").errno if len(sent) < 3 else code)

    monkeypatch.setattr(_EndRequest, "_check", judge)
    transaction.end(commit=True)
    assert len(sent) == 3
    assert transaction.settled() is MarkerState.COMMITTED


def test_not_now_for_ever_is_unknown(transactions: Transactions, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    transaction = Open(transactions, topic)
    inner = _EndRequest._check
    monkeypatch.setattr(BrokerClient, "timeout", 1.0)
    monkeypatch.setattr(_EndRequest, "_check", lambda ending, _: inner(ending, kafka.errors.NotCoordinatorError.errno))
    with raises(OutcomeUnknown, "transaction-end-unconfirmed", "NotCoordinatorError"):
        transaction.end(commit=True)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A broker that may be stopped and killed."""
    with running(KafkaBroker(tmp_path, machine.free_port())) as own:
        yield own


def stop(pid: int) -> None:
    """Returns when no thread of it runs any more; on a busy machine the last ones still answer for a while."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    until(lambda: all("\nState:\tT" in (thread / "status").read_text() for thread in threads.iterdir()))


@contextmanager
def hanging(pid: int) -> Iterator[None]:
    """A stopped process keeps its connections: nothing breaks, nothing answers."""
    stop(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_broker_that_hangs_and_one_that_dies(own: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    started = own.daemon.running()
    assert started is not None and started.pid is not None
    pid, port = started.pid, started.port
    monkeypatch.setattr(BrokerClient, "timeout", 3.0)
    with Transactions({"bootstrap_servers": own.address(port)}) as transactions:
        topic = Topic(own.address(port))
        first, second, third = (Open(transactions, topic) for _ in range(3))
        transactions.read_transaction_version()

        sent = on_end_txn(monkeypatch, lambda _: None)
        with hanging(pid):
            begun = time.monotonic()
            with raises(NotCommitted, "kafka-unreachable", topic.broker):
                first.end(commit=True)
            assert time.monotonic() - begun < PATIENCE
        until(lambda: first.id in transactions.describe([first.id]))
        assert sent == []  # what was promised still holds when the broker is back
        first.end(commit=True)
        assert first.settled() is MarkerState.COMMITTED

        inner = _EndRequest._before_sending
        monkeypatch.setattr(_EndRequest, "_before_sending", lambda ending: (stop(pid), inner(ending)))
        try:
            with raises(OutcomeUnknown, "transaction-end-unconfirmed", second.id):
                second.end(commit=True)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert len(sent) == 2
        assert second.settled() is MarkerState.COMMITTED

        os.kill(pid, signal.SIGKILL)  # the open transaction outlives it, and so does the client
        os.waitpid(pid, 0)
        own.daemon.start(own.command(port), port, own.environment())
        own.wait()
        monkeypatch.undo()
        third.end(commit=True)
        assert third.settled() is MarkerState.COMMITTED


def on_end_txn(monkeypatch: pytest.MonkeyPatch, then: Callable[[Any], None]) -> list[Any]:
    """Do something to the connection right after an EndTxn has left on it; the requests that were."""
    sent: list[Any] = []
    inner = KafkaConnection.send_request

    def send_request(connection: Any, request: Any, **more: Any) -> Any:
        future = inner(connection, request, **more)
        if request.name == "EndTxnRequest":
            sent.append(request)
            then(connection)
        return future

    monkeypatch.setattr(KafkaConnection, "send_request", send_request)
    return sent


# --- the parts of kafka-python that are not public


def test_kafka_python_still_has_the_parts_that_are_used(transactions: Transactions, topic: Topic) -> None:
    Open(transactions, topic)
    admin = transactions._client.admin
    manager = admin._manager
    connection = manager._conns[1]
    needed = [
        (admin, "_manager _find_coordinator_ids _get_cluster_metadata _async_describe_producers close"),
        (admin, "_async_list_partition_offsets _async_describe_configs _async_describe_features"),
        (manager, "run send get_connection wait_for call_soon cluster broker_version_data"),
        (manager.cluster, "_coordinators brokers refresh_metadata"),
        (manager.broker_version_data, "api_version"),
        (connection, "connected paused send_request __await__"),
        (KafkaNetSocket, "_registry sock_connect __init_subclass__"),
        (DefaultRecordBatch, "base_offset next_offset is_control_batch producer_id producer_epoch validate_crc"),
        (ControlRecord, "type"),
    ]
    lost = [f"{owner}.{name}" for owner, names in needed for name in names.split() if not hasattr(owner, name)]
    assert not lost, f"kafka-python {kafka.__version__} has lost what onceonly.kafka uses: {lost}"

    fields = {
        EndTxnRequest: "transactional_id producer_id producer_epoch committed",
        InitProducerIdRequest: "transactional_id transaction_timeout_ms producer_id producer_epoch",
        DescribeTransactionsRequest: "transactional_ids",
        ListTransactionsRequest: "state_filters transactional_id_pattern",
        FetchRequest: "max_wait_ms min_bytes max_bytes isolation_level session_id session_epoch topics",
        FetchRequest.FetchTopic: "topic partitions",
        FetchRequest.FetchTopic.FetchPartition: "partition fetch_offset partition_max_bytes",
    }
    for request, names in fields.items():
        lost = [name for name in names.split() if not hasattr(request(), name)]
        assert not lost, f"kafka-python {kafka.__version__}: {request.__name__} has lost {lost}"
    limits = [r(max_version=4)._max_version for r in (EndTxnRequest, FetchRequest)]
    assert limits == [4, 4], "a request's highest version can no longer be limited by max_version"


def test_kafka_pythons_coordinator_cache_is_still_where_it_is_emptied(transactions: Transactions, topic: Topic) -> None:
    """A coordinator that has moved would never be found again: that cache does not expire."""
    id = Open(transactions, topic).id
    cache = transactions._client.admin._manager.cluster._coordinators
    assert cache.get((CoordinatorType.TRANSACTION, id)) == 1, "the cache has moved: see BrokerClient.coordinators"
    cache[CoordinatorType.TRANSACTION, id] = 4711
    assert transactions.describe([id])[id].state == "Ongoing"


def test_kafka_pythons_errors_can_still_be_distinguished() -> None:
    not_now = ("ConcurrentTransactions", "CoordinatorLoadInProgress", "CoordinatorNotAvailable", "NotCoordinator")
    passing = (*not_now, "KafkaConnection", "KafkaTimeout", "NodeNotReady", "NotLeaderForPartition", "RequestTimedOut")
    for name in passing:
        assert getattr(kafka.errors, f"{name}Error").retriable, f"{name}Error is no longer retriable"
    for code, name in {48: "INVALID_TXN_STATE", 90: "PRODUCER_FENCED", 105: "TRANSACTIONAL_ID_NOT_FOUND"}.items():
        assert kafka.errors.for_code(code).message == name
