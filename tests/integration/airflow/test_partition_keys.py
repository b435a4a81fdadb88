"""The DAG of docs/operations.md in a live Airflow: a run for each committed interval, with its key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.projects.project import HOUR, START, Project, hour, make_project, produce
from integration.services.airflow_standalone import running
from patience import PATIENCE

from onceonly.checkpoint.model import State
from onceonly.dev.demo.standalone import Standalone, wait_until
from onceonly.statetable.table import StateTable

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[3]
ROWS = {0: 4, 1: 8, 2: 0, 3: 6}  # by hour; the gate lets at most six through, and an hour without records has no events
FIRST, LAST = "2024-01-01T00:00:00", "2024-01-01T03:00:00"
HOURS = """

def hours(table):
    hour = "date_format(timestamp, \\"yyyy-MM-dd'T'HH:00:00\\") AS hour"
    return table.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS n", hour)
"""
DAGS = """
from datetime import datetime

from onceonly import DeltaSink, Gate, KafkaSource, Pipeline
from onceonly.airflow import checkpoint_dag

hours = Pipeline(
    name="hours",
    mode="interval",
    source=KafkaSource("TOPIC"),
    transform="transforms_TOPIC:hours",
    sinks=[DeltaSink("hours", path="lake/hours", partition_by=["hour"])],
    gate=Gate(max_rows=6),
)
span = {"start_date": datetime(2024, 1, 1), "end_date": datetime(2024, 1, 1, 3)}
dag = checkpoint_dag(hours, schedule="@hourly", partition_keys=True, max_active_runs=1, **span)
"""


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str) -> Project:
    made = make_project(tmp_path, broker, spark_server, "partition_keys")
    transforms = tmp_path / f"transforms_{made.topic}.py"
    transforms.write_text(transforms.read_text() + HOURS)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "hours.py").write_text(DAGS.replace("TOPIC", made.topic))
    (tmp_path / "dags" / "by_hour.py").write_text(documented())
    times = [START + each * HOUR for each, rows in ROWS.items() for _ in range(rows)]
    produce(made, range(len(times)), dict(enumerate(times)))
    return made


def documented() -> str:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs/operations.md").read_text(), re.DOTALL)
    (example,) = (example for example in examples if "PartitionedAssetTimetable" in example)
    return example


@pytest.fixture
def airflow(project: Project) -> Iterator[Standalone]:
    with running(project, "by_hour", "hours") as found:
        yield found


def test_a_run_for_each_committed_interval_and_none_for_an_aborted_one(project: Project, airflow: Standalone) -> None:
    runs = wait_until(lambda: ended(airflow, "hours", len(ROWS)), "each hour has had its run", 2 * PATIENCE)
    assert [run["state"] for run in runs] == ["success", "failed", "success", "success"]
    view = StateTable(project.settings.state).view("hours")
    outcomes = [[checkpoint.state for checkpoint in view.planned_for(hour(number))] for number in (0, 1, 3)]
    assert outcomes == [[State.COMMITTED], [State.ABORTED], [State.COMMITTED]]
    # The last hour's event came after the aborted hour: a run for that one would be here by now.
    assert answers(airflow, 2) == [(FIRST, 4), (LAST, 6)]
    assert announced(airflow) == [FIRST, LAST]
    clear_commit(airflow, runs[0])
    assert answers(airflow, 3) == [(FIRST, 4), (LAST, 6), (FIRST, 4)]


def ended(airflow: Standalone, dag: str, number: int) -> list[dict[str, Any]]:
    """Its runs, the oldest first, once there are so many of them and all have ended."""
    runs = airflow.call("GET", f"/dags/{dag}/dagRuns?order_by=id")["dag_runs"]
    done = [run for run in runs if run["state"] in ("success", "failed")]
    return done if len(done) == len(runs) >= number else []


def answers(airflow: Standalone, number: int) -> list[tuple[str, int]]:
    """Of the DAG that is started by keys: the key of each run, and how many rows it has found for it."""
    runs = wait_until(lambda: ended(airflow, "by_hour", number), f"{number} keys have had their run", PATIENCE)
    assert {(run["state"], run["run_type"]) for run in runs} == {("success", "asset_triggered")}, (
        airflow.folder / "logs"
    )
    return [(run["partition_key"], returned(airflow, run)) for run in runs]


def returned(airflow: Standalone, run: dict[str, Any]) -> int:
    task = f"/dags/by_hour/dagRuns/{run['dag_run_id']}/taskInstances/count"
    return int(airflow.call("GET", f"{task}/xcomEntries/return_value")["value"])


def announced(airflow: Standalone) -> list[str]:
    events = airflow.call("GET", "/assets/events?source_dag_id=hours&order_by=timestamp")["asset_events"]
    return [event["partition_key"] for event in events]


def clear_commit(airflow: Standalone, run: dict[str, Any]) -> None:
    again = {"dry_run": False, "dag_run_id": run["dag_run_id"], "task_ids": ["commit"], "only_failed": False}
    airflow.call("POST", "/dags/hours/clearTaskInstances", again)
