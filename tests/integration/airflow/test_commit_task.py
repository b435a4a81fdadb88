"""The commit task in a real Airflow, where a target changes after the rows were staged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.airflow.test_airflow import Airflow
from integration.projects.project import Project, make_project, produce

from onceonly.checkpoint.model import State
from onceonly.statetable.table import StateTable

pytestmark = [pytest.mark.integration]


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, spark_server: str) -> Iterator[Airflow]:
    with Airflow(tmp_path_factory.mktemp("airflow"), spark_server).initialised() as initialised:
        yield initialised


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str, request: pytest.FixtureRequest) -> Project:
    return make_project(tmp_path, broker, spark_server, request.node.name.removeprefix("test_"))


def test_vacuumed_rows_are_staged_again(airflow: Airflow, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    produce(project, range(8))
    monkeypatch.setenv("BEFORE_COMMIT", "vacuum")
    ran = airflow.run(project, "chained")
    assert (ran["run"], ran["tasks"]["commit"]) == ("success", "success"), ran["log"][-5000:]
    assert "is staged again by this task" in ran["log"]
    assert project.published() == Counter(range(8))
    latest = StateTable(project.settings.state).view("numbers_chained").require(1)
    assert (latest.state, latest.attempt, latest.unfit_attempts) == (State.COMMITTED, 2, {1})
    assert ran["events"]["onceonly://lake/chained"]["rows"] == 8


@pytest.mark.heavy
def test_a_missing_table_waits_for_its_person(
    airflow: Airflow, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(project, range(8))
    assert airflow.run(project, "chained")["run"] == "success"
    project.set_gate(min_rows=9, on_fail="hold")
    produce(project, range(8, 12))
    monkeypatch.setenv("AFTER", "take_away,approve,commit,bring_back,commit")
    ran = airflow.run(project, "chained")
    assert (ran["run"], ran["tasks"]["gate"]) == ("failed", "failed"), ran["log"][-5000:]
    refused = ["staged", True, "target-went-back"]
    assert ran["after"] == [
        [None, "staged", False, None],
        [None, "staged", True, None],
        ["failed", *refused],
        [None, *refused],
        ["success", "committed", True, None],
    ], ran["log"][-5000:]
    assert "Bring the target back" in ran["log"]
    assert project.published() == Counter(range(12))
