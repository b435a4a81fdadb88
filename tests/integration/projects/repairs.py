"""A pipeline by intervals, into a table, files and a topic, whose checkpoints are written once more, sink by sink.

Each row is the number of its record and, in hundreds of thousands, the version of the transform that has written it. So
what a sink shows of an interval tells which run or repair has written it, and how often. The table names the checkpoint
of each row, so that OPTIMIZE may mix them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pandas
from contract.stored import digest, stored_table
from deltalake import DeltaTable
from integration.projects.targets import DELTA, FILES, NAME, NOON, PARTITIONS, TOPIC, Lake, list_shown
from integration.readers.histories import check_values
from integration.readers.kafka_reader import committed, create_topic
from patience import PATIENCE
from unit.coordinator.test_capabilities import Bare
from unit.lightdelta import LightDelta
from unit.lightfiles import LightFiles

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.coordinator import Coordinator
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, spark_stage
from onceonly.runtime.live_services import LiveServices
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts, FakeSource
from onceonly.testing.targets import digest_files

MORE = "more"  # a sink that is added later
CHECKPOINT = "checkpoint"  # a column of the table
VOLUMES = (DELTA, FILES, MORE)
PER_INTERVAL, LENGTH = 6, timedelta(minutes=10)
VERSION = 100_000  # times the version is added to each number
TRANSFORM = """
import os


def spread(batch):
    numbers = batch.selectExpr(f"CAST(CAST(value AS STRING) AS BIGINT) + {os.environ['VERSION']} * 100000 AS n")
    texts = numbers.selectExpr("CAST(n AS STRING) AS value")
    return {"lake": numbers, "files": numbers, "more": numbers, "copy": texts}


def spread_less(batch):
    outputs = spread(batch)
    del outputs["more"]
    return outputs
"""


def interval(number: int) -> Interval:
    return Interval(NOON + number * LENGTH, NOON + (number + 1) * LENGTH)


class LightRepairs(FakeParts):
    """A Delta table, folders of files and a topic, or what is as a topic; staged without Spark."""

    def __init__(self, shop: Shop) -> None:
        super().__init__(shop.folder / "topics")
        self.shop = shop

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        if name == DELTA:
            return LightDelta(self.shop.target(name), name, checkpoint_column=CHECKPOINT)
        if name == TOPIC and self.shop.bootstrap:
            return LiveServices(self.shop.settings).sink(pipeline, name)
        files = LightFiles(self.shop.target(name), name)
        return Bare(files) if name == TOPIC else files  # type: ignore[arg-type]

    def produce(self, checkpoint: Checkpoint) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        for name, records in super().produce(checkpoint).items():
            numbers = [record["value"] + VERSION * self.shop.version for record in records]
            is_plain = name == DELTA or (name == TOPIC and self.shop.bootstrap)
            outputs[name] = numbers if is_plain else [{"n": number} for number in numbers]
        return outputs


@dataclass(frozen=True)
class Shop(Lake):
    """The project, as a process finds it that runs one version of the transform.

    Args:
        has_more: whether the pipeline has the sink that was added later.
    """

    out: str = "copy"
    version: int = 0
    has_more: bool = False

    def make(self) -> Shop:
        StateTable.make(self.settings.state)
        (self.folder / "spreading.py").write_text(TRANSFORM)
        for sink in self.all_sinks:
            self.volume(sink).mkdir(parents=True)
        for topic in ([self.source] if self.spark else []) + ([self.out] if self.bootstrap else []):
            create_topic(self.bootstrap, topic, PARTITIONS)
        return self

    @property
    def all_sinks(self) -> tuple[str, ...]:
        return (DELTA, FILES, MORE, TOPIC)

    @property
    def sinks(self) -> tuple[str, ...]:
        return self.all_sinks if self.has_more else (DELTA, FILES, TOPIC)

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, "VERSION": str(self.version)}

    @property
    def pipeline(self) -> Pipeline:
        kinds: Mapping[str, SinkConfig] = {
            DELTA: DeltaSink(DELTA, path=str(self.target(DELTA)), checkpoint_column=CHECKPOINT),
            FILES: FileSink(FILES, path=str(self.target(FILES)), format="json"),
            MORE: FileSink(MORE, path=str(self.target(MORE)), format="json"),
            TOPIC: KafkaSink(name=TOPIC, topic=self.out),
        }
        return Pipeline(
            name=NAME,
            source=KafkaSource(self.source),
            transform=f"spreading:spread{'' if self.has_more else '_less'}",
            sinks=[kinds[name] for name in self.sinks],
            mode="interval",
        )

    @property
    def coordinator(self) -> Coordinator:
        if self.spark:
            return live_services.open_coordinator(LiveServices(self.settings))
        return Coordinator(StateTable(self.settings.state), LightRepairs(self))

    def stage(self, epoch: int, owner: str) -> Checkpoint:
        if self.spark:
            os.environ["VERSION"] = str(self.version)
            return spark_stage.stage(LiveServices(self.settings), self.coordinator, NAME, epoch, owner)
        return self.coordinator.stage(NAME, epoch, LightRepairs(self).produce, owner)

    def produce(self, numbers: Iterable[int]) -> None:
        times = records(numbers)
        if not self.spark:
            topic = FakeSource(self.source, LightRepairs(self).folder)
            for number, at in zip(times["number"], times["at"], strict=True):
                topic.append(number % PARTITIONS, (at.to_pydatetime(), number))
            return
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number, at in zip(times["number"], times["at"], strict=True):
            value, partition, at_ms = str(number).encode(), number % PARTITIONS, int(at.timestamp() * 1000)
            producer.produce(self.source, value, partition=partition, timestamp=at_ms)
        assert producer.flush(PATIENCE) == 0

    def optimize(self) -> int:
        """Rewrite the table's files into few, as any other writer may do it; returns how many there were."""
        if not DeltaTable.is_deltatable(str(self.target(DELTA))):
            return 0
        removed: int = DeltaTable(str(self.target(DELTA))).optimize.compact()["numFilesRemoved"]
        return removed

    # ---- what independent readers find

    def readings(self, sink: str) -> dict[str, list[int]]:
        """What each reader of that sink finds, sorted."""
        folder = self.target(sink)
        if sink == TOPIC and self.bootstrap:
            found = {"read_committed": [int(record.value or b"") for record in committed(self.bootstrap, self.out)]}
        elif sink == DELTA:
            found = {"deltalake": _by_deltalake(folder), "duckdb": _by_duckdb_of_log(folder)}
        else:
            found = {"json": _by_json(folder), "duckdb": _by_duckdb(list_shown(folder), "read_json")}
        return {reader: sorted(numbers) for reader, numbers in found.items()}

    def values(self, sink: str) -> list[int]:
        return next(iter(self.readings(sink).values()))

    def digests(self, sink: str) -> dict[str, str]:
        """Of every record of a topic; of every file that a sink shows, and every entry of a table's log."""
        if sink == TOPIC and self.bootstrap:
            records = committed(self.bootstrap, self.out)
            return {f"{record.partition}-{record.offset}": digest(repr(record).encode()) for record in records}
        folder = self.target(sink)
        return dict(stored_table(str(folder))) if sink == DELTA else digest_files(list_shown(folder))


