"""The two DAG factories: `checkpoint_dag` for a pipeline, `recovery_dag` for all of them.

    plan ──▶ stage ──▶ gate ──▶ commit          commit is retried, stages again what cannot be
               └────────┴─(failed)──▶ abort      published any more, and never leads to abort;
                                                 no gate in the pipeline: no such task

The shape alone excludes nothing (Airflow runs tasks twice, kills them late, skips abort on "mark failed"): the state
table does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import ceil
from typing import Any

from airflow.sdk import DAG, Asset, TriggerRule

from onceonly.airflow.assets import outlets
from onceonly.airflow.commit import CommitOperator, GateOperator
from onceonly.airflow.notices import Notifier
from onceonly.airflow.operators import (
    AbortOperator,
    AnnounceOperator,
    PlanOperator,
    RecoverOperator,
    StageOperator,
)
from onceonly.airflow.versions import (
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
)
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline

# Busy, a broker that restarts, a table under load: worth waiting for. Invalid input fails at once, whatever this says.
MANY_RETRIES: dict[str, Any] = {
    "retries": 12,
    "retry_delay": timedelta(seconds=5),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=5),
}
MAX_CHAIN_WAIT = timedelta(days=1)  # for which an interval waits until pipelines before have published theirs
MAX_COMMIT_SECONDS = 900.0  # from stage to commit that a transaction has to outlast, however long the interval
# Schedules that have no interval, unless they are given a width.
WITHOUT_INTERVAL = (str, list, Asset, CronPartitionTimetable, CronTriggerTimetable, DeltaTriggerTimetable)
STAGE_RETRIES: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(seconds=5)}


def checkpoint_dag(
    pipeline: Pipeline,
    *,
    schedule: Any,
    dag_id: str | None = None,
    spark_conn_id: str = "spark",
    on_held: Notifier | Sequence[Notifier] | None = None,
    partition_keys: bool = False,
    **dag_arguments: Any,
) -> DAG:
    """Return the DAG of a pipeline: each run is one checkpoint.

    Args:
        schedule: as for any DAG; a cron string of an interval pipeline means its data intervals, in the DAG's
            time zone.
        spark_conn_id: connection of the stage: a Spark master for spark-submit, or `sc://…` for Spark Connect.
        on_held: notifiers that are called when the gate holds a checkpoint, or an approval has ended with its attempt;
            see `GateOperator` and `CommitOperator`.
        partition_keys: the asset events of intervals carry partition keys; see `CommitOperator`.
        dag_arguments: passed on to `airflow.sdk.DAG`. An interval pipeline catches up unless `catchup=False` says that
            intervals may be left out when the scheduler was down or the DAG paused.
    Raises:
        InvalidPipeline: the schedule does not go with the pipeline.
    """
    if partition_keys and pipeline.mode != "interval":
        raise InvalidPipeline(
            f"{pipeline.name}: partition_keys is for pipelines in interval mode.",
            "The key of an event is the start of its interval.",
            "Remove it, or set Pipeline(mode='interval').",
            code="option-invalid",
        )
    if schedule is not None:
        pipeline.check_commits(min(_seconds_between(schedule), MAX_COMMIT_SECONDS))
    max_runs = 1 if pipeline.mode == "chained" or pipeline.state else 4
    catchup = pipeline.mode == "interval"  # a chained one reads in its next run what the missing ones would have
    defaults: dict[str, Any] = {"catchup": catchup, "max_active_runs": max_runs, "tags": ["onceonly"]}
    arguments = defaults | dag_arguments
    timetable = _timetable(pipeline, schedule, arguments)
    _check_start(pipeline, timetable, arguments)
    with DAG(dag_id or pipeline.name, schedule=timetable, **arguments) as dag:
        plan = PlanOperator(task_id="plan", pipeline=pipeline, spark_conn_id=spark_conn_id, **_plan_retries(pipeline))
        stage = StageOperator(task_id="stage", pipeline=pipeline.name, spark_conn_id=spark_conn_id, **STAGE_RETRIES)
        publish: dict[str, Any] = {"outlets": outlets(pipeline), "partition_keys": partition_keys, **MANY_RETRIES}
        commit = CommitOperator(
            task_id="commit", pipeline=pipeline.name, spark_conn_id=spark_conn_id, on_held=on_held, **publish
        )
        abort = AbortOperator(
            task_id="abort", pipeline=pipeline.name, trigger_rule=TriggerRule.ONE_FAILED, **MANY_RETRIES
        )
        plan >> stage >> abort
        if pipeline.gate:
            gate = GateOperator(
                task_id="gate", pipeline=pipeline.name, spark_conn_id=spark_conn_id, on_held=on_held, **STAGE_RETRIES
            )
            stage >> gate >> [commit, abort]
        else:
            stage >> commit
    return dag


def recovery_dag(
    dag_id: str = "onceonly_recovery",
    *,
    schedule: Any = "*/5 * * * *",
    spark_conn_id: str = "spark",
    on_held: Notifier | Sequence[Notifier] | None = None,
    **dag_arguments: Any,
) -> DAG:
    """Return the DAG that settles every checkpoint whose run has ended.

    It publishes what was decided or staged, and aborts the rest.

    Args:
        spark_conn_id: connection of the Spark that it uses where it needs one; see `RecoverOperator`.
        on_held: notifiers that are called when a gate that recovery has asked holds a checkpoint.
    """
    defaults: dict[str, Any] = {"catchup": False, "max_active_runs": 1, "tags": ["onceonly"]}
    with DAG(dag_id, schedule=schedule, **(defaults | dag_arguments)) as dag:
        recover = RecoverOperator(task_id="recover", spark_conn_id=spark_conn_id, on_held=on_held)
        announce = AnnounceOperator(task_id="announce", recovery=recover.task_id)
        # It runs either way, and the run fails with `recover`: on_failure_fail_dagrun would let this one decide alone.
        recover >> announce.as_teardown()
    return dag


def _plan_retries(pipeline: Pipeline) -> dict[str, Any]:
    """Return MANY_RETRIES, and more for as long as late records or the pipelines before are waited for.

    Meanwhile the plan is Busy.
    """
    wait = timedelta(seconds=max(source.grace for source in pipeline.sources))
    if pipeline.after and pipeline.mode == "interval":
        wait += MAX_CHAIN_WAIT
    more = ceil(wait / MANY_RETRIES["max_retry_delay"])
    return MANY_RETRIES | {"retries": MANY_RETRIES["retries"] + more}


def _seconds_between(schedule: Any) -> float:
    """Return the seconds between two runs, where the schedule says it plainly; else MAX_COMMIT_SECONDS."""
    if isinstance(schedule, timedelta):
        return schedule.total_seconds()
    if not isinstance(schedule, str) or schedule in ("@once", "@continuous"):
        return MAX_COMMIT_SECONDS
    from croniter import croniter

    times = croniter(schedule)
    first = times.get_next(float)
    return float(times.get_next(float) - first)


def _check_start(pipeline: Pipeline, timetable: Any, arguments: Mapping[str, Any]) -> None:
    """Raise InvalidPipeline where a DAG would catch up from no beginning."""
    catches_up = pipeline.mode == "interval" and timetable is not None and arguments["catchup"]
    if catches_up and not _start_date(arguments):
        raise InvalidPipeline(
            f"{pipeline.name}: its DAG has a schedule and no start_date.",
            "A pipeline in interval mode catches up: every interval from start_date on has its run.",
            "Pass start_date=…, or catchup=False: then intervals are left out while the scheduler is down.",
            code="start-date-missing",
        )


def _start_date(arguments: Mapping[str, Any]) -> Any:
    return arguments.get("start_date") or (arguments.get("default_args") or {}).get("start_date")


def _zone(arguments: Mapping[str, Any]) -> Any:
    """Return the DAG's time zone as Airflow itself finds it: of its start_date, else the one of the configuration."""
    return DAG("zone", schedule=None, start_date=_start_date(arguments)).timezone


