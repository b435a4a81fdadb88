"""Pipelines that have no checkpoint because the plan task of their DAG has never succeeded."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from airflow.models import DagModel
from airflow.models.dagbag import DBDagBag
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.orm import Session

PLAN_OPERATOR = "PlanOperator"
FAILED_STATES = ("failed", "up_for_retry")
DONE_STATES = ("success", "skipped")  # skipped: there was nothing to do


@dataclass(frozen=True)
class FailedPlan:
    """The last try of a plan task that has never succeeded. `since` is None where it was ended before it began."""

    pipeline: str
    dag_id: str
    run_id: str
    task_id: str
    since: datetime | None

    @property
    def path(self) -> str:
        """Return where Airflow shows the task."""
        names = (self.dag_id, self.run_id, self.task_id)
        dag_id, run_id, task_id = (quote(name, safe="") for name in names)
        return f"/dags/{dag_id}/runs/{run_id}/tasks/{task_id}"


def list_failed_plans(planned: Collection[str]) -> Iterator[FailedPlan]:
    """Yield a failed plan of each DAG whose plan has never succeeded, by the name of the pipeline.

    Args:
        planned: ids of DAGs that have planned something, and are left out.
    """
    with create_session() as session:
        last_tries: dict[tuple[str, str], Any] = {}
        for row in session.execute(_select_plans(FAILED_STATES, planned)):
            last_tries.setdefault((row.dag_id, row.task_id), row)
        if not last_tries:
            return
        done = {(row.dag_id, row.task_id) for row in session.execute(_select_plans(DONE_STATES, planned))}
        for name in sorted(last_tries.keys() - done):
            row = last_tries[name]
            pipeline = _find_pipeline(session, row.dag_id, row.task_id)
            yield FailedPlan(pipeline, row.dag_id, row.run_id, row.task_id, row.start_date)


def _select_plans(states: Collection[str], planned: Collection[str]) -> Any:
    """Return the query of plan tasks in these states, the last run first."""
    return (
        select(TaskInstance.dag_id, TaskInstance.task_id, TaskInstance.run_id, TaskInstance.start_date)
        .join(DagModel, DagModel.dag_id == TaskInstance.dag_id)
        .where(
            ~DagModel.is_stale,
            TaskInstance.operator == PLAN_OPERATOR,
            TaskInstance.state.in_(states),
            TaskInstance.dag_id.not_in(planned),
        )
        .order_by(TaskInstance.start_date.desc())
    )


def _find_pipeline(session: Session, dag_id: str, task_id: str) -> str:
    """Return the pipeline of a plan task, which the steps after it name; the DAG's name where none does."""
    dag = DBDagBag().get_latest_version_of_dag(dag_id, session=session)
    if dag is None or not dag.has_task(task_id):
        return dag_id
    for task in dag.get_task(task_id).get_direct_relatives(upstream=False):
        pipeline = getattr(task, "pipeline", None)
        if isinstance(pipeline, str):
            return pipeline
    return dag_id
