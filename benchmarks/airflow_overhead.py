"""What Airflow adds to the Spark job: whole DAG runs on standalone, as its own API reports them, beside an idle DAG."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.goals import WARM_RUN
from benchmarks.results import Result, Row
from onceonly.dev.demo import flights
from onceonly.dev.demo.load import load
from onceonly.dev.demo.standalone import Standalone, wait_until
from onceonly.dev.services import Services, machine
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

DAG, IDLE = "flights", "idle"
RUNS = 4  # of 6,000 flights each: January has no more
IDLE_DAG = """
from datetime import datetime

from airflow.sdk import dag, task


@dag(schedule=None, start_date=datetime(2013, 1, 1))
def idle():
    @task
    def nothing(before=None):
        return None

    nothing(nothing(nothing()))


idle()
"""


@dataclass(frozen=True)
class Run:
    """Seconds."""

    wall: float  # from queued to ended
    spark: float  # spark-submit, from start to end
    commit: float  # the task, as Airflow shows it

    @property
    def overhead(self) -> float:
        return self.wall - self.spark


def airflow_overhead(folder: Path) -> Result:
    """Runs by spark-submit on this machine, and by a Spark Connect server; of each, the first is not counted."""
    with _standalone(folder / "submit", connect=False) as airflow:
        runs, idle = _turns(airflow)
    with _standalone(folder / "connect", connect=True) as airflow:
        warm, _ = _turns(airflow)
    return Result(
        "What Airflow adds",
        "Whole DAG runs of 6,000 flights on a standalone Airflow with spark-submit, as Airflow's own API reports them.",
        [
            Row("DAG run", "s", [run.wall for run in runs]),
            Row("its Spark job", "s", [run.spark for run in runs]),
            Row("DAG run less Spark", "s", [run.overhead for run in runs]),
            Row("commit task", "s", [run.commit for run in runs]),
            Row(WARM_RUN, "s", [run.wall for run in warm]),
            Row("its commit task, by a warm server", "s", [run.commit for run in warm]),
            Row("a DAG of three tasks that do nothing", "s", idle),
        ],
    )


@contextmanager
def _standalone(folder: Path, connect: bool) -> Iterator[Standalone]:
    settings = replace(Settings.from_env(), home=folder, state=str(folder / "state"), bootstrap=None)
    dags = folder / "dags"
    dags.mkdir(parents=True)
    shutil.copy(settings.project / "dags" / f"{DAG}.py", dags)
    (dags / f"{IDLE}.py").write_text(IDLE_DAG)
    services = Services(folder, port=0, spark_port=0)
    services.up(spark=connect)
    airflow = Standalone(settings, machine.free_port(), settings.embedded_at("spark") if connect else None)
    StateTable.make(settings.state)
    try:
        load(settings, "flights", flights.month_period("2013-01"))
        airflow.start({"AIRFLOW__CORE__DAGS_FOLDER": str(dags)})
        for dag in (DAG, IDLE):
            wait_until(lambda: airflow.unpause(dag), "Airflow has parsed the DAG", 120)  # noqa: B023
        yield airflow
    finally:
        airflow.stop()
        services.down()


def _turns(airflow: Standalone) -> tuple[list[Run], list[float]]:
    """Return the runs, and the seconds of an idle DAG after each; the first ones warm up."""
    runs, idle = [], []
    for _ in range(RUNS):
        runs.append(_run(airflow))
        ended = _end(airflow, IDLE)
        idle.append(_seconds(ended["queued_at"], ended["end_date"]))
    return runs[1:], idle[1:]


def _end(airflow: Standalone, dag: str) -> dict[str, Any]:
    """Trigger a run, and return it when it has succeeded."""
    path = f"/dags/{dag}/dagRuns/{airflow.trigger(dag)}"
    state = wait_until(
        lambda: s if (s := airflow.call("GET", path)["state"]) in ("success", "failed") else None, "end", 300
    )
    if state != "success":
        raise RuntimeError(f"{path} ended as {state}; logs: {airflow.folder / 'logs'}")
    run: dict[str, Any] = airflow.call("GET", path)
    return run


def _run(airflow: Standalone) -> Run:
    run = _end(airflow, DAG)
    path = f"/dags/{DAG}/dagRuns/{run['dag_run_id']}"
    tasks = {t["task_id"]: t for t in airflow.call("GET", f"{path}/taskInstances")["task_instances"]}
    staged: Any = airflow.call("GET", f"{path}/taskInstances/stage/xcomEntries/return_value?deserialize=true")["value"]
    return Run(
        _seconds(run["queued_at"], run["end_date"]), staged.get("spark_seconds", 0.0), tasks["commit"]["duration"]
    )


def _seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
