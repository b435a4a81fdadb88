"""A small project on real services for the tests: a topic of numbered records, read into a Delta table."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from deltalake import DeltaTable
from integration.programs.children import start, without_spark
from integration.projects import kafka_writers
from patience import PATIENCE

from onceonly.checkpoint.offsets import Interval
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Gate, assign_to_sinks
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
TRANSFORM = """
def numbers(batch):
    return batch.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS n", "CAST(partition AS STRING) AS part")


def changes(batch):
    return numbers(batch).selectExpr("CAST(n % 7 AS INT) AS key", "n AS at", "n % 5 = 0 AS gone")


def copies(batch):
    return batch.select("key", "value", "timestamp", "partition")


def both(batch):
    return {"numbers": numbers(batch), "copy": copies(batch)}


def below_100(batch):
    return numbers(batch).where("n < 100")


def broken(batch):
    raise RuntimeError("the transform fails on purpose")
"""


@dataclass(frozen=True)
class Project:
    """A project folder with its own home, topic and Spark server."""

    folder: Path
    bootstrap: str
    spark: str
    topic: str

    @classmethod
    def found(cls, folder: str, spark: str) -> Project:
        """In a child process: the same project, from the environment."""
        topic = next(Path(folder).glob("transforms_*.py")).stem.removeprefix("transforms_")
        return cls(Path(folder), os.environ["ONCEONLY_KAFKA_BOOTSTRAP"], spark, topic)

    def env(self) -> dict[str, str]:
        return {
            "ONCEONLY_HOME": str(self.folder / "home"),
            "ONCEONLY_PROJECT": str(self.folder),
            "ONCEONLY_KAFKA_BOOTSTRAP": self.bootstrap,
            **kafka_writers.environment(),
        }

    @property
    def settings(self) -> Settings:
        return Settings.from_env({**self.env(), "SPARK_REMOTE": self.spark})

    @property
    def parts(self) -> LiveServices:
        return LiveServices(self.settings)

    def pipeline(self, mode: str = "chained", most: int | None = None, transform: str = "numbers") -> Pipeline:
        return Pipeline(
            name=f"numbers_{mode}",
            mode=mode,
            source=KafkaSource(topic=self.topic, max_records=most),
            transform=f"transforms_{self.topic}:{transform}",
            sinks=[self._sink(mode)],
            gate=self._gate(),
        )

    def set_table(self, name: str) -> None:
        """Of every pipeline of the project: the table of that name, also in child processes."""
        (self.folder / "table").write_text(name)

    def _sink(self, mode: str) -> DeltaSink:
        named = self.folder / "table"
        if named.exists():
            return DeltaSink("numbers", table=named.read_text())
        return DeltaSink("numbers", path=f"lake/{mode}", partition_by=["part"])

    def set_gate(self, **options: object) -> None:
        """Of every pipeline of the project, also in child processes."""
        (self.folder / "gate.json").write_text(json.dumps(assign_to_sinks(Gate(**options), ["numbers"]).to_json()))  # type: ignore[arg-type]

    def _gate(self) -> Gate | None:
        file = self.folder / "gate.json"
        return Gate.from_json(json.loads(file.read_text())) if file.exists() else None

    def published(self, mode: str = "chained") -> Counter[int]:
        """Number -> how often, as an independent reader finds it."""
        folder = self.folder / "home" / "lake" / mode
        if not (folder / "_delta_log").exists():
            return Counter()
        return Counter(DeltaTable(str(folder)).to_pyarrow_table()["n"].to_pylist())

    def staged_folders(self, mode: str = "chained") -> list[str]:
        return sorted(f.name for f in (self.folder / "home" / "lake" / mode).glob("staged-*"))

    def child(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        """A process of its own, in a group of its own, with this project's environment."""
        tests = Path(__file__).parents[2]
        path = os.pathsep.join([str(tests), str(tests.parent / "src"), str(self.folder)])  # the code beside these tests
        env = {**without_spark(os.environ), **self.env(), "PYTHONPATH": path}
        return start(str(tests / "integration" / script), str(self.folder), self.spark, *arguments, env=env)


def make_project(folder: Path, bootstrap: str, spark: str, topic: str) -> Project:
    """The folder's files, and the topic with four partitions."""
    from integration.readers.kafka_reader import create_topic

    (folder / f"transforms_{topic}.py").write_text(TRANSFORM)
    create_topic(bootstrap, topic)
    made = Project(folder, bootstrap, spark, topic)
    StateTable.make(made.settings.state)
    return made


def produce(project: Project, numbers: Iterable[int], times: Mapping[int, datetime] | None = None) -> None:
    from confluent_kafka import Producer

    # Idempotent: otherwise a retry may change the order, and a test would blame the pipeline for it
    producer = Producer({"bootstrap.servers": project.bootstrap, "enable.idempotence": True})
    for number in numbers:
        time = (times or {}).get(number, START)
        stamp = int(time.timestamp() * 1000)
        producer.produce(project.topic, str(number).encode(), partition=number % 4, timestamp=stamp)
    assert producer.flush(PATIENCE) == 0


def hour(number: int) -> Interval:
    return Interval(START + number * HOUR, START + (number + 1) * HOUR)
