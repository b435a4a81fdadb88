"""Runs DAGs of a test project by `dag.test()` and prints, as JSON, the run's and its tasks' states.

Arguments: FOLDER SPARK DAG [TRANSFORM [DATE]], or [TRANSFORM START END] of an interval.
In the environment: CLEARED=TASK has that task cleared and done again; RUN_AFTER=TIME says what the run is called;
BEFORE_COMMIT names what happens once the rows are staged, and AFTER, separated by commas, what happens after the run
('commit' is cleared, or what `actions.py` has). A process of its own: Airflow reads its configuration at import.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG
from integration.programs.actions import act, shown
from integration.projects.project import START, Project

from onceonly.airflow import CommitOperator, PlanOperator, StageOperator, checkpoint_dag, recovery_dag
from onceonly.pipeline.definition import Pipeline

DAG_FILE = """
from integration.programs.airflow_run import build

dag = build()
"""


def build() -> Any:
    """The DAG that the arguments of this process name."""
    folder, spark, name, *rest = sys.argv[1:]
    if name == "recovery":
        dag = recovery_dag(schedule=None, start_date=START)
    elif name == "own":
        dag = own_dag(Project.found(folder, spark).pipeline())
    else:
        pipeline = Project.found(folder, spark).pipeline(name, transform=rest[0] if rest else "numbers")
        schedule = "@hourly" if name == "interval" else None
        named = {"dag_id": os.environ.get("DAG_ID"), "default_args": {"on_failure_callback": notify}}
        dag = checkpoint_dag(pipeline, schedule=schedule, start_date=START, **named)
        if action := os.environ.get("BEFORE_COMMIT"):
            put_before_commit(dag, action)
    for task in dag.tasks:
        task.retries = 0  # dag.test() does not wait for a retry's time
    return dag


def put_before_commit(dag: DAG, action: str) -> None:
    from airflow.providers.standard.operators.python import PythonOperator

    project = Project.found(*sys.argv[1:3])
    between = PythonOperator(task_id="between", python_callable=act, op_args=[project, action], dag=dag)
    dag.get_task("stage") >> between >> dag.get_task("commit")


def own_dag(pipeline: Pipeline) -> DAG:
    """The steps under names of the user's, in a DAG of the user's."""
    with DAG("own", schedule=None, start_date=START, params={"spark": "spark"}) as dag:
        pin = PlanOperator(task_id="pin", pipeline=pipeline)
        common: dict[str, Any] = {"pipeline": pipeline.name, "epoch": pin.output}
        write = StageOperator(task_id="write", spark_conn_id="{{ params.spark }}", **common)
        pin >> write >> CommitOperator(task_id="publish", **common)
    return dag


def notify(context: Any) -> None:
    print("NOTIFIED of", context["ti"].task_id)


def main() -> None:
    dags = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    dags.mkdir(parents=True, exist_ok=True)
    (dags / "case.py").write_text(DAG_FILE)
    window = sys.argv[5:7]
    measured()
    dag = build()
    times = {"logical_date": window[0] if window else None, "run_after": os.environ.get("RUN_AFTER")}
    options: dict[str, Any] = {name: datetime.fromisoformat(time) for name, time in times.items() if time}
    if len(window) == 2:
        options |= {"logical_date": None, "run_conf": {"interval": window}}
    run = dag.test(**options)
    tasks = run.get_task_instances()
    result = {
        "run": str(run.state),
        "run_id": run.run_id,
        "tasks": {task.task_id: str(task.state) for task in tasks},
        "links": {task.task_id: task.xcom_pull(task.task_id, key="_link_CheckpointLink") for task in tasks},
        "docs": [link for task in tasks if (link := task.xcom_pull(task.task_id, key="_link_DocsLink"))],
        "events": events(run.run_id),
        "cleared": cleared(dag, run, task_id) if (task_id := os.environ.get("CLEARED")) else None,
        "after": [after(dag, run, action) for action in os.environ.get("AFTER", "").split(",") if action],
    }
    print("RESULT " + json.dumps(result))


def after(dag: Any, run: Any, action: str) -> list[Any]:
    """Do one action; how its task ended, and what is shown of the checkpoint then."""
    project = Project.found(*sys.argv[1:3])
    ended = cleared(dag, run, "commit") if action == "commit" else act(project, action)
    return [ended, *shown(project)]


def measured() -> None:
    """Metrics as the process of a task has them, which `dag.test()` does not set up."""
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    stats.initialize(factory=get_stats_factory(), export_legacy_names=False)


def cleared(dag: Any, run: Any, task_id: str) -> str:
    """The state of the task after it was cleared, and done once more."""
    from airflow.models.taskinstance import clear_task_instances
    from airflow.sdk.definitions.dag import _run_task
    from airflow.utils.session import create_session

    with create_session() as session:
        clear_task_instances([run.get_task_instance(task_id, session=session)], session)
    with create_session() as session:
        again = run.get_task_instance(task_id, session=session)
        again.try_number += 1  # as a scheduler does
    _run_task(ti=again, task=dag.get_task(task_id))
    return str(run.get_task_instance(task_id).state)


def events(run_id: str) -> dict[str, Any]:
    """What the run announced: the extra of the last asset event, by the asset's URI."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(select(AssetEvent).where(AssetEvent.source_run_id == run_id).order_by(AssetEvent.id))
        return {event.asset.uri: event.extra for event in found}


if __name__ == "__main__":
    main()
