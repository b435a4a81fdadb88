"""docs/how-to/bundles.md on a real Airflow: the rows of a run are made by the version of the run."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import requests
from click.testing import CliRunner
from deltalake import DeltaTable
from integration.projects.project import Project, produce
from integration.readers.kafka_reader import create_topic
from integration.services import git_bundle
from integration.services.git_bundle import git
from patience import PATIENCE

from onceonly.cli import main
from onceonly.dev.demo import standalone
from onceonly.dev.demo.standalone import Standalone, wait_until
from onceonly.dev.services import machine
from onceonly.statetable.table import StateTable

pytestmark = [pytest.mark.integration, pytest.mark.heavy]
TESTS = Path(__file__).parents[2]
DAG = """
from datetime import datetime, timezone

from pipelines.trips import trips

from onceonly.airflow import checkpoint_dag

start = datetime(2026, 5, 1, tzinfo=timezone.utc)
dag = checkpoint_dag(trips, schedule=None, start_date=start, default_args={"retries": 0})
"""
PIPELINE = """
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource

sinks = [DeltaSink("trips", "lake/trips")]
trips = Pipeline(name="trips", source=KafkaSource(topic="{topic}"), transform="{module}:rows", sinks=sinks)
"""
TRANSFORM = """
from pathlib import Path


def rows(batch):
    if Path("{switch}").exists():
        raise RuntimeError("the transform fails on purpose")
    return batch.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS n", "'{version}' AS made_by")
"""


@dataclass
class Trips:
    """An Airflow whose DAG, with its transform, is in a repository, and what people do there."""

    project: Project
    repository: Path
    switch: Path  # while it exists, the transform fails
    airflow: Standalone

    def commit(self, version: str, module: str = "jobs.trips") -> str:
        """Commit that version of the code, wait until Airflow has it, and return the commit."""
        files = {
            "dags/trips.py": DAG,
            "dags/pipelines/trips.py": PIPELINE.format(topic=self.project.topic, module=module),
            "jobs/trips.py": TRANSFORM.format(switch=self.switch, version=version),
        }
        for name, text in files.items():
            (self.repository / name).parent.mkdir(parents=True, exist_ok=True)
            (self.repository / name).write_text(text)
        git(self.repository, "add", ".")
        git(self.repository, "commit", "-q", "-m", version)
        return git(self.repository, "rev-parse", "HEAD")

    def await_version(self, commit: str) -> None:
        def has_it() -> bool:
            is_parsed = self.airflow.unpause("trips")
            return is_parsed and self.airflow.call("GET", "/dags/trips")["bundle_version"] == commit

        wait_until(has_it, f"Airflow has parsed commit {commit}", PATIENCE)

    def run(self, state: str) -> str:
        run = self.airflow.trigger("trips")
        self.await_end(run, state)
        return run

    def clear(self, run: str, latest: bool, state: str = "success") -> None:
        options = {"dry_run": False, "run_on_latest_version": latest}
        self.airflow.call("POST", f"/dags/trips/dagRuns/{run}/clear", options)
        self.await_end(run, state)

    def await_end(self, run: str, state: str) -> None:
        wait_until(lambda: self.airflow.run_state("trips", run) in ("success", "failed"), f"{run} ends", PATIENCE)
        assert self.airflow.run_state("trips", run) == state, self.airflow.task_states("trips", run)

    def version_of(self, run: str) -> str:
        return str(self.airflow.call("GET", f"/dags/trips/dagRuns/{run}")["bundle_version"])

    def published(self) -> set[tuple[int, str]]:
        table = DeltaTable(str(self.project.settings.home / "lake" / "trips")).to_pyarrow_table()
        return set(zip(table["n"].to_pylist(), table["made_by"].to_pylist(), strict=True))

    def described(self, epoch: int, *options: str) -> str:
        shown = CliRunner().invoke(main, ["describe", "trips", str(epoch), *options], env=self.project.env())
        assert shown.exit_code == 0, shown.output
        return shown.output

    def page(self, epoch: int) -> str:
        login = {"username": standalone.USER, "password": self.airflow.password}
        token = requests.post(f"{self.airflow.url}/auth/token", json=login, timeout=PATIENCE).json()["access_token"]
        page = f"{self.airflow.url}/onceonly/pipelines/trips/{epoch}"
        answer = requests.get(page, cookies={"_token": token}, timeout=PATIENCE)
        assert answer.ok, answer.text
        return answer.text


@pytest.fixture
def trips(tmp_path: Path, broker: str, spark_server: str) -> Iterator[Trips]:
    """The page's settings: ONCEONLY_PROJECT is seen from the bundle, and the home is outside of it."""
    project = Project(tmp_path, broker, spark_server, create_topic(broker, f"trips-{uuid.uuid4().hex[:8]}", 4))
    StateTable.make(project.settings.state)
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    made = Trips(
        project, repository, tmp_path / "fail", Standalone(project.settings, machine.free_port(), spark_server)
    )
    made.commit("v1")
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    bundle = git_bundle.configure("trips", repository, tmp_path / "bundles")
    try:
        with patch.object(standalone, "START_SECONDS", PATIENCE):
            made.airflow.start({**project.env(), **bundle, "ONCEONLY_PROJECT": "..", "PYTHONPATH": path})
        yield made
    finally:
        made.airflow.stop()


def test_rows_are_made_by_the_version_of_the_run(trips: Trips) -> None:
    one = git(trips.repository, "rev-parse", "HEAD")
    trips.await_version(one)
    produce(trips.project, range(4))
    trips.switch.touch()
    first = trips.run("failed")
    two = trips.commit("v2")
    trips.await_version(two)

    trips.switch.unlink()
    trips.clear(first, latest=False)
    assert trips.version_of(first) == one
    assert trips.published() == {(number, "v1") for number in range(4)}
    attempts = json.loads(trips.described(1, "--json"))["attempts"]
    assert {attempt["code"]["version"] for attempt in attempts} == {f"bundle trips {one}"}
    assert one[:12] in trips.described(1)
    assert one[:12] in trips.page(1)

    produce(trips.project, range(4, 8))
    trips.switch.touch()
    second = trips.run("failed")
    three = trips.commit("v3")
    trips.await_version(three)
    trips.switch.unlink()
    trips.clear(second, latest=True)
    assert {row for row in trips.published() if row[0] >= 4} == {(number, "v3") for number in range(4, 8)}
    attempts = json.loads(trips.described(2, "--json"))["attempts"]
    assert [attempt["code"]["version"] for attempt in attempts] == [f"bundle trips {two}", f"bundle trips {three}"]
    for shown in (trips.described(2), trips.page(2)):
        assert two[:12] in shown
        assert three[:12] in shown

    produce(trips.project, range(8, 12))
    forgotten = trips.commit("v4", module="jobs.forgotten")
    trips.await_version(forgotten)
    refused = trips.run("failed")
    assert trips.airflow.task_states("trips", refused)["plan"] == "failed"
    assert StateTable(trips.project.settings.state).view("trips").checkpoint(3) is None
