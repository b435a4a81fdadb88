"""What Airflow adds to the Spark job: whole DAG runs on standalone, as its own API reports them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.results import Result, Row
from onceonly.dev.demo import flights
from onceonly.dev.demo.load import load
from onceonly.dev.demo.standalone import Standalone, wait_until
from onceonly.dev.services import Services, machine
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

DAG = "flights"
RUNS = 4  # of 6,000 flights each: January has no more


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
    """Runs by spark-submit on this machine, after one that nobody counts."""
    with _standalone(folder) as airflow:
        _run(airflow)
        runs = [_run(airflow) for _ in range(RUNS - 1)]
    return Result(
        "What Airflow adds",
        "Whole DAG runs of 6,000 flights on a standalone Airflow with spark-submit, as Airflow's own API reports them.",
        [
            Row("DAG run", "s", [run.wall for run in runs]),
            Row("its Spark job", "s", [run.spark for run in runs]),
            Row("DAG run less Spark", "s", [run.overhead for run in runs]),
            Row("commit task", "s", [run.commit for run in runs]),
        ],
    )


@contextmanager
def _standalone(folder: Path) -> Iterator[Standalone]:
    settings = replace(Settings.from_env(), home=folder, state=str(folder / "state"), bootstrap=None)
    services, airflow = Services(folder, port=0), Standalone(settings, machine.free_port())
    services.up()
    StateTable.make(settings.state)
    try:
        load(settings, "flights", flights.month_period("2013-01"))
        airflow.start({})
        wait_until(lambda: airflow.unpause(DAG), "Airflow has parsed the DAG", 120)
        yield airflow
    finally:
        airflow.stop()
        services.down()


def _run(airflow: Standalone) -> Run:
    path = f"/dags/{DAG}/dagRuns/{airflow.trigger(DAG)}"
    state = wait_until(
        lambda: s if (s := airflow.call("GET", path)["state"]) in ("success", "failed") else None, "end", 300
    )
    if state != "success":
        raise RuntimeError(f"{path} ended as {state}; logs: {airflow.folder / 'logs'}")
    run = airflow.call("GET", path)
    tasks = {t["task_id"]: t for t in airflow.call("GET", f"{path}/taskInstances")["task_instances"]}
    staged: Any = airflow.call("GET", f"{path}/taskInstances/stage/xcomEntries/return_value?deserialize=true")["value"]
    return Run(_seconds(run["queued_at"], run["end_date"]), staged["spark_seconds"], tasks["commit"]["duration"])


def _seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
