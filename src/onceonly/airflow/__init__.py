"""Onceonly in Airflow: a pipeline becomes a DAG, and one DAG settles what runs left behind.

Importing this starts nothing and imports no Spark: a DAG file stays cheap to parse. Each name is imported when it is
first asked for, because every process of Airflow loads the plugin and the provider's description beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceonly.airflow.assets import assets_of, inlets, outlets
    from onceonly.airflow.commit import CommitOperator
    from onceonly.airflow.dags import checkpoint_dag, recovery_dag
    from onceonly.airflow.gate import GateOperator
    from onceonly.airflow.notifier import WebhookNotifier
    from onceonly.airflow.operators import (
        AbortOperator,
        AnnounceOperator,
        PlanOperator,
        RecoverOperator,
        StageOperator,
    )

_MODULES = {
    "AbortOperator": "operators",
    "AnnounceOperator": "operators",
    "CommitOperator": "commit",
    "GateOperator": "gate",
    "PlanOperator": "operators",
    "RecoverOperator": "operators",
    "StageOperator": "operators",
    "WebhookNotifier": "notifier",
    "assets_of": "assets",
    "checkpoint_dag": "dags",
    "inlets": "assets",
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
    "WebhookNotifier",
    "assets_of",
    "checkpoint_dag",
    "inlets",
    "outlets",
    "recovery_dag",
]


_FACTORIES = {"checkpoint_dag", "recovery_dag"}
_postpones_dags = False


@contextmanager
def dags_later() -> Iterator[None]:
    """Put off the DAG of a file that does not import Airflow itself until something is asked of it.

    A command wants the pipeline in the file, and to import Airflow for the DAG takes seconds.
    """
    global _postpones_dags
    _postpones_dags = True
    try:
        yield
    finally:
        _postpones_dags = False


class _PostponedDag:
    """A DAG that is made, by its factory, as soon as something is asked of it."""

    def __init__(self, name: str, *args: Any, **arguments: Any) -> None:
        self._make: Callable[[], Any] = lambda: _import_name(name)(*args, **arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dag, name)

    def __enter__(self) -> Any:
        return self._dag.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._dag.__exit__(*error)

    @cached_property
    def _dag(self) -> Any:
        return self._make()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _postpones_dags and name in _FACTORIES and "airflow" not in sys.modules:
        return partial(_PostponedDag, name)
    return _import_name(name)


def _import_name(name: str) -> Any:
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
