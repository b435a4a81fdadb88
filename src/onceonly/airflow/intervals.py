"""The interval that a run covers: what was asked for, what Airflow made of it, and what is refused.

Airflow infers the interval of a run that a person or a program starts with a logical date. `airflow dags trigger` and
`TriggerDagRunOperator` infer it from the time of the click, the REST API and `airflow dags test` from that date: the
interval *before* it. So a run may cover another day than it was asked for, and its logical date says nothing of it. The
interval that the run covers has to contain the date that was asked for, or the run is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from shlex import quote
from typing import Any

from onceonly.airflow import versions
from onceonly.checkpoint.interval_text import parse_interval
from onceonly.checkpoint.offsets import Interval
from onceonly.errors import InvalidPipeline

CONF_KEY = "interval"  # of a run's conf: [START, END] that it covers
MAX_CLICK_SECONDS = 900  # from a date that a form or a program takes from the clock until the run is there
MAX_CLOCK_SKEW_SECONDS = 300  # of the machine whose clock that was
INFERRED_FOR_NO_DATE = ("manual", "operator_triggered", "asset_materialization")  # runs that somebody started
MIN_SIMILARITY = 0.8  # of 1, from which on a key of a conf is taken for a misspelt one
REQUESTS = ("reprocess", "keep", "again", "only")  # in a run's conf: for rows that are published already
CONF_KEYS = (CONF_KEY, *REQUESTS, "reason", "epoch")
OF_THE_SCHEDULE = "scheduled"
WITH_INTERVALS = (
    "CronDataIntervalTimetable",
    "DeltaDataIntervalTimetable",
)  # a run's date is the start of its interval


@dataclass(frozen=True)
class Covered:
    """The interval of a run, and which one it is, for people."""

    interval: Interval
    which: str

    def __str__(self) -> str:
        return f"{self.interval}: {self.which}"


def find_covered(name: str, context: Any, has_planned: Callable[[Interval], bool]) -> Covered:
    """Return the interval that the task's run covers.

    Args:
        name: of the pipeline.
        has_planned: whether this very run has planned that interval before: it is not refused when it is cleared.
    Raises:
        InvalidPipeline: it has none, or another one than it was asked for. Nothing was written.
    """
    run = context["dag_run"]
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    of_conf = _read_conf(name, run.conf or {})
    has_interval = start is not None and end is not None and end > start
    if not has_interval:
        if of_conf:
            return Covered(of_conf, "the interval that the run's conf names")
        if start is None or end is None:
            return Covered(_infer_last(name, context), f"the last complete interval at {_clock(run.run_after)}")
        raise _empty_interval_error(name, context, start, end)
    interval = Interval(start, end)
    if of_conf:
        if of_conf != interval:
            raise _two_intervals_error(name, of_conf, interval, context)
        return Covered(interval, "the interval of the run, as its conf says, too")
    date = context.get("logical_date") or getattr(run, "logical_date", None)
    if date is None or _is_date_of(date, interval, context):
        return Covered(interval, "the interval of the run")
    if _is_now(date, interval, run):
        return Covered(interval, f"the last complete interval at {_clock(date)}; no other date was asked for")
    if has_planned(interval):
        return Covered(interval, "the interval that this run has planned before")
    raise _other_date_error(name, date, interval, context)


def refuse_misspelt_keys(name: str, conf: Mapping[str, Any]) -> None:
    """Refuse a key that is nearly one of ours: the run would do something else than it was asked for.

    Other keys may be for somebody else.

    Raises:
        InvalidPipeline: names the key and the one that was probably meant.
    """
    for key in conf:
        meant = get_close_matches(str(key).lower(), CONF_KEYS, 1, MIN_SIMILARITY)
        if key not in CONF_KEYS and meant:
            raise InvalidPipeline(
                f"{name}: this run's conf has the key {key!r}.",
                "Onceonly knows no such key, so the run would not do what was asked for.",
                f"Write {meant[0]!r}, or another name if it is not meant for Onceonly. Nothing was written.",
                code="option-invalid",
            )


def _read_conf(name: str, conf: Mapping[str, Any]) -> Interval | None:
    """Return the interval that a run's conf names; None: it names none."""
    value = conf.get(CONF_KEY)
    if value is None:
        return None
    is_pair = isinstance(value, list | tuple) and [type(text) for text in value] == [str, str]
    if not is_pair:
        raise _conf_error(name, value, "It is not a list of two times.")
    try:
        interval = parse_interval(*value)
    except InvalidPipeline as error:
        raise _conf_error(name, value, error.what) from error
    if interval.end <= interval.start:
        raise _conf_error(name, value, "It does not end after its start.")
    return interval


