"""A Structured Streaming query that writes a Delta table by Spark's own sink is killed; a pipeline takes over.

It goes on into the same table, and each record is there once, at whatever moment the query was killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable
from integration.programs.children import output
from integration.projects.checkpoints import run_next
from integration.projects.project import Project, make_project, produce
from patience import PATIENCE

from onceonly.cli import main

pytestmark = pytest.mark.integration

BEFORE, AFTER = range(400), range(400, 420)  # numbers that are sent before the query is killed, and afterwards
SEED, MOMENTS = 20130101, 10
PARTITIONS = 4  # of the project's topic
PIPELINES = """
from onceonly import DeltaSink, KafkaSource, Pipeline

numbers = Pipeline(
    name="numbers_chained",
    source=KafkaSource(topic="{topic}"),
    transform="transforms_{topic}:numbers",
    sinks=[DeltaSink("numbers", path="lake/chained", partition_by=["part"])],
)
"""


@dataclass(frozen=True)
class Left:
    """What a killed query has left: the last batch that is planned, that is in its table, that is committed."""

    planned: int
    in_table: int
    committed: int

    @property
    def is_between(self) -> bool:
        """Whether it died between the commit of the table and its own."""
        return self.planned == self.in_table == self.committed + 1


class OldQuery:
    """The query, and what it leaves in the project's folder."""

    def __init__(self, project: Project) -> None:
        self.project, self.checkpoint = project, project.folder / "checkpoint"
        self.table = project.folder / "home" / "lake" / "chained"
        self.pipeline = f"{project.folder / 'pipelines.py'}:numbers"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = self.project.child("victims/old_query.py", "runs")

    def finish(self) -> None:
        """Let it read all that is there, and end."""
        process = self.project.child("victims/old_query.py", "ends")
        assert process.wait(2 * PATIENCE) == 0, output(process)

    def await_batch(self, file: Callable[[int], Path], batch: int) -> None:
        """Return as soon as the file of that batch is there: what follows it takes milliseconds, so nothing sleeps."""
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE
        path = file(batch)
        while not path.exists():
            assert self.process.poll() is None, output(self.process)
            assert time.monotonic() < deadline, f"{path} is not there"

    def kill(self) -> Left:
        """SIGKILL to its driver, with Spark's JVM."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        query = json.loads((self.checkpoint / "metadata").read_text())["id"]
        batch = -1
        if (self.table / "_delta_log" / f"{0:020d}.json").exists():
            version = DeltaTable(str(self.table)).transaction_version(query)
            batch = -1 if version is None else version
        return Left(self._last("offsets"), batch, self._last("commits"))

    def _last(self, log: str) -> int:
        return max((int(name) for name in os.listdir(self.checkpoint / log) if name.isdecimal()), default=-1)

    def plan_of(self, batch: int) -> Path:
        return self.checkpoint / "offsets" / str(batch)

    def table_commit_of(self, batch: int) -> Path:
        return self.table / "_delta_log" / f"{batch:020d}.json"  # one version for each batch

    def commit_of(self, batch: int) -> Path:
        return self.checkpoint / "commits" / str(batch)


@pytest.fixture
def query(
    tmp_path: Path, broker: str, spark_server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> OldQuery:
    name = "".join(char if char.isalnum() else "_" for char in request.node.name.removeprefix("test_"))
    project = make_project(tmp_path, broker, spark_server, name)
    (tmp_path / "pipelines.py").write_text(PIPELINES.format(topic=project.topic))
    for variable, value in project.env().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.syspath_prepend(str(tmp_path))
    produce(project, BEFORE)
    return OldQuery(project)


def onceonly(*arguments: str) -> Any:
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def adopt(query: OldQuery, *more: str) -> Any:
    return onceonly("adopt", query.pipeline, "--checkpoint", str(query.checkpoint), *more)


def adopt_group(query: OldQuery, *more: str) -> Any:
    return onceonly("adopt", query.pipeline, "--group", query.project.topic, *more)


def go_on(query: OldQuery) -> None:
    """Take over, send more records, and let the pipeline read all that is left."""
    shown = adopt(query, "--write")
    assert shown["epoch"] == 1 and adopt(query, "--write") == shown
    produce(query.project, AFTER)
    assert run_next(query.project.parts, query.project.pipeline()) is not None
    assert query.project.published() == Counter([*BEFORE, *AFTER])


def test_killed_query_is_taken_over_with_each_record_once(query: OldQuery) -> None:
    query.start()
    query.await_batch(query.table_commit_of, 3)
    left = query.kill()
    assert left.in_table >= 3
    go_on(query)
    verified = onceonly("verify", "numbers_chained")
    assert verified["judgement"] == "right", verified


def test_stopped_query_that_has_read_everything_has_no_batch_left(query: OldQuery) -> None:
    query.finish()
    shown = adopt(query)
    assert (shown["planned"], sum(shown["start"][query.project.topic].values())) == (None, len(BEFORE))
    go_on(query)


def test_consumer_group_is_taken_over(query: OldQuery) -> None:
    """Flink commits the offsets of a checkpoint in the same way."""
    project = query.project
    settings = {"bootstrap.servers": project.bootstrap, "group.id": project.topic, "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe([project.topic])
    numbers, starts = [], {}
    while len(starts) < PARTITIONS:
        record = consumer.poll(PATIENCE)
        assert record is not None and record.error() is None
        numbers.append(int(record.value()))
        starts[record.partition()] = record.offset() + 1
    positions = [TopicPartition(project.topic, partition, start) for partition, start in starts.items()]
    consumer.commit(offsets=positions, asynchronous=False)
    refused = CliRunner().invoke(main, ["adopt", query.pipeline, "--group", project.topic, "--json"])
    assert json.loads(refused.stdout)["code"] == "group-active"
    consumer.close()
    shown = adopt_group(query, "--write")
    assert shown["start"] == {project.topic: {str(partition): start for partition, start in sorted(starts.items())}}
    assert adopt_group(query, "--write") == shown
    assert run_next(project.parts, project.pipeline()) is not None
    assert project.published() == Counter(set(BEFORE) - set(numbers))


@pytest.mark.heavy
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_query_is_taken_over_wherever_it_dies(query: OldQuery, moment: int) -> None:
    """The first three are between the commit of the table and that of the query, which is tried until it is hit."""
    chance = random.Random(SEED + moment)
    batch, is_hit = chance.randrange(1, 8), False
    while not is_hit:
        query.start()
        if moment < 3:
            query.await_batch(query.table_commit_of, batch)
        else:
            file = chance.choice([query.plan_of, query.table_commit_of, query.commit_of])
            query.await_batch(file, batch)
            time.sleep(chance.random())  # a random moment; whatever is done by then
        left = query.kill()
        batch, is_hit = left.planned + 2, moment >= 3 or left.is_between
    shown = adopt(query)
    print(f"moment {moment}: {left}, planned batch {shown['planned'] and shown['planned']['outcome']}")
    go_on(query)
