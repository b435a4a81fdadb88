"""What Flink's integration tests of its Kafka source check, under their names: docs/flink-tests.md has the table."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from integration.projects.project import Project
from integration.readers.kafka_reader import committed, create_topic
from patience import PATIENCE

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.cli.run import _nothing_to_do
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.plan import Planned
from onceonly.errors import InvalidPipeline, SourceLost
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, spark_stage
from onceonly.runtime.owners import is_never_alive
from onceonly.statetable.table import StateTable

pytestmark = pytest.mark.integration
START = datetime(2023, 3, 8, tzinfo=UTC)
TRANSFORM = """
from pyspark.sql import Window, functions as F


def copies(batches):
    frames = batches if isinstance(batches, dict) else {"": batches}
    merged = None
    for batch in frames.values():
        rows = batch.select("key", F.concat(F.col("topic"), F.lit(":"), F.col("value").cast("string")).alias("value"))
        merged = rows if merged is None else merged.unionByName(rows)
    return merged


def newest(batch):
    last = Window.partitionBy("key").orderBy(F.col("offset").desc())
    ranked = batch.withColumn("rank", F.row_number().over(last)).where("rank = 1")
    return ranked.select("key", "value").coalesce(1)
"""


class Reading:
    """A pipeline that copies topics into one; which record came from which topic stands in its value."""

    def __init__(self, folder: Path, broker: str, spark: str) -> None:
        self.broker, self.module = broker, f"transforms_{uuid.uuid4().hex[:8]}"
        self.project = Project(folder, broker, spark, self.module)
        StateTable.make(self.project.settings.state)
        (folder / f"{self.module}.py").write_text(TRANSFORM)
        self.topic, self.out = self.create_topic(), self.create_topic()

    def create_topic(self, partitions: int = 1, **config: str) -> str:
        return create_topic(self.broker, f"case-{uuid.uuid4().hex[:8]}", partitions, **config)

    def produce(self, *values: str, days: Sequence[float] = (), topic: str = "", key: str | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.broker, "log_level": 0})
        for number, value in enumerate(values):
            time = START + timedelta(days=days[number] if days else 0)
            stamp = int(time.timestamp() * 1000)
            producer.produce(topic or self.topic, value, key or value, partition=0, timestamp=stamp)
        assert producer.flush(PATIENCE) == 0

    def delete(self, *keys: str) -> None:
        """Write tombstones."""
        producer = Producer({"bootstrap.servers": self.broker, "log_level": 0})
        for key in keys:
            producer.produce(self.topic, None, key, partition=0)
        assert producer.flush(PATIENCE) == 0

    def delete_records(self, before: int) -> None:
        at = TopicPartition(self.topic, 0, before)
        admin = AdminClient({"bootstrap.servers": self.broker})  # without it, its answer does not come
        admin.delete_records([at])[at].result(PATIENCE)

    def pipeline(self, *sources: KafkaSource, transform: str = "copies", **source: Any) -> Pipeline:
        return Pipeline(
            name="reading",
            source=list(sources) if sources else KafkaSource(self.topic, **source),
            transform=f"{self.module}:{transform}",
            sinks=[KafkaSink("copy", topic=self.out)],
        )

    def plan(self, pipeline: Pipeline, run: int = 1) -> Planned:
        live_services.check_pipeline(pipeline, self.project.parts)
        return self.coordinator.plan(pipeline, f"run-{run}", is_never_alive)

    def stage(self, pipeline: Pipeline, run: int = 1) -> Checkpoint:
        planned = self.plan(pipeline, run).checkpoint
        assert planned is not None
        return spark_stage.stage(self.project.parts, self.coordinator, pipeline.name, planned.epoch, None)

    def run(self, pipeline: Pipeline, run: int = 1) -> Checkpoint:
        return self.coordinator.commit(pipeline.name, self.stage(pipeline, run).epoch)

    @property
    def coordinator(self) -> Coordinator:
        return live_services.open_coordinator(self.project.parts)

    def is_at_end(self, pipeline: Pipeline, run: int) -> bool:
        planned = self.plan(pipeline, run)
        assert planned.checkpoint is None
        if planned.is_at_end:
            assert "nothing more is to be read" in _nothing_to_do(planned)[1]
        return planned.is_at_end

    def read(self) -> list[str]:
        """What has arrived, without the names of topics."""
        return [(record.value or b"").decode().partition(":")[2] for record in committed(self.broker, self.out)]


@pytest.fixture
def reading(tmp_path: Path, broker: str, spark_server: str) -> Reading:
    return Reading(tmp_path, broker, spark_server)


# ---- KafkaTableITCase


def test_kafka_source_sink_with_bounded_specific_offsets(reading: Reading) -> None:
    pipeline = reading.pipeline(end={0: 2})
    reading.produce("behavior 1", "behavior 2", "behavior 3")
    reading.run(pipeline)
    assert reading.read() == ["behavior 1", "behavior 2"]
    reading.produce("behavior 4")
    assert reading.is_at_end(pipeline, 2)


def test_kafka_source_sink_with_bounded_timestamp(reading: Reading) -> None:
    """The end stays where it was found, also when the record that has shown it is deleted."""
    pipeline = reading.pipeline(end=START + timedelta(days=5))
    reading.produce("behavior 1", "behavior 2", "behavior 3", "behavior 2 again", days=[0, 3, 7, 3])
    assert reading.run(pipeline).ranges[0].limits == {0: 2}
    assert reading.read() == ["behavior 1", "behavior 2"]
    reading.delete_records(before=3)
    assert reading.is_at_end(pipeline, 2)


def test_bounded_timestamp_that_comes_late(reading: Reading) -> None:
    """The end is not there yet when all before it is read; transactions of others do not move it."""
    pipeline = reading.pipeline(end=START + timedelta(days=5))
    reading.produce("behavior 1", days=[0])
    reading.run(pipeline)
    assert not reading.is_at_end(pipeline, 2)
    other = Producer({"bootstrap.servers": reading.broker, "transactional.id": uuid.uuid4().hex, "log_level": 0})
    other.init_transactions(PATIENCE)
    other.begin_transaction()
    late = int((START + timedelta(days=6)).timestamp() * 1000)
    other.produce(reading.topic, b"never", partition=0, timestamp=late)
    assert other.flush(PATIENCE) == 0
    other.abort_transaction(PATIENCE)
    reading.produce("behavior 2", "behavior 3", days=[4, 7])
    assert reading.run(pipeline, 3).ranges[0].limits == {0: 4}
    assert reading.read() == ["behavior 1", "behavior 2"]
    assert reading.is_at_end(pipeline, 4)


def test_kafka_source_empty_result_on_deleted_offsets(reading: Reading) -> None:
    """Flink reads nothing. Here a start that was deleted is refused; the log's own start has nothing before the end."""
    reading.produce("behavior 1", "behavior 2", "behavior 3")
    reading.delete_records(before=3)
    with raises(InvalidPipeline, "start-not-in-log", match="it is empty at 3"):
        reading.plan(reading.pipeline(start={0: 1}, end={0: 3}))
    assert reading.is_at_end(reading.pipeline(end={0: 3}), 1)
    assert reading.read() == []


