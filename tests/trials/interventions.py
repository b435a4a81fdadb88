"""What people and machines do to a run, each on a day of its own; at the end every day is there, once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from deltalake import DeltaTable

from onceonly.checkpoint.model import Event
from onceonly.checkpoint.offsets import Interval
from onceonly.dev.demo import flights
from onceonly.dev.demo.proof import truth_by_day
from onceonly.dev.demo.standalone import wait_until
from onceonly.statetable.table import StateTable
from trials.airflow import DAG, RECOVERY, World, date, say, world
from trials.hold import held, waiting

LIMIT = 420.0


@dataclass
class Day:
    """One run of one day."""

    at: World
    number: int
    run: str = ""

    def trigger(self) -> None:
        start = datetime(2013, 1, self.number, tzinfo=UTC)
        window = {"data_interval_start": start.isoformat(), "data_interval_end": (start + timedelta(1)).isoformat()}
        body = {"logical_date": start.isoformat(), **window}
        self.run = self.at.airflow.call("POST", f"/dags/{DAG}/dagRuns", body)["dag_run_id"]

    def tasks(self) -> dict[str, str]:
        return self.at.airflow.task_states(DAG, self.run)

    def state(self) -> str:
        return self.at.airflow.run_state(DAG, self.run)

    def ended(self) -> str:
        """The state in which the run ends."""
        return wait_until(
            lambda: self.state() if self.state() in ("success", "failed") else None, "the run ended", LIMIT
        )

    def finish(self) -> None:
        assert self.ended() == "success", self.tasks()

    def clear(self, *tasks: str) -> None:
        body = {"dry_run": False, "dag_run_id": self.run, "only_failed": False, "include_downstream": True}
        which = {"task_ids": list(tasks)} if tasks else {}
        self.at.airflow.call("POST", f"/dags/{DAG}/clearTaskInstances", {**body, **which, "reset_dag_runs": True})

    def mark(self, task: str, state: str) -> None:
        path = f"/dags/{DAG}/dagRuns/{self.run}/taskInstances/{task}"
        self.at.airflow.call("PATCH", path, {"new_state": state})

    def mark_run(self, state: str) -> None:
        self.at.airflow.call("PATCH", f"/dags/{DAG}/dagRuns/{self.run}", {"state": state})

    def recovered(self) -> None:
        """A run of the recovery DAG."""
        run = self.at.airflow.trigger(RECOVERY)
        done = ("success", "failed")
        state = wait_until(
            lambda: found if (found := self.at.airflow.run_state(RECOVERY, run)) in done else None, "recovery", LIMIT
        )
        assert state == "success"

    def events(self) -> list[str]:
        """What the state table holds of this day, in order."""
        epochs = {cp.epoch for cp in self.at.of_day(self.number)}
        history = StateTable(self.at.settings.state).history(DAG)
        return [row.event.value for row in history if row.epoch in epochs]

    def settled(self) -> str:
        known = self.at.of_day(self.number)
        return known[-1].state.value if known and known[-1].state.is_settled else ""

    def hold(self, event: Event) -> Any:
        return held(self.at.settings.home, event)


def clear_plan(day: Day) -> str:
    return f"a finished run, cleared from plan on: {_cleared_when_finished(day, 'plan')}"


def clear_stage(day: Day) -> str:
    return f"a finished run, cleared from stage on: {_cleared_when_finished(day, 'stage')}"


def clear_commit(day: Day) -> str:
    return f"a finished run, commit cleared: {_cleared_when_finished(day, 'commit')}"


def _cleared_when_finished(day: Day, task: str) -> dict[str, str]:
    """The run's tasks after they were done, cleared, and done again."""
    day.trigger()
    day.finish()
    day.clear(task)
    day.finish()
    return day.tasks()


def clear_amid_stage(day: Day) -> str:
    with day.hold(Event.CLAIMED) as file:
        day.trigger()
        waiting(file)
        day.clear("stage")
        wait_until(lambda: day.tasks()["stage"] != "running", "stage was cleared", LIMIT)
    day.finish()
    return "stage cleared while it was staging"


def mark_stage_failed(day: Day) -> str:
    with day.hold(Event.CLAIMED) as file:
        day.trigger()
        waiting(file)
        day.mark("stage", "failed")
        state = day.ended()
    tasks, events = day.tasks(), day.events()
    day.clear("stage", "commit", "abort")
    day.finish()
    return f"stage marked failed while staging: run {state}, {tasks}, {events}; then cleared"


def mark_stage_success(day: Day) -> str:
    with day.hold(Event.CLAIMED) as file:
        day.trigger()
        waiting(file)
        day.mark("stage", "success")
        wait_until(lambda: day.tasks()["commit"] in ("up_for_retry", "failed"), "commit refused", LIMIT)
    tasks, events = day.tasks(), day.events()
    day.clear("stage")
    day.finish()
    return f"stage marked success while staging: {tasks}, {events}; then stage cleared"


