"""A commit task stages again what could not be published any more, on every kind of Spark connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from codes import raises
from person import Person
from unit.world import World, values

from onceonly.checkpoint.model import State
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.rehearsal import MAX_UNFIT_ATTEMPTS
from onceonly.errors import NotCommitted
from onceonly.pipeline.gate import Gate
from onceonly.runtime.owners import airflow_owner
from onceonly.runtime.spark_connection import SparkConnection

pytestmark = pytest.mark.usefixtures("airflow_home")
OWNER = airflow_owner("flights", "a run")
ROWS = list(range(5))
KINDS = {
    "a child process": SparkConnection(master="local[1]"),
    "Spark Connect": SparkConnection(remote="sc://localhost"),
    "a driver on the cluster": SparkConnection(cluster="http://localhost:6066"),
}


class Run:
    """The tasks of one run. Staging is what a job would do, of whatever kind it is."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, target: SparkConnection) -> None:
        from onceonly.airflow import CommitOperator, connections
        from onceonly.runtime import client_job
        from onceonly.runtime.driver_submission import Work

        self.world, self.target, self.told = world, target, list[dict[str, Any]]()
        self.before_stage: list[Any] = []  # what happens, once each, just before a job stages
        self.context = {"ti": SimpleNamespace(dag_id="flights", run_id="a run", xcom_pull=lambda **_: OWNER)}
        self.task = CommitOperator(
            task_id="commit",
            pipeline="flights",
            epoch=1,
            on_held=lambda context: self.told.append(context["held"]),
        )
        coordinator = Coordinator(world.state, world.parts, self.task._log_transition)
        monkeypatch.setattr(CommitOperator, "coordinator", lambda _: coordinator)
        monkeypatch.setattr(CommitOperator, "gatekeeper", lambda _: coordinator)
        monkeypatch.setattr(CommitOperator, "gate_services", lambda _: SimpleNamespace(target=target, **NO_PARTS))
        monkeypatch.setattr(connections, "read_spark_connection", lambda _: target)
        monkeypatch.setattr(client_job, "make_stage_job", lambda *_: SimpleNamespace(run=self.stage, end=lambda: None))
        monkeypatch.setattr(Work, "prepare_stage", lambda work, *_: self.submission(work, self.stage))
        monkeypatch.setattr(Work, "prepare_gate", lambda work, *_: self.submission(work, coordinator.gate))
        for check in ("require_staged", "require_judged"):
            monkeypatch.setattr(Work, check, lambda *_: self.driver_error())
        self._failed: Exception | None = None

    def stage(self, name: str, epoch: int, owner: str) -> None:
        if self.before_stage:
            self.before_stage.pop(0)()
        self.world.coordinator.stage(name, epoch, self.world.parts.produce, owner)

    def submission(self, work: Any, step: Any) -> Any:
        def run(say: Any) -> Any:
            from onceonly.runtime.driver import Driver

            try:
                step(work.pipeline, work.epoch, work.owner)
            except Exception as error:  # the driver's own; the task hears of it when it comes back
                self._failed = error
            return Driver(str(self.target.cluster), "driver-1", "file:///report")

        return SimpleNamespace(run=run, end=lambda: None)

    def driver_error(self) -> None:
        failed, self._failed = self._failed, None
        if failed:
            raise failed

    def commit(self) -> dict[str, Any]:
        """Run the task as Airflow does: what it defers is resumed."""
        from airflow.sdk.exceptions import TaskDeferred

        event = {"master": "m", "driver": "driver-1", "report": "file:///report", "state": "FINISHED", "started": 0.0}
        step: Any = self.task.execute
        arguments: tuple[Any, ...] = (self.context,)
        while True:
            try:
                return dict(step(*arguments))
            except TaskDeferred as deferred:
                step, arguments = getattr(self.task, deferred.method_name), (self.context, event)


NO_PARTS: dict[str, Any] = {"settings": None, "connections": None}


@pytest.fixture(params=KINDS)
def make(request, tmp_path, monkeypatch):
    def made(**changes: Any) -> Run:
        world = World(tmp_path, **changes)
        world.plan(OWNER)
        world.stage()
        return Run(world, monkeypatch, KINDS[request.param])

    return made


def judge(run: Run, outcome: str = "") -> None:
    if outcome:
        run.world.parts.inspector(run.world.pipeline).find(outcome)
    run.world.coordinator.gate("flights", 1, OWNER)


