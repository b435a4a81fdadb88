"""The DAG factories: `checkpoint_dag` for a pipeline, `recovery_dag` and `verify_dag` for all of them.

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

from airflow.sdk import DAG, TriggerRule

from onceonly.airflow.assets import outlets
from onceonly.airflow.commit import CommitOperator, GateOperator
from onceonly.airflow.names import RECOVERY_DAG, RECOVERY_TAG, VERIFY_DAG
from onceonly.airflow.notices import Notifier
from onceonly.airflow.operators import (
    AbortOperator,
    PlanOperator,
    StageOperator,
)
from onceonly.airflow.recovery import AnnounceOperator, RecoverOperator
from onceonly.airflow.verification import VerifyOperator
from onceonly.airflow.versions import (
    CronDataIntervalTimetable,
    DeltaDataIntervalTimetable,
)
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.requirements import check_commits

# Busy, a broker that restarts, a table under load: worth waiting for. Invalid input fails at once, whatever this says.
MANY_RETRIES: dict[str, Any] = {
    "retries": 12,
    "retry_delay": timedelta(seconds=5),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=5),
}
MAX_CHAIN_WAIT = timedelta(days=1)  # for which an interval waits until pipelines before have published theirs
MAX_COMMIT_SECONDS = 900.0  # from stage to commit that a transaction has to outlast, however long the interval
STAGE_RETRIES: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(seconds=5)}
# By classes in a schedule's ancestry: they stand in different modules from one Airflow to the next.
ASSETS = {"AssetOrTimeSchedule", "PartitionedAssetTimetable", "BaseAsset", "AssetTriggeredTimetable"}
WITHOUT_WIDTH = {  # unless they are given one
    "CronPartitionTimetable",
    "CronTriggerTimetable",
    "DeltaTriggerTimetable",
    "MultipleCronTriggerTimetable",
    "EventsTimetable",
}


def checkpoint_dag(
    pipeline: Pipeline,
    *,
    schedule: Any,
    dag_id: str | None = None,
    spark_conn_id: str = "spark",
    on_held: Notifier | Sequence[Notifier] | None = None,
    partition_keys: bool = False,
    retries: Mapping[str, int] | None = None,
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
        retries: by task ("plan", "stage", "gate", "commit", "abort"), instead of 12, 1, 1, 12 and 12. What
            `default_args` says of retries is for all tasks.
        dag_arguments: passed on to `airflow.sdk.DAG`. An interval pipeline catches up unless `catchup=False` says that
            intervals may be left out when the scheduler was down or the DAG paused.
    Raises:
        InvalidPipeline: the schedule does not go with the pipeline, or a task of `retries` is not in the DAG.
    """
    if partition_keys and pipeline.mode != "interval":
        raise InvalidPipeline(
            f"{pipeline.name}: partition_keys is for pipelines in interval mode.",
            "The key of an event is the start of its interval.",
            "Remove it, or set Pipeline(mode='interval').",
            code="option-invalid",
        )
    if schedule is not None:
        check_commits(pipeline, min(_seconds_between(schedule), MAX_COMMIT_SECONDS))
    max_runs = 1 if pipeline.mode == "chained" or pipeline.state else 4
    catchup = pipeline.mode == "interval"  # a chained one reads in its next run what the missing ones would have
    defaults: dict[str, Any] = {"catchup": catchup, "max_active_runs": max_runs, "tags": ["onceonly"]}
    arguments = defaults | dag_arguments
    timetable = _timetable(pipeline, schedule, arguments)
    _check_start(pipeline, timetable, arguments)
    attempts = _retry_arguments(pipeline, arguments.get("default_args") or {}, retries or {})
    with DAG(dag_id or pipeline.name, schedule=timetable, **arguments) as dag:
        plan = PlanOperator(task_id="plan", pipeline=pipeline, spark_conn_id=spark_conn_id, **attempts["plan"])
        stage = StageOperator(task_id="stage", pipeline=pipeline.name, spark_conn_id=spark_conn_id, **attempts["stage"])
        publish: dict[str, Any] = {"outlets": outlets(pipeline), "partition_keys": partition_keys, **attempts["commit"]}
        commit = CommitOperator(
            task_id="commit", pipeline=pipeline.name, spark_conn_id=spark_conn_id, on_held=on_held, **publish
        )
        abort = AbortOperator(
            task_id="abort", pipeline=pipeline.name, trigger_rule=TriggerRule.ONE_FAILED, **attempts["abort"]
        )
        plan >> stage >> abort
        if pipeline.gate:
            gate = GateOperator(
                task_id="gate", pipeline=pipeline.name, spark_conn_id=spark_conn_id, on_held=on_held, **attempts["gate"]
            )
            stage >> gate >> [commit, abort]
        else:
            stage >> commit
    return dag