def _infer_last(name: str, context: Any) -> Interval:
    """Return the last interval of the schedule that was complete when the run was started without a date."""
    run = context["dag_run"]
    if _run_type(run) not in INFERRED_FOR_NO_DATE:
        raise InvalidPipeline(
            f"{name}: this run has no data interval: an event of an asset started it.",
            "A pipeline in interval mode takes its window from the run's data interval, and such an event has none.",
            "Give the DAG a cron string or a timedelta, and name the pipelines before it in Pipeline(after=[…]): each "
            "interval waits until they have published it. Or use mode='chained', which reads what is new. "
            "Nothing was written.",
            code="run-without-interval",
        )
    inferred = None
    if any((run.conf or {}).get(key) for key in REQUESTS):
        why = "It asks to write rows again, and does not say which."
    else:
        why = "The schedule of its DAG has no last complete interval that could be meant."
        inferred = versions.infer_interval(_timetable(context), run.run_after)
    if inferred is None or inferred[1] <= inferred[0]:
        raise InvalidPipeline(
            f"{name}: this run has no data interval: it was started without a date.",
            why,
            f"{_ways(context, None)} Nothing was written.",
            code="run-without-interval",
        )
    return Interval(*inferred)


def _is_date_of(date: datetime, interval: Interval, context: Any) -> bool:
    """Whether a run of that date covers that interval in the DAG's schedule.

    The interval contains its date. Of a timetable that is not known to go by the start of its intervals, it may also
    end there, as those of `CronTriggerTimetable` do.
    """
    if _run_type(context["dag_run"]) == OF_THE_SCHEDULE:
        return True  # nobody asked for a date
    if interval.start <= date < interval.end:
        return True
    timetable = _timetable(context)
    goes_by_start = timetable is None or type(timetable).__name__ in WITH_INTERVALS
    return date == interval.end and not goes_by_start


def _is_now(date: datetime, interval: Interval, run: Any) -> bool:
    """Whether a date is the time at which the run was started, so that nobody has asked for it.

    A form fills it in, as `TriggerDagRunOperator` does, which also makes it the time from which the run may begin: what
    is left to compare with is when it began. The run may have waited long before that, so a date with fractions of a
    second, which nobody types, counts as now as long as no later interval was complete when the run began.
    """
    if date < interval.end:
        return False
    moment = run.run_after
    is_run_after_date = moment == date
    if is_run_after_date:
        moment = getattr(run, "start_date", None) or datetime.now(UTC)
    distance = (moment - date).total_seconds()
    if -MAX_CLOCK_SKEW_SECONDS <= distance <= MAX_CLICK_SECONDS:
        return True
    next_end = interval.end + (interval.end - interval.start)
    return bool(is_run_after_date and date.microsecond and date <= moment < next_end)


def _other_date_error(name: str, date: datetime, interval: Interval, context: Any) -> InvalidPipeline:
    why = (
        "Airflow infers the interval of a run that is started with a logical date: from the time of the click, or as "
        "the interval before that date."
    )
    if _run_type(context["dag_run"]) == "backfill":
        why = "The backfill has cleared a run that was there, and such a run keeps its interval."
    return InvalidPipeline(
        f"{name}: this run was asked for {_clock(date)}, and would cover {interval}.",
        why,
        f"{_ways(context, date, _find_interval_of(date, interval, context))} If {interval} is meant: "
        f"airflow dags trigger {_dag_id(context)} --conf {_conf_of(interval)}. Nothing was written.",
        code="date-outside-interval",
    )


