"""The consumer group on a real broker: what a checkpoint writes there, and what a state table learns from it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from codes import raises
from confluent_kafka import Consumer, Producer, TopicPartition
from integration.readers.kafka_reader import new_topic
from patience import PATIENCE
from person import Person

from onceonly.checkpoint.model import Checkpoint, Event, Row, first
from onceonly.checkpoint.offsets import TopicRange
from onceonly.checkpoint.sink import Trace
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.forward import Forward
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.owners import is_never_alive
from onceonly.sources import kafka
from onceonly.sources.kafka import KafkaReader
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts, FakeSink

pytestmark = pytest.mark.integration
MINE, OTHER = "a" * 32, "b" * 32


class Shown:
    """A group of its own, and its traces."""

    def __init__(self, broker: str, root: Path) -> None:
        self.broker, self.topic = broker, new_topic(broker, 2)
        self.pipeline = f"group_{self.topic[-8:]}"
        self.reader = KafkaReader(KafkaSource(self.topic), broker, root)

    def report(self, decision: int, *ends: int, state_id: str = MINE) -> None:
        self.reader.report(self.done(decision, dict(enumerate(ends))), state_id)

    def done(self, decision: int, ends: dict[int, int]) -> Checkpoint:
        range_ = TopicRange(self.topic, "id", {partition: (0, end) for partition, end in ends.items()})
        body = {"definition": {}, "ranges": [range_.to_json()]}
        planned = first(Row(self.pipeline, 1, decision, Event.PLANNED, 0, "run", body=body))
        return replace(planned, decision=decision)

    def traces(self) -> list[Trace]:
        return self.reader.traces(self.pipeline)

    def trace(self, decision: int, *ends: int, state_id: str = MINE) -> Trace:
        where = f"consumer group 'onceonly-{self.pipeline}' of topic '{self.topic}'"
        return Trace(state_id, decision, where, {self.topic: dict(enumerate(ends))} if ends else {})

    def offsets(self) -> list[int]:
        with self.member() as consumer:
            return [
                at.offset
                for at in consumer.committed([TopicPartition(self.topic, p) for p in (0, 1)], timeout=PATIENCE)
            ]

    def member(self) -> Consumer:
        return Consumer({"bootstrap.servers": self.broker, "group.id": f"onceonly-{self.pipeline}"})


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first group that a broker is asked for has it make a topic, which takes a busy machine a while."""
    monkeypatch.setattr(kafka, "REQUEST_SECONDS", PATIENCE)


@pytest.fixture
def shown(broker: str, tmp_path: Path) -> Shown:
    return Shown(broker, tmp_path)


def test_a_group_shows_the_last_decision_and_where_the_pipeline_goes_on(shown: Shown) -> None:
    assert shown.traces() == []
    shown.report(1, 5, 0)
    assert shown.traces() == [shown.trace(1, 5, 0)]
    shown.report(2, 9, 3)
    assert shown.traces() == [shown.trace(2, 9, 3)]
    assert shown.offsets() == [9, 3]


def test_offsets_and_decision_only_move_forward(shown: Shown) -> None:
    """Intervals are committed in any order; a rewind is a later decision that ends earlier."""
    shown.report(2, 9, 3)
    shown.report(1, 12, 2)
    assert (shown.traces(), shown.offsets()) == ([shown.trace(2, 9, 3)], [12, 3])
    shown.report(3, 4, 1)
    assert (shown.traces(), shown.offsets()) == ([shown.trace(3, 4, 1)], [12, 3])


def test_the_table_that_reports_last_is_the_one_that_is_named(shown: Shown) -> None:
    shown.report(7, 5, 5, state_id=OTHER)
    shown.report(2, 6, 6)
    assert shown.traces() == [shown.trace(2, 6, 6)]


@pytest.mark.parametrize("metadata", ["", "by hand", '{"decision": 3}', "[]"])
def test_offsets_that_say_nothing_more_are_of_an_unknown_table(shown: Shown, metadata: str) -> None:
    shown.report(1, 1, 1)
    plain = [TopicPartition(shown.topic, partition, 5, metadata=metadata) for partition in (0, 1)]
    with shown.member() as consumer:
        consumer.commit(offsets=plain, asynchronous=False)
    assert shown.traces() == [shown.trace(0, state_id="")]
    shown.report(2, 5, 5)
    assert shown.traces() == [shown.trace(2, 5, 5)]


class Numbers(FakeParts):
    """A real topic, and a fake table."""

    def __init__(self, folder: Path, broker: str) -> None:
        super().__init__(folder)
        self.broker = broker

    def sources(self, pipeline: Pipeline) -> dict[str, KafkaReader]:  # type: ignore[override]
        return {source.topic: KafkaReader(source, self.broker, self.folder) for source in pipeline.sources}

    def produce(self, checkpoint: Checkpoint) -> dict[str, list[int]]:  # type: ignore[override]
        return {"lake": [offset for span in checkpoint.ranges[0].partitions.values() for offset in range(*span)]}


def test_a_table_that_was_restored_is_refused_and_carried_on(broker: str, tmp_path: Path) -> None:
    topic = new_topic(broker, 1)
    parts, state = Numbers(tmp_path, broker), StateTable.make(str(tmp_path / "state"))
    pipeline = Pipeline(
        name=f"numbers_{topic[-8:]}", source=KafkaSource(topic), transform="a:b", sinks=[DeltaSink("lake", "lake")]
    )

    def run(count: int) -> None:
        send(broker, topic, count)
        through = Coordinator(state, parts)
        planned = through.plan(pipeline, f"run-{datetime.now(UTC)}", is_never_alive).checkpoint
        assert planned is not None
        through.stage(pipeline.name, planned.epoch, parts.produce)
        through.commit(pipeline.name, planned.epoch)

    run(3)
    shutil.copytree(state.uri, tmp_path / "backup")
    run(2)
    for path in Path(state.uri).iterdir():
        shutil.rmtree(path)
    shutil.copytree(tmp_path / "backup", state.uri, dirs_exist_ok=True)
    with raises(InvalidPipeline, "state-behind", match=rf"--decision 2 --ends {topic}:0=5 "):
        run(1)
    lake: FakeSink = parts.sink(pipeline, "lake")
    assert lake.rows() == [0, 1, 2, 3, 4]
    Person(Coordinator(state, parts)).forward(pipeline, Forward(2, "ann", "restored", {topic: {0: 5}}))
    run(1)
    assert lake.rows() == [0, 1, 2, 3, 4, 5, 6]


def send(broker: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker})
    for number in range(count):
        producer.produce(topic, str(number).encode())
    assert producer.flush(PATIENCE) == 0
