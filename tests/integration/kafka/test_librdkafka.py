"""Columns that are passed to librdkafka at once arrive as the same records that its own Python client sends."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from typing import Any

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Usual
from integration.readers.kafka_reader import Record, committed, new_topic
from patience import PATIENCE

from onceonly.dev.services.far_broker import API_VERSIONS, Proxy
from onceonly.kafka.librdkafka import Producer, Records
from onceonly.sinks.kafka.spool import SPOOL_SCHEMA

pytestmark = pytest.mark.integration
Rows = list[dict[str, Any]]
KEYS: Rows = [{"value": f"v{n}".encode(), "key": f"key-{n}".encode()} for n in range(50)]
EDGES: Rows = [
    {"value": None, "key": b"tombstone"},
    {"value": b"", "key": b"empty"},
    {"value": b"v", "key": b""},
    {"value": b"\0\xff" * 3000, "key": b"k" * 300},
    {"value": b"last", "key": b"last"},
]
PLACED: Rows = [{**row, "partition": n % 4} for n, row in enumerate(EDGES + KEYS)] + KEYS
TIMED: Rows = [{**row, "timestamp": 1_357_016_400_000 + n} for n, row in enumerate(EDGES + KEYS)]
HEADED: Rows = [
    {"value": b"v", "key": b"k", "headers": [("ü", b"1"), ("ü", None), ("", b""), ("n", b"\0")]},
    {"value": None, "key": b"k", "headers": []},
    {"value": b"w", "key": b"k", "headers": [("a", b"b" * 500)]},
]


def columns(rows: Rows) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{**row, "headers": _headers(row)} for row in rows], SPOOL_SCHEMA)


def _headers(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in row.get("headers", [])]


def sent(broker: str, topic: str, batch: pa.RecordBatch, **config: Any) -> None:
    failed: list[Any] = []
    config = {"bootstrap.servers": broker, "partitioner": "murmur2_random", **config}
    producer = Producer(config, lambda *told: failed.append(told))
    records = Records(batch)
    while (done := producer.queue(topic, records)) < len(records):
        records = records.skip(done)
        producer.poll(0.01)
    assert producer.flush(PATIENCE) == 0
    assert not failed


def as_usual(broker: str, topic: str, rows: Rows) -> None:
    producer = Usual({"bootstrap.servers": broker, "partitioner": "murmur2_random"})
    for row in rows:
        given = {"partition": -1, "timestamp": 0, **row}
        producer.produce(topic, **given)
    assert producer.flush(PATIENCE) == 0


def shown(records: list[Record], times: bool) -> list[tuple[Any, ...]]:
    return [(r.partition, r.key, r.value, r.headers, r.timestamp if times else None) for r in records]


@pytest.mark.parametrize("rows", [KEYS, EDGES, [{"value": b"", "key": b""}] * 3, PLACED, TIMED, HEADED])
def test_the_same_records_as_of_the_usual_client(broker: str, rows: Rows) -> None:
    ours, theirs = new_topic(broker), new_topic(broker)
    sent(broker, ours, columns(rows))
    as_usual(broker, theirs, rows)
    timed = "timestamp" in rows[0]
    assert shown(committed(broker, ours), timed) == shown(committed(broker, theirs), timed)


@pytest.mark.parametrize("rows", [EDGES + KEYS, TIMED])
def test_a_part_of_a_batch(broker: str, rows: Rows) -> None:
    topic, other = new_topic(broker), new_topic(broker)
    sent(broker, topic, columns(rows).slice(2, 20))
    as_usual(broker, other, rows[2:22])
    timed = "timestamp" in rows[0]
    assert shown(committed(broker, topic), timed) == shown(committed(broker, other), timed)


@pytest.mark.parametrize("more", [{}, {"partition": 2}, {"headers": [("a", b"b")]}])
def test_a_queue_that_is_full_takes_the_first_ones_and_later_the_rest(broker: str, more: dict[str, Any]) -> None:
    topic = new_topic(broker)
    rows = [{"value": str(n).encode(), "key": b"one partition", **more} for n in range(1000)]
    sent(broker, topic, columns(rows), **{"queue.buffering.max.messages": 7, "linger.ms": 0})
    assert [record.value for record in committed(broker, topic)] == [row["value"] for row in rows]


def test_a_record_without_key_goes_anywhere(broker: str) -> None:
    topic = new_topic(broker)
    sent(broker, topic, columns([{"value": b"v"}] * 10))
    assert [record.key for record in committed(broker, topic)] == [None] * 10


@pytest.mark.parametrize("more", [{}, {"partition": 0}])
def test_each_record_that_is_not_delivered_is_reported(broker: str, more: dict[str, Any]) -> None:
    failed: list[tuple[Any, ...]] = []
    config = {"bootstrap.servers": broker, "allow.auto.create.topics": False, "message.timeout.ms": 1000}
    producer = Producer({**config, "delivery.report.only.error": True}, lambda *told: failed.append(told))
    producer.queue("no-such-topic", Records(columns([{"value": b"secret", **more}] * 3)))
    assert producer.flush(PATIENCE) == 0
    assert [(topic, "secret" in text) for _, text, topic, _ in failed] == [("no-such-topic", False)] * 3
    assert {code for code, *_ in failed} <= {KafkaError._UNKNOWN_TOPIC, KafkaError._MSG_TIMED_OUT}


@pytest.mark.parametrize("more", [{}, {"partition": 0}])
def test_a_record_that_is_too_large_is_refused_at_once(broker: str, more: dict[str, Any]) -> None:
    producer = Producer({"bootstrap.servers": broker, "message.max.bytes": 1000}, print)
    with pytest.raises(KafkaException) as error:
        producer.queue(new_topic(broker), Records(columns([{"value": b"v" * 2000, **more}])))
    assert error.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(KafkaException, match=r"no\.such\.setting"):
        Producer({"no.such.setting": "1"}, print)


def test_its_threads_end_when_it_is_dropped(broker: str, count_threads: Callable[[], int]) -> None:
    before = count_threads()
    producer = Producer({"bootstrap.servers": broker, "transactional.id": new_topic(broker)}, print)
    producer.begin(PATIENCE)
    assert count_threads() > before
    del producer
    gc.collect()
    assert count_threads() <= before


@pytest.fixture
def count_threads() -> Callable[[], int]:
    """Native ones of this process: librdkafka's are not Python's."""
    return lambda: int(psutil.Process().num_threads())


def test_a_transaction_begins_once_a_broker_answers(broker: str) -> None:
    proxy = Proxy()
    proxy.target = int(broker.split(":")[1])
    config = {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "transactional.id": new_topic(broker)}
    try:
        with proxy.cut({API_VERSIONS}, "request", times=5) as cut:
            Producer({**config, "reconnect.backoff.ms": 10}, print).begin(PATIENCE)
    finally:
        proxy.close()
    assert cut.cuts == [API_VERSIONS] * 5


def test_no_broker_answers_within_the_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}", "transactional.id": "never"}
        with pytest.raises(KafkaException) as error:
            Producer(config, print).begin(0.3)
    assert error.value.args[0].code() == KafkaError._TIMED_OUT