def mark_commit_failed(day: Day) -> str:
    with day.hold(Event.COMMITTING) as file:
        day.trigger()
        waiting(file)
        day.mark("commit", "failed")
        state = day.ended()
    tasks, events = day.tasks(), day.events()
    day.recovered()
    return f"commit marked failed after its decision: run {state}, {tasks}, {events}; then recovery"


def mark_run_failed(day: Day) -> str:
    with day.hold(Event.CLAIMED) as file:
        day.trigger()
        waiting(file)
        day.mark_run("failed")
        wait_until(lambda: day.tasks()["stage"] == "failed", "the stage was failed", LIMIT)
    tasks = day.tasks()
    day.recovered()
    events = day.events()
    day.clear()
    day.finish()
    return f"run marked failed while staging: {tasks}; recovery: {events}; then the run cleared"


def mark_run_success(day: Day) -> str:
    with day.hold(Event.CLAIMED) as file:
        day.trigger()
        waiting(file)
        day.mark_run("success")
        wait_until(lambda: day.tasks()["stage"] != "running", "the stage was ended", LIMIT)
    tasks = day.tasks()
    day.recovered()
    events = day.events()
    day.clear()
    day.finish()
    return f"run marked success while staging: {tasks}; recovery: {events}; then the run cleared"


def delete_run(day: Day) -> str:
    with day.hold(Event.STAGED) as file:
        day.trigger()
        waiting(file)
        day.mark_run("failed")  # a running one is not deleted
        wait_until(lambda: day.tasks()["stage"] != "running", "the stage was ended", LIMIT)
        day.at.airflow.call("DELETE", f"/dags/{DAG}/dagRuns/{day.run}")
        events = day.events()
    day.recovered()
    return f"the run marked failed and deleted when it had staged: {events}; then recovery"


def pause(day: Day) -> str:
    with day.hold(Event.CLAIMED) as file:
        day.trigger()
        waiting(file)
        day.at.airflow.call("PATCH", f"/dags/{DAG}", {"is_paused": True})
    wait_until(lambda: day.tasks()["stage"] == "success", "the stage is done", LIMIT)
    tasks = day.tasks()
    day.at.airflow.unpause(DAG)
    day.finish()
    return f"DAG paused while staging: {tasks}; then unpaused"


def kill_worker(day: Day) -> str:
    """The task's process and the supervisor above it."""
    with day.hold(Event.CLAIMED) as file:
        day.trigger()
        pid = waiting(file)
        import psutil

        supervisor = psutil.Process(pid).ppid()
        os.kill(supervisor, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
    day.finish()
    return "worker and task process killed while staging"


def kill_commit(day: Day) -> str:
    with day.hold(Event.COMMITTING) as file:
        day.trigger()
        os.kill(waiting(file), signal.SIGKILL)
    day.finish()
    return "the commit's process killed after its decision"


def kill(part: str) -> Callable[[Day], str]:
    def killed(day: Day) -> str:
        with day.hold(Event.CLAIMED) as file:
            day.trigger()
            waiting(file)
            day.at.airflow.kill(part)
            day.at.airflow.replace(part)
        if part == "api-server":
            wait_until(day.at.airflow.healthy, "the api-server is back", LIMIT)
        day.finish()
        return f"{part} killed while staging, and another one started"

    killed.__name__ = f"kill_{part.replace('-', '_')}"
    return killed


CLEARING = [clear_plan, clear_stage, clear_commit, clear_amid_stage, pause, delete_run]
MARKING = [mark_stage_failed, mark_stage_success, mark_commit_failed, mark_run_failed, mark_run_success]
KILLING = [kill_worker, kill_commit, *map(kill, ("scheduler", "triggerer", "dag-processor", "api-server"))]
GROUPS: dict[str, list[Callable[[Day], str]]] = {
    "clearing": CLEARING,
    "marking": MARKING,
    "killing": KILLING,
    **{do.__name__: [do] for do in (*CLEARING, *MARKING, *KILLING)},
}


def intervene(dos: Sequence[Callable[[Day], str]], extra: Mapping[str, str] | None = None) -> bool:
    results: list[bool] = []
    with world({"ONCEONLY_NOTIFY": "trials.hold:at_event", **(extra or {})}) as at:
        for number, do in enumerate(dos, 1):
            day = Day(at, number)
            words = do(day)
            wait_until(day.settled, f"day {number} is settled", LIMIT)
            truth, found = counts(at, number)
            results.append(truth == found)
            say(f"{words}\n          state table: {' '.join(day.events())}\n          table: {found} of {truth} rows")
    return all(results)


def counts(at: World, number: int) -> tuple[int, int]:
    start = datetime(2013, 1, number, tzinfo=UTC)
    truth = truth_by_day(Interval(start, start + timedelta(1)))[date(number)]
    assert flights.month_period("2013-01").start <= start
    days = DeltaTable(str(at.table)).to_pyarrow_table(columns=["day"])["day"].to_pylist()
    return truth, Counter(str(day) for day in days)[date(number)]
