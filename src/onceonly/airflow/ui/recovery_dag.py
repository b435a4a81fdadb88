"""The DAG of this Airflow that settles what ended runs left behind."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

from airflow.models import DagModel
from airflow.models.dag import DagTag
from airflow.utils.session import create_session
from sqlalchemy import or_, select

from onceonly.airflow.names import RECOVERY_DAG, RECOVERY_TAG

NEW_RECOVERY_DAG = "'from onceonly.airflow import recovery_dag; dag = recovery_dag()' in dags/recovery.py makes it"


@dataclass(frozen=True)
class RecoveryDag:
    """The DAG of this Airflow that settles checkpoints."""

    dag_id: str
    is_paused: bool


def find_recovery_dag() -> RecoveryDag | None:
    """Return the recovery DAG, one that is not paused if there are several; None: this Airflow has none."""
    tagged = select(DagTag.dag_id).where(DagTag.name == RECOVERY_TAG)
    query = (
        select(DagModel.dag_id, DagModel.is_paused)
        .where(~DagModel.is_stale, or_(DagModel.dag_id.in_(tagged), DagModel.dag_id == RECOVERY_DAG))
        .order_by(DagModel.is_paused, DagModel.dag_id)
    )
    with create_session() as session:
        row = session.execute(query).first()
    if row is None:
        return None
    return RecoveryDag(row.dag_id, bool(row.is_paused))


def describe_recovery(recovery: RecoveryDag | None, pipeline: str) -> str:
    """Say when recovery comes to a pipeline, and how it is settled at once."""
    by_hand = f"onceonly recover {pipeline}"
    if recovery is None:
        return f"This Airflow has no recovery DAG ({NEW_RECOVERY_DAG}). Press Recover, or: {by_hand}"
    if recovery.is_paused:
        unpause = f"airflow dags unpause {quote(recovery.dag_id)}"
        return f"The recovery DAG '{recovery.dag_id}' is paused: {unpause}. Or press Recover, or: {by_hand}"
    return f"The next run of the recovery DAG '{recovery.dag_id}' does it. At once: press Recover, or: {by_hand}"
