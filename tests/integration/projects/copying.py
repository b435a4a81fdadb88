"""A pipeline that copies a topic of numbers to another, step by step, each step as a process of its own would do it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from integration.projects.project import Project, hour, make_project
from integration.readers.kafka_reader import committed, new_topic, until

from onceonly.checkpoint.model import Checkpoint, Event, Handle, State
from onceonly.coordinator.coordinator import Alive, Coordinator
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, owners, spark_stage
from onceonly.sinks.kafka.handle import KafkaHandle, Part
from onceonly.spark import small_batch

MODE = {"staged": "chained", "late": "interval"}


@dataclass
class Copy:
    """Epoch by epoch; nothing is remembered between two steps but what the state table holds."""

    project: Project
    way: str = "staged"
    out: str = ""
    sink: dict[str, Any] = field(default_factory=dict)
    delta: bool = False
    most: int | None = None  # records of a checkpoint, at most
    hours: int = 1  # how many the source holds, where pipelines go by the hour
    few: bool = False  # whether the process of a stage reads and writes, in place of tasks of Spark

    @property
    def few_records(self) -> int:
        return small_batch.MAX_RECORDS if self.few else -1

    @property
    def pipeline(self) -> Pipeline:
        topics = {} if "topics" in self.sink else {"topic": self.out}
        sinks: list[Any] = [KafkaSink(name="copy", **{**topics, **self.sink})]
        if self.delta:
            sinks.append(DeltaSink("numbers", path="lake/both"))
        transform = "both" if self.delta else "copies"
        return Pipeline(
            name="copying",
            mode=MODE[self.way],
            source=KafkaSource(topic=self.project.topic, max_records=self.most),
            transform=f"transforms_{self.project.topic}:{transform}",
            sinks=sinks,
        )

    @property
    def through(self) -> Coordinator:
        return live_services.open_coordinator(self.project.parts)

    def plan(self, number: int = 0) -> Checkpoint:
        interval, owner = None, owners.process_owner()
        if self.way == "late":
            interval = hour(number)
        elif number:
            owner = f"{owner} run {number}"  # a run of its own, for the checkpoint after the last
        planned = self.through.plan(self.pipeline, owner, owners.is_never_alive, interval).checkpoint
        assert planned is not None
        return planned

    def next(self, owner: str, alive: Alive) -> int | None:
        """The epoch that a process of its own would work on now; None when nothing is left."""
        for number in range(self.hours):
            interval = hour(number) if self.way == "late" else None
            planned = self.through.plan(self.pipeline, owner, alive, interval).checkpoint
            if planned and planned.state is not State.COMMITTED:
                return planned.epoch
        return None

    def stage(self, number: int = 0) -> Checkpoint:
        epoch = self.plan(number).epoch
        with patch.object(small_batch, "MAX_RECORDS", self.few_records):
            return spark_stage.stage(self.project.parts, self.through, "copying", epoch, None)

    def commit(self, epoch: int = 1) -> Checkpoint:
        return self.through.commit("copying", epoch)

    def run(self, number: int = 0) -> Checkpoint:
        return self.commit(self.stage(number).epoch)

    def recover(self) -> list[Checkpoint]:
        return self.through.recover("copying", owners.is_never_alive)

    def now(self, epoch: int = 1) -> Checkpoint:
        found = self.through.state_table.view("copying").checkpoint(epoch)
        assert found is not None
        return found

    def handle(self, epoch: int = 1) -> Handle:
        return self.now(epoch).handles["copy"]

    def parts(self, epoch: int = 1) -> list[Part]:
        return list(KafkaHandle.parse("copy", self.handle(epoch)).parts)

    def events(self) -> list[str]:
        return [row.event.value for row in self.through.state_table.history("copying")]

    def replaced(self) -> list[Handle]:
        history = self.through.state_table.history("copying")
        return [row.body["handle"] for row in history if row.event is Event.REPLACED]

    def visible(self) -> list[int]:
        """The numbers that a read_committed consumer finds, once no transaction is on its way to an end."""
        until(lambda: not self.open(("PrepareCommit", "PrepareAbort")), what="the end of what is being ended")
        return sorted(int(record.value or b"") for record in committed(self.brokers, self.out))

    @property
    def brokers(self) -> str:
        """Those of the output."""
        return str(self.sink.get("bootstrap") or self.project.bootstrap)

    def open(self, states: tuple[str, ...] = ("Ongoing", "PrepareCommit", "PrepareAbort")) -> list[str]:
        """Our transactions that have not ended."""
        with self.known() as known:
            described = known.describe(known.list_open(f".*-{self.through.state_table.id}-copying-.*"))
        return [id for id, seen in described.items() if seen.state in states]

    def known(self) -> Transactions:
        return Transactions({"bootstrap_servers": self.brokers})


def make_copy(folder: Path, broker: str, spark_server: str, topic: str, way: str, **changes: Any) -> Copy:
    project = make_project(folder, broker, spark_server, topic)
    brokers = changes.get("sink", {}).get("bootstrap") or broker
    return Copy(project, way, changes.pop("out", None) or new_topic(brokers), **changes)
