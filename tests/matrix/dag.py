"""The same pipeline as tasks of Airflow, by `dag.test()`, until there is nothing left to do. Arguments: TOPIC OUT.

A process of its own: Airflow reads its configuration at import.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from matrix import smoke
from onceonly.airflow import checkpoint_dag

# Airflow reads only files that hold these words, dag and airflow.
DAG_FILE = """
from matrix.dag import build  # for airflow

dag = build()
"""


def build() -> Any:
    """The DAG that the arguments of this process describe."""
    dag = checkpoint_dag(smoke.pipeline(*sys.argv[1:3]), schedule=None)
    for task in dag.tasks:
        task.retries = 0  # dag.test() does not wait for a retry's time
    return dag


def fail_what_was_killed() -> None:
    """As the scheduler does for a run whose tasks have died."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        for kind in (DagRun, TaskInstance):
            session.query(kind).filter(kind.state.in_(["running", "queued", "scheduled"])).update(
                {"state": "failed"}, synchronize_session=False
            )


def main() -> None:
    folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "case.py").write_text(DAG_FILE)
    fail_what_was_killed()
    smoke.mortal()
    while True:
        run = build().test()
        states = {task.task_id: str(task.state) for task in run.get_task_instances()}
        print(f"run {run.state} {states}", flush=True)
        if set(states.values()) == {"skipped"}:
            return
        if run.state != "success":
            sys.exit(1)


if __name__ == "__main__":
    main()
