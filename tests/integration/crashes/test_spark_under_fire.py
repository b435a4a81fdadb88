"""Every kind of sink in one checkpoint, on a cluster of Spark that loses workers, executors and tasks.

Each fault comes when tasks of a checkpoint are amid their rows. Afterwards every sink equals the truth, as an
independent reader finds it, no reader of the topic is held up, and nothing of the cluster is left over.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from integration.faults.holding import Held, Task
from integration.programs import children
from integration.programs.children import output, without_spark
from integration.projects.kafka_writers import by_each_writer
from integration.readers.flights_truth import by_hour, csv, in_files, in_state
from integration.readers.kafka_reader import ends, new_topic, until
from integration.services import spark_cluster
from integration.services.spark_cluster import SparkCluster, kill_worker, with_children
from patience import PATIENCE

from onceonly.checkpoint.offsets import Interval
from onceonly.dev.demo import load, proof
from onceonly.dev.services.spark import TOKEN
from onceonly.kafka.transactions import Transactions
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).parents[1] / "victims" / "on_fire.py"
DAYS = Interval(datetime(2013, 1, 1, 5, tzinfo=UTC), datetime(2013, 1, 5, 5, tzinfo=UTC))
PATHS = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests", ROOT)))
pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(1800), by_each_writer]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    yield from spark_cluster.cluster(tmp_path_factory.mktemp("cluster"), {"PYTHONPATH": PATHS})


@dataclass(frozen=True)
class Run:
    """The pipeline at work on the cluster, and where its tasks wait."""

    cluster: SparkCluster
    home: Path
    broker: str
    topic: str
    out: str
    child: subprocess.Popen[str]

    @property
    def held(self) -> Held:
        return Held(self.home / "held")

    @property
    def settings(self) -> Settings:
        return Settings.from_env({"ONCEONLY_HOME": str(self.home)})

    def tasks(self, executors: int) -> list[Task]:
        """Those that wait amid their rows, as soon as they are on so many executors."""

        def waiting() -> list[Task]:
            assert self.child.poll() is None, self.child.communicate()[0]
            found = self.held.tasks()
            return found if len({task.executor for task in found}) >= executors else []

        return list(until(waiting, PATIENCE, f"tasks that wait on {executors} executors"))

    def open(self) -> list[str]:
        with Transactions({"bootstrap_servers": self.broker}) as known:
            return known.list_open(f".*-{StateTable(self.settings.state).id}-everything-.*")

    def end(self) -> None:
        """It goes on to its end, undisturbed, and then every sink is compared."""
        self.held.release()
        printed = output(self.child)
        print(printed)
        assert self.child.returncode == 0, printed
        self.check()
        self.cluster.until_idle()

    def check(self) -> None:
        assert proof.prove(self.home / "lake" / "flights", DAYS).holds
        assert proof.prove_late(self.broker, self.out, ROOT / "schemas" / "late-flight.v1.avsc", DAYS).holds
        closed, held = in_files(self.home), in_state(self.settings)
        assert not closed.keys() & held.keys()
        assert closed | held == by_hour(csv(DAYS))
        assert self.open() == []
        assert ends(self.broker, self.out, stable=True) == ends(self.broker, self.out, stable=False)


Start = Callable[[str], Run]


@pytest.fixture
def start(tmp_path: Path, broker: str, cluster: SparkCluster) -> Start:
    """start(place) → the pipeline with four days of flights, whose tasks wait at that place."""

    def start(place: str) -> Run:
        cluster.up()
        topic, out = f"flights-{uuid.uuid4().hex[:8]}", new_topic(broker)
        env = {"ONCEONLY_HOME": str(tmp_path), "ONCEONLY_PROJECT": str(ROOT), "ONCEONLY_KAFKA_BOOTSTRAP": broker}
        settings = Settings.from_env(env)
        StateTable.make(settings.state)
        assert load.load(settings, topic, DAYS).skipped == 0
        arguments = [cluster.remote, topic, out, str(tmp_path / "held"), place]
        there = {**without_spark(os.environ), **env, "PYTHONPATH": PATHS, TOKEN: cluster.driver.token() or ""}
        child = children.start(str(SCRIPT), *arguments, env=there)
        return Run(cluster, tmp_path, broker, topic, out, child)

    return start


def test_a_worker_is_killed_with_its_executor_amid_a_stage(start: Start, cluster: SparkCluster) -> None:
    run = start("reading")
    task = run.tasks(3)[0]
    kill_worker(cluster.worker_of(task.executor))
    run.end()


def test_an_executor_is_killed_while_it_holds_open_transactions(start: Start) -> None:
    run = start("writing")
    task = run.tasks(3)[0]
    until(lambda: len(run.open()) >= 3, PATIENCE, "open transactions")
    psutil.Process(task.executor).kill()
    run.end()


def test_the_process_of_a_task_is_killed_while_it_holds_an_open_transaction(start: Start) -> None:
    run = start("writing")
    task = run.tasks(3)[0]
    until(lambda: len(run.open()) >= 3, PATIENCE, "open transactions")
    psutil.Process(task.pid).kill()
    run.end()


def test_a_stopped_executor_goes_on_after_the_commit(start: Start) -> None:
    """Speculation has its task done elsewhere. What it writes afterwards shows nowhere."""
    run = start("writing")
    stopped = run.tasks(3)[0]
    processes = with_children(stopped.executor)
    for process in processes:
        process.suspend()
    run.held.release()
    until(lambda: any(task.part == stopped.part and task.attempt for task in run.held.tasks()), PATIENCE, "a copy")
    printed = output(run.child)
    assert run.child.returncode == 0, printed
    assert all(process.is_running() for process in processes), "it has not been given up"
    run.check()
    for process in processes:
        process.resume()
    run.cluster.until_idle()
    run.check()


def test_idle_executors_end_while_another_is_amid_its_rows(start: Start, cluster: SparkCluster) -> None:
    run = start("alone")
    before = {task.executor for task in run.tasks(3)}
    for part in (1, 2, 3):
        run.held.release(part)
    until(lambda: before - {process.pid for process in cluster.executors()}, PATIENCE, "an executor that has ended")
    assert any(task.executor in {process.pid for process in cluster.executors()} for task in run.held.tasks())
    run.end()
