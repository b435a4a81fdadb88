"""What the recovery DAG's task does with what it cannot settle: it fails, says the command, and settles the rest."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from codes import raises
from deltalake import DeltaTable
from patience import PATIENCE
from unit.world import World

from onceonly.airflow import runs
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.manual import Seen
from onceonly.dev.demo.standalone import wait_until
from onceonly.errors import CannotPublish, Fenced, InDoubt, InvalidPipeline, NotCommitted, OutcomeUnknown
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import DeltaSink
from onceonly.runtime.job_report import Report
from onceonly.settings import Settings
from onceonly.statetable import location
from onceonly.views import summary

pytestmark = pytest.mark.integration


class Events(dict[Any, Any]):
    """Stands for the context's outlet_events."""

    def __missing__(self, alias: Any) -> Any:
        self[alias] = SimpleNamespace(sent=[], add=lambda asset, extra: self[alias].sent.append((asset.uri, extra)))
        return self[alias]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(runs, "read_installation", lambda: "")  # that of owners who name none
    return World(tmp_path, sinks=[DeltaSink("lake", "lake/flights")])


@dataclass
class Recovery:
    """Both tasks as Airflow runs them."""

    world: World
    patch: pytest.MonkeyPatch
    events: Events = field(default_factory=Events)
    xcom: dict[str, Any] = field(default_factory=dict)

    @property
    def context(self) -> dict[str, Any]:
        task = SimpleNamespace(
            dag_id="recovery",
            get_dagrun_state=lambda dag, run: "failed",
            xcom_push=lambda key, value: self.xcom.update({key: json.loads(json.dumps(value))}),
            xcom_pull=lambda task_ids, key: self.xcom.get(key),
        )
        return {"ti": task, "outlet_events": self.events}

    def settle(self) -> Any:
        from onceonly.airflow import RecoverOperator

        return self._ours(RecoverOperator(task_id="recover")).execute(self.context)

    def announce(self) -> list[Any]:
        from onceonly.airflow import AnnounceOperator
        from onceonly.airflow.assets import RECOVERED

        self._ours(AnnounceOperator(task_id="announce", recovery="recover")).execute(self.context)
        return list(self.events[RECOVERED].sent)

    def _ours(self, operator: Any) -> Any:
        through = Coordinator(self.world.state, self.world.parts, operator._log_transition)
        self.patch.setattr(operator, "coordinator", lambda: through)
        return operator


@pytest.fixture
def recovery(world: World, monkeypatch: pytest.MonkeyPatch) -> Recovery:
    return Recovery(world, monkeypatch)


def staged(world: World, owner: str = "airflow:flights:run-1") -> Checkpoint:
    checkpoint = world.plan(owner)
    assert checkpoint is not None
    return world.stage(checkpoint.epoch)


def test_what_an_ended_run_staged_is_published_and_announced(world: World, recovery: Recovery) -> None:
    staged(world)
    assert recovery.settle() == {"flights": {1: "committed"}}
    sent = recovery.announce()
    assert [(uri, extra["epoch"], extra["rows"]) for uri, extra in sent] == [("onceonly://lake/flights", 1, 5)]


def test_what_was_published_is_announced_although_another_pipeline_failed(
    world: World, recovery: Recovery, tmp_path: Path
) -> None:
    """In either order: the pipeline in doubt comes before one that recovers, and after another."""
    for name in ("a_first", "z_last"):
        other = World(tmp_path, name=name, sinks=[DeltaSink("lake", f"lake/{name}")])
        assert other.plan("airflow:others:run-1")
        other.coordinator.stage(name, 1, other.parts.produce)
    staged(world)
    world.lake.fail("commit", "doubt")
    with pytest.raises(InDoubt):
        recovery.settle()
    assert [uri for uri, _ in recovery.announce()] == ["onceonly://lake/a_first", "onceonly://lake/z_last"]


def test_a_pipeline_whose_rows_are_damaged_stops_no_other(world: World, recovery: Recovery, tmp_path: Path) -> None:
    other = World(tmp_path, name="a_first")
    assert other.plan("airflow:others:run-1")
    other.coordinator.stage("a_first", 1, other.parts.produce)
    staged(world)
    rows = DeltaTable(location.table_folder(world.state.uri, "a_first"))
    rows.alter.set_table_properties({"delta.appendOnly": "false"}, raise_if_not_exists=False)
    rows.delete("seq = 3")
    with raises(OutcomeUnknown, "state-table-damaged"):
        recovery.settle()
    assert world.now().state is State.COMMITTED


