"""Verification in Airflow: a DAG for all pipelines, whose run fails if something is wrong, and tells people."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.world import Durable

from onceonly.testing.fakes import FakeSink
from onceonly.verification.archive import Archive

pytestmark = pytest.mark.usefixtures("airflow_home")


@pytest.fixture
def world(tmp_path: Path) -> Durable:
    return Durable.with_two_checkpoints(tmp_path)


def execute(world: Durable, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> Any:
    """Execute the task as Airflow does, on fakes."""
    from onceonly.airflow.verification import VerifyOperator

    parts: Any = world.parts
    parts.settings = SimpleNamespace(state=world.state.uri)
    monkeypatch.setattr(VerifyOperator, "services", lambda self: parts)
    return VerifyOperator(task_id="verify", **arguments).execute({})


def test_dag_verifies_weekly_and_without_a_past() -> None:
    from onceonly.airflow import verify_dag

    dag = verify_dag()
    assert (dag.dag_id, dag.task_ids, dag.catchup, dag.max_active_runs) == ("onceonly_verify", ["verify"], False, 1)
    assert verify_dag("monthly", schedule=None, deep=True).get_task("verify").deep


def test_healthy_pipelines_are_right_and_recorded(world: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    assert execute(world, monkeypatch) == {"flights": "right"}
    assert Archive(world.state.uri).read_summaries()["flights"].judgement == "right"


def test_wrong_pipeline_fails_the_task_and_people_know(world: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    from onceonly.airflow.notices import write_message
    from onceonly.airflow.versions import AirflowFailException

    world.lake.remove(world.now(2).transaction("lake").name)
    messages: list[str] = []
    with pytest.raises(AirflowFailException, match="wrong: flights"):
        execute(world, monkeypatch, on_wrong=lambda context: messages.append(write_message(context)))
    (message,) = messages
    assert message.splitlines()[0].startswith("flights is not as it was published.")
    assert "sink 'lake' epoch 2:" in message and message.endswith("/onceonly/pipelines/flights/verification")


def test_what_cannot_be_known_fails_nothing(world: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(FakeSink, "verify", fail)
    assert execute(world, monkeypatch, pipelines=["flights"]) == {"flights": "unknown"}


def test_notifier_that_fails_hides_nothing(world: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    from onceonly.airflow.versions import AirflowFailException

    def fail(_: Any) -> Any:
        raise ConnectionError("no chat")

    world.lake.remove(world.now(2).transaction("lake").name)
    with pytest.raises(AirflowFailException, match="wrong: flights"):
        execute(world, monkeypatch, on_wrong=[fail])
