"""Which interval a run covers, whoever started it and with which date; runs are as Airflow's own code makes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from codes import raises

from onceonly.airflow import intervals
from onceonly.checkpoint.offsets import Interval
from onceonly.errors import InvalidPipeline

pytestmark = pytest.mark.usefixtures("airflow_home")
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
NOW = datetime(2026, 11, 24, 9, 30, 12, 345678, tzinfo=UTC)
TODAY = datetime(2026, 11, 24, tzinfo=UTC)
YESTERDAY = Interval(TODAY - DAY, TODAY)
MAY = datetime(2026, 5, 2, tzinfo=UTC)
LATER = TODAY + 40 * DAY + 3 * HOUR
SECOND_OF_MAY = Interval(MAY, MAY + DAY)


def daily(zone: str = "UTC", cron: str = "@daily") -> Any:
    from airflow.sdk import CronDataIntervalTimetable

    return CronDataIntervalTimetable(cron, timezone=ZoneInfo(zone).key)


def infer(timetable: Any, moment: datetime) -> Interval:
    import pendulum
    from airflow.serialization.encoders import coerce_to_core_timetable

    span = coerce_to_core_timetable(timetable).infer_manual_data_interval(run_after=pendulum.instance(moment))
    return Interval(span.start, span.end)


def context(timetable: Any, span: Interval | None, date: datetime | None, **run: Any) -> Any:
    facts = {"run_type": "manual", "run_after": NOW, "start_date": NOW, "conf": {}, "logical_date": date, **run}
    found = {"dag": SimpleNamespace(timetable=timetable), "dag_run": SimpleNamespace(**facts)}
    if span:
        found |= {"data_interval_start": span.start, "data_interval_end": span.end, "logical_date": date}
    return found


def by_command(date: datetime, timetable: Any = None, **run: Any) -> Any:
    """As `airflow dags trigger --logical-date` makes it: the interval is that of now."""
    timetable = timetable or daily()
    return context(timetable, infer(timetable, NOW), date, **run)


def by_api(date: datetime, timetable: Any = None, **run: Any) -> Any:
    """As the REST API and `airflow dags test` make it: the interval before the date."""
    timetable = timetable or daily()
    return context(timetable, infer(timetable, date), date, **run)


def by_operator(date: datetime, start: datetime = NOW) -> Any:
    """As `TriggerDagRunOperator` makes it: the run may begin at that date, and its interval is the one before."""
    return by_api(date, run_type="operator_triggered", run_after=date, start_date=start)


def covered(run: Any, has_planned: bool = False) -> Interval:
    return intervals.find_covered("trips", run, lambda span: has_planned).interval


@pytest.mark.parametrize("start", [by_command, by_api, by_operator])
@pytest.mark.parametrize("date", [MAY, MAY + 5 * HOUR, TODAY, LATER])
def test_a_date_outside_of_its_interval_is_refused(start: Any, date: datetime) -> None:
    run = start(date)
    if start is by_operator and date == LATER:
        run["dag_run"].start_date = date + HOUR
    with raises(InvalidPipeline, "date-outside-interval") as refused:
        covered(run)
    for way in ("Data interval: manual", "REST API", "onceonly run", "backfill create", "dags trigger DAG --conf"):
        assert way in str(refused.value)


@pytest.mark.parametrize("key", ["intervall", "Interval", "re-process", "keeps", "epochs"])
def test_a_misspelt_key_of_the_conf_is_refused(key: str) -> None:
    with raises(InvalidPipeline, "option-invalid"):
        intervals.refuse_misspelt_keys("trips", {key: "x"})


def test_keys_for_others_are_left_alone() -> None:
    intervals.refuse_misspelt_keys("trips", dict.fromkeys((*intervals.CONF_KEYS, "region", "ticket", "note"), "x"))


@pytest.mark.parametrize("run_type", ["backfill", "manual", "operator_triggered", "asset_materialization"])
def test_a_backfill_over_a_refused_run_is_refused_too(run_type: str) -> None:
    with raises(InvalidPipeline, "date-outside-interval"):
        covered(by_command(MAY, run_type=run_type))


@pytest.mark.parametrize("start", [by_command, by_api, by_operator])
@pytest.mark.parametrize("late", [timedelta(), timedelta(minutes=10)])
def test_a_click_covers_the_last_complete_interval(start: Any, late: timedelta) -> None:
    run = start(NOW - late)
    found = intervals.find_covered("trips", run, lambda span: False)
    assert found.interval == YESTERDAY
    assert str(found) == f"{YESTERDAY}: the last complete interval at {NOW - late:%Y-%m-%dT%H:%M:%SZ}; " + (
        "no other date was asked for"
    )


def test_a_run_without_a_date_covers_the_last_complete_interval() -> None:
    found = intervals.find_covered("trips", context(daily(), None, None), lambda span: False)
    assert found.interval == YESTERDAY
    assert "the last complete interval at 2026-11-24T09:30:12Z" in str(found)


def test_a_run_that_waited_covers_what_was_complete_when_it_was_started() -> None:
    assert covered(by_operator(NOW, start=NOW + 5 * HOUR)) == YESTERDAY
    with raises(InvalidPipeline, "date-outside-interval"):
        covered(by_operator(NOW, start=NOW + 2 * DAY))
    assert covered(by_operator(NOW, start=NOW + 2 * DAY), has_planned=True) == YESTERDAY  # it is cleared


def test_a_date_in_its_interval_is_what_was_asked_for() -> None:
    for date in (MAY, MAY + 5 * HOUR, NOW):  # a form has the time of the click beside an interval that is given
        assert covered(context(daily(), SECOND_OF_MAY, date)) == SECOND_OF_MAY
    assert covered(context(daily(), SECOND_OF_MAY, MAY, run_type="backfill")) == SECOND_OF_MAY


def test_runs_of_the_schedule_are_not_asked_for_a_date() -> None:
    from airflow.sdk import CronTriggerTimetable

    moments = CronTriggerTimetable("@daily", timezone="UTC", interval=DAY)
    for run_type in ("scheduled", "backfill", "manual"):  # its runs are named by the end of their interval
        assert covered(context(moments, SECOND_OF_MAY, MAY + DAY, run_type=run_type)) == SECOND_OF_MAY
    with raises(InvalidPipeline, "date-outside-interval"):
        covered(context(moments, YESTERDAY, MAY))


def test_the_conf_says_what_is_meant() -> None:
    meant = {"interval": ["2026-11-23T00:00:00Z", "2026-11-24T00:00:00+00:00"]}
    assert covered(by_command(MAY, conf=meant)) == YESTERDAY
    with raises(InvalidPipeline, "date-outside-interval"):
        covered(by_command(MAY, conf={"interval": [MAY.isoformat(), (MAY + DAY).isoformat()]}))


def test_the_conf_of_a_run_without_a_date_names_its_interval() -> None:
    for times in (["2026-05-02T00:00:00Z", "2026-05-03T02:00:00+02:00"], ["2026-05-02", "2026-05-03T00:00"]):
        for timetable in (daily(), None):
            assert covered(context(timetable, None, None, conf={"interval": times})) == SECOND_OF_MAY


@pytest.mark.parametrize(
    "value",
    [
        "2026-05-02",
        ["2026-05-02T00:00:00Z"],
        ["2026-05-03", "2026-05-02"],
        ["noon", "2026-05-03"],
        [1, 2],
        True,
        {"start": 1, "end": 2},
    ],
)
def test_a_conf_that_names_no_interval_is_refused(value: Any) -> None:
    with raises(InvalidPipeline, "option-invalid"):
        covered(context(daily(), None, None, conf={"interval": value}))


def test_each_run_without_an_interval_has_its_own_way_out() -> None:
    from airflow.sdk import CronTriggerTimetable

    new_york = daily("America/New_York", "0 2 * * *")
    change = datetime(2026, 3, 8, 20, tzinfo=UTC)
    empty = infer(new_york, change)
    assert empty.start == empty.end
    cases = {
        "an event of an asset started it": context(daily(), None, None, run_type="asset_triggered"),
        "no last complete interval": context(None, None, None),
        "does not say which": context(daily(), None, None, conf={"reprocess": True}),
        "The clocks change there": context(new_york, empty, change, run_after=change),
        "The runs of CronTriggerTimetable have no width": context(
            CronTriggerTimetable("@daily", timezone="UTC"), Interval(TODAY, TODAY), TODAY
        ),
        "Give its start first": context(daily(), Interval(TODAY, TODAY - DAY), TODAY),
    }
    texts = set()
    for words, run in cases.items():
        with raises(InvalidPipeline, "run-without-interval") as refused:
            covered(run)
        assert words in str(refused.value)
        texts.add(f"{refused.value.why} {refused.value.todo}")
    assert len(texts) == len(cases)
    with raises(InvalidPipeline, "run-without-interval") as refused:
        covered(cases["The clocks change there"])
    assert "CronDataIntervalTimetable" not in str(refused.value)  # it is in use already