def _timetable(pipeline: Pipeline, schedule: Any, arguments: Mapping[str, Any]) -> Any:
    """Return the schedule as a timetable whose runs have data intervals, if the pipeline is in interval mode.

    A cron string or a timedelta is a zero-width interval in Airflow 3; an interval pipeline needs the width.

    Raises:
        InvalidPipeline: the schedule has no data intervals.
    """
    if pipeline.mode == "chained" or schedule is None:
        return schedule
    if isinstance(schedule, str) and schedule not in ("@once", "@continuous"):
        return CronDataIntervalTimetable(schedule, timezone=_zone(arguments))
    if isinstance(schedule, timedelta):
        return DeltaDataIntervalTimetable(schedule)
    if type(schedule) not in WITHOUT_INTERVAL or getattr(schedule, "interval", None):
        return schedule  # one of the user's own: each run is looked at before anything is planned
    name = repr(schedule) if isinstance(schedule, str) else type(schedule).__name__
    raise InvalidPipeline(
        f"{pipeline.name}: a schedule of {name} has no data interval.",
        "A pipeline in interval mode takes its window from the run's data interval, and that would be empty.",
        "Use a cron string, a timedelta, CronDataIntervalTimetable, or CronTriggerTimetable(…, interval=…). "
        "Nothing was written.",
        code="schedule-without-interval",
    )
