"""Which data intervals a DAG's schedule comes to: after an outage, and where the clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from codes import raises
from unit.world import World, minutes

from onceonly.checkpoint.offsets import Interval
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import DeltaSource, KafkaSource

pytestmark = pytest.mark.usefixtures("airflow_home")
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


def dag_of(schedule: Any, mode: str = "interval", **arguments: Any) -> Any:
    from onceonly.airflow import checkpoint_dag

    source, sinks = KafkaSource(topic="t"), [DeltaSink("out", "out")]
    pipeline = Pipeline(name="days", mode=mode, source=source, transform="a:b", sinks=sinks)
    return checkpoint_dag(pipeline, schedule=schedule, **arguments)


def scheduled(dag: Any, until: datetime, last: Interval | None = None) -> list[Interval]:
    """What the scheduler makes of the DAG, from its start or after the run of `last`, up to then."""
    import pendulum
    from airflow.serialization.encoders import coerce_to_core_timetable
    from airflow.timetables.base import DataInterval, TimeRestriction

    timetable = coerce_to_core_timetable(dag.timetable)
    before = DataInterval(pendulum.instance(last.start), pendulum.instance(last.end)) if last else None
    limits, found = TimeRestriction(pendulum.instance(dag.start_date), None, dag.catchup), list[Interval]()
    while True:
        info = timetable.next_dagrun_info(last_automated_data_interval=before, restriction=limits)
        if info.data_interval.end > until:
            return found
        before = info.data_interval
        found.append(Interval(before.start, before.end))


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """Now, as Airflow's timetables see it: the scheduler has been down for four days."""
    import pendulum

    now = pendulum.datetime(2024, 1, 6, 0, 5)
    monkeypatch.setattr("airflow.timetables.interval.utcnow", lambda: now)
    return now


LAST = Interval(datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC))


@pytest.mark.parametrize("schedule", ["@daily", DAY])
def test_after_an_outage_every_interval_has_its_run(outage: datetime, schedule: Any) -> None:
    runs = scheduled(dag_of(schedule, start_date=datetime(2013, 1, 1)), outage, LAST)
    assert [run.start.day for run in runs] == [2, 3, 4, 5]


@pytest.mark.parametrize("schedule", ["@daily", DAY])
def test_whoever_says_so_gets_the_newest_interval_alone(outage: datetime, schedule: Any) -> None:
    runs = scheduled(dag_of(schedule, start_date=datetime(2013, 1, 1), catchup=False), outage, LAST)
    assert [run.start.day for run in runs] == [5]


def test_a_chained_pipeline_does_not_catch_up_its_next_run_reads_everything() -> None:
    assert not dag_of("@daily", "chained", start_date=datetime(2013, 1, 1)).catchup


def test_intervals_begin_somewhere() -> None:
    with raises(InvalidPipeline, "start-date-missing"):
        dag_of("@daily")
    assert not dag_of("@daily", catchup=False).catchup
    assert dag_of("@daily", default_args={"start_date": datetime(2013, 1, 1)}).catchup
    assert dag_of(None).catchup  # runs by hand, and backfills: nothing to begin


@pytest.mark.parametrize(("zone", "offset"), [("Europe/Berlin", -1), ("America/New_York", 5), ("UTC", 0), (None, 0)])
def test_a_day_begins_at_the_midnight_of_the_dags_time_zone(zone: str | None, offset: int) -> None:
    start = datetime(2013, 1, 1, tzinfo=ZoneInfo(zone) if zone else None)
    midnight = datetime(2013, 1, 1, tzinfo=UTC) + offset * HOUR
    for arguments in ({"start_date": start}, {"default_args": {"start_date": start}}):
        dag = dag_of("@daily", **arguments)
        dag.start_date = dag.start_date or dag.default_args["start_date"]
        assert scheduled(dag, midnight + 2 * DAY) == [
            Interval(midnight + n * DAY, midnight + (n + 1) * DAY) for n in (0, 1)
        ]


def test_without_a_time_zone_of_its_own_it_is_the_configured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import pendulum
    from airflow.sdk.definitions import dag as sdk

    monkeypatch.setattr(sdk.settings, "TIMEZONE", pendulum.timezone("Asia/Tokyo"))
    assert str(dag_of("@daily", start_date=datetime(2013, 1, 1)).timetable.timezone) == "Asia/Tokyo"


CHANGES = {  # clocks go forward, and back
    "Europe/Berlin": (datetime(2013, 3, 31), datetime(2013, 10, 27)),
    "America/New_York": (datetime(2013, 3, 10), datetime(2013, 11, 3)),
    "Asia/Beirut": (datetime(2013, 3, 31), datetime(2013, 10, 27)),  # at midnight: that day begins at 01:00
}


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize(("change", "hours"), [(0, 23), (1, 25)])
def test_days_of_23_and_of_25_hours_follow_each_other(zone: str, change: int, hours: int) -> None:
    day = CHANGES[zone][change].replace(tzinfo=ZoneInfo(zone))
    runs = scheduled(dag_of("@daily", start_date=day - 3 * DAY), day + 4 * DAY)
    assert all(before.end == after.start for before, after in pairwise(runs))
    assert sorted((run.end - run.start) / HOUR for run in runs) == sorted([hours, *[24] * (len(runs) - 1)])


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize("change", [0, 1])
@pytest.mark.parametrize("cron", ["@hourly", "0 */6 * * *", "30 2 * * *"])
def test_no_cron_leaves_out_or_repeats_time_where_clocks_change(zone: str, change: int, cron: str) -> None:
    day = CHANGES[zone][change].replace(tzinfo=ZoneInfo(zone))
    runs = scheduled(dag_of(cron, start_date=day - DAY), day + 2 * DAY)
    assert all(before.end == after.start for before, after in pairwise(runs))
    assert all(run.end > run.start for run in runs)


