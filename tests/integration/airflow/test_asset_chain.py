"""A chain in a live Airflow: each publication of the first pipeline starts a run of the one that reads its table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from integration.projects.project import Project, make_project, produce
from integration.services.airflow_standalone import running
from patience import PATIENCE

from onceonly.dev.demo.standalone import Standalone, wait_until
from onceonly.statetable.table import StateTable

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(1800)]
TENFOLD = """

def tenfold(table):
    return table.selectExpr("n * 10 AS n")
"""
DAGS = """
from datetime import datetime

from onceonly import DeltaSink, DeltaSource, KafkaSource, Pipeline
from onceonly.airflow import checkpoint_dag, inlets

before = Pipeline(
    name="before",
    source=KafkaSource("TOPIC"),
    transform="transforms_TOPIC:numbers",
    sinks=[DeltaSink("numbers", path="lake/numbers")],
)
behind = Pipeline(
    name="behind",
    source=DeltaSource("lake/numbers"),
    transform="transforms_TOPIC:tenfold",
    sinks=[DeltaSink("tens", path="lake/tens")],
    after=["before"],
)
first = checkpoint_dag(before, schedule=None, start_date=datetime(2024, 1, 1))
second = checkpoint_dag(behind, schedule=inlets(behind), start_date=datetime(2024, 1, 1))
"""


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str) -> Project:
    made = make_project(tmp_path, broker, spark_server, "asset_chain")
    transforms = tmp_path / f"transforms_{made.topic}.py"
    transforms.write_text(transforms.read_text() + TENFOLD)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "chain.py").write_text(DAGS.replace("TOPIC", made.topic))
    return made


@pytest.fixture
def airflow(project: Project) -> Iterator[Standalone]:
    with running(project, "behind", "before") as found:
        yield found


def test_each_publication_starts_the_pipeline_behind_it(project: Project, airflow: Standalone) -> None:
    for number in (1, 2):
        produce(project, range(8 * (number - 1), 8 * number))
        airflow.trigger("before")
        (run,) = wait_until(lambda n=number: ended(airflow)[n - 1 :], f"run {number} behind it has ended", PATIENCE)  # type: ignore[misc]
        assert (run["state"], run["run_type"]) == ("success", "asset_triggered"), tasks(airflow, run)
        assert told(airflow, run) == [("before", number, 8)]
        done = StateTable(project.settings.state).view("behind").require(number)
        assert (done.after, done.rows) == ({"before": (number,)}, 8)
    assert rows(project, "tens") == Counter(10 * n for n in range(16))
    assert rows(project, "numbers") == Counter(range(16))


def ended(airflow: Standalone) -> list[dict[str, Any]]:
    """Runs of the second DAG, the oldest first."""
    runs = airflow.call("GET", "/dags/behind/dagRuns?order_by=id")["dag_runs"]
    return [run for run in runs if run["state"] in ("success", "failed")]


def tasks(airflow: Standalone, run: dict[str, Any]) -> str:
    return f"{airflow.task_states('behind', run['dag_run_id'])}, logs: {airflow.folder / 'logs'}"


def told(airflow: Standalone, run: dict[str, Any]) -> list[tuple[str, int, int]]:
    """By the events that have started it."""
    found = airflow.call("GET", f"/dags/behind/dagRuns/{run['dag_run_id']}/upstreamAssetEvents")["asset_events"]
    return [(event["extra"]["pipeline"], event["extra"]["epoch"], event["extra"]["rows"]) for event in found]


def rows(project: Project, table: str) -> Counter[int]:
    """As an independent reader finds them."""
    return Counter(DeltaTable(str(project.folder / "home" / "lake" / table)).to_pyarrow_table()["n"].to_pylist())
