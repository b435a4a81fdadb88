"""The Kafka source against a real broker and a real Spark: what it pins, what it reads, what it refuses."""

from __future__ import annotations

import io
import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
from codes import raises
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from fastavro import parse_schema, schemaless_writer
from patience import PATIENCE
from pyspark.sql import functions as F

from onceonly.checkpoint.interfaces import FirstRecord, Source
from onceonly.checkpoint.offsets import Interval, TopicRange, first_range, next_range
from onceonly.coordinator import boundaries
from onceonly.coordinator.boundaries import TopicPlanner
from onceonly.errors import BadRecord, Busy, InvalidPipeline, NotCommitted, SourceLost
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.sources.kafka import KafkaReader
from onceonly.spark import jvm_jar
from onceonly.statetable.table import StateTable

pytestmark = pytest.mark.integration

START = datetime(2013, 1, 1, tzinfo=UTC)
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": ["null", "string"], "default": None},
        {"name": "delay", "type": ["null", "int"], "default": None},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
    ],
}
DDL = "carrier STRING, delay INT, at TIMESTAMP"
READERS = ("jar", "connector")


class Topic:
    """A topic of its own for each test, with the records of years ago kept."""

    def __init__(self, broker: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        self.broker, self.name = broker, f"source-{uuid.uuid4().hex[:8]}"
        self.config = {"retention.ms": "-1"} | (config or {})
        self.admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
        self.create(partitions)

    def create(self, partitions: int = 1) -> None:
        """Again, too: an older topic of this name may still be on its way out."""
        topic = NewTopic(self.name, partitions, 1, config=self.config)
        until(lambda: self.admin.create_topics([topic])[self.name].result() is None)
        until(
            lambda: len(self.admin.list_topics(self.name, timeout=PATIENCE).topics[self.name].partitions) == partitions
        )

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result()

    def add_partitions(self, total: int) -> None:
        self.admin.create_partitions([NewPartitions(self.name, total)])[self.name].result()

    def delete_records(self, before: int) -> None:
        key = TopicPartition(self.name, 0, before)
        self.admin.delete_records([key])[key].result()

    def produce(self, *values: bytes | str | None, seconds: Sequence[float] = (), partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.broker, "log_level": 0})
        self._send(producer, values, seconds, partition)

    @contextmanager
    def transaction(self, *values: bytes | str, seconds: Sequence[float] = ()) -> Iterator[Producer]:
        """Records in a transaction that the body should end; it is aborted otherwise."""
        config = {"bootstrap.servers": self.broker, "transactional.id": uuid.uuid4().hex, "log_level": 0}
        producer = Producer(config)
        producer.init_transactions()
        producer.begin_transaction()
        self._send(producer, values, seconds, 0)
        try:
            yield producer
        finally:
            try:
                producer.abort_transaction()
            except KafkaException as error:
                assert error.args[0].code() == KafkaError._STATE  # the body has ended it
            self.settle()

    def settle(self) -> None:
        """EndTxn is answered before the marker is in the log."""
        until(lambda: self.end(IsolationLevel.READ_COMMITTED) == self.end(IsolationLevel.READ_UNCOMMITTED))

    def end(self, isolation: IsolationLevel) -> int:
        """Of partition 0."""
        key = TopicPartition(self.name, 0)
        answer = self.admin.list_offsets({key: OffsetSpec.latest()}, isolation_level=isolation)
        return int(answer[key].result().offset)

    def commit(self, *values: bytes | str, seconds: Sequence[float] = ()) -> None:
        with self.transaction(*values, seconds=seconds) as producer:
            producer.commit_transaction()

    def abort(self, *values: bytes | str, seconds: Sequence[float] = ()) -> None:
        with self.transaction(*values, seconds=seconds) as producer:
            producer.abort_transaction()

    def _send(
        self, producer: Producer, values: Sequence[bytes | str | None], seconds: Sequence[float], partition: int
    ) -> None:
        failures: list[Any] = []
        for i, value in enumerate(values):
            stamp = millis(seconds[i]) if seconds else 0
            report = lambda error, _: failures.append(error) if error else None  # noqa: E731
            producer.produce(self.name, value, partition=partition, timestamp=stamp, on_delivery=report)
        assert producer.flush(PATIENCE) == 0
        assert failures == []


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if condition():
                return
        except KafkaException:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, f"the condition was not met in {PATIENCE} s"
        time.sleep(0.05)


