"""The DAGs in a real Airflow: states that a user sees in the UI, rows that an independent reader finds."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from codes import raises
from collector import collector
from deltalake import write_deltalake
from integration.programs.children import output
from integration.projects.project import HOUR, START, Project, hour, make_project, produce
from integration.services.airflow_database import copy_database
from integration.services.postgres import postgres
from patience import PATIENCE

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.coordinator.coordinator import Coordinator
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, spark_stage
from onceonly.runtime.live_services import LiveServices
from onceonly.runtime.owners import airflow_owner, installation_of
from onceonly.statetable.table import StateTable

pytestmark = [pytest.mark.integration]
ROOT = Path(__file__).parents[3]
HERE = "this-airflow"
LINEAGE = importlib.util.find_spec("openlineage") is not None


@dataclass
class Airflow:
    """One metadata database for all tests of this file."""

    home: Path
    spark: str
    database: str | None = None  # SQLite in its home

    def env(self) -> dict[str, str]:
        return {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.home / "dags"),
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW_CONN_SPARK": json.dumps({"conn_type": "generic", "host": self.spark}),
            **({"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.database} if self.database else {}),
        }

    @contextmanager
    def initialised(self) -> Iterator[Airflow]:
        """With its tables, and its settings in this process's environment."""
        before = dict(os.environ)
        os.environ.update(self.env())
        if self.database:
            command = [sys.executable, "-m", "airflow", "db", "migrate"]
            subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
        else:
            copy_database(self.home)
        yield self
        os.environ.clear()
        os.environ.update(before)

    def run(self, project: Project, *arguments: str) -> dict[str, Any]:
        printed = output(project.child("programs/airflow_run.py", *arguments))
        results = [line for line in printed.splitlines() if line.startswith("RESULT ")]
        assert results, printed[-5000:]
        decoder = json.JSONDecoder()  # what a child process logs late may stand behind it
        result: dict[str, Any] = decoder.raw_decode(results[-1].removeprefix("RESULT "))[0]
        return result | {"log": printed}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, spark_server: str) -> Any:
    with ExitStack() as stack:
        asked = os.environ.get("ONCEONLY_TEST_POSTGRES")
        database = stack.enter_context(postgres()) if asked else None
        yield stack.enter_context(Airflow(tmp_path_factory.mktemp("airflow"), spark_server, database).initialised())


@dataclass
class Watched:
    """What the processes of one test have told others."""

    metrics: dict[tuple[str, ...], float]
    events: Path

    def event(self, task: str, kind: str = "COMPLETE") -> Any:
        """The last one of OpenLineage about a task that has succeeded, or ended as `kind` says."""
        told = [json.loads(line) for line in self.events.read_text().splitlines()]
        return [each for each in told if each["eventType"] == kind and each["job"]["name"].endswith(f".{task}")][-1]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    events = tmp_path / "lineage.jsonl"
    transport = {"type": "file", "log_file_path": str(events), "append": True}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    with collector() as found:
        for name, value in found.env.items():
            monkeypatch.setenv(name, value)
        yield Watched(found.values, events)


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str, request: pytest.FixtureRequest) -> Project:
    return make_project(tmp_path, broker, spark_server, request.node.name.removeprefix("test_")[:60])


def test_a_run_publishes_and_the_next_without_data_is_skipped(
    airflow: Airflow, project: Project, watched: Watched
) -> None:
    produce(project, range(40))
    first = airflow.run(project, "chained")
    assert (first["run"], first["tasks"]["commit"], first["tasks"]["abort"]) == ("success", "success", "skipped")
    assert project.published() == Counter(range(40))
    offsets = {project.topic: {str(partition): [0, 10] for partition in range(4)}}
    event = {"pipeline": "numbers_chained", "epoch": 1, "rows": 40, "offsets": offsets, "interval": None}
    assert first["events"] == {"onceonly://lake/chained": event}
    assert {link[-37:] for name, link in first["links"].items() if name != "abort"} == {
        "/onceonly/pipelines/numbers_chained/1"
    }
    mine = "numbers_chained"
    counted = {name: watched.metrics.get((f"onceonly.{name}", mine)) for name in ("planned", "staged", "committed")}
    assert counted == {"planned": 1, "staged": 1, "committed": 1}
    assert watched.metrics["onceonly.rows", "numbers", mine] == 40  # tags in order
    assert watched.metrics["onceonly.checkpoint.duration", mine] > 0
    if LINEAGE:
        told(watched, project)
    second = airflow.run(project, "chained")
    assert second["run"] == "success"
    assert set(second["tasks"].values()) == {"skipped"}
    assert "no new data" in second["log"]


