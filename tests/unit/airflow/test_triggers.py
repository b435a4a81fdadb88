"""What a trigger does about its driver: it ends it for a task that no longer waits, and waits no longer than it may."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from codes import raises
from unit.world import World

from onceonly.errors import NotCommitted
from onceonly.runtime import job_report
from onceonly.runtime.job_report import Report

triggers = pytest.importorskip("onceonly.airflow.triggers")
comms = pytest.importorskip("airflow.sdk.execution_time.comms")
task_runner = pytest.importorskip("airflow.sdk.execution_time.task_runner")
driver = pytest.importorskip("onceonly.runtime.driver")
standalone = pytest.importorskip("onceonly.runtime.standalone")
work = pytest.importorskip("onceonly.runtime.driver_submission")

RUN = "airflow:flights:a run: the first"
MASTER = "http://master:6066"
JOB = "stage-flights-1-0123456789ab"


class Master:
    """Spark's master, as its REST server answers; `asked` holds the requests."""

    def __init__(self) -> None:
        self.state, self.answers, self.asked = "RUNNING", True, []

    def ask(self, rest, method, path, body=None):
        self.asked.append(f"{method} {path}")
        if not self.answers:
            raise NotCommitted(f"Spark's master does not answer at {rest}.")
        if path.startswith("kill"):
            self.state = "KILLED"
        return {"action": "SubmissionStatusResponse", "success": True, "driverState": self.state}


@pytest.fixture
def master(monkeypatch) -> Master:
    made = Master()
    monkeypatch.setattr(standalone, "_ask", made.ask)
    monkeypatch.setattr(triggers, "POLL_SECONDS", 0.001)
    return made


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def trigger(world: World, deadline: float | None = None):
    return triggers.DriverTrigger(
        "http://master:6066", "driver-1", Report.for_job(world.state.uri, JOB).uri, 1.0, deadline
    )


# ---- a triggerer that has to let go


class Airflow:
    """The triggerer's own connection to Airflow."""

    def __init__(self, *answers) -> None:
        self.answers, self.asked = list(answers), []

    async def asend(self, asked):
        self.asked.append(asked)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return comms.TaskStatesResult(task_states={"a run": {"stage": answer}} if answer != "gone" else {})


def let_go(world: World, monkeypatch, *answers):
    airflow = Airflow(*answers)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", airflow, raising=False)
    monkeypatch.setattr(triggers, "KILL_TIMEOUT_SECONDS", len(answers))
    monkeypatch.setattr(asyncio, "sleep", _at_once)
    waits = trigger(world)
    waits.task_instance = SimpleNamespace(dag_id="flights", run_id="a run", task_id="stage", map_index=-1)
    asyncio.run(waits.on_kill())
    return airflow


async def _at_once(seconds):
    return


def test_a_driver_whose_task_still_waits_is_another_triggerers(world, master, monkeypatch):
    """Airflow cancels the triggers of a triggerer whose heartbeats are late as if a person had acted on the task."""
    Report.for_job(world.state.uri, JOB).say("60 of 100 tasks")
    airflow = let_go(world, monkeypatch, "deferred")
    assert (master.state, master.asked) == ("RUNNING", [])
    assert Report.for_job(world.state.uri, JOB).read().lines == ("60 of 100 tasks",)
    assert (airflow.asked[0].dag_id, airflow.asked[0].run_ids, airflow.asked[0].task_ids) == (
        "flights",
        ["a run"],
        ["stage"],
    )


@pytest.mark.parametrize("state", ["failed", "success", "scheduled", None, "gone"])
def test_a_driver_whose_task_was_marked_cleared_or_deleted_ends(world, master, monkeypatch, state):
    Report.for_job(world.state.uri, JOB).say("60 of 100 tasks")
    Report.for_job(world.state.uri, JOB).name_driver({"driver": "driver-1", "state": world.state.id})
    let_go(world, monkeypatch, state)
    assert master.state == "KILLED"
    assert Report.for_job(world.state.uri, JOB).read().lines == ()
    assert not job_report.list_drivers(world.state)


