"""What Airflow adds to the Spark job: whole DAG runs on standalone, as its own API reports them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from onceonly.dev.demo import flights
from onceonly.dev.demo.load import load
from onceonly.dev.demo.standalone import Standalone, free_port
from onceonly.dev.demo.wait import until
from onceonly.dev.services import Services
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

DAG = "flights"
RUNS = 4  # of 6,000 flights each: January has no more
OVERHEAD, COMMIT = 10.0, 2.5  # seconds, the targets


@dataclass(frozen=True)
class Run:
    """Seconds."""

    wall: float  # from queued to ended
    spark: float  # spark-submit, from start to end
    commit: float  # the task, as Airflow shows it

    @property
    def overhead(self) -> float:
        return self.wall - self.spark


def airflow_overhead(folder: Path) -> str:
    """Medians of runs by spark-submit on this machine, after one that nobody counts."""
    with _standalone(folder) as airflow:
        _run(airflow)
        runs = [_run(airflow) for _ in range(RUNS - 1)]
    overhead, commit = median(run.overhead for run in runs), median(run.commit for run in runs)
    each = "\n".join(f"  wall {r.wall:5.1f} s, Spark {r.spark:5.1f} s, commit task {r.commit:4.2f} s" for r in runs)
    return (
        f"DAG runs of 6,000 flights on standalone Airflow, spark-submit\n{each}\n"
        f"  wall less Spark {overhead:.1f} s, target ≤ {OVERHEAD:.0f} s: {_verdict(overhead, OVERHEAD)}\n"
        f"  commit task {commit:.2f} s, target ≤ {COMMIT} s: {_verdict(commit, COMMIT)}"
    )


@contextmanager
def _standalone(folder: Path) -> Iterator[Standalone]:
    settings = replace(Settings.from_env(), home=folder, state=str(folder / "state"), bootstrap=None)
    services, airflow = Services(folder, port=0), Standalone(settings, free_port(0))
    services.up()
    StateTable.make(settings.state)
    try:
        load(settings, "flights", flights.month("2013-01"))
        airflow.start({})
        until(lambda: airflow.unpause(DAG), "Airflow has parsed the DAG", 120)
        yield airflow
    finally:
        airflow.stop()
        services.down()


def _run(airflow: Standalone) -> Run:
    path = f"/dags/{DAG}/dagRuns/{airflow.trigger(DAG)}"
    state = until(lambda: s if (s := airflow.call("GET", path)["state"]) in ("success", "failed") else None, "end", 300)
    if state != "success":
        raise RuntimeError(f"{path} ended as {state}; logs: {airflow.folder / 'logs'}")
    run = airflow.call("GET", path)
    tasks = {t["task_id"]: t for t in airflow.call("GET", f"{path}/taskInstances")["task_instances"]}
    staged: Any = airflow.call("GET", f"{path}/taskInstances/stage/xcomEntries/return_value?deserialize=true")["value"]
    return Run(_seconds(run["queued_at"], run["end_date"]), staged["spark_seconds"], tasks["commit"]["duration"])


def _seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def _verdict(found: float, limit: float) -> str:
    return "met" if found <= limit else "NOT met"