def test_offsets_that_are_deleted_before_the_end_is_reached_are_missed(reading: Reading) -> None:
    pipeline = reading.pipeline(end={0: 3}, max_records=1)
    reading.produce("behavior 1", "behavior 2", "behavior 3")
    reading.run(pipeline)
    reading.delete_records(before=2)
    with raises(SourceLost, "records-expired", match="offsets 1 to 1 no longer exist"):
        reading.plan(pipeline, 2)


def test_bounded_offsets_are_of_every_partition(reading: Reading) -> None:
    for end in ({0: 1, 1: 1}, {1: 1}):
        with raises(InvalidPipeline, "end-partitions-differ"):
            live_services.check_pipeline(reading.pipeline(end=end), reading.project.parts)


def test_kafka_source_sink_with_topic_list(reading: Reading) -> None:
    """Of two topics each record once, with the name of its topic; and of each alone its own."""
    other = reading.create_topic()
    reading.produce("behavior 1", "behavior 2")
    reading.produce("behavior 3", topic=other)
    reading.run(reading.pipeline(KafkaSource(reading.topic), KafkaSource(other)))
    read = sorted(str(record.value, "utf-8") for record in committed(reading.broker, reading.out))  # type: ignore[arg-type]
    assert read == sorted([f"{reading.topic}:behavior 1", f"{reading.topic}:behavior 2", f"{other}:behavior 3"])