def test_a_handle_that_cannot_be_read_stops_no_other_pipeline(
    world: World, recovery: Recovery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = World(tmp_path, name="a_first")
    assert other.plan("airflow:others:run-1")
    damaged = {"opened_at": "yesterday", "timeout": 900.0}
    stage = type(other.lake).stage
    with monkeypatch.context() as patched:
        patched.setattr(type(other.lake), "stage", lambda sink, txn, rows: {**stage(sink, txn, rows), **damaged})
        other.coordinator.stage("a_first", 1, other.parts.produce)
    other.lake.fail("commit", "refused")
    staged(world)
    with pytest.raises(Exception, match=r"a_first|yesterday"):
        recovery.settle()
    assert world.now().state is State.COMMITTED


def test_the_announcement_covers_no_failure_up() -> None:
    """The run fails where recovery does, although the other task comes last (seen in a real run by test_airflow)."""
    from onceonly.airflow import recovery_dag

    dag = recovery_dag(schedule=None)
    recover, announce = dag.get_task("recover"), dag.get_task("announce")
    assert (announce.is_teardown, announce.on_failure_fail_dagrun) == (True, False)
    assert announce.upstream_task_ids == {"recover"}
    assert not recover.is_setup


def test_what_jobs_have_said_to_nobody_goes(world: World, recovery: Recovery) -> None:
    staged(world)
    said = Report.for_job(world.state.uri, "stage-flights-1-0123456789ab")
    said.say("60 of 100 tasks")
    os.utime(said.uri, (0, 0))
    recovery.settle()
    assert not Path(said.uri).exists()


def test_doubt_fails_the_task_with_the_command_to_give(
    world: World, recovery: Recovery, capsys: pytest.CaptureFixture[str]
) -> None:
    staged(world)
    world.lake.fail("commit", "doubt")
    with raises(InDoubt, "test-in-doubt", match="onceonly resolve"):
        recovery.settle()
    assert "is in doubt" in capsys.readouterr().out
    assert world.now().state is State.COMMITTING


def test_every_error_is_logged_and_the_first_one_fails_the_task(
    world: World, recovery: Recovery, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from onceonly.runtime import driver

    def broken(*_: Any) -> Any:
        raise OSError("the folder of jobs is gone")

    monkeypatch.setattr(driver, "stop_orphaned_drivers", broken)
    staged(world)
    world.lake.fail("commit", "doubt")
    with pytest.raises(InDoubt):
        recovery.settle()
    said = capsys.readouterr().out
    assert "is in doubt" in said
    assert "the folder of jobs is gone" in said


def test_80_percent_of_a_time_out_is_a_warning_beside_an_error(
    world: World, recovery: Recovery, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = {"opened_at": (datetime.now(UTC) - timedelta(minutes=13)).isoformat(), "timeout": 900.0}
    stage = type(world.lake).stage
    monkeypatch.setattr(type(world.lake), "stage", lambda sink, txn, rows: {**stage(sink, txn, rows), **opened})
    staged(world)
    world.lake.fail("commit", "refused")
    with pytest.raises(CannotPublish):
        recovery.settle()
    assert summary.TIMEOUT_WARNING_SHARE == 0.8
    assert "have used 87% of their time-out" in capsys.readouterr().out


def test_recovery_asks_the_spark_of_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of its own machine, where there may be none; and no connection as long as it needs no Spark."""
    from onceonly.airflow import recovery_dag
    from onceonly.spark import session

    asked: list[Any] = []
    interrupted: list[Any] = []
    opened = SimpleNamespace(interruptAll=lambda: interrupted.append(opened))

    def open_session(settings: Settings, more: Mapping[str, str], _: int | None) -> Any:
        asked.append((settings.spark_remote, more))
        return opened

    monkeypatch.setattr(session, "session", open_session)
    monkeypatch.setenv("SPARK_REMOTE", "sc://here")
    recover: Any = recovery_dag(schedule=None, spark_conn_id="elsewhere").get_task("recover")
    recover.on_kill()
    parts = recover.services()
    with raises(InvalidPipeline, "connection-missing"):
        parts.spark()
    recover.on_kill()
    monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", json.dumps({"conn_type": "spark", "host": "sc://there"}))
    parts.spark()
    recover.on_kill()
    wait_until(lambda: interrupted, "the session is interrupted", PATIENCE)
    assert ([remote for remote, _ in asked], len(interrupted)) == (["sc://there"], 1)
    named_by_default: Any = recovery_dag(schedule=None).get_task("recover")
    with socket.create_server(("127.0.0.1", 0)) as master:
        address = f"spark://127.0.0.1:{master.getsockname()[1]}"
        monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": address}))
        named_by_default.services().spark()
    assert asked[-1] == (None, {"spark.master": address})
    with raises(NotCommitted, "spark-unreachable", f"(?s){address}.*'spark'"):
        named_by_default.services().spark()


def test_a_driver_that_no_task_waits_for_is_ended(
    world: World, recovery: Recovery, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its task was marked while no triggerer was there: the run has ended, and the checkpoint is aborted before."""
    from onceonly.runtime import standalone

    asked: list[str] = []

    def ask(rest: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
        asked.append(f"{rest} {method} {path} while {world.now().state.value}")
        return {"action": "SubmissionStatusResponse", "success": True, "driverState": "KILLED"}

    monkeypatch.setattr(standalone, "_ask", ask)
    spark = {"conn_type": "spark", "host": "spark://m:7077", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps(spark))
    owner = "airflow:flights:run-1"
    world.plan(owner)
    said = Report.for_job(world.state.uri, "stage-flights-1-0123456789ab")
    about = {"master": "http://m:6066", "driver": "driver-1", "report": said.uri, "connection": "spark"}
    said.name_driver({**about, "owner": owner, "state": world.state.id})
    recovery.settle()
    assert asked == [
        "http://m:6066 POST kill/driver-1 while aborted",
        "http://m:6066 GET status/driver-1 while aborted",
    ]
    assert "driver-1 of flights epoch 1, which no task waits for, is KILLED" in capsys.readouterr().out


# ---- what a person has approved


def approved_run(recovery: Recovery, **conf: Any) -> Any:
    from onceonly.airflow import RecoverOperator

    run = SimpleNamespace(conf={"approved": {"pipeline": "flights", "epoch": 1, "attempt": 1, **conf}})
    return recovery._ours(RecoverOperator(task_id="recover")).execute({**recovery.context, "dag_run": run})


@pytest.fixture
def held(world: World) -> World:
    world.pipeline = replace(world.pipeline, gate=Gate(min_rows={"lake": 9}, on_fail="hold"))
    staged(world)
    world.parts.inspector(world.pipeline).find("critical")
    assert world.coordinator.gate("flights", 1, "run-1").is_held
    return world


def test_a_run_publishes_what_a_person_has_approved(held: World, recovery: Recovery) -> None:
    held.alive = lambda checkpoint: True
    held.coordinator.approve("flights", 1, "ann", "fine", Seen(held.now(1).changed_seq))
    for _ in range(2):  # its task is tried again
        assert approved_run(recovery) == {"flights": {1: "committed"}}
    assert [extra["epoch"] for _, extra in recovery.announce()] == [1]


def test_a_run_publishes_nothing_that_nobody_has_approved(held: World, recovery: Recovery) -> None:
    from onceonly.airflow.versions import AirflowFailException

    with pytest.raises(AirflowFailException, match="nobody has approved it"):
        approved_run(recovery)
    assert held.now(1).is_held
    held.coordinator.approve("flights", 1, "ann", "fine", Seen(held.now(1).changed_seq))
    with pytest.raises(Fenced):
        approved_run(recovery, attempt=2)
    assert held.now(1).state.value == "staged"
    with pytest.raises(AirflowFailException, match="without a conf"):
        approved_run(recovery, epoch="first")


def test_a_run_publishes_no_staged_rows_without_a_gate(world: World, recovery: Recovery) -> None:
    from onceonly.airflow.versions import AirflowFailException

    staged(world)
    with pytest.raises(AirflowFailException, match="nobody has approved it"):
        approved_run(recovery)
    assert world.now(1).state.value == "staged"
