"""Repairs in a live Airflow: a backfill gives a new sink its past, and a page corrects an hour beside a topic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from deltalake import DeltaTable
from integration.projects.project import HOUR, START, Project, hour, make_project, produce
from integration.readers.kafka_reader import create_topic, values
from integration.services.airflow_standalone import running
from patience import PATIENCE

from onceonly.checkpoint.model import State
from onceonly.dev.demo.standalone import USER, Standalone, wait_until
from onceonly.statetable.table import StateTable

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(1800)]
FIRST, SECOND = [0, 1, 2, 3], [10, 11, 12]  # the numbers of two hours
TRANSFORM = """
from pathlib import Path


def hours(batch):
    added, *sinks = Path(__file__).with_name("asked").read_text().split()
    numbers = batch.selectExpr(f"CAST(CAST(value AS STRING) AS BIGINT) + {added} AS n")
    texts = numbers.selectExpr("CAST(CAST(n AS STRING) AS BINARY) AS value")
    return {sink: texts if sink == "late" else numbers for sink in sinks}
"""
DAGS = """
from datetime import datetime
from pathlib import Path

from onceonly import DeltaSink, KafkaSink, KafkaSource, Pipeline
from onceonly.airflow import checkpoint_dag

sinks = {
    "lake": DeltaSink("lake", path="lake/hours"),
    "late": KafkaSink(name="late", topic="late-TOPIC", mode="late"),
    "new": DeltaSink("new", path="lake/new"),
}
_, *names = (Path(__file__).parents[1] / "asked").read_text().split()
hours = Pipeline(
    name="hours",
    mode="interval",
    source=KafkaSource("TOPIC"),
    transform="hours_TOPIC:hours",
    sinks=[sinks[name] for name in names],
)
span = {"start_date": datetime(2024, 1, 1), "end_date": datetime(2024, 1, 1, 1)}
dag = checkpoint_dag(hours, schedule="@hourly", max_active_runs=2, **span)
"""


@dataclass
class Site:
    """An Airflow with the project whose hours it processes."""

    project: Project
    airflow: Standalone

    def ask_code(self, added: int, *sinks: str) -> None:
        """Change the code: what it adds to each number, and the sinks that it writes."""
        (self.project.folder / "asked").write_text(f"{added} {' '.join(sinks)}")

    def cli(self, *arguments: str) -> None:
        env = {**os.environ, **self.airflow.environment(), **self.project.env()}
        command = [sys.executable, "-m", "airflow", *arguments]
        subprocess.run(command, env=env, check=True, capture_output=True, timeout=PATIENCE)

    def page(self, method: str, path: str, body: Any = None) -> requests.Response:
        login = {"username": USER, "password": self.airflow.password}
        token = requests.post(f"{self.airflow.url}/auth/token", json=login, timeout=60).json()["access_token"]
        header = {"Authorization": f"Bearer {token}", "X-Onceonly-Action": "1"}
        url = f"{self.airflow.url}/onceonly/pipelines/hours{path}"
        return requests.request(method, url, json=body, headers=header, timeout=60)

    def runs(self) -> dict[str, str]:
        found = self.airflow.call("GET", "/dags/hours/dagRuns")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    def wait(self, number: int) -> dict[str, str]:
        """The runs, once there are so many and all have ended."""

        def ended() -> dict[str, str]:
            runs = self.runs()
            return runs if len(runs) == number and set(runs.values()) <= {"success", "failed"} else {}

        return wait_until(ended, f"{number} runs have ended", 3 * PATIENCE)

    def table(self, name: str) -> list[int]:
        return sorted(DeltaTable(str(self.project.folder / "home" / "lake" / name)).to_pyarrow_table()["n"].to_pylist())

    def topic(self) -> list[int]:
        return sorted(int(value or b"") for value in values(self.project.bootstrap, f"late-{self.project.topic}"))


@pytest.fixture
def site(tmp_path: Path, broker: str, spark_server: str) -> Iterator[Site]:
    project = make_project(tmp_path, broker, spark_server, "repairs_in_airflow")
    create_topic(broker, f"late-{project.topic}", 1)
    (tmp_path / f"hours_{project.topic}.py").write_text(TRANSFORM)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "hours.py").write_text(DAGS.replace("TOPIC", project.topic))
    (tmp_path / "asked").write_text("0 lake late")
    produce(project, [*FIRST, *SECOND], {n: START if n in FIRST else START + HOUR for n in [*FIRST, *SECOND]})
    with running(project, "hours") as airflow:
        yield Site(project, airflow)


def test_a_backfill_gives_a_new_sink_its_past_and_a_page_corrects_an_hour(site: Site) -> None:
    assert set(site.wait(2).values()) == {"success"}, site.airflow.folder / "logs"
    assert site.table("hours") == site.topic() == [*FIRST, *SECOND]

    site.ask_code(0, "lake", "late", "new")
    window = ["--from-date", "2024-01-01T00:00:00", "--to-date", "2024-01-01T01:00:00"]
    conf = json.dumps({"only": ["new"], "reason": "its past"})
    options = ["--run-backwards", "--max-active-runs", "2", "--reprocess-behavior", "completed"]
    site.cli("backfill", "create", "--dag-id", "hours", *window, *options, "--dag-run-conf", conf)
    state = StateTable(site.project.settings.state)

    def committed() -> bool:
        return [cp.epoch for cp in state.view("hours").iterate_committed() if cp.only == ("new",)] in ([4, 3], [3, 4])

    wait_until(committed, "both hours of the new sink are committed", 3 * PATIENCE)
    assert set(site.wait(2).values()) == {"success"}
    assert site.table("new") == site.table("hours") == site.topic() == [*FIRST, *SECOND]

    site.ask_code(100, "lake", "late", "new")
    first = state.view("hours").planned_for(state.view("hours").require(1).interval)  # type: ignore[arg-type]
    body = {"reason": "wrong numbers", "keep": ["new"], "again": ["late"]}
    seen = max(checkpoint.changed_seq for checkpoint in first)
    asked = site.page("POST", "/1/repair", {**body, "seen": seen})
    assert asked.status_code == 200, asked.text
    runs = site.wait(3)
    (repair,) = [run for run in runs if run.startswith("repair__")]
    assert runs[repair] == "success"
    numbers = FIRST if first[0].interval == hour(0) else SECOND
    corrected = [number + 100 for number in numbers]
    others = [number for number in [*FIRST, *SECOND] if number not in numbers]
    assert site.table("hours") == sorted([*others, *corrected])
    assert Counter(site.topic()) == Counter([*FIRST, *SECOND, *corrected])
    assert site.table("new") == [*FIRST, *SECOND]
    done = state.view("hours").require(5)
    assert (done.state, done.sinks, done.again) == (State.COMMITTED, ("lake", "late"), ("late",))
    assert done.requested_by == {"who": USER, "reason": "wrong numbers"}
    assert f"{USER}: wrong numbers" in site.page("GET", "/1").text

    again = {"dry_run": False, "only_failed": False}
    site.airflow.call("POST", f"/dags/hours/dagRuns/{repair}/clear", again)
    wait_until(lambda: site.airflow.task_states("hours", repair)["plan"] == "skipped", "plan is skipped", 2 * PATIENCE)
    site.wait(3)
    assert state.view("hours").head.epoch == 5
    assert Counter(site.topic()) == Counter([*FIRST, *SECOND, *corrected])
