"""Onceonly in Airflow: a pipeline becomes a DAG, and one DAG settles what runs left behind.

Importing this starts nothing and imports no Spark: a DAG file stays cheap to parse. Each name is imported when it is
first asked for, because every process of Airflow loads the plugin and the provider's description beside them.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceonly.airflow.assets import assets_of, inlets, outlets
    from onceonly.airflow.commit import CommitOperator, GateOperator
    from onceonly.airflow.dags import checkpoint_dag, recovery_dag, verify_dag
    from onceonly.airflow.notices import WebhookNotifier
    from onceonly.airflow.operators import (
        AbortOperator,
        PlanOperator,
        StageOperator,
    )
    from onceonly.airflow.recovery import AnnounceOperator, RecoverOperator
    from onceonly.airflow.verification import VerifyOperator

_MODULES = {
    "AbortOperator": "operators",
    "AnnounceOperator": "recovery",
    "CommitOperator": "commit",
    "GateOperator": "commit",
    "PlanOperator": "operators",
    "RecoverOperator": "recovery",
    "StageOperator": "operators",
    "VerifyOperator": "verification",
    "WebhookNotifier": "notices",
    "assets_of": "assets",
    "checkpoint_dag": "dags",
    "inlets": "assets",
    "outlets": "assets",
    "recovery_dag": "dags",
    "verify_dag": "dags",
}

__all__ = [
    "AbortOperator",
    "AnnounceOperator",
    "CommitOperator",
    "GateOperator",
    "PlanOperator",
    "RecoverOperator",
    "StageOperator",
    "VerifyOperator",
    "WebhookNotifier",
    "assets_of",
    "checkpoint_dag",
    "inlets",
    "outlets",
    "recovery_dag",
    "verify_dag",
]


_FACTORIES = {"checkpoint_dag", "recovery_dag", "verify_dag"}


class UnbuiltDag:
    """Stands for a DAG in a file that a command loads for its pipeline, without Airflow.

    Most files only make their DAG. A file that asks something of it, as `with checkpoint_dag(…)` does, is executed as
    in Airflow: then the DAG is built.
    """

    def __init__(self, factory: str, *args: Any, **arguments: Any) -> None:
        self._factory, self._args, self._arguments = factory, args, arguments
        self._dag: Any = None

    def build(self) -> Any:
        """Return the DAG; the first time, import Airflow and build it."""
        if self._dag is None:
            self._dag = _import_name(self._factory)(*self._args, **self._arguments)
        return self._dag

    def __getattr__(self, name: str) -> Any:
        return getattr(self.build(), name)

    def __enter__(self) -> Any:
        return self.build().__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self.build().__exit__(*error)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _FACTORIES and "airflow" not in sys.modules:
        from onceonly.runtime import pipeline_file

        if not pipeline_file.is_building_dags():
            return partial(UnbuiltDag, name)
    return _import_name(name)


def _import_name(name: str) -> Any:
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
