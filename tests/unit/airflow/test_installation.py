"""Two Airflows on one state table: neither takes the other's runs for its own, nor for ended."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, GetVariable, PutVariable, VariableResult
from codes import raises
from unit.world import World

from onceonly.airflow import base, runs
from onceonly.checkpoint.model import State
from onceonly.errors import Busy, InvalidPipeline
from onceonly.runtime import owners

READ, READ_VARIABLE = runs.read_installation, runs._read_installation_variable


class Airflow:
    """An Airflow: its variables, and its runs by DAG and id, with their states. Another one's answer is 404."""

    def __init__(self, name: str) -> None:
        self.name, self.runs = name, dict[tuple[str, str], str]()

    def context(self, dag_id: str = "flights", run_id: str = "scheduled__2026-01-01") -> Any:
        xcom: dict[str, Any] = {}
        ti = SimpleNamespace(
            dag_id=dag_id,
            get_dagrun_state=self._state,
            xcom_push=lambda key, value: xcom.update({key: value}),
            xcom_pull=lambda task_ids, key="return_value": xcom.get(key),
        )
        return {"ti": ti, "run_id": run_id}

    def _state(self, dag_id: str, run_id: str) -> str:
        if (dag_id, run_id) not in self.runs:
            response = ErrorResponse(error=ErrorType.GENERIC_ERROR, detail={"status_code": 404})
            raise AirflowRuntimeError(response)
        return self.runs[dag_id, run_id]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Enter one of several Airflows."""

    def enter(airflow: Airflow) -> Airflow:
        monkeypatch.setattr(runs, "read_installation", lambda: airflow.name)
        return airflow

    return enter


def plan(world: World, airflow: Airflow, context: Any) -> Any:
    owner = base.make_owner(context)
    airflow.runs["flights", context["run_id"]] = "running"
    return world.coordinator.plan(world.pipeline, owner, runs.make_alive_check(context)).checkpoint


def test_a_live_run_of_the_other_airflow_is_left_alone(tmp_path: Path, at: Any) -> None:
    world, blue, green = World(tmp_path), Airflow("blue"), Airflow("green")
    plan(world, at(blue), blue.context())
    at(green)
    assert world.coordinator.recover("flights", runs.make_alive_check(green.context()))[0].state is State.PLANNED


def test_runs_of_one_name_in_two_airflows_are_two_runs(tmp_path: Path, at: Any) -> None:
    world, blue, green = World(tmp_path), Airflow("blue"), Airflow("green")
    plan(world, at(blue), blue.context())
    with pytest.raises(Busy):
        plan(world, at(green), green.context())
    assert world.now().owners == (base.make_owner(at(blue).context()),)


def test_a_run_of_the_other_airflow_ends_by_its_heartbeat(
    tmp_path: Path, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, blue, green = World(tmp_path), Airflow("blue"), Airflow("green")
    plan(world, at(blue), blue.context())
    at(green)
    later = SimpleNamespace(now=lambda zone: datetime.now(zone) + owners.LEASE + timedelta(seconds=1))
    monkeypatch.setattr(owners, "datetime", later)
    (settled,) = world.coordinator.recover("flights", runs.make_alive_check(green.context()))
    assert settled.state is State.ABORTED


def test_an_own_run_that_has_ended_is_settled_at_once(tmp_path: Path, at: Any) -> None:
    world, blue = World(tmp_path), Airflow("blue")
    plan(world, at(blue), blue.context())
    blue.runs["flights", "scheduled__2026-01-01"] = "failed"
    assert world.coordinator.recover("flights", runs.make_alive_check(blue.context()))[0].state is State.ABORTED


def test_an_own_run_that_was_deleted_has_ended(tmp_path: Path, at: Any) -> None:
    world, blue = World(tmp_path), Airflow("blue")
    plan(world, at(blue), blue.context())
    blue.runs.clear()
    assert world.coordinator.recover("flights", runs.make_alive_check(blue.context()))[0].state is State.ABORTED


def test_all_tasks_of_a_run_go_by_its_plan(at: Any) -> None:
    """The id was made twice at once, or deleted meanwhile."""
    context = at(Airflow("first")).context()
    context["ti"].xcom_push(base.OWNER, base.make_owner(context))
    at(Airflow("second"))
    assert base.owner_of(context) == "airflow@first:flights:scheduled__2026-01-01"


def test_a_dag_of_the_other_airflow_is_no_second_dag(at: Any, tmp_path: Path) -> None:
    """A DAG of that name exists here, too, and runs; it has nothing to do with the checkpoint."""
    world, blue, green = World(tmp_path), Airflow("blue"), Airflow("green")
    plan(world, at(blue), blue.context())
    context = at(green).context(dag_id="flights_copy")
    context["ti"].get_dag = lambda dag_id: SimpleNamespace(is_paused=False)
    runs.check_single_dag(context, world.now())
    at(blue)
    with raises(InvalidPipeline, "pipeline-of-two-dags"):
        runs.check_single_dag(context, world.now())


@pytest.mark.parametrize("installed", ["", "3f9c2a1b7d5e"])
@pytest.mark.parametrize("run", ["a run", "manual__2026-01-01T00:00:00+00:00"])
def test_an_owner_key_is_parsed_as_it_was_made(installed: str, run: str) -> None:
    key = owners.airflow_owner("flights", run, installed)
    assert owners.parse_airflow_run(key) == ("flights", run)
    assert owners.installation_of(key) == installed
    assert owners.parse_airflow_run(owners.process_owner()) is None


# ---- the id


class Api:
    """Airflow's API as a task meets it."""

    def __init__(self, value: str | None = None, error: ErrorType | None = None) -> None:
        self.value, self.error, self.made = value, error, list[str]()

    def send(self, message: Any) -> Any:
        if isinstance(message, PutVariable):
            self.value = str(message.value)
            return self.made.append(self.value)
        assert isinstance(message, GetVariable)
        if self.error:
            return ErrorResponse(error=self.error, detail={"message": "no answer"})
        if self.value is None:
            return ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND)
        return VariableResult(key=message.key, value=self.value)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Any:
    def connect(**given: Any) -> Api:
        made = Api(**given)
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", made, raising=False)
        monkeypatch.setattr(runs, "read_installation", READ)
        return made

    return connect


def test_the_first_task_makes_the_id_and_all_others_read_it(api: Any) -> None:
    made = api()
    first = runs.read_installation()
    assert runs.read_installation() == first and made.made == [first]


def test_no_answer_makes_no_id(api: Any) -> None:
    silent = api(value="blue", error=ErrorType.API_SERVER_ERROR)
    with pytest.raises(AirflowRuntimeError):
        runs.read_installation()
    assert silent.made == []


@pytest.mark.parametrize("value", ["a:b", "", "x" * 65, "a b"])
def test_an_id_that_cannot_be_used_is_refused(api: Any, value: str) -> None:
    api(value=value)
    with pytest.raises(InvalidPipeline) as refused:
        runs.read_installation()
    assert refused.value.code == "installation-invalid"


def test_the_id_may_be_set_by_hand(monkeypatch: pytest.MonkeyPatch, api: Any) -> None:
    stored = api()
    monkeypatch.setenv("AIRFLOW_VAR_ONCEONLY_INSTALLATION", "production")
    assert runs.read_installation() == "production"
    assert stored.made == []
