"""Runs DAGs of a test project by `dag.test()` and prints, as JSON, the run's and its tasks' states.

Arguments: FOLDER SPARK DAG [TRANSFORM [START END]]. A process of its own: Airflow reads its configuration at import.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

from integration.project import START, Project

from onceonly.airflow import checkpoint_dag, recovery_dag


def main() -> None:
    folder, spark, name, *rest = sys.argv[1:]
    project = Project.found(folder, spark)
    transform = rest[0] if rest else "numbers"
    if name == "recovery":
        dag = recovery_dag(schedule=None, start_date=START)
    else:
        pipeline = project.pipeline(name, transform=transform)
        schedule = "@hourly" if name == "interval" else None
        dag = checkpoint_dag(pipeline, schedule=schedule, start_date=START, default_args={"retries": 0})
    for task in dag.tasks:
        task.retries = 0  # dag.test() does not wait for a retry's time
    run = dag.test(**({"logical_date": datetime.fromisoformat(rest[1])} if len(rest) > 1 else {}))
    states: dict[str, Any] = {task.task_id: str(task.state) for task in run.get_task_instances()}
    print("RESULT " + json.dumps({"run": str(run.state), "run_id": run.run_id, "tasks": states}))


if __name__ == "__main__":
    main()