@pytest.mark.parametrize(("other", "state"), [(2.0, "KILLED"), (0.5, "RUNNING")])
def test_a_task_that_waits_again_waits_for_its_last_driver(world, master, monkeypatch, other, state):
    """The next try of a task that was cleared may be deferred before this trigger is told to let go."""
    named(world, at=1.0)
    named(world, job=f"{JOB[:-12]}{'b' * 12}", driver="driver-2", at=other)
    let_go(world, monkeypatch, "deferred")
    assert master.state == state


def test_recovery_ends_a_driver_that_a_later_one_follows(world, master):
    world.plan(RUN)
    named(world, at=1.0)
    named(world, job=f"{JOB[:-12]}{'b' * 12}", driver="driver-2", at=2.0)
    assert end(world) == ["driver-1 of flights epoch 1, which no task waits for, is KILLED"]


def test_nothing_is_ended_as_long_as_airflow_does_not_say(world, master, monkeypatch):
    let_go(world, monkeypatch, OSError("no answer"), OSError("no answer"))
    assert master.asked == []
    let_go(world, monkeypatch, OSError("no answer"), "failed")
    assert master.state == "KILLED"


# ---- a driver that waits


def test_what_a_driver_waits_for_is_told_once(world, master, monkeypatch, capsys):
    asked, states = master.ask, ["SUBMITTED", "SUBMITTED", "RUNNING", "RUNNING", "FINISHED"]

    def moves_on(*request):
        master.state = states.pop(0)
        return asked(*request)

    monkeypatch.setattr(standalone, "_ask", moves_on)
    assert fired(trigger(world)) == "FINISHED"
    told = capsys.readouterr().out
    assert [told.count(f"driver driver-1 is {state}") for state in ("SUBMITTED", "RUNNING", "FINISHED")] == [1, 1, 0]


def test_an_error_that_nobody_foresaw_does_not_fail_the_task(world, master, monkeypatch, capsys):
    """A trigger that dies takes the task along, while its driver is at work."""
    asked, errors = master.ask, [ValueError("odd"), KeyError("state")]

    def odd(*request):
        if errors:
            raise errors.pop()
        master.state = "FINISHED"
        return asked(*request)

    monkeypatch.setattr(standalone, "_ask", odd)
    assert fired(trigger(world)) == "FINISHED"
    assert "ValueError('odd')" in capsys.readouterr().out


# ---- a task whose time is over


def fired(waits):
    async def first():
        async for event in waits.run():
            return event.payload["state"]
        return None

    return asyncio.run(asyncio.wait_for(first(), 300))


def test_a_task_whose_time_is_over_goes_on_although_its_master_never_comes_back(world, master, monkeypatch):
    master.answers = False
    monkeypatch.setattr(triggers, "OVERTIME_SECONDS", 0.0)
    assert fired(trigger(world, time.time() - 1)) == triggers.TIMED_OUT_RUNNING
    assert master.asked == ["POST kill/driver-1"]


def test_a_master_that_answers_in_time_is_waited_for(world, master, monkeypatch):
    master.answers = False
    asked = master.ask

    def back_again(*request):
        master.answers = len(master.asked) >= 3
        return asked(*request)

    monkeypatch.setattr(standalone, "_ask", back_again)
    assert fired(trigger(world, time.time() - 1)) == "TIMED OUT"
    assert master.state == "KILLED"


def test_a_task_without_a_time_limit_waits_on(world, master, monkeypatch):
    """That a master is gone says nothing about the driver."""
    monkeypatch.setattr(triggers, "OVERTIME_SECONDS", 0.0)
    master.answers = False
    said = Report.for_job(world.state.uri, JOB)
    asked = master.ask

    def say_at_last(*request):
        if len(master.asked) == 5:
            said.end(0)
        return asked(*request)

    monkeypatch.setattr(standalone, "_ask", say_at_last)
    assert fired(trigger(world)) == "at its end"


# ---- drivers that no task waits for


def named(world: World, owner: str = RUN, job: str = JOB, **more) -> Report:
    said = Report.for_job(world.state.uri, job)
    about = {"master": MASTER, "driver": "driver-1", "report": said.uri, "owner": owner, "connection": "spark"}
    said.name_driver({**about, "state": world.state.id, **more})
    return said


