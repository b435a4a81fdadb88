"""A run that is asked for a date, as a real Airflow makes it; and the ways that work beside a run that was refused."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from codes import raises
from integration.services.airflow_server import Server

from onceonly.checkpoint.offsets import Interval
from onceonly.errors import InvalidPipeline

pytestmark = [pytest.mark.integration]
DAY = timedelta(days=1)
MAY = datetime(2026, 5, 2, tzinfo=UTC)
SECOND_OF_MAY = Interval(MAY, MAY + DAY)
NAMED = {"interval": [MAY.isoformat(), (MAY + DAY).isoformat()]}
DAGS = """
from datetime import datetime, timezone

from onceonly.airflow import checkpoint_dag
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource

sinks = [DeltaSink("trips", "lake/trips")]
trips = Pipeline(name="trips", mode="interval", source=KafkaSource("trips"), transform="a:b", sinks=sinks)
start = datetime(2026, 5, 1, tzinfo=timezone.utc)
dag = checkpoint_dag(trips, schedule="@daily", start_date=start, catchup=False)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("dates")
    started = Server(folder, {"ONCEONLY_HOME": str(folder / "home")}, dags={"trips.py": DAGS})
    started.start()
    yield started
    started.stop()


def covered(server: Server, run_id: str) -> Interval:
    """What plan makes of a run that this Airflow has."""
    from airflow.sdk import CronDataIntervalTimetable

    from onceonly.airflow import intervals

    run = server.api("GET", f"/dags/trips/dagRuns/{run_id}").json()
    names = ("logical_date", "data_interval_start", "data_interval_end", "run_after", "start_date")
    times: dict[str, Any] = {name: run[name] and datetime.fromisoformat(run[name]) for name in names}
    dag_run = SimpleNamespace(dag_id="trips", run_type=run["run_type"], conf=run["conf"], **times)
    dag = SimpleNamespace(timetable=CronDataIntervalTimetable("@daily", timezone="UTC"))
    return intervals.find_covered("trips", {**times, "dag": dag, "dag_run": dag_run}, lambda span: False).interval


def start(server: Server, run_id: str, **body: Any) -> None:
    answer = server.api("POST", "/dags/trips/dagRuns", {"dag_run_id": run_id, "logical_date": None, **body})
    assert answer.is_success, answer.text


def follow(server: Server, words: str, message: str) -> str:
    """Run the command that the message gives after these words, as it stands; return the run that it starts."""
    _, _, rest = message.partition(words)
    command = re.match(r"airflow (dags trigger trips --conf '[^']*')", rest)
    assert command, message

    def runs() -> set[str]:
        return {run["dag_run_id"] for run in server.api("GET", "/dags/trips/dagRuns?limit=100").json()["dag_runs"]}

    before = runs()
    server.command(*shlex.split(command[1]))
    (started,) = runs() - before
    return started


def test_ways_that_work_beside_a_refused_run(server: Server) -> None:
    now = datetime.now(UTC)
    day_begins = datetime(now.year, now.month, now.day, tzinfo=UTC)
    server.command("dags", "trigger", "trips", "--run-id", "asked", "--logical-date", MAY.isoformat())
    start(server, "asked-by-api", logical_date=(MAY + DAY).isoformat())
    for refused in ("asked", "asked-by-api"):
        with raises(InvalidPipeline, "date-outside-interval") as error:
            covered(server, refused)
    assert covered(server, follow(server, f"the interval of {MAY + DAY:%Y-%m-%d}T00:00:00Z: ", str(error.value))) == (
        Interval(MAY + DAY, MAY + 2 * DAY)
    )

    window = {"data_interval_start": MAY.isoformat(), "data_interval_end": (MAY + DAY).isoformat()}
    start(server, "by-form", logical_date=now.isoformat(timespec="milliseconds"), **window)
    start(server, "by-conf", conf=NAMED)
    server.command("dags", "trigger", "trips", "--run-id", "by-command", "--conf", json.dumps(NAMED))
    assert [covered(server, run) for run in ("by-form", "by-conf", "by-command")] == [SECOND_OF_MAY] * 3

    start(server, "click", logical_date=(now + timedelta(seconds=1)).isoformat(timespec="milliseconds"))
    start(server, "click-without-date")
    server.command("dags", "trigger", "trips", "--run-id", "command-without-date")
    yesterday = Interval(day_begins - DAY, day_begins)
    assert [covered(server, run) for run in ("click", "click-without-date", "command-without-date")] == [yesterday] * 3


def test_a_backfill_works_once_the_refused_run_is_deleted(server: Server) -> None:
    date = MAY + 10 * DAY
    server.command("dags", "trigger", "trips", "--run-id", "in-the-way", "--logical-date", date.isoformat())
    span = [f"--{end}-date={date:%Y-%m-%d}" for end in ("from", "to")]

    def backfill() -> list[str]:
        server.command("backfill", "create", "--dag-id", "trips", *span)
        runs = server.api("GET", "/dags/trips/dagRuns?run_type=backfill&limit=100").json()["dag_runs"]
        return [run["dag_run_id"] for run in runs if run["data_interval_start"].startswith(f"{date:%Y-%m-%d}")]

    assert server.api("DELETE", "/dags/trips/dagRuns/in-the-way").is_success
    (run,) = backfill()
    assert covered(server, run) == Interval(date, date + DAY)