# ---- UpsertKafkaTableITCase


def upserts(reading: Reading) -> list[tuple[str, str]]:
    """Key and last value of each, as a reader of a compacted topic keeps it."""
    latest = {}
    for record in committed(reading.broker, reading.out):
        latest[(record.key or b"").decode()] = (record.value or b"").decode().partition(":")[2]
    return sorted(latest.items())


def produce_upserts(reading: Reading) -> None:
    for number, (key, value) in enumerate([("1", "a"), ("2", "b"), ("1", "a new"), ("2", "b new")]):
        reading.produce(value, key=key, days=[number])


def test_upsert_kafka_source_sink_with_bounded_specific_offsets(reading: Reading) -> None:
    pipeline = reading.pipeline(end={0: 3})
    produce_upserts(reading)
    reading.run(pipeline)
    assert upserts(reading) == [("1", "a new"), ("2", "b")]
    assert reading.is_at_end(pipeline, 2)


def test_upsert_kafka_source_sink_with_bounded_timestamp(reading: Reading) -> None:
    pipeline = reading.pipeline(end=START + timedelta(days=2.5))
    produce_upserts(reading)
    reading.run(pipeline)
    assert upserts(reading) == [("1", "a new"), ("2", "b")]
    assert reading.is_at_end(pipeline, 2)


def test_upsert_kafka_source_sink_with_zero_length_boundedness(reading: Reading) -> None:
    """All is dated behind the end: nothing is read, and the end is pinned."""
    pipeline = reading.pipeline(end=START - timedelta(days=1))
    produce_upserts(reading)
    planned = reading.plan(pipeline).checkpoint
    assert planned is not None
    assert (planned.state, planned.ranges[0].partitions, planned.ranges[0].limits) == (
        State.COMMITTED,
        {0: (0, 0)},
        {0: 0},
    )
    assert reading.is_at_end(pipeline, 2)
    assert reading.read() == []


def test_buffered_upsert_sink(reading: Reading) -> None:
    """The checkpoint is the buffer: of each key its newest change is written, a deletion as a tombstone."""
    pipeline = reading.pipeline(transform="newest", max_records=4)
    for key, value in (("1", "payload 1"), ("2", "payload 2"), ("3", "payload 3"), ("3", "payload")):
        reading.produce(value, key=key)
    reading.coordinator.abort(pipeline.name, reading.stage(pipeline).epoch, "as a worker that was killed")
    reading.run(pipeline, 2)
    reading.produce("payload 2 again", key="2")
    reading.delete("2", "3")
    reading.run(pipeline, 3)
    found = [(record.key, record.value) for record in committed(reading.broker, reading.out)]
    assert sorted(found[:3]) == [(b"1", b"payload 1"), (b"2", b"payload 2"), (b"3", b"payload")]
    assert sorted(found[3:]) == [(b"2", None), (b"3", None)]


def test_start_from_group_offsets_none(reading: Reading) -> None:
    """A group's offsets are taken, once it is at rest; one without offsets is refused."""
    reading.produce("a", "b", "c")
    pipeline = reading.pipeline(start=f"group:{reading.topic}")
    with raises(InvalidPipeline, "group-without-offsets"):
        reading.plan(pipeline)
    settings = {"bootstrap.servers": reading.broker, "group.id": reading.topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([reading.topic])
    first = consumer.poll(PATIENCE)
    assert first is not None and first.value() == b"a"
    consumer.commit(first, asynchronous=False)
    with raises(InvalidPipeline, "group-active"):
        reading.plan(pipeline)
    consumer.close()
    reading.run(pipeline)
    assert reading.read() == ["b", "c"]