def moment(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def millis(seconds: float) -> int:
    return round((START.timestamp() + seconds) * 1000)


@pytest.fixture(params=READERS)
def spark(request: pytest.FixtureRequest, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Spark that reads topics by Onceonly's jar, and as without it, by Spark's own connector."""
    monkeypatch.setattr(jvm_jar, "is_in_session", lambda _: request.param == "jar")
    return spark


@pytest.fixture
def topic(broker: str) -> Topic:
    return Topic(broker)


@pytest.fixture
def reader(topic: Topic, tmp_path: Path) -> KafkaReader:
    return KafkaReader(KafkaSource(topic.name), topic.broker, tmp_path)


def decoding(topic: Topic, root: Path, format: Literal["json", "avro"]) -> KafkaReader:
    file = {"json": "flight.ddl", "avro": "flight.avsc"}[format]
    (root / file).write_text(DDL if format == "json" else json.dumps(SCHEMA))
    return KafkaReader(KafkaSource(topic.name, format, file), topic.broker, root)


def avro(**flight: Any) -> bytes:
    buffer = io.BytesIO()
    schemaless_writer(buffer, parse_schema(SCHEMA), flight)
    return buffer.getvalue()


def everything(source: Source) -> tuple[TopicRange, ...]:
    log = source.log()
    return (TopicRange(log.topic, log.topic_id, log.partitions),)


def values(rows: Any) -> list[Any]:
    return [row["value"] for row in rows.orderBy("partition", "offset").collect()]


def failure(source: Source, spark: Any, column: str = "value") -> Exception:
    """What a user is told when reading that column fails."""
    ranges = everything(source)
    with pytest.raises(Exception) as caught:
        source.read(spark, ranges).select(column).collect()
    return source.diagnose(caught.value, spark, ranges)


# --- check


def test_a_topic_that_is_there_is_fine(topic: Topic, tmp_path: Path) -> None:
    for format in ("json", "avro"):
        assert decoding(topic, tmp_path, format).check() == []


def test_an_unknown_topic_is_refused_with_similar_names_and_not_created(topic: Topic, tmp_path: Path) -> None:
    source = KafkaReader(KafkaSource(topic.name + "s"), topic.broker, tmp_path)
    for ask in (source.check, source.log, lambda: source.offsets_at(START)):
        with raises(InvalidPipeline, "topic-missing", match=rf"'{topic.name}s' does not exist(.|\n)*'{topic.name}'"):
            ask()
    assert topic.name + "s" not in topic.admin.list_topics(timeout=PATIENCE).topics


def test_an_unreachable_broker_is_named_soon_and_may_be_retried(tmp_path: Path, capfd: Any) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # taken, and nobody listens
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        source, began = KafkaReader(KafkaSource("flights"), address, tmp_path), time.monotonic()
        with raises(
            NotCommitted, "kafka-unreachable", match=f"{address}(.|\n)*refused(.|\n)*Nothing was written"
        ) as caught:
            source.check()
    assert not isinstance(caught.value, InvalidPipeline)
    assert time.monotonic() - began < PATIENCE
    assert capfd.readouterr().err == ""


def test_a_broker_that_accepts_and_says_nothing_is_named_soon(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        began = time.monotonic()
        with raises(NotCommitted, "kafka-unreachable", match=address):
            KafkaReader(KafkaSource("flights"), address, tmp_path).check()
    assert time.monotonic() - began < PATIENCE


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("missing.avsc", None),
        ("no-json.avsc", "{"),
        ("no-type.avsc", '{"type": "record", "name": "Flight", "fields": [{"name": "carrier"}]}'),
        ("unknown-type.avsc", '{"type": "flight"}'),
        ("missing.ddl", None),
        ("empty.ddl", " \n"),
        ("binary.ddl", b"\xff\xfe"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(
    topic: Topic, tmp_path: Path, file: str, content: str | bytes | None
) -> None:
    if content is not None:
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    format: Literal["avro", "json"] = "avro" if file.endswith(".avsc") else "json"
    with raises(InvalidPipeline, "schema-unusable", match=f"'{file}'"):
        KafkaReader(KafkaSource(topic.name, format, file), topic.broker, tmp_path).check()


# --- what is pinned


def test_the_log_ends_at_the_last_stable_offset(topic: Topic, reader: KafkaReader) -> None:
    topic.produce("a", "b")
    with topic.transaction("open"):
        topic.produce("after")  # committed, and above the open transaction
        assert reader.log().partitions == {0: (0, 2)}
    assert reader.log().partitions == {0: (0, 5)}  # the ABORT marker is the fifth


def test_an_empty_topic_has_a_log(reader: KafkaReader) -> None:
    assert reader.log().partitions == {0: (0, 0)}
    assert reader.offsets_at(START) == {0: FirstRecord(0, None)}


def test_a_time_is_the_first_record_at_or_after_it(topic: Topic, reader: KafkaReader) -> None:
    topic.produce("a", "b", "c", "d", seconds=[1, 5, 3, 9])  # 3 is out of order
    found = {s: reader.offsets_at(moment(s))[0] for s in (0, 1, 2, 4, 5, 5.001, 9, 9.0005)}
    assert found == {
        0: FirstRecord(0, moment(1)),
        1: FirstRecord(0, moment(1)),
        2: FirstRecord(1, moment(5)),
        4: FirstRecord(1, moment(5)),
        5: FirstRecord(1, moment(5)),
        5.001: FirstRecord(3, moment(9)),
        9: FirstRecord(3, moment(9)),
        9.0005: FirstRecord(4, None),  # finer than Kafka's milliseconds: nothing is at or after it
    }


def test_a_record_behind_an_open_transaction_is_not_found(topic: Topic, reader: KafkaReader) -> None:
    topic.produce("a", seconds=[1])
    with topic.transaction("open", seconds=[5]):
        topic.produce("b", seconds=[9])
        assert reader.offsets_at(moment(3)) == {0: FirstRecord(1, None, is_hidden=True)}
        assert reader.offsets_at(moment(1)) == {0: FirstRecord(0, moment(1))}
    assert reader.offsets_at(moment(3)) == {0: FirstRecord(2, moment(9))}


def test_an_interval_waits_until_a_foreign_transaction_in_it_has_ended(
    topic: Topic, reader: KafkaReader, tmp_path: Path
) -> None:
    """30 committed records of the hour lie behind it, which nobody can read yet."""
    nothing = StateTable.make(str(tmp_path / "state")).view("flights")
    hour = Interval(START, START + timedelta(hours=1))
    flights = Pipeline(
        name="flights", source=reader._config, transform="a:b", sinks=[DeltaSink("d", "d")], mode="interval"
    )
    topic.produce("a", "b", "c", seconds=[1, 2, 3])
    with topic.transaction("foreign", seconds=[4]) as foreign:
        topic.produce(*["d"] * 30, "next hour", seconds=[*range(5, 35), 3601])
        with raises(Busy, "open-transaction", match="transaction is open since offset 3"):
            TopicPlanner(flights, reader, reader._config, hour).range(nothing)
        foreign.commit_transaction()
        topic.settle()
        range_ = TopicPlanner(flights, reader, reader._config, hour).range(nothing)
    assert range_.partitions == {0: (0, 34)}


def test_commit_markers_and_aborted_records_do_not_bound_an_interval(topic: Topic, reader: KafkaReader) -> None:
    """The broker answers with the marker of the first commit (its own clock), for every time after that record."""
    topic.commit("a", seconds=[1])
    topic.abort("never", seconds=[5])
    topic.commit("b", "c", seconds=[4, 6])
    assert reader.offsets_at(moment(3)) == {0: FirstRecord(4, moment(4))}
    assert reader.offsets_at(moment(5)) == {0: FirstRecord(5, moment(6))}
    assert reader.offsets_at(moment(7)) == {0: FirstRecord(7, None)}


def test_record_dated_ahead_is_passed_over(broker: str, tmp_path: Path) -> None:
    """The second one counts its time in microseconds instead of milliseconds."""
    topic = Topic(broker, config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    reader = KafkaReader(KafkaSource(topic.name), broker, tmp_path)
    century = 100 * 365 * 86400
    topic.produce("a", "far", "farther", "b", "far", "c", seconds=[1, century, 1000 * century, 3, century, 5])
    limit = moment(3600)
    found = {s: reader.offsets_at(moment(s), limit)[0] for s in (1, 2, 4, 6)}
    assert found == {
        1: FirstRecord(0, moment(1)),
        2: FirstRecord(3, moment(3), ahead=2),
        4: FirstRecord(5, moment(5), ahead=3),
        6: FirstRecord(6, None, ahead=3),
    }
    assert reader.offsets_at(moment(4), limit, {0: 3}) == {0: FirstRecord(5, moment(5), ahead=1)}
    with topic.transaction("open", seconds=[7]):
        assert reader.offsets_at(moment(6), limit) == {0: FirstRecord(6, None, is_hidden=True, ahead=3)}


def test_search_that_is_too_long_ends(topic: Topic, reader: KafkaReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceonly.sources.kafka_log.MAX_SEARCH_SECONDS", 0.0)
    topic.produce("far", "a", "b", seconds=[10 * 86400, 3, 5])
    with pytest.raises(InvalidPipeline) as refused:
        reader.offsets_at(moment(4), moment(3600))
    assert refused.value.code == "boundary-too-far"
    assert boundaries.count_ahead(reader, {}, now=moment(0)) is None


def test_each_partition_has_its_own_answer(broker: str, tmp_path: Path) -> None:
    topic = Topic(broker, partitions=3)
    topic.produce("a", "b", seconds=[1, 5], partition=0)
    topic.produce("c", seconds=[1], partition=1)
    source = KafkaReader(KafkaSource(topic.name), broker, tmp_path)
    assert source.offsets_at(moment(3)) == {
        0: FirstRecord(1, moment(5)),
        1: FirstRecord(1, None),
        2: FirstRecord(0, None),
    }
    assert source.log().partitions == {0: (0, 2), 1: (0, 1), 2: (0, 0)}


def test_partitions_added_later_are_read_from_their_start(topic: Topic, reader: KafkaReader, spark: Any) -> None:
    topic.produce("a")
    first = first_range(reader.log(), {})
    topic.add_partitions(2)
    until(lambda: len(reader.log().partitions) == 2)
    topic.produce("b", partition=1)
    second = next_range(first, reader.log())
    assert second.partitions == {0: (1, 1), 1: (0, 1)}
    assert values(reader.read(spark, (second,))) == [b"b"]


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("earliest", {0: (0, 3), 1: (0, 1)}),
        ("latest", {0: (3, 3), 1: (1, 1)}),
        (moment(5), {0: (1, 3), 1: (1, 1)}),
        ({0: 2}, {0: (2, 3), 1: (0, 1)}),
    ],
)
def test_a_pipeline_begins_where_it_is_told_to(topic: Topic, tmp_path: Path, start: Any, found: Any) -> None:
    topic.add_partitions(2)
    topic.produce("a", "b", "c", seconds=[0, 5, 10])
    until(lambda: len(KafkaReader(KafkaSource(topic.name), topic.broker, tmp_path).log().partitions) == 2)
    topic.produce("d", seconds=[4], partition=1)
    config = KafkaSource(topic.name, start=start)
    pipeline = Pipeline(name="p", source=config, transform="a:b", sinks=[DeltaSink("lake", "lake")])
    planner = TopicPlanner(pipeline, KafkaReader(config, topic.broker, tmp_path), config)
    assert planner.range(StateTable.make(str(tmp_path / "state")).view("p")).partitions == found


# --- what is lost


@pytest.mark.parametrize("records", [1, 9])  # fewer and more than before
def test_a_topic_made_again_is_lost(topic: Topic, reader: KafkaReader, records: int) -> None:
    topic.produce(*"abc")
    pinned = everything(reader)
    topic.delete()
    topic.create()
    topic.produce(*["x"] * records)
    with raises(SourceLost, "source-recreated", match="deleted and created again"):
        reader.verify(pinned)
    with raises(SourceLost, "source-recreated", match="deleted and created again"):
        next_range(pinned[0], reader.log())


def test_a_deleted_topic_is_lost_once_it_was_pinned(topic: Topic, reader: KafkaReader) -> None:
    pinned = everything(reader)
    topic.delete()
    until(lambda: topic.name not in topic.admin.list_topics(timeout=PATIENCE).topics)
    with raises(SourceLost, "topic-deleted", match=f"'{topic.name}'"):
        reader.verify(pinned)


def test_a_range_partly_deleted_is_lost_also_when_spark_meets_it(topic: Topic, reader: KafkaReader, spark: Any) -> None:
    topic.produce(*"abcdef")
    pinned = everything(reader)
    reader.verify(pinned)
    topic.delete_records(before=4)
    with raises(SourceLost, "records-expired", match="offsets 0 to 3 no longer exist"):
        reader.verify(pinned)
    with pytest.raises(Exception) as caught:
        reader.read(spark, pinned).collect()
    assert isinstance(reader.diagnose(caught.value, spark, pinned), SourceLost)
    rest = (replace(pinned[0], partitions={0: (4, 6)}),)
    reader.verify(rest)
    assert values(reader.read(spark, rest)) == [b"e", b"f"]


# --- what is read


def test_exactly_the_committed_records_of_the_range_are_read(topic: Topic, reader: KafkaReader, spark: Any) -> None:
    topic.produce("a", "b")  # 0, 1
    topic.abort("no", "no")  # 2, 3, marker 4
    topic.commit("c", "d")  # 5, 6, marker 7
    topic.abort("no")  # 8, marker 9
    assert reader.log().partitions == {0: (0, 10)}
    expected = {
        (0, 10): [b"a", b"b", b"c", b"d"],  # ends with an aborted record and markers
        (1, 6): [b"b", b"c"],
        (2, 5): [],  # aborted records and a marker only
        (3, 8): [b"c", b"d"],  # starts inside an aborted transaction
        (6, 7): [b"d"],
        (7, 10): [],
        (9, 10): [],  # one marker
    }
    pinned = everything(reader)[0]
    for (start, end), committed in expected.items():
        ranges = (replace(pinned, partitions={0: (start, end)}),)
        assert values(reader.read(spark, ranges)) == committed, (start, end)


def test_what_arrives_later_is_not_read(topic: Topic, reader: KafkaReader, spark: Any) -> None:
    topic.produce("a")
    rows = reader.read(spark, everything(reader))
    topic.produce("b")
    assert values(rows) == [b"a"]


def test_an_empty_range_has_the_same_columns(topic: Topic, reader: KafkaReader, spark: Any) -> None:
    empty = reader.read(spark, everything(reader))
    topic.produce("a")
    full = reader.read(spark, everything(reader))
    assert [(f.name, f.dataType) for f in empty.schema] == [(f.name, f.dataType) for f in full.schema]
    assert empty.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    assert (empty.count(), full.count()) == (0, 1)


def test_json_becomes_a_struct_and_a_tombstone_stays_null(topic: Topic, tmp_path: Path, spark: Any) -> None:
    topic.produce('{"carrier": "UA", "delay": 3, "at": "2013-01-01T00:00:00Z", "more": [1]}', None, "{}")
    source = decoding(topic, tmp_path, "json")
    rows = source.read(spark, everything(source))
    assert rows.select("value.*").columns == ["carrier", "delay", "at"]
    assert [v and v.asDict() for v in values(rows.select("partition", "offset", "value"))][1:] == [
        None,
        {"carrier": None, "delay": None, "at": None},
    ]
    assert rows.where("value.delay = 3 AND value.at = timestamp'2013-01-01T00:00:00Z'").count() == 1


def test_avro_becomes_a_struct_and_a_tombstone_stays_null(topic: Topic, tmp_path: Path, spark: Any) -> None:
    topic.produce(avro(carrier="UA", delay=3, at=moment(0)), None, avro())
    source = decoding(topic, tmp_path, "avro")
    rows = source.read(spark, everything(source))
    assert rows.select("value.*").dtypes == [("carrier", "string"), ("delay", "int"), ("at", "timestamp")]
    assert [v and v.asDict() for v in values(rows)][1:] == [None, {"carrier": None, "delay": None, "at": None}]
    assert rows.where("value.delay = 3 AND value.at = timestamp'2013-01-01T00:00:00Z'").count() == 1


@pytest.mark.parametrize("format", ["json", "avro"])
def test_an_empty_range_is_decoded_to_the_same_columns(topic: Topic, tmp_path: Path, spark: Any, format: Any) -> None:
    source = decoding(topic, tmp_path, format)
    rows = source.read(spark, everything(source))
    assert rows.select("value.*").columns == ["carrier", "delay", "at"]
    assert rows.count() == 0


# --- what cannot be decoded


def readers_and_columns() -> Iterator[Any]:
    """Both readers with each column that is asked for; `make test` asks Spark's connector for the whole value alone."""
    for reader, column in product(READERS, ("value", "value.carrier", "value.delay")):
        is_taken = reader == "jar" or column == "value"
        yield pytest.param(reader, column, marks=[] if is_taken else [pytest.mark.heavy])


@pytest.mark.parametrize(("spark", "column"), list(readers_and_columns()), indirect=["spark"])
@pytest.mark.parametrize(
    "bad",
    [
        "no json",
        '{"carrier": "UA"',
        '{"delay": "late"}',
        '{"delay": 99999999999}',
        '{"carrier": "UA"} {"carrier": "DL"}',
        '{"carrier": "UA"}, {"carrier": "DL"}',
        '[{"carrier": "UA"}]',
        "null",
        "",
        b'{"carrier": "\xff"}',
    ],
)
def test_a_malformed_json_record_is_named(
    topic: Topic, tmp_path: Path, spark: Any, bad: str | bytes, column: str
) -> None:
    topic.produce('{"carrier": "UA"}', None, bad, '{"carrier": "DL"}')
    error = failure(decoding(topic, tmp_path, "json"), spark, column)
    assert isinstance(error, BadRecord), error
    assert f"topic '{topic.name}' partition 0 offset 2: " in str(error)


@pytest.mark.parametrize("column", ["value", "value.carrier", "value.delay"])
def test_a_malformed_avro_record_is_named(broker: str, tmp_path: Path, spark: Any, column: str) -> None:
    topic = Topic(broker, partitions=2)
    topic.produce(avro(delay=1), avro(), None, partition=0)  # sound: also the one with nulls only
    topic.produce(avro(), avro(carrier="UA"), b"\x02\x50no", avro(), b"", partition=1)
    error = failure(decoding(topic, tmp_path, "avro"), spark, column)
    assert isinstance(error, BadRecord), error
    assert f"topic '{topic.name}' partition 1 offset 2: " in str(error)


def test_a_value_of_another_avro_type_is_malformed(topic: Topic, tmp_path: Path, spark: Any) -> None:
    (tmp_path / "number.avsc").write_text('"long"')
    topic.produce(b"\x02", b"\xff")
    error = failure(KafkaReader(KafkaSource(topic.name, "avro", "number.avsc"), topic.broker, tmp_path), spark)
    assert f"topic '{topic.name}' partition 0 offset 1: " in str(error)


def test_a_lost_range_goes_before_a_malformed_record(topic: Topic, tmp_path: Path, spark: Any) -> None:
    topic.produce("no json", "{}")
    source = decoding(topic, tmp_path, "json")
    ranges = everything(source)
    with pytest.raises(Exception) as caught:
        source.read(spark, ranges).collect()
    topic.delete_records(before=1)
    assert isinstance(source.diagnose(caught.value, spark, ranges), SourceLost)


@pytest.mark.parametrize("is_small_batch", [True, False])
def test_a_record_whose_time_spark_cannot_read_is_named(
    broker: str, tmp_path: Path, spark: Any, is_small_batch: bool
) -> None:
    """Nanoseconds that a producer took for milliseconds; of few records and of many."""
    topic = Topic(broker, config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    topic.produce("a")
    topic.produce("b", seconds=[1e15])
    topic.produce("c")
    source = KafkaReader(KafkaSource(topic.name), topic.broker, tmp_path)
    if is_small_batch:
        source.read_small_batch(everything(source))
    error = failure(source, spark, "timestamp")
    assert isinstance(error, BadRecord), error
    assert error.code == "record-time-unreadable"
    assert f"topic '{topic.name}' partition 0 offset 1: " in str(error)


def test_any_other_error_is_handed_back(topic: Topic, tmp_path: Path, spark: Any) -> None:
    topic.produce("{}")
    source = decoding(topic, tmp_path, "json")
    ranges = everything(source)
    with pytest.raises(Exception) as caught:
        source.read(spark, ranges).select(F.raise_error(F.lit("mine"))).collect()
    assert source.diagnose(caught.value, spark, ranges) is caught.value
