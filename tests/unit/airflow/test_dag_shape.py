"""How often tasks are tried, which schedules go with intervals, and whose plan a step follows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from codes import raises

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource

pytestmark = pytest.mark.usefixtures("airflow_home")
START = datetime(2026, 1, 1, tzinfo=UTC)
TASKS = ("plan", "stage", "gate", "commit", "abort")


def make_pipeline(name: str = "trips", grace: int = 0, **options: Any) -> Pipeline:
    sinks = [DeltaSink(f"{name}_out", f"lake/{name}")]
    source = KafkaSource("trips", grace=grace)
    return Pipeline(name=name, source=source, transform="a:b", sinks=sinks, gate=Gate(min_rows=1), **options)


def make_dag(grace: int = 0, **arguments: Any) -> Any:
    from onceonly.airflow import checkpoint_dag

    return checkpoint_dag(make_pipeline(grace=grace, mode="interval"), schedule="@daily", start_date=START, **arguments)


def tries(dag: Any) -> list[int]:
    return [dag.get_task(task).retries for task in TASKS]


def test_each_task_has_its_number_of_retries() -> None:
    assert tries(make_dag()) == [12, 1, 1, 12, 12]
    assert make_dag().get_task("commit").retry_delay == timedelta(seconds=5)


def test_default_args_set_the_retries_of_all_tasks() -> None:
    dag = make_dag(default_args={"retries": 7, "retry_delay": timedelta(minutes=9), "retry_exponential_backoff": False})
    assert tries(dag) == [7] * 5
    for task in TASKS:
        assert dag.get_task(task).retry_delay == timedelta(minutes=9)
        assert not dag.get_task(task).retry_exponential_backoff
    assert tries(make_dag(default_args={"retries": 0})) == [0] * 5


def test_retries_are_set_by_task() -> None:
    assert tries(make_dag(retries={"stage": 4}, default_args={"retries": 2})) == [2, 4, 2, 2, 2]
    with raises(InvalidPipeline, "option-invalid", "'stages'"):
        make_dag(retries={"stages": 4})


@pytest.mark.parametrize("default_args", [{}, {"retries": 2, "retry_delay": 60, "retry_exponential_backoff": False}])
def test_a_plan_waits_for_late_records_beyond_its_retries(default_args: dict[str, Any]) -> None:
    grace = 7200
    plan = make_dag(grace, default_args=default_args).get_task("plan")
    usual = make_dag(default_args=default_args).get_task("plan").retries
    delay = plan.max_retry_delay if plan.retry_exponential_backoff else plan.retry_delay
    assert (plan.retries - usual) * delay >= timedelta(seconds=grace)


def schedules() -> dict[str, Any]:
    from airflow import sdk

    asset, moments = sdk.Asset("a"), sdk.CronTriggerTimetable("@daily", timezone="UTC")
    return {
        "asset": asset,
        "any": asset | sdk.Asset("b"),
        "all": asset & sdk.Asset("b"),
        "alias": sdk.AssetAlias("c"),
        "list": [asset],
        "asset or time": sdk.AssetOrTimeSchedule(timetable=moments, assets=[asset]),
        "partitions": sdk.PartitionedAssetTimetable(assets=asset),
        "moments": moments,
        "several": sdk.MultipleCronTriggerTimetable("0 1 * * *", "0 2 * * *", timezone="UTC"),
        "events": sdk.EventsTimetable(event_dates=[]),
        "once": "@once",
    }


def test_a_schedule_without_intervals_is_refused_when_the_dag_is_read() -> None:
    from onceonly.airflow import checkpoint_dag

    reasons: dict[str, set[str]] = {}
    for kind, schedule in schedules().items():
        with raises(InvalidPipeline, "schedule-without-interval") as refused:
            checkpoint_dag(make_pipeline(mode="interval"), schedule=schedule, start_date=START)
        reasons.setdefault(refused.value.todo, set()).add(kind)
    of_assets = {"asset", "any", "all", "alias", "list", "asset or time", "partitions"}
    assert sorted(map(sorted, reasons.values())) == sorted(
        map(sorted, [of_assets, {"moments", "several", "events"}, {"once"}])
    )
    (advice,) = [todo for todo, kinds in reasons.items() if kinds == of_assets]
    assert "after=[" in advice


def test_moments_with_a_width_are_intervals() -> None:
    from airflow import sdk

    from onceonly.airflow import checkpoint_dag

    width = {"timezone": "UTC", "interval": timedelta(days=1)}
    for schedule in (
        sdk.CronTriggerTimetable("@daily", **width),
        sdk.MultipleCronTriggerTimetable("@daily", "0 12 * * *", **width),
    ):
        dag = checkpoint_dag(make_pipeline(mode="interval"), schedule=schedule, start_date=START)
        assert dag.timetable is schedule


# ---- whose plan a step follows


class Instance:
    """A task instance whose run has these XComs."""

    def __init__(self, task_id: str, **xcoms: Any) -> None:
        self.task_id, self.dag_id, self._xcoms = task_id, "grouped", xcoms

    def xcom_pull(self, task_ids: str, key: str = "return_value") -> Any:
        return self._xcoms.get(f"{task_ids}/{key}")


def steps(prefix: bool, plan_id: str = "plan", linked: bool = True) -> Any:
    from airflow.sdk import DAG, TaskGroup

    from onceonly.airflow import CommitOperator, PlanOperator, StageOperator

    with DAG("grouped", schedule=None, start_date=START) as dag:
        other = PlanOperator(task_id="plan_others", pipeline=make_pipeline("others"))
        with TaskGroup("ingest", prefix_group_id=prefix):
            plan = PlanOperator(task_id=plan_id, pipeline=make_pipeline("trips"))
            stage = StageOperator(task_id="stage", pipeline="trips")
            commit = CommitOperator(task_id="commit", pipeline="trips")
        if linked:
            other >> plan >> stage >> commit
    return dag


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("plan_id", ["plan", "pin"])
@pytest.mark.parametrize("step", ["stage", "commit"])
def test_steps_in_a_group_follow_the_plan_before_them(prefix: bool, plan_id: str, step: str) -> None:
    from onceonly.airflow.base import owner_of

    dag, group = steps(prefix, plan_id), "ingest." if prefix else ""
    task = dag.get_task(f"{group}{step}")
    xcoms = {
        f"{group}{plan_id}/return_value": 5,
        f"{group}{plan_id}/onceonly_owner": "me",
        "plan_others/return_value": 9,
    }
    context = {"ti": Instance(task.task_id, **xcoms), "dag": dag, "task": task}
    assert (task.find_epoch(context), owner_of(context)) == (5, "me")


def test_a_step_whose_group_has_a_plan_needs_no_edge_to_it() -> None:
    dag = steps(True, linked=False)
    task = dag.get_task("ingest.stage")
    assert task.find_epoch({"ti": Instance(task.task_id, **{"ingest.plan/return_value": 5}), "dag": dag}) == 5


def test_a_missing_epoch_names_the_plan_that_left_none() -> None:
    from onceonly.airflow.versions import AirflowFailException

    for plan_id, words in (("plan", "'ingest.plan' of this run returned none"), ("pin", "There is no plan task")):
        dag = steps(True, plan_id, linked=False)
        task = dag.get_task("ingest.stage")
        with pytest.raises(AirflowFailException, match=words):
            task.find_epoch({"ti": Instance(task.task_id), "dag": dag, "run_id": "by hand"})
