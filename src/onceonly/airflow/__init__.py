"""Onceonly in Airflow: a pipeline becomes a DAG, and one DAG settles what runs left behind.

Importing this starts nothing and imports no Spark: a DAG file stays cheap to parse. Each name is imported when it is
first asked for, because every process of Airflow loads the plugin and the provider's description beside them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_MODULES = {
    "AbortOperator": "operators",
    "AnnounceOperator": "operators",
    "CommitOperator": "operators",
    "GateOperator": "gate",
    "PlanOperator": "operators",
    "RecoverOperator": "operators",
    "StageOperator": "operators",
    "assets_of": "assets",
    "checkpoint_dag": "dags",
    "outlets": "assets",
    "recovery_dag": "dags",
}

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


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
