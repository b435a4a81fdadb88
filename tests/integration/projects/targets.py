"""A pipeline each of whose targets has a volume of its own, so that it can be restored, unmounted and replaced.

Without an address of Spark its rows are staged without Spark, from a topic in a folder: by the sinks' own code but for
what turns a DataFrame into rows.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from integration.projects import kafka_writers
from integration.readers.kafka_reader import committed, create_topic
from patience import PATIENCE
from unit.lightdelta import LightDelta
from unit.lightfiles import LightFiles

from onceonly.checkpoint.model import Checkpoint
from onceonly.coordinator.coordinator import Coordinator
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, spark_stage
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts, FakeSource

NAME = "targets"
DELTA, FILES, TOPIC = "lake", "files", "copy"  # the sinks
PARTITIONS = 4
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
TRANSFORM = """
def spread(batch):
    numbers = batch.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS n")
    return {"lake": numbers, "files": numbers, "copy": batch.select("key", "value", "timestamp", "partition")}
"""


class LightTargets(FakeParts):
    """A Delta table, a folder of files and perhaps a topic, staged without Spark."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake.folder / "topics")
        self.lake = lake

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        if name == TOPIC:
            return LiveServices(self.lake.settings).sink(pipeline, name)
        kind = {DELTA: LightDelta, FILES: LightFiles}[name]
        return kind(self.lake.target(name), name)

    def produce(self, checkpoint: Checkpoint) -> dict[str, list[Any]]:
        rows = super().produce(checkpoint)
        numbers: list[int] = [row["value"] for row in rows[DELTA]]
        staged = {DELTA: numbers, FILES: [{"n": number} for number in numbers], TOPIC: numbers}
        return {sink: staged[sink] for sink in checkpoint.sinks}


@dataclass(frozen=True)
class Lake:
    """The project. Number n of the source is at offset n // PARTITIONS of partition n % PARTITIONS.

    Args:
        spark: its address; empty: without Spark.
        out: the topic that is written; empty: no such sink.
    """

    home: str
    spark: str = ""
    bootstrap: str = ""
    source: str = "numbers"
    out: str = ""
    most: int = 8  # records of a checkpoint

    def make(self) -> Lake:
        StateTable.make(self.settings.state)
        (self.folder / "spreading.py").write_text(TRANSFORM)
        for sink in (DELTA, FILES):
            self.volume(sink).mkdir(parents=True)
        for topic in ([self.source] if self.spark else []) + ([self.out] if self.out else []):
            create_topic(self.bootstrap, topic, PARTITIONS)
        return self

    @property
    def folder(self) -> Path:
        return Path(self.home)

    @property
    def sinks(self) -> tuple[str, ...]:
        return (DELTA, FILES, TOPIC) if self.out else (DELTA, FILES)

    @property
    def env(self) -> dict[str, str]:
        brokers = {"ONCEONLY_KAFKA_BOOTSTRAP": self.bootstrap} if self.bootstrap else {}
        return {"ONCEONLY_HOME": self.home, "ONCEONLY_PROJECT": self.home, **brokers, **kafka_writers.environment()}

    @property
    def settings(self) -> Settings:
        return Settings.from_env({**self.env, **({"SPARK_REMOTE": self.spark} if self.spark else {})})

    @property
    def pipeline(self) -> Pipeline:
        sinks: list[SinkConfig] = [
            DeltaSink(DELTA, path=str(self.target(DELTA))),
            FileSink(FILES, path=str(self.target(FILES)), format="json"),
        ]
        if self.out:
            sinks.append(KafkaSink(name=TOPIC, topic=self.out))
        return Pipeline(
            name=NAME,
            source=KafkaSource(self.source, max_records=self.most),
            transform="spreading:spread",
            sinks=sinks,
        )

    @property
    def coordinator(self) -> Coordinator:
        if self.spark:
            return live_services.open_coordinator(LiveServices(self.settings))
        return Coordinator(StateTable(self.settings.state), LightTargets(self))

    def stage(self, epoch: int, owner: str) -> Checkpoint:
        if self.spark:
            return spark_stage.stage(LiveServices(self.settings), self.coordinator, NAME, epoch, owner)
        return self.coordinator.stage(NAME, epoch, LightTargets(self).produce, owner)

    def produce(self, numbers: Iterable[int]) -> None:
        if not self.spark:
            topic = FakeSource(self.source, LightTargets(self).folder)
            for number in numbers:
                topic.append(number % PARTITIONS, (NOON, number))
            return
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in numbers:
            producer.produce(self.source, str(number).encode(), partition=number % PARTITIONS)
        assert producer.flush(PATIENCE) == 0

    @staticmethod
    def numbers_of(checkpoint: Checkpoint) -> set[int]:
        """The records that it covers."""
        spans = checkpoint.ranges[0].partitions.items() if checkpoint.ranges else ()
        return {offset * PARTITIONS + partition for partition, span in spans for offset in range(*span)}

    # ---- the targets

    def volume(self, sink: str) -> Path:
        """What is mounted for that sink alone: also what it has staged is in it."""
        return self.folder / "volumes" / sink

    def target(self, sink: str) -> Path:
        return self.volume(sink) / "data"

    def recreate(self, sink: str) -> None:
        """An empty target of the same name and shape, where its volume is empty or its topic was there before."""
        if sink == FILES:
            self.target(sink).mkdir()
        elif sink == DELTA:
            DeltaTable.create(str(self.target(sink)), pa.schema([("n", pa.int64())]))
        else:
            self._recreate_topic()

    def _recreate_topic(self) -> None:
        from confluent_kafka.admin import AdminClient
        from integration.readers.kafka_reader import until

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for deleted in admin.delete_topics([self.out]).values():
            deleted.result(PATIENCE)
        until(lambda: self.out not in admin.list_topics(timeout=PATIENCE).topics, PATIENCE, "the topic's end")
        create_topic(self.bootstrap, self.out, PARTITIONS)

    # ---- what an independent reader finds

    def values(self, sink: str) -> list[int]:
        if sink == TOPIC:
            return sorted(int(record.value or b"") for record in committed(self.bootstrap, self.out))
        if sink == FILES:
            lines = (line for path in list_shown(self.target(sink)) for line in path.read_text().splitlines())
            return sorted(json.loads(line)["n"] for line in lines)
        if not (self.target(sink) / "_delta_log").exists():
            return []
        numbers: list[int] = DeltaTable(str(self.target(sink))).to_pyarrow_table()["n"].to_pylist()
        return sorted(numbers)


