"""Onceonly in Airflow: a pipeline becomes a DAG, and one DAG settles what runs left behind.

Importing this starts nothing and imports no Spark: a DAG file stays cheap to parse.
"""

from onceonly.airflow.assets import assets_of, outlets
from onceonly.airflow.dags import checkpoint_dag, recovery_dag
from onceonly.airflow.gate import GateOperator
from onceonly.airflow.operators import (
    AbortOperator,
    AnnounceOperator,
    CommitOperator,
    PlanOperator,
    RecoverOperator,
    StageOperator,
)

__all__ = [
    "AbortOperator",
    "AnnounceOperator",
    "CommitOperator",
    "GateOperator",
    "PlanOperator",
    "RecoverOperator",
    "StageOperator",
    "assets_of",
    "checkpoint_dag",
    "outlets",
    "recovery_dag",
]
