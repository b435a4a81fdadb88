"""Onceonly in Airflow: a pipeline becomes a DAG, and one DAG settles what runs left behind.

Importing this starts nothing and imports no Spark: a DAG file stays cheap to parse.
"""

from onceonly.airflow.dags import checkpoint_dag, recovery_dag
from onceonly.airflow.operators import AbortOperator, CommitOperator, PlanOperator, RecoverOperator, StageOperator

__all__ = [
    "AbortOperator",
    "CommitOperator",
    "PlanOperator",
    "RecoverOperator",
    "StageOperator",
    "checkpoint_dag",
    "recovery_dag",
]