def recovery_dag(
    dag_id: str = RECOVERY_DAG,
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
    arguments = defaults | dag_arguments
    arguments["tags"] = [*(arguments["tags"] or ()), RECOVERY_TAG]
    with DAG(dag_id, schedule=schedule, **arguments) as dag:
        recover = RecoverOperator(task_id="recover", spark_conn_id=spark_conn_id, on_held=on_held)
        announce = AnnounceOperator(task_id="announce", recovery=recover.task_id)
        # It runs either way, and the run fails with `recover`: on_failure_fail_dagrun would let this one decide alone.
        recover >> announce.as_teardown()
    return dag


def verify_dag(
    dag_id: str = VERIFY_DAG,
    *,
    schedule: Any = "@weekly",
    pipelines: Sequence[str] | None = None,
    deep: bool = False,
    since: timedelta | None = None,
    on_wrong: Notifier | Sequence[Notifier] | None = None,
    **dag_arguments: Any,
) -> DAG:
    """Return the DAG that compares sources and targets with what was published, and changes nothing in them.

    Its run fails if something is wrong, not where something can no longer be known.

    Args:
        pipelines: their names; None: all of the state table.
        deep: read data files and logs, and count their records.
        since: how far back checkpoints are looked at; None: all are.
        on_wrong: notifiers that are called for each pipeline that is wrong.
    """
    defaults: dict[str, Any] = {"catchup": False, "max_active_runs": 1, "tags": ["onceonly"]}
    with DAG(dag_id, schedule=schedule, **(defaults | dag_arguments)) as dag:
        VerifyOperator(task_id="verify", pipelines=pipelines, deep=deep, since=since, on_wrong=on_wrong)
    return dag


def _retry_arguments(
    pipeline: Pipeline, default_args: Mapping[str, Any], retries: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Return what each task says of its retries: its own number, else that of `default_args`, else ours.

    Nothing that `default_args` says is said here: a task's own argument would beat it.

    Raises:
        InvalidPipeline: `retries` names a task that the DAG does not have.
    """
    defaults = {"plan": MANY_RETRIES, "stage": STAGE_RETRIES, "commit": MANY_RETRIES, "abort": MANY_RETRIES}
    if pipeline.gate:
        defaults["gate"] = STAGE_RETRIES
    unknown_tasks = sorted(retries.keys() - defaults.keys())
    if unknown_tasks:
        raise InvalidPipeline(
            f"{pipeline.name}: retries names the task '{unknown_tasks[0]}', which its DAG does not have.",
            f"Its tasks are {', '.join(sorted(defaults))}.",
            "Name one of them, or remove it.",
            code="option-invalid",
        )
    arguments = {}
    for task, task_defaults in defaults.items():
        settings = {**task_defaults, **default_args}
        if task in retries:
            settings["retries"] = retries[task]
        if task == "plan":
            settings["retries"] = (settings["retries"] or 0) + _count_waiting_tries(pipeline, settings)
        arguments[task] = {name: settings[name] for name in MANY_RETRIES if name in settings}
    return arguments


def _count_waiting_tries(pipeline: Pipeline, retries: Mapping[str, Any]) -> int:
    """Return how many more tries the plan needs while late records or the pipelines before are waited for.

    Meanwhile it is Busy.

    Args:
        retries: as an operator takes them.
    """
    wait = timedelta(seconds=max(source.grace for source in pipeline.sources))
    if pipeline.after and pipeline.mode == "interval":
        wait += MAX_CHAIN_WAIT
    delay: Any = retries["retry_delay"]
    if not isinstance(delay, timedelta):
        delay = timedelta(seconds=delay)
    if retries.get("retry_exponential_backoff"):
        delay = max(delay, retries.get("max_retry_delay") or timedelta())
    delay_seconds: float = max(delay.total_seconds(), 1.0)
    return ceil(wait.total_seconds() / delay_seconds)


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
    reason = _why_without_interval(schedule)
    if reason is None:
        return schedule  # it may be one of the user's own: each run is looked at before anything is planned
    name = repr(schedule) if isinstance(schedule, str) else type(schedule).__name__
    why, todo = reason
    raise InvalidPipeline(
        f"{pipeline.name}: a schedule of {name} has no data interval.", why, todo, code="schedule-without-interval"
    )


def _why_without_interval(schedule: Any) -> tuple[str, str] | None:
    """Return why runs of a schedule have no data interval, and the way out; None: they have one, or it is not known."""
    window = "a pipeline in interval mode takes its window from the run's data interval"
    kinds = {kind.__name__ for kind in type(schedule).__mro__}
    if isinstance(schedule, (list, tuple)) or kinds & ASSETS:
        return (
            f"Events of assets start its runs, or some of them: such a run has none, and {window}.",
            "Use a cron string or a timedelta, and name the pipelines before it in Pipeline(after=[…]): each interval "
            "waits until they have published it. Or use mode='chained', which reads what is new.",
        )
    moments = getattr(schedule, "timetables", [schedule])  # of several crons, each has the width
    if kinds & WITHOUT_WIDTH and not any(getattr(moment, "interval", None) for moment in moments):
        return (
            f"Its runs are moments without a width, and {window}.",
            "Use a cron string, a timedelta, CronDataIntervalTimetable, or CronTriggerTimetable(…, interval=…).",
        )
    if isinstance(schedule, str):
        return (
            f"Its runs do not follow the clock, and {window}.",
            "Use a cron string or a timedelta; for runs by hand and backfills, schedule=None.",
        )
    return None
