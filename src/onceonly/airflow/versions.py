"""Differences between the versions of Airflow: what 3.1 and 3.2 have in other places than 3.3, or not at all.

No other module of this package knows of them (`cli.check` says what users lose by them). Each name is
looked for when it is first asked for, as every process of Airflow loads the plugin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any

_EXCEPTIONS = ("airflow.sdk.exceptions", "airflow.exceptions")
_INTERVALS = ("airflow.sdk", "airflow.timetables.interval")
_TRIGGERS = ("airflow.sdk", "airflow.timetables.trigger")
_PLACES = {  # the newest first
    "AirflowFailException": _EXCEPTIONS,
    "AirflowNotFoundException": _EXCEPTIONS,
    "AirflowSkipException": _EXCEPTIONS,
    "CronDataIntervalTimetable": _INTERVALS,
    "CronPartitionTimetable": _TRIGGERS,
    "CronTriggerTimetable": _TRIGGERS,
    "DeltaDataIntervalTimetable": _INTERVALS,
    "DeltaTriggerTimetable": _TRIGGERS,
    "NEVER_EXPIRE": ("airflow.sdk.execution_time.context",),
    "conf": ("airflow.sdk.configuration", "airflow.configuration"),
}
_MISSING: dict[str, Any] = {
    "CronPartitionTimetable": type("CronPartitionTimetable", (), {}),  # before 3.2: no schedule is one
    "NEVER_EXPIRE": None,  # before 3.3: there is no store of task states
}


def __getattr__(name: str) -> Any:
    for place in _PLACES.get(name, ()):
        try:
            value = getattr(import_module(place), name)
        except (AttributeError, ModuleNotFoundError):
            continue
        globals()[name] = value
        return value
    if name in _MISSING:
        return _MISSING[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def teams(dag_ids: Sequence[str]) -> Mapping[str, str | None]:
    """Return the team of each DAG; None: it has none."""
    from airflow.models.dag import DagModel

    read_teams = getattr(DagModel, "get_dag_id_to_team_name_mapping", None)
    if read_teams:
        team_by_dag: Mapping[str, str | None] = read_teams(list(dag_ids))
        return team_by_dag
    return {dag_id: DagModel.get_team_name(dag_id) for dag_id in dag_ids}  # before 3.2


def infer_interval(timetable: Any, moment: datetime) -> tuple[datetime, datetime] | None:
    """Return the interval that Airflow infers for a run which is started then; None: the timetable infers none.

    Since 3.2 a DAG file has timetables that cannot do it themselves. Airflow's own part of the installation can, and a
    worker may be without it.
    """
    try:
        from airflow.serialization.encoders import coerce_to_core_timetable
    except ImportError:  # before 3.2 they are the same
        infer = getattr(timetable, "infer_manual_data_interval", None)
    else:
        infer = getattr(coerce_to_core_timetable(timetable), "infer_manual_data_interval", None)
    if infer is None:
        return None
    import pendulum

    interval = infer(run_after=pendulum.instance(moment))
    return interval.start, interval.end


def stats() -> Any:
    """Return what counts and measures: it has `incr`, `gauge` and `timing`."""
    try:
        from airflow.sdk.observability import stats as module
    except ModuleNotFoundError:
        return import_module("airflow.stats").Stats
    return module if hasattr(module, "incr") else module.Stats