def records(numbers: Iterable[int]) -> pandas.DataFrame:
    """Each record's number, the number of its interval and its time."""
    frame = pandas.DataFrame({"number": list(numbers)})
    frame["interval"] = frame["number"] // PER_INTERVAL
    frame["at"] = NOON + frame["interval"] * LENGTH + (frame["number"] % PER_INTERVAL) * (LENGTH / PER_INTERVAL)
    return frame


class Truth:
    """What each sink has to show: worked out by pandas from what was asked for, and nothing else."""

    def __init__(self) -> None:
        self.versions: dict[str, dict[int, list[int]]] = {}  # by sink and interval; of a topic, all that ever came

    def write(self, sinks: Iterable[str], number: int, version: int, again: Iterable[str] = ()) -> None:
        """The rows of that interval are of this version now, or also of it."""
        for sink in sinks:
            there = self.versions.setdefault(sink, {})
            there[number] = [*(there.get(number, []) if sink in again else []), version]

    def has(self, sink: str, number: int) -> bool:
        return number in self.versions.get(sink, {})

    def of(self, sink: str) -> dict[int, list[int]]:
        return {number: list(versions) for number, versions in self.versions.get(sink, {}).items()}

    def numbers(self, sink: str) -> list[int]:
        """The rows that the sink has to show, sorted."""
        written = pandas.DataFrame(
            [(number, version) for number, versions in self.of(sink).items() for version in versions],
            columns=["interval", "version"],
            dtype="int64",
        )
        ends = [number + 1 for number in self.of(sink)]
        rows = records(range(max(ends, default=0) * PER_INTERVAL)).merge(written, on="interval")
        return sorted((rows["number"] + VERSION * rows["version"]).tolist())

    def check(self, shop: Shop, sinks: Iterable[str]) -> None:
        """Every reader finds every row as often as it has to be there."""
        for sink in sinks:
            for reader, numbers in shop.readings(sink).items():
                check_values(sink, self.numbers(sink), numbers, by=reader)


def _by_deltalake(folder: Path) -> list[int]:
    if not DeltaTable.is_deltatable(str(folder)):
        return []
    numbers: list[int] = DeltaTable(str(folder)).to_pyarrow_table()["n"].to_pylist()
    return numbers


def _by_json(folder: Path) -> list[int]:
    lines = (line for path in list_shown(folder) for line in path.read_text().splitlines())
    return [json.loads(line)["n"] for line in lines]


def _by_duckdb_of_log(folder: Path) -> list[int]:
    """The files that the entries of the log leave, one after the other; its checkpoints are not needed."""
    files: set[str] = set()
    for entry in sorted(folder.glob("_delta_log/*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            if "remove" in action:
                files.discard(action["remove"]["path"])
            if "add" in action:
                assert "deletionVector" not in action["add"]
                files.add(action["add"]["path"])
    return _by_duckdb([folder / unquote(path) for path in files], "read_parquet")


def _by_duckdb(paths: Iterable[Path], function: str) -> list[int]:
    names = [str(path) for path in paths if path.stat().st_size]
    if not names:
        return []
    return [n for (n,) in duckdb.sql(f"SELECT n FROM {function}({names!r})").fetchall()]