def end(world: World) -> list[str]:
    return list(driver.stop_orphaned_drivers(world.state, world.alive, {"spark": MASTER}.get))


def test_the_driver_of_a_run_that_has_ended_is_ended(world, master):
    world.plan(RUN)
    named(world).say("60 of 100 tasks")
    assert end(world) == [] and master.asked == [], "the run is at work"
    world.ended.add(RUN)
    assert end(world) == ["driver-1 of flights epoch 1, which no task waits for, is KILLED"]
    assert not job_report.list_drivers(world.state)
    assert end(world) == []


@pytest.mark.parametrize("then", ["aborted", "committed", "taken over"])
def test_so_is_one_whose_checkpoint_is_settled_or_another_runs(world, master, then):
    world.plan(RUN)
    named(world)
    if then == "committed":
        world.stage()
        world.commit()
    else:
        world.abort()
    if then == "taken over":
        world.plan("run-2")
    assert end(world)
    assert master.state == "KILLED"


def test_a_master_that_does_not_answer_is_asked_by_the_next_recovery(world, master):
    world.plan(RUN)
    world.ended.add(RUN)
    named(world)
    master.answers = False
    assert "may still be running: Spark's master does not answer" in end(world)[0]
    master.answers = True
    assert end(world)
    assert master.state == "KILLED"


def test_drivers_of_the_table_that_this_one_is_a_copy_of_are_not_its_own(world, master):
    world.plan(RUN)
    world.ended.add(RUN)
    named(world, state="another")
    assert end(world) == []
    assert master.asked == []


@pytest.mark.parametrize("forged", [{"master": "k8s+http://elsewhere/spark"}, {"connection": "another"}])
def test_recovery_logs_in_at_no_address_but_that_of_a_connection(world, master, monkeypatch, forged):
    """Who may write beside the state table could have it send its token of Kubernetes to a server of their own."""
    world.plan(RUN)
    world.ended.add(RUN)
    named(world, **forged)
    monkeypatch.setattr(driver.Driver, "cluster", property(lambda _: pytest.fail("it was asked")))
    assert "is not the cluster of the Airflow connection" in end(world)[0]


def test_recovery_deletes_no_file_that_a_note_names(world, master, tmp_path):
    world.plan(RUN)
    world.ended.add(RUN)
    (tmp_path / "precious").write_text("rows")
    said = named(world, report=str(tmp_path / "precious"))
    assert end(world)[0].endswith("is KILLED")
    assert (tmp_path / "precious").read_text() == "rows"
    assert said.read().lines == () and not job_report.list_drivers(world.state)


def test_a_driver_whose_name_would_be_a_path_is_none(world, master):
    world.plan(RUN)
    world.ended.add(RUN)
    named(world, driver="driver-1/../../pods/another")
    assert end(world) == [] and master.asked == []


def test_what_is_done_is_done_although_its_report_cannot_be_read(world, monkeypatch):
    def broken(*_):
        raise OSError("slow down")

    monkeypatch.setattr(job_report, "arrow_file_system", broken)
    known = driver.Driver("http://master:6066", "driver-1", "s3://lake/_jobs/one")
    work.Work("flights", 1, RUN)._require(True, known, "is staged", "FINISHED")
    with raises(NotCommitted, "driver-without-report"):
        work.Work("flights", 1, RUN)._require(False, known, "is planned, not staged", "FINISHED")


@pytest.mark.parametrize("state", ["FINISHED", triggers.TIMED_OUT_RUNNING])
def test_the_task_forgets_a_driver_that_it_has_seen_ended(world, state):
    world.plan(RUN)
    named(world)
    known = driver.Driver("http://master:6066", "driver-1", Report.for_job(world.state.uri, JOB).uri)
    ours = work.Work("flights", 1, RUN)
    with raises(NotCommitted, "driver-without-report"):
        ours._require(False, known, "is planned, not staged", state)
    assert bool(job_report.list_drivers(world.state)) == (state == triggers.TIMED_OUT_RUNNING)