def test_unfit_rows_are_staged_again(make):
    run = make()
    run.world.lake.fail("rehearse", "again", "again")
    assert run.commit()["rows"] == 10
    assert run.world.now().attempt == 3
    assert values(run.world.lake) == values(run.world.files) == ROWS


def test_gate_judges_what_is_staged_again(make):
    run = make(gate=Gate(min_rows={"lake": 1}))
    judge(run)
    run.world.lake.fail("rehearse", "again")
    run.commit()
    assert run.world.events().count("verdict") == 2
    assert values(run.world.lake) == ROWS


def test_fourth_refusal_waits_for_a_person(make):
    from airflow.sdk.exceptions import AirflowFailException

    run = make()
    run.world.lake.fail("rehearse", *["again"] * (MAX_UNFIT_ATTEMPTS + 1))
    with pytest.raises(AirflowFailException, match="waits for a person"):
        run.commit()
    assert (run.world.now().state, run.world.now().attempt) == (State.STAGED, MAX_UNFIT_ATTEMPTS + 1)


def test_action_needed_is_not_retried(make):
    from airflow.sdk.exceptions import AirflowFailException

    run = make()
    run.world.lake.fail("rehearse", "action")
    with pytest.raises(AirflowFailException, match="waits for a person"):
        run.commit()
    assert run.world.now().state is State.STAGED
    run.world.ended.add(OWNER)
    assert run.world.recover()[0].state is State.COMMITTED


def test_silent_target_is_retried(make):
    run = make()
    run.world.lake.fail("rehearse", "before")
    with pytest.raises(NotCommitted) as silent:
        run.commit()
    assert silent.value.code == "no-answer"
    run.commit()
    assert run.world.now().attempt == 1


def test_next_try_continues_a_failed_stage(make):
    run = make()
    run.world.lake.fail("rehearse", "again")
    run.world.lake.fail("stage", "before")
    with pytest.raises(Exception, match="disconnected before"):
        run.commit()
    assert run.world.now().state is State.PLANNED
    run.commit()
    assert values(run.world.lake) == values(run.world.files) == ROWS


def test_next_try_finishes_an_abort(make):
    run = make()
    run.world.lake.fail("rehearse", "again")
    run.world.files.fail("discard", "before")
    with raises(Exception, "outcome-unknown"):
        run.commit()
    assert run.world.now().state is State.ABORTING
    run.commit()
    assert values(run.world.lake) == values(run.world.files) == ROWS


def test_failed_stage_of_a_run_is_not_staged_here(make):
    """Only what a rehearsal has ended: the rest is for the run's own stage task."""
    run = make()
    run.world.abort()
    with raises(NotCommitted, "not-staged"):
        run.commit()
    assert run.world.now().attempt == 1


def test_another_owner_is_not_staged_for(make):
    run = make()
    run.world.lake.fail("rehearse", "again")
    run.before_stage.append(lambda: run.world.plan("another run"))
    with raises(Exception, "ownership-lost"):
        run.commit()
    assert (run.world.now().owner, run.world.now().attempt) == ("another run", 1)


# ---- people are told


def test_end_of_an_approval_is_notified(make):
    run = make(gate=Gate(min_rows={"lake": 1}, on_fail="hold"))
    judge(run, "critical")
    Person(run.world.coordinator).approve("flights", 1, "ann", "fine")
    run.world.lake.fail("rehearse", "again")
    run.commit()
    (told,) = run.told
    assert "The approval by ann ended with it" in told["text"]
    assert (told["epoch"], told["approve"], told["abort"], told["checks"]) == (1, "", "", [])


def test_hold_of_the_next_attempt_is_notified(make):
    from airflow.sdk.exceptions import AirflowFailException

    run = make(gate=Gate(min_rows={"lake": 1}, on_fail="hold"))
    judge(run, "critical")
    Person(run.world.coordinator).approve("flights", 1, "ann", "fine")
    run.world.lake.fail("rehearse", "again")
    run.before_stage.append(lambda: run.world.parts.inspector(run.world.pipeline).find("critical"))
    with pytest.raises(AirflowFailException, match="the gate failed"):
        run.commit()
    assert run.world.now().is_held
    assert [bool(told["approve"]) for told in run.told] == [False, True]
    Person(run.world.coordinator).approve("flights", 1, "ann", "fine, too")
    run.commit()
    assert values(run.world.lake) == ROWS