def test_plan_warns_in_its_log_of_what_no_run_has_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from onceonly.airflow import PlanOperator, operators

    world = World(tmp_path, mode="interval")
    monkeypatch.setattr(PlanOperator, "planner", lambda self: world.coordinator)
    monkeypatch.setattr(PlanOperator, "_check", lambda *arguments: None)
    monkeypatch.setattr(operators, "make_alive_check", lambda context: world.alive)
    monkeypatch.setattr(operators, "find_instance", lambda context: None)

    def warned(start: int) -> bool:
        interval, run = minutes(start, start + 1), f"run of {start}"
        span = {"data_interval_start": interval.start, "data_interval_end": interval.end}
        ti = SimpleNamespace(dag_id="flights", xcom_push=lambda **_: None)
        ran = {"ti": ti, "run_id": run, "dag_run": SimpleNamespace(clear_number=0, conf={})}
        PlanOperator(task_id="plan", pipeline=world.pipeline, reprocess=False).execute({**span, **ran})
        return f"flights: no checkpoint covers {minutes(1, 3)}." in capfd.readouterr().out

    assert [warned(start) for start in (0, 3, 4)] == [False, True, True]


def test_a_dag_behind_another_follows_its_table_and_waits_for_its_intervals() -> None:
    from onceonly.airflow import checkpoint_dag, inlets, outlets

    def behind(**more: Any) -> Pipeline:
        sinks = [DeltaSink("out", "lake/out")]
        return Pipeline(name="b", source=DeltaSource("lake/t"), transform="a:b", sinks=sinks, after=["a"], **more)

    before = Pipeline(name="a", source=KafkaSource("t"), transform="a:b", sinks=[DeltaSink("t", "lake/t")])
    assert (
        [asset.uri for asset in inlets(behind())] == [asset.uri for asset in outlets(before)] == ["onceonly://lake/t"]
    )
    dag = checkpoint_dag(behind(), schedule=inlets(behind()))
    days = checkpoint_dag(
        behind(mode="interval"), dag_id="days", schedule=DAY, start_date=datetime(2026, 1, 1, tzinfo=UTC)
    )
    plan, waiting = dag.get_task("plan"), days.get_task("plan")
    assert (waiting.retries - plan.retries) * waiting.max_retry_delay >= DAY


# ---- partition keys


class Accessor(SimpleNamespace):
    """Airflow's own, for one asset of the task's outlets."""

    def add_partitions(self, key: str) -> None:
        self.keys.append(key)


def announced(world: World, keyed: bool) -> list[tuple[int, list[str]]]:
    """The epoch and the keys of each event of a commit."""
    from onceonly.airflow import assets

    made = [Accessor(extra={}, keys=[]) for _ in assets.outlets(world.pipeline)]
    events = dict(zip(assets.outlets(world.pipeline), made, strict=True))
    assets.announce({"outlet_events": events}, world.now(1), list(events), keyed)
    return [(event.extra["epoch"], event.keys) for event in made]


@pytest.mark.parametrize(("keyed", "keys"), [(True, ["2013-01-01T12:00:00"]), (False, [])])
def test_events_of_an_interval_have_its_start_as_their_key_where_that_is_wanted(
    tmp_path: Path, keyed: bool, keys: list[str]
) -> None:
    world = World(tmp_path, mode="interval")
    world.run("run-1", minutes(0, 3))
    assert announced(world, keyed) == [(1, keys), (1, keys)]


def test_airflows_own_accessor_takes_the_key_and_its_mapper_reads_it() -> None:
    from airflow.partition_mappers.temporal import StartOfHourMapper
    from airflow.sdk import Asset
    from airflow.sdk.execution_time.context import OutletEventAccessors

    from onceonly.airflow.assets import partition_key

    event = OutletEventAccessors()[Asset(name="a", uri="onceonly://a")]
    event.add_partitions(partition_key(minutes(90, 150)))
    assert event.partition_keys == {"2013-01-01T13:30:00"}
    assert StartOfHourMapper().to_downstream("2013-01-01T13:30:00") == "2013-01-01T13"


def test_a_dag_passes_them_on_and_a_chained_pipeline_has_none() -> None:
    start = datetime(2024, 1, 1)
    dag = dag_of("@daily", start_date=start, partition_keys=True)
    assert dag.get_task("commit").partition_keys is True
    assert dag_of("@daily", start_date=start).get_task("commit").partition_keys is False
    with raises(InvalidPipeline, "option-invalid"):
        dag_of("@daily", mode="chained", partition_keys=True)


def test_a_timetable_of_partitions_has_no_data_interval() -> None:
    from airflow.sdk import CronPartitionTimetable

    with raises(InvalidPipeline, "schedule-without-interval"):
        dag_of(CronPartitionTimetable("@daily", timezone="UTC"), start_date=datetime(2024, 1, 1))
