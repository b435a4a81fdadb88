"""One of two workers of a cluster of Spark is killed amid a stage. More faults: test_spark_under_fire.py."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from integration.faults.dying import arrived, check_truth, fill, nothing_is_left
from integration.faults.holding import holding
from integration.projects.copying import make_copy
from integration.projects.kafka_writers import by_each_writer
from integration.readers.kafka_reader import until
from integration.services import spark_cluster
from integration.services.spark_cluster import SparkCluster, kill_worker
from patience import PATIENCE

from onceonly.dev.services.spark import TOKEN

ROOT = Path(__file__).parents[3]
PATHS = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests", ROOT)))
WORKERS = 2
NUMBERS = range(400)
pytestmark = [pytest.mark.integration, pytest.mark.heavy, by_each_writer]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    yield from spark_cluster.cluster(tmp_path_factory.mktemp("cluster"), {"PYTHONPATH": PATHS}, WORKERS)


@pytest.fixture
def remote(cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address, of which this process gets a session, whichever it has of the suite's own server."""
    from pyspark.sql.connect.session import SparkSession

    monkeypatch.setenv(TOKEN, cluster.driver.token() or "")
    monkeypatch.setattr(SparkSession, "_active_session", threading.local())
    monkeypatch.setattr(SparkSession, "_default_session", None)
    yield cluster.remote
    if ours := SparkSession._default_session:
        ours.stop()


def test_a_worker_is_killed_with_its_executor_while_its_task_holds_an_open_transaction(
    cluster: SparkCluster, remote: str, tmp_path: Path, broker: str
) -> None:
    copy = make_copy(tmp_path, broker, remote, f"in_{uuid.uuid4().hex[:8]}", "staged")
    fill(copy, NUMBERS, len(NUMBERS))
    with holding(tmp_path / "held") as held, ThreadPoolExecutor(1) as pool:
        staging = pool.submit(copy.stage)
        tasks = held.wait(WORKERS)
        until(lambda: len(copy.open(("Ongoing",))) >= WORKERS, PATIENCE, "their open transactions")
        kill_worker(cluster.worker_of(tasks[0].executor))
        held.release()
        staged = staging.result()
    assert staged.attempt == 1, "Spark itself has run the task again"
    assert arrived(copy) == {}
    copy.commit()
    check_truth(copy, NUMBERS)
    nothing_is_left(copy)
