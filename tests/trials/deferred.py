"""The same where the driver runs on a standalone cluster: the stage task is deferred to the triggerer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from integration.services import standalone
from integration.services.standalone import Cluster

from onceonly.checkpoint.model import Event
from onceonly.dev.demo.standalone import wait_until
from trials.airflow import DAG
from trials.hold import waiting
from trials.interventions import LIMIT, Day, intervene


def deferred() -> bool:
    path = {"PYTHONPATH": str(Path(__file__).parents[1])}
    with (
        TemporaryDirectory(prefix="onceonly-trial-cluster-") as folder,
        standalone.cluster(Path(folder), path).running() as cluster,
    ):
        dos = [kill_triggerer, take_over, mark_failed, clear, mark_run_failed, kill_driver, replace_master(cluster)]
        return intervene(dos, {"AIRFLOW_CONN_SPARK": cluster.connection()})


def kill_triggerer(day: Day) -> str:
    with day.hold(Event.CLAIMED) as file:
        _trigger(day, file)
        day.at.airflow.kill("triggerer")
        day.at.airflow.replace("triggerer")
    day.finish()
    return "triggerer killed while the stage was deferred, and another one started"


def take_over(day: Day) -> str:
    """The first one's heartbeats are late; when it goes on, another has its trigger, and Airflow has it cancel that."""
    with day.hold(Event.CLAIMED) as file:
        driver = _trigger(day, file)
        first, held_by = day.at.airflow.part("triggerer"), _triggerer(day)
        first.suspend()
        try:
            day.at.airflow.replace("triggerer")
            wait_until(lambda: _triggerer(day) not in (held_by, None), "another has taken over", LIMIT)
        finally:
            first.resume()
        wait_until(lambda: "through another triggerer" in _logs(day), "the first one has let go", LIMIT)
        assert psutil.pid_exists(driver), "the driver was ended, and its task still waits"
    day.finish()
    return "another triggerer took over from one whose heartbeats were late: the driver goes on"


def mark_failed(day: Day) -> str:
    with day.hold(Event.CLAIMED) as file:
        driver = _trigger(day, file)
        day.mark("stage", "failed")
        _gone(driver)
        state = day.ended()
    tasks, events = day.tasks(), day.events()
    day.clear("stage", "commit", "abort")
    day.finish()
    return f"deferred stage marked failed: its driver is gone, run {state}, {tasks}, {events}; then cleared"


def clear(day: Day) -> str:
    with day.hold(Event.CLAIMED) as file:
        driver = _trigger(day, file)
        day.clear("stage")
        _gone(driver)
    day.finish()
    return "deferred stage cleared: its driver is gone, the next try stages"


def mark_run_failed(day: Day) -> str:
    with day.hold(Event.CLAIMED) as file:
        driver = _trigger(day, file)
        day.mark_run("failed")
        wait_until(lambda: day.tasks()["stage"] == "failed", "the stage was failed", LIMIT)
        _gone(driver)
    tasks = day.tasks()
    day.recovered()
    events = day.events()
    day.clear()
    day.finish()
    return f"run marked failed while its stage was deferred: {tasks}; recovery: {events}; then the run cleared"


def kill_driver(day: Day) -> str:
    with day.hold(Event.CLAIMED) as file:
        os.kill(_trigger(day, file), signal.SIGKILL)
    day.finish()
    return "the driver's process killed: the task's next try stages"


def replace_master(cluster: Cluster) -> Callable[[Day], str]:
    def killed(day: Day) -> str:
        with day.hold(Event.CLAIMED) as file:
            _trigger(day, file)
            cluster.replace_master()
        day.finish()
        return "Spark's master killed while the driver was at work, and another one started, which does not know it"

    return killed


def _trigger(day: Day, file: Path) -> int:
    """A run whose stage is deferred and claimed; returns the pid of its driver."""
    day.trigger()
    driver = waiting(file)
    wait_until(lambda: day.tasks()["stage"] == "deferred", "the stage is deferred", LIMIT)
    return driver


def _triggerer(day: Day) -> int | None:
    """The one that holds the trigger of the stage."""
    task = day.at.airflow.call("GET", f"/dags/{DAG}/dagRuns/{day.run}/taskInstances/stage")
    found: int | None = (task.get("trigger") or {}).get("triggerer_id")
    return found


def _logs(day: Day) -> str:
    """Of all tasks and triggers so far."""
    return "".join(log.read_text(errors="replace") for log in (day.at.airflow.folder / "logs").rglob("*.log"))


def _gone(driver: int) -> None:
    wait_until(lambda: not psutil.pid_exists(driver), "the driver is gone", LIMIT)
