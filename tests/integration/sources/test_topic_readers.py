"""The two readers of a topic in Spark, Onceonly's jar and Spark's connector, have the rows of a plain consumer."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from integration.readers.kafka_reader import committed, new_topic, until
from integration.services.own_broker import running
from patience import PATIENCE
from pyspark.sql import functions as F

from onceonly.checkpoint.offsets import TopicRange
from onceonly.dev.services import machine
from onceonly.dev.services.kafka import KafkaBroker
from onceonly.spark import jvm_jar, topics

pytestmark = pytest.mark.integration
READERS = ("jar", "connector")
PARTITIONS = 2
MILLISECOND = timedelta(milliseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RECORDS: list[dict[str, Any]] = [
    {"value": b"plain"},
    {"value": b"", "key": b""},
    {"value": None, "key": b"tombstone", "timestamp": 1},
    {"value": b"\x00\xff" * 40_000, "key": b"\x80", "timestamp": 1_356_998_400_123},
    {
        "value": b"with headers",
        "headers": [("trace", b"\x00\xff"), ("trace", None), ("", b""), ("ключ", "знач".encode())],
    },
    {"value": b"of the future", "timestamp": 1_800_000_000_999},
]


@pytest.fixture
def read(spark: Any, broker: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return what reads ranges by one of the readers."""

    def read(reader: str, *ranges: TopicRange, bootstrap: str = broker, patience: int = 120) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(jvm_jar, "is_in_session", lambda _: reader == "jar")
            return topics.read_ranges(spark, {"bootstrap.servers": bootstrap}, ranges, patience)

    return read


@pytest.fixture(scope="module")
def ranges(broker: str) -> tuple[TopicRange, ...]:
    """Two topics, of whose partitions each has all records, and one more that is not in the ranges."""
    names = [new_topic(broker, PARTITIONS, message_timestamp_after_max_ms=str(2**63 - 1)) for _ in range(2)]
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for name in names:
        for partition in range(PARTITIONS):
            for record in [*RECORDS, {"value": b"behind the range"}]:
                producer.produce(name, partition=partition, **record)
    assert producer.flush(PATIENCE) == 0
    spans = dict.fromkeys(range(PARTITIONS), (0, len(RECORDS)))
    return tuple(TopicRange(name, "", spans) for name in names)


def rows_of(rows: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in rows.orderBy(*topics.PLACE).collect()]


def test_every_part_of_a_record_is_what_a_plain_consumer_finds(
    broker: str, read: Callable[..., Any], ranges: tuple[TopicRange, ...]
) -> None:
    expected = []
    for range_ in ranges:
        for record in committed(broker, range_.topic):
            if record.offset < len(RECORDS):
                headers = record.headers and [tuple(header) for header in record.headers]
                moment = EPOCH + record.timestamp * MILLISECOND
                place = (range_.topic, record.partition, record.offset)
                expected.append(
                    (record.key, record.value, *place, moment.astimezone().replace(tzinfo=None), headers or None)
                )
    expected.sort(key=lambda row: row[2:5])
    for reader in READERS:
        found = []
        for *parts, headers in rows_of(read(reader, *ranges)):
            found.append((*parts, headers and [tuple(header) for header in headers]))
        assert found == expected, reader


@pytest.mark.parametrize("column", topics.COLUMNS)
def test_one_column_alone_is_the_same(read: Callable[..., Any], ranges: tuple[TopicRange, ...], column: str) -> None:
    """A reader that makes only the columns that are used has to know which is which."""
    alone = {}
    for reader in READERS:
        alone[reader] = sorted(map(str, read(reader, *ranges).select(column).collect()))
    assert alone["jar"] == alone["connector"]
    assert len(alone["jar"]) == len(ranges) * PARTITIONS * len(RECORDS)


@pytest.mark.parametrize("reader", READERS)
def test_rows_survive_what_spark_does_with_them(
    read: Callable[..., Any], ranges: tuple[TopicRange, ...], reader: str
) -> None:
    rows, number = read(reader, *ranges), len(ranges) * PARTITIONS * len(RECORDS)
    expected = rows_of(rows)
    assert rows.count() == number
    assert rows_of(rows.repartition(5, "value")) == expected
    again = rows.select(*topics.PLACE, F.col("value").alias("again"))
    assert rows.join(again, list(topics.PLACE)).where("value <=> again").count() == number
    kept = rows.persist()
    try:
        assert rows_of(kept) == rows_of(kept) == expected
    finally:
        kept.unpersist()


def test_a_silent_broker_fails_the_read_in_time_and_a_cancelled_read_ends(
    tmp_path: Path, spark: Any, read: Callable[..., Any]
) -> None:
    port = machine.free_port()
    with running(KafkaBroker(tmp_path, port)) as own:
        bootstrap = own.address(port)
        name = new_topic(bootstrap, 1)
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        producer.produce(name, "one")
        assert producer.flush(PATIENCE) == 0
        beyond = TopicRange(name, "", {0: (1, 2)})  # of a record that does not come
        started = time.monotonic()
        with pytest.raises(Exception) as caught:
            read("jar", beyond, bootstrap=bootstrap, patience=3).collect()
        assert topics.looks_lost(caught.value)
        assert time.monotonic() - started < PATIENCE
        tag, ended = uuid.uuid4().hex, threading.Event()

        def wait_for_it() -> None:
            spark.addTag(tag)
            with suppress(Exception):
                read("jar", beyond, bootstrap=bootstrap, patience=3600).collect()
            ended.set()

        thread = threading.Thread(target=wait_for_it, daemon=True)
        thread.start()
        until(lambda: spark.interruptTag(tag), what="the query, to be cancelled")
        assert ended.wait(PATIENCE)