def _empty_interval_error(name: str, context: Any, start: datetime, end: datetime) -> InvalidPipeline:
    """Return the error of a run whose interval is empty: by the change of clocks, by its timetable, or as given."""
    what = f"{name}: the data interval of this run is empty: it begins at {_clock(start)} and ends at {_clock(end)}."
    timetable = _timetable(context)
    word = type(timetable).__name__
    if end < start:
        why, todo = "The interval was given so.", "Give its start first."
    elif word in WITH_INTERVALS:
        why = "The clocks change there, and Airflow infers an empty interval from a date close to it."
        todo = "Runs of the schedule are not concerned."
    else:
        why = f"The runs of {word} have no width, and a pipeline in interval mode takes its window from it."
        todo = "Use a cron string, a timedelta, CronDataIntervalTimetable, or CronTriggerTimetable(…, interval=…)."
        return InvalidPipeline(what, why, f"{todo} Nothing was written.", code="run-without-interval")
    return InvalidPipeline(
        what, why, f"{todo} {_ways(context, None)} Nothing was written.", code="run-without-interval"
    )


def _two_intervals_error(name: str, of_conf: Interval, interval: Interval, context: Any) -> InvalidPipeline:
    return InvalidPipeline(
        f"{name}: the conf of this run names {of_conf}, and its data interval is {interval}.",
        "Pages of Airflow would show the one, and the other would be published.",
        "Start it without a logical date (in TriggerDagRunOperator: logical_date=None): then the conf alone says it: "
        f"airflow dags trigger {_dag_id(context)} --conf {_conf_of(of_conf)}. Nothing was written.",
        code="date-outside-interval",
    )


def _conf_error(name: str, value: Any, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{name}: the conf of this run names the interval {str(value)[:100]!r}.",
        why,
        'Write {"interval": ["2013-01-01T00:00:00Z", "2013-01-02T00:00:00Z"]}; a time without a zone is in UTC. '
        "Nothing was written.",
        code="option-invalid",
    )


def _ways(context: Any, date: datetime | None, interval: Interval | None = None) -> str:
    """Say how an interval is run that a person names; each works while a refused run of that date is there.

    Args:
        date: the one that was asked for, if any.
        interval: that of the date, if it is known.
    """
    which, day, once = "an interval", "START", ""
    if date:
        which, day, once = f"the interval of {_clock(date)}", _iso(date), ", once this run is deleted on its page,"
    start, end = (_iso(interval.start), _iso(interval.end)) if interval else ("START", "END")
    dag_id = _dag_id(context)
    return (
        f"To cover {which}: airflow dags trigger {dag_id} --conf {_conf_of(interval)}; or onceonly run FILE.py:NAME "
        f"--interval {start} {end}; or Trigger with 'Data interval: manual' on the page; or data_interval_start and "
        f"_end in the REST API (its logical_date: now); or{once} airflow backfill create --dag-id {dag_id} "
        f"--from-date {day} --to-date {day}."
    )


def _find_interval_of(date: datetime, inferred: Interval, context: Any) -> Interval | None:
    """Return the interval of the schedule that contains a date; None: it cannot be told.

    It is the last complete one when a whole interval has passed since the date, as long as all have one width.
    """
    timetable = _timetable(context)
    if timetable is None:
        return None
    times = versions.infer_interval(timetable, date + (inferred.end - inferred.start))
    if times is None or not times[0] <= date < times[1]:
        return None
    return Interval(*times)


def _conf_of(interval: Interval | None) -> str:
    """Return the conf that names an interval, as an argument of a command."""
    times = [_iso(interval.start), _iso(interval.end)] if interval else ["START", "END"]
    return quote(json.dumps({CONF_KEY: times}))


def _dag_id(context: Any) -> str:
    return quote(str(getattr(context["dag_run"], "dag_id", "DAG")))


def _timetable(context: Any) -> Any:
    return getattr(context.get("dag"), "timetable", None)


def _run_type(run: Any) -> str:
    """Return the type of a run, as Airflow writes it; a run of which nothing is known was started by somebody."""
    value = getattr(run, "run_type", "manual")
    return str(getattr(value, "value", value))


def _iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _clock(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