def told(watched: Watched, project: Project) -> None:
    """What OpenLineage was told of stage and commit: no output before it is published."""
    stage, commit = watched.event("stage"), watched.event("commit")
    assert stage["outputs"] == []
    for event in (stage, commit):
        (topic,) = event["inputs"]
        assert (topic["namespace"], topic["name"]) == (f"kafka://{project.bootstrap}", project.topic)
        offsets = topic["inputFacets"]["onceonly_offsets"]["partitions"]
        assert offsets == [{"partition": partition, "start": 0, "end": 10} for partition in range(4)]
    (table,) = commit["outputs"]
    assert (table["namespace"], table["name"]) == ("file", str(project.folder / "home" / "lake" / "chained"))
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 40
    assert table["facets"]["schema"]["fields"]
    (checkpoint,) = commit["run"]["facets"]["onceonly_checkpoints"]["checkpoints"]
    assert (checkpoint["pipeline"], checkpoint["epoch"], checkpoint["state"]) == ("numbers_chained", 1, "committed")


@pytest.mark.heavy
def test_a_run_knows_itself_when_it_is_cleared_and_is_another_when_it_is_made_again(
    airflow: Airflow, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUN_AFTER", START.isoformat())
    monkeypatch.setenv("CLEARED", "plan")
    produce(project, range(8))
    first = airflow.run(project, "chained", "numbers", START.isoformat())
    assert (first["run"], first["cleared"]) == ("success", "skipped"), first["log"]
    assert "already committed" in first["log"]
    monkeypatch.delenv("CLEARED")
    produce(project, range(8, 12))
    again = airflow.run(project, "chained", "numbers", START.isoformat())  # dag.test() deletes the run that is there
    assert (again["run_id"], again["tasks"]["commit"]) == (first["run_id"], "success")
    assert project.published() == Counter(range(12))


def test_a_stage_that_fails_is_aborted_and_the_fixed_rerun_publishes(airflow: Airflow, project: Project) -> None:
    produce(project, range(8))
    failed = airflow.run(project, "chained", "broken")
    assert failed["run"] == "failed"
    assert failed["tasks"] == {"plan": "success", "stage": "failed", "commit": "upstream_failed", "abort": "success"}
    assert "fails on purpose" in failed["log"]
    assert "NOTIFIED of stage" in failed["log"]  # by default_args, as anyone notifies
    assert not project.published()
    assert project.staged_folders() == []
    aborted = StateTable(project.settings.state).view("numbers_chained").checkpoint(1)
    reason = aborted.reason if aborted else ""
    assert reason and "task 'stage' failed in Airflow" in reason and "fails on purpose" in reason
    fixed = airflow.run(project, "chained")
    assert fixed["run"] == "success"
    assert project.published() == Counter(range(8))


@pytest.mark.heavy
def test_who_watches_is_told_what_a_gate_refused_and_which_table_did_not_come(
    airflow: Airflow, project: Project, watched: Watched
) -> None:
    project.set_gate(min_rows=9)
    produce(project, range(8))
    failed = airflow.run(project, "chained")
    assert (failed["tasks"]["gate"], failed["tasks"]["abort"]) == ("failed", "success"), failed["log"][-5000:]
    assert not project.published()
    counted = [("planned",), ("staged",), ("verdict", "failed"), ("aborted",)]
    mine = "numbers_chained"
    assert [watched.metrics.get((f"onceonly.{name}", *tags, mine)) for name, *tags in counted] == [1, 1, 1, 1]
    if not LINEAGE:
        return
    place = ("file", str(project.folder / "home" / "lake" / "chained"))
    gate, abort = watched.event("gate", "FAIL"), watched.event("abort")
    (staged,) = gate["inputs"]
    assert (staged["namespace"], staged["name"]) == place
    (check,) = staged["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (check["assertion"], check["success"]) == ("at least 9 rows", False)
    (named,) = abort["run"]["facets"]["onceonly_checkpoints"]["checkpoints"]
    assert (named["state"], named["unpublished"]) == ("aborted", [dict(zip(("namespace", "name"), place, strict=True))])
    assert [gate["outputs"], abort["inputs"], abort["outputs"]] == [[], [], []]


@pytest.mark.heavy
def test_a_missing_connection_is_found_before_anything_is_planned(
    airflow: Airflow, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(project, range(3))
    monkeypatch.delenv("AIRFLOW_CONN_SPARK")
    ran = airflow.run(project, "chained")
    assert ran["tasks"]["plan"] == "failed"
    assert "the Airflow connection 'spark' does not exist" in ran["log"]
    assert StateTable(project.settings.state).pipelines() == []


@pytest.mark.heavy
def test_a_second_dag_with_the_same_pipeline_is_refused(
    airflow: Airflow, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(project, range(3))
    assert airflow.run(project, "chained")["run"] == "success"
    produce(project, range(3, 6))
    monkeypatch.setenv("DAG_ID", "rival")
    ran = airflow.run(project, "chained")
    assert ran["tasks"]["plan"] == "failed"
    assert "two DAGs have a pipeline of this name, 'numbers_chained' and 'rival'" in ran["log"]
    assert StateTable(project.settings.state).view("numbers_chained").head.epoch == 1


def test_a_data_interval_is_the_window(airflow: Airflow, project: Project) -> None:
    produce(project, range(3), {0: START, 1: START + HOUR, 2: START + 2 * HOUR})
    window = [(START + n * HOUR).isoformat() for n in (1, 2)]  # the conf names it; its date is none of these
    ran = airflow.run(project, "interval", "numbers", *window)
    assert ran["run"] == "success", ran["log"]
    assert project.published("interval") == Counter([1])


def test_another_interval_than_that_of_the_date_is_refused(airflow: Airflow, project: Project) -> None:
    produce(project, range(2), {0: START, 1: START + HOUR})
    ran = airflow.run(project, "interval", "numbers", (START + HOUR).isoformat())  # Airflow infers the hour before
    assert (ran["run"], ran["tasks"]["plan"]) == ("failed", "failed")
    assert "[date-outside-interval]" in ran["log"]
    assert not Path(project.settings.state, "_pipelines").exists()


def test_recovery_publishes_what_an_ended_run_staged(
    airflow: Airflow, project: Project, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_ONCEONLY_INSTALLATION", HERE)
    project.set_gate(min_rows=1)
    produce(project, range(12))
    parts = project.parts
    through = live_services.open_coordinator(parts)
    gone = airflow_owner("numbers_chained", "a run that was deleted", HERE)
    planned = through.plan(project.pipeline(), gone, lambda _: True).checkpoint
    assert planned is not None
    spark_stage.stage(parts, through, planned.pipeline, planned.epoch, gone)
    assert not project.published()
    away = refused(project, through, parts)
    recovered = airflow.run(project, "recovery")
    assert recovered["run"] == "failed", recovered["log"][-3000:]
    assert recovered["tasks"] == {"recover": "failed", "announce": "success"}
    latest = through.state_table.view(planned.pipeline).latest
    assert latest is not None
    assert latest.state is State.COMMITTED
    assert project.published() == Counter(range(12))
    assert {uri: extra["epoch"] for uri, extra in recovered["events"].items()} == {"onceonly://lake/chained": 1}
    assert watched.metrics["onceonly.checkpoints", "numbers_interval", "refused"] == 1  # although the task failed
    assert watched.metrics["onceonly.lag_records", "numbers_chained"] == 0
    if LINEAGE:
        told_of_recovery(project, watched)
    away.rename(away.with_name("interval"))
    recovered = airflow.run(project, "recovery")
    assert recovered["run"] == "success", recovered["log"][-3000:]
    assert {uri: extra["epoch"] for uri, extra in recovered["events"].items()} == {"onceonly://lake/interval": 1}


@pytest.mark.heavy
def test_two_airflows_on_one_state_table(airflow: Airflow, project: Project, tmp_path: Path) -> None:
    """The runs of one of them are unknown to the other: that is no sign that they have ended."""
    produce(project, range(4))
    assert airflow.run(project, "chained")["run"] == "success"
    through = live_services.open_coordinator(project.parts)
    first = installation_of(latest(through).owner)
    produce(project, range(4, 8))
    live = airflow_owner("numbers_chained", "at work", first)
    planned = through.plan(project.pipeline(), live, lambda _: True).checkpoint
    assert planned is not None
    spark_stage.stage(project.parts, through, planned.pipeline, planned.epoch, live)
    with Airflow(tmp_path / "other", airflow.spark).initialised() as other:
        assert other.run(project, "recovery")["run"] == "success"
        assert latest(through).state is State.STAGED
        busy = other.run(project, "chained")
        assert (busy["tasks"]["plan"], "is still at work" in busy["log"] or "Busy" in busy["log"]) == ("failed", True)
        assert airflow_recovers(airflow, project) and latest(through).state is State.COMMITTED
        produce(project, range(8, 12))
        assert other.run(project, "chained")["run"] == "success"
    second = installation_of(latest(through).owner)
    assert first and second and first != second
    assert project.published() == Counter(range(12))


def airflow_recovers(airflow: Airflow, project: Project) -> bool:
    """In the environment of the first one, to which its own run is unknown: it was deleted."""
    before = dict(os.environ)
    os.environ.update(airflow.env())
    try:
        return bool(airflow.run(project, "recovery")["run"] == "success")
    finally:
        os.environ.clear()
        os.environ.update(before)


def latest(through: Coordinator) -> Checkpoint:
    checkpoint = through.state_table.view("numbers_chained").latest
    assert checkpoint is not None
    return checkpoint


def told_of_recovery(project: Project, watched: Watched) -> None:
    """OpenLineage: the checks of both gates, although the task failed, and what the one of them has published."""
    recover, announce = watched.event("recover", "FAIL"), watched.event("announce")
    tables = [str(project.folder / "home" / "lake" / mode) for mode in ("chained", "interval")]
    assert [dataset["name"] for dataset in recover["inputs"]] == tables
    for staged in recover["inputs"]:
        (check,) = staged["inputFacets"]["dataQualityAssertions"]["assertions"]
        assert (check["assertion"], check["success"], check["severity"]) == ("at least 1 row", True, "error")
    assert [dataset["name"] for dataset in announce["outputs"]] == tables[:1]
    assert recover["outputs"] == []


def refused(project: Project, through: Coordinator, parts: LiveServices) -> Path:
    """Another pipeline that an ended run staged, whose table is not there; where it is."""
    gone = airflow_owner("numbers_interval", "a run that was deleted", HERE)
    planned = through.plan(project.pipeline("interval"), gone, lambda _: True, hour(0)).checkpoint
    assert planned is not None
    spark_stage.stage(parts, through, planned.pipeline, planned.epoch, gone)
    table = project.folder / "home" / "lake" / "interval"
    return table.rename(table.with_name("away"))


@pytest.mark.heavy
def test_the_operators_work_in_a_dag_of_the_users_own(airflow: Airflow, project: Project) -> None:
    produce(project, range(4))
    ran = airflow.run(project, "own")
    assert ran["tasks"] == {"pin": "success", "write": "success", "publish": "success"}
    assert project.published() == Counter(range(4))
    assert "sink numbers: 4 rows" in ran["log"]
    assert ran["events"] == {}  # no outlets were named


def test_the_dag_that_is_scheduled_on_the_table_counts_it(
    airflow: Airflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))
    flights = pa.table({"day": [date(2013, 1, 1), date(2013, 1, 1), date(2013, 1, 2)]})
    write_deltalake(tmp_path / "lake" / "flights", flights)
    found = runpy.run_path(str(ROOT / "dags" / "flights_by_day.py"))
    published = runpy.run_path(str(ROOT / "dags" / "flights.py"))
    assert found["table"] in published["dag"].get_task("commit").outlets
    event = SimpleNamespace(extra={"pipeline": "flights", "epoch": 7, "rows": 3})
    counted = found["dag"].get_task("count").python_callable({found["table"]: [event]})
    assert counted == {"2013-01-01": 2, "2013-01-02": 1}
    assert "epoch 7 of flights: 3 rows" in capsys.readouterr().out


def test_a_dag_file_imports_no_spark(airflow: Airflow) -> None:
    program = """
import runpy, sys
for file in sys.argv[1:]:
    runpy.run_path(file)
heavy = {"pyspark", "great_expectations", "pandas", "confluent_kafka", "deltalake", "kafka"} & set(sys.modules)
assert not heavy, heavy
"""
    files = [str(file) for file in sorted((ROOT / "dags").glob("*.py"))]
    assert files
    done = subprocess.run([sys.executable, "-c", program, *files], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    "schedule",
    ["@once", "@continuous", "zero-width cron", "zero-width delta", "an asset", "cron", "wide", "delta", None],
)
def test_an_interval_pipeline_wants_a_schedule_with_data_intervals(airflow: Airflow, schedule: Any) -> None:
    from airflow.sdk import Asset, CronTriggerTimetable, DeltaTriggerTimetable

    from onceonly.airflow import checkpoint_dag

    source, sinks = KafkaSource(topic="t"), [DeltaSink("out", "out")]
    pipeline = Pipeline(name="hours", mode="interval", source=source, transform="a:b", sinks=sinks)
    refused = {
        "@once": "@once",
        "@continuous": "@continuous",
        "zero-width cron": CronTriggerTimetable("@hourly", timezone="UTC"),
        "zero-width delta": DeltaTriggerTimetable(HOUR),
        "an asset": [Asset("table")],
    }
    accepted = {
        "cron": "@hourly",
        "wide": CronTriggerTimetable("@hourly", timezone="UTC", interval=HOUR),
        "delta": HOUR,
    }
    if schedule in refused:
        with raises(InvalidPipeline, "schedule-without-interval"):
            checkpoint_dag(pipeline, schedule=refused[schedule])
        return
    dag = checkpoint_dag(pipeline, schedule=accepted.get(schedule), catchup=False)
    assert schedule not in ("cron", "delta") or "DataInterval" in type(dag.timetable).__name__


def test_a_plan_is_retried_for_as_long_as_late_records_are_waited_for(airflow: Airflow) -> None:
    from onceonly.airflow import checkpoint_dag

    def plan(grace: float) -> Any:
        source, sinks = KafkaSource("t", grace=grace), [DeltaSink("d", "d")]
        pipeline = Pipeline(name="waits", source=source, transform="a:b", sinks=sinks, mode="interval")
        return checkpoint_dag(pipeline, schedule="@daily", catchup=False).get_task("plan")

    assert plan(0).retries == 12
    assert plan(6 * 3600).retries == 12 + 72
    assert plan(6 * 3600).max_retry_delay == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [("*/5 * * * *", 300), ("@daily", 900), (timedelta(minutes=2), 120), (None, None), (timedelta(seconds=30), None)],
)
def test_a_schedule_that_outlasts_the_transactions_is_refused(
    airflow: Airflow, schedule: Any, seconds: int | None
) -> None:
    from onceonly.airflow import checkpoint_dag

    sink = KafkaSink(name="late", topic="late", transaction_timeout=60)
    pipeline = Pipeline(name="short", source=KafkaSource(topic="t"), transform="a:b", sinks=[sink])
    if seconds is None:
        assert checkpoint_dag(pipeline, schedule=schedule).dag_id == "short"
        return
    with raises(
        InvalidPipeline,
        "transaction-timeout-too-short",
        match=f"time out after 60 s, and the commit may follow up to {seconds} s",
    ):
        checkpoint_dag(pipeline, schedule=schedule)
