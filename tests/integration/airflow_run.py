"""Runs DAGs of a test project by `dag.test()` and prints, as JSON, the run's and its tasks' states.

Arguments: FOLDER SPARK DAG [TRANSFORM [START END]]. A process of its own: Airflow reads its configuration at import.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from integration.project import START, Project

from onceonly.airflow import checkpoint_dag, recovery_dag

DAG_FILE = """
from integration.airflow_run import build

dag = build()
"""


def build() -> Any:
    """The DAG that the arguments of this process name."""
    folder, spark, name, *rest = sys.argv[1:]
    if name == "recovery":
        dag = recovery_dag(schedule=None, start_date=START)
    else:
        pipeline = Project.found(folder, spark).pipeline(name, transform=rest[0] if rest else "numbers")
        dag = checkpoint_dag(pipeline, schedule="@hourly" if name == "interval" else None, start_date=START)
    for task in dag.tasks:
        task.retries = 0  # dag.test() does not wait for a retry's time
    return dag


def main() -> None:
    dags = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    dags.mkdir(exist_ok=True)
    (dags / "case.py").write_text(DAG_FILE)
    window = sys.argv[5:6]
    run = build().test(**({"logical_date": datetime.fromisoformat(window[0])} if window else {}))
    states = {task.task_id: str(task.state) for task in run.get_task_instances()}
    print("RESULT " + json.dumps({"run": str(run.state), "run_id": run.run_id, "tasks": states}))


if __name__ == "__main__":
    main()