def stage_kafka_without_spark() -> None:
    """Make records of numbers here; from there on all is as on Spark.

    It holds for the rest of the process, so it is never called in that of the tests.
    """
    from onceonly.sinks.kafka import digest, gate_view, stage

    field = {"name": "value", "type": "binary", "nullable": True, "metadata": {}}
    stage.records = lambda config, rows, *_: pa.table({"value": pa.array([str(n).encode() for n in rows], pa.binary())})
    run = stage.run
    stage.run = lambda job, rows, writer, _: run(job, rows, "auto", is_small_batch=True)
    stage.collect_small_batch = lambda rows: rows
    digest.add_hash = lambda rows: rows
    digest.take_hashes = lambda table: ("0" * 16, table)
    gate_view.staged_schema = lambda *_: {"type": "struct", "fields": [field]}


def list_shown(folder: Path) -> list[Path]:
    """The files that a reader of a folder takes: names that begin with a dot or an underscore are hidden."""
    paths = [path.relative_to(folder) for path in folder.rglob("*.json*")]
    return [folder / path for path in paths if not any(part[0] in "._" for part in path.parts)]


class Volumes:
    """What is done to targets while nobody writes there, or while who writes there is frozen."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self._kept = lake, lake.folder / "kept"
        self._kept.mkdir()

    def copy(self, sink: str) -> None:
        shutil.rmtree(self._kept / f"{sink}-copy", ignore_errors=True)
        shutil.copytree(self.lake.volume(sink), self._kept / f"{sink}-copy")

    def has(self, sink: str, what: str) -> bool:
        return (self._kept / f"{sink}-{what}").exists()

    def unmount(self, sink: str) -> None:
        """An empty mount point. What was mounted there is the newest."""
        self._move(self.lake.volume(sink), self._kept / f"{sink}-newest")
        self.lake.volume(sink).mkdir()

    def restore(self, sink: str, what: str) -> None:
        """A copy, or what was given up, in place of what is there, which is the newest then."""
        taken = self._kept / f"{sink}-taken"
        shutil.copytree(self._kept / f"{sink}-{what}", taken)
        self.unmount(sink)
        self._move(taken, self.lake.volume(sink))

    def bring_back(self, sink: str) -> None:
        self._move(self._kept / f"{sink}-newest", self.lake.volume(sink))

    def give_up(self, sink: str) -> None:
        """The newest is given up, and may turn up again one day."""
        if self.has(sink, "newest"):
            self._move(self._kept / f"{sink}-newest", self._kept / f"{sink}-given-up")

    def _move(self, place: Path, to: Path) -> None:
        shutil.rmtree(to, ignore_errors=True)
        os.rename(place, to)
