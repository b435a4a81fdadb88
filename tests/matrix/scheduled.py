"""The same pipeline under a whole Airflow (scheduler, triggerer, dag-processor, api-server). Arguments: TOPIC OUT.

Its stages are drivers on a standalone cluster of Spark, for which the triggerer waits. In the first run the driver dies
with open transactions, and then the process of the commit between two sinks; Airflow retries both.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests
from integration.services import standalone

from matrix import smoke
from onceonly.checkpoint.model import State
from onceonly.dev.demo.standalone import USER, Standalone, wait_until
from onceonly.dev.services import machine
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

if TYPE_CHECKING:
    from airflow.sdk import DAG

RECOVERY = "onceonly_recovery"
TOPICS = "MATRIX_TOPICS"
LIMIT = 400.0  # seconds for one run
# Airflow reads only files that hold these words, dag and airflow.
DAG_FILE = """
from matrix.scheduled import build  # for airflow

dag, recovery = build()
"""


def build() -> tuple[DAG, DAG]:
    """For every process of Airflow."""
    from onceonly.airflow import checkpoint_dag, recovery_dag

    pipeline = smoke.pipeline(*os.environ[TOPICS].split())
    return checkpoint_dag(pipeline, schedule=None), recovery_dag(RECOVERY, schedule=None)


def main() -> None:
    settings = Settings.from_env()
    with airflow(settings) as running:
        states, tries = finish(running, smoke.NAME)
        require(not (left := list(deaths(settings).iterdir())), f"not reached: {left}")
        require(min(tries["stage"], tries["commit"]) > 1, f"not both were retried: {tries}")
        require("deferred" in states["stage"], f"the stage was never deferred: {states}")
        while states["plan"] != {"skipped"}:
            states, _ = finish(running, smoke.NAME)
        finish(running, RECOVERY)
        read_page(running, settings)


@contextmanager
def airflow(settings: Settings) -> Iterator[Standalone]:
    """All of it ends with the block."""
    deaths(settings).mkdir()
    for point in smoke.POINTS:
        (deaths(settings) / point).touch()
    os.environ.update({smoke.ONCE: str(deaths(settings)), TOPICS: " ".join(sys.argv[1:3])})
    dags = settings.home / "dags"
    dags.mkdir()
    (dags / "case.py").write_text(DAG_FILE)
    names = ("PYTHONPATH", smoke.ONCE)
    with standalone.cluster(settings.home, {name: os.environ[name] for name in names}).running() as cluster:
        running = Standalone(settings, machine.free_port())
        try:
            connection = {"AIRFLOW_CONN_SPARK": cluster.connection(), "AIRFLOW__CORE__DAGS_FOLDER": str(dags)}
            running.start({**connection, "ONCEONLY_NOTIFY": "matrix.smoke:at_event"})
            for dag in (smoke.NAME, RECOVERY):
                wait_until(lambda dag=dag: running.unpause(dag), f"Airflow has parsed DAG {dag}", LIMIT)  # type: ignore[misc]
            yield running
        finally:
            running.stop()


def deaths(settings: Settings) -> Path:
    """A file for each point at which a process has still to die."""
    return settings.home / "deaths"


def finish(running: Standalone, dag: str) -> tuple[dict[str, set[str]], dict[str, int]]:
    """A whole run: the states in which each task was seen (in the end only, if it ended undisturbed), and its tries."""
    run = running.trigger(dag)
    seen: dict[str, set[str]] = {}

    def ended() -> bool:
        for task, state in running.task_states(dag, run).items():
            seen.setdefault(task, set()).add(state)
        return running.run_state(dag, run) in ("success", "failed")

    wait_until(ended, f"a run of {dag} has ended", LIMIT, every=1)
    tasks: list[dict[str, Any]] = running.call("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
    tries = {task["task_id"]: task["try_number"] for task in tasks}
    last = {task["task_id"]: task["state"] for task in tasks}
    print(f"run of {dag}: {last}, tries {tries}", flush=True)
    require(running.run_state(dag, run) == "success", f"run {run} failed: {last}")
    return {task: {state} if state == "skipped" else seen[task] for task, state in last.items()}, tries


def read_page(running: Standalone, settings: Settings) -> None:
    """The page of each checkpoint is there, and says that it is committed."""
    login = {"username": USER, "password": running.password}
    token = requests.post(f"{running.url}/auth/token", json=login, timeout=60).json()["access_token"]
    view = StateTable(settings.state).view(smoke.NAME)
    for epoch in range(1, view.head.epoch + 1):
        checkpoint = view.checkpoint(epoch)
        require(checkpoint is not None and checkpoint.state is State.COMMITTED, f"epoch {epoch}: {checkpoint}")
        url = f"{running.url}/onceonly/pipelines/{smoke.NAME}/{epoch}"
        answer = requests.get(url, cookies={"_token": token}, timeout=60)
        require(answer.status_code == 200, f"{url}: {answer.status_code}\n{answer.text[-1000:]}")
        require(State.COMMITTED.value in answer.text, f"{url} does not say that it is committed")
        print(f"the page of epoch {epoch}: {answer.status_code}", flush=True)


def require(held: bool, otherwise: str) -> None:
    if not held:
        raise SystemExit(otherwise)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
