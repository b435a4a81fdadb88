"""The four uses of repairs in a live Airflow, each by a page's buttons and by command, compared with pandas.

It leaves pictures of the pages in the folder that PICTURES names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas
import pytest
import requests
from deltalake import DeltaTable
from integration.projects.project import HOUR, START, Project, make_project, produce
from integration.readers.kafka_reader import create_topic, values
from integration.services import chromium
from integration.services.airflow_standalone import SOURCES, running
from integration.services.postgres import postgres, programs
from patience import PATIENCE

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.dev.demo.standalone import USER, Standalone, wait_until
from onceonly.statetable.table import StateTable

pytestmark = [
    pytest.mark.integration,
    pytest.mark.heavy,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(chromium.BINARY is None, reason="Chromium is not installed: apt-get install chromium"),
    pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed: apt-get install postgresql"),
]
NUMBERS = {0: [0, 1, 2, 3], 1: [10, 11, 12], 2: [20, 21]}  # the records of each hour
ALL = tuple(NUMBERS)
TRANSFORM = """
from pathlib import Path


def hours(batch):
    added, *sinks = Path(__file__).with_name("asked").read_text().split()
    numbers = batch.selectExpr(f"CAST(CAST(value AS STRING) AS BIGINT) + {added} AS n")
    texts = numbers.selectExpr("CAST(CAST(n AS STRING) AS BINARY) AS value")
    return {sink: texts if sink == "late" else numbers for sink in sinks}
"""
DAGS = """
from datetime import datetime
from pathlib import Path

from onceonly import DeltaSink, KafkaSink, KafkaSource, Pipeline
from onceonly.airflow import checkpoint_dag

sinks = {
    "lake": DeltaSink("lake", path="lake/hours", checkpoint_column="published_by"),
    "late": KafkaSink(name="late", topic="late-TOPIC", mode="late"),
    "new": DeltaSink("new", path="lake/new"),
}
_, *names = (Path(__file__).parents[1] / "asked").read_text().split()
hours = Pipeline(
    name="hours",
    mode="interval",
    source=KafkaSource("TOPIC"),
    transform="hours_TOPIC:hours",
    sinks=[sinks[name] for name in names],
)
span = {"start_date": datetime(2024, 1, 1), "end_date": datetime(2024, 1, 1, 2)}
dag = checkpoint_dag(hours, schedule="@hourly", max_active_runs=2, **span)
"""


@dataclass
class Site:
    """An Airflow with the project whose hours it processes, and what a person sees of it.

    Args:
        shown: what each sink has to show of each hour, as often as it was asked for.
    """

    project: Project
    airflow: Standalone
    tab: chromium.Chromium
    pictures: Path
    shown: dict[str, dict[int, list[int]]] = field(default_factory=lambda: {"lake": {}, "late": {}, "new": {}})

    @property
    def state(self) -> StateTable:
        return StateTable(self.project.settings.state)

    def ask_code(self, added: int, *sinks: str) -> None:
        """Change the code: what it adds to each number, and the sinks that it writes."""
        (self.project.folder / "asked").write_text(f"{added} {' '.join(sinks)}")

    # ---- by command

    def call(self, command: str, *arguments: str) -> str:
        path = os.pathsep.join([str(SOURCES), str(self.project.folder)])
        env = {**os.environ, **self.airflow.environment(), **self.project.env(), "PYTHONPATH": path}
        env["SPARK_REMOTE"] = self.project.spark
        program = Path(sys.executable).with_name(command)
        done = subprocess.run(
            [program, *arguments],
            cwd=self.project.folder,
            env=env,
            check=False,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def trigger(self, conf: Mapping[str, Any]) -> None:
        """By `airflow dags trigger`; wait until the run has succeeded."""
        before = self.runs()
        self.call("airflow", "dags", "trigger", "hours", "--conf", json.dumps(conf))
        (run,) = wait_until(lambda: self.runs().keys() - before.keys(), "there is the run", PATIENCE)
        self.wait(run)

    # ---- by page

    def page(self, number: int) -> str:
        """Open the page of an hour's first checkpoint."""
        address = f"{self.airflow.url}/onceonly/pipelines/hours/{self.first(number).epoch}"
        self.tab.open(address)
        self.tab.wait("document.querySelector('#story')")
        return address

    def click(self, number: int, label: str, reason: str, **choices: str) -> str:
        """Push a button of that page, say what becomes of which rows, and wait until the run has succeeded."""
        self.page(number)
        self.tab.value(f"[...document.querySelectorAll('button')].find((b) => b.textContent === '{label}').click()")
        self.tab.wait("document.querySelector('dialog[open]')")
        for sink, choice in choices.items():
            self.tab.value(f"document.querySelector('select[name={sink}]').value = '{choice}'")
        self.tab.type(reason)
        self.photograph(f"asked-{reason}")
        self.tab.value("document.getElementById('ask-yes').click()")
        self.tab.wait("!['', 'Working…'].includes(document.getElementById('ask-answer').innerText)")
        answer = self.tab.value("document.getElementById('ask-answer').innerText")
        assert "is queued. It writes" in answer, answer
        run = str(self.tab.value("document.querySelector('#ask-answer a').pathname")).rsplit("/", 1)[-1]
        self.tab.press("Escape")
        self.wait(run)
        self.tab.wait(f"document.querySelector('#story').innerText.includes('{USER}: {reason}')")
        self.photograph(f"done-{reason}")
        return run

    def photograph(self, name: str) -> None:
        self.tab.screenshot(self.pictures / f"{name.replace(' ', '-')}.png", 1280, 1400)

    # ---- what came of it

    def runs(self) -> dict[str, str]:
        """Their states, once Airflow answers."""
        found = wait_until(self._list_runs, "Airflow answers", PATIENCE)
        return {run["dag_run_id"]: run["state"] for run in found["dag_runs"]}

    def _list_runs(self) -> Any:
        try:
            return self.airflow.call("GET", "/dags/hours/dagRuns")
        except requests.RequestException:
            return None

    def wait(self, run: str) -> None:
        wait_until(lambda: self.runs().get(run) in ("success", "failed"), f"{run} has ended", 3 * PATIENCE)
        assert self.runs()[run] == "success", self.airflow.task_states("hours", run)

    def first(self, number: int) -> Checkpoint:
        """The checkpoint that has processed an hour first."""
        start = START + number * HOUR
        found = [each for each in self.state.view("hours").iterate_committed() if each.interval]
        return min((each for each in found if each.interval.start == start), key=lambda each: each.epoch)  # type: ignore[union-attr]

    def last(self) -> Checkpoint:
        view = self.state.view("hours")
        return view.require(view.head.epoch)

    def expect(self, hours: Iterable[int] = (), added: int = 0, once_more: str = "", *sinks: str) -> None:
        """Let sinks show new rows of hours instead of the old ones, or beside them; compare all sinks with pandas."""
        for number in hours:
            for sink in sinks:
                earlier = self.shown[sink].get(number, []) if sink == once_more else []
                self.shown[sink][number] = [*earlier, *(n + added for n in NUMBERS[number])]
        found = {"lake": self.table("hours"), "late": self.topic(), "new": self.table("new")}
        for sink, by_hour in self.shown.items():
            truth = pandas.Series([n for numbers in by_hour.values() for n in numbers], dtype="int64")
            pandas.testing.assert_series_equal(
                found[sink].sort_values(ignore_index=True), truth.sort_values(ignore_index=True), check_names=False
            )

    def table(self, name: str) -> pandas.Series[int]:
        folder = self.project.folder / "home" / "lake" / name
        return DeltaTable(str(folder)).to_pandas()["n"] if folder.exists() else pandas.Series([], dtype="int64")

    def topic(self) -> pandas.Series[int]:
        read = values(self.project.bootstrap, f"late-{self.project.topic}")
        return pandas.Series([int(value or b"") for value in read], dtype="int64")


@pytest.fixture
def site(tmp_path: Path, broker: str, spark_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    project = make_project(tmp_path, broker, spark_server, "repairs_in_airflow")
    create_topic(broker, f"late-{project.topic}", 1)
    (tmp_path / f"hours_{project.topic}.py").write_text(TRANSFORM)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "hours.py").write_text(DAGS.replace("TOPIC", project.topic))
    (tmp_path / "asked").write_text("0 lake late")
    times = {n: START + number * HOUR for number, numbers in NUMBERS.items() for n in numbers}
    produce(project, times, times)
    pictures = Path(os.environ.get("PICTURES") or tmp_path / "pictures")
    pictures.mkdir(parents=True, exist_ok=True)
    with postgres() as url, chromium.opened() as tab:  # beside a scheduler on SQLite, commands find it locked
        monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", url)
        monkeypatch.setenv("AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT", "60")  # a busy machine answers late
        with running(project, "hours") as airflow:
            login = {"username": USER, "password": airflow.password}
            token = requests.post(f"{airflow.url}/auth/token", json=login, timeout=60).json()["access_token"]
            tab.login(airflow.url, token)
            yield Site(project, airflow, tab, pictures)


def test_the_four_uses_by_page_and_by_command(site: Site) -> None:
    wait_until(lambda: list(site.runs().values()) == ["success"] * 3, "all hours have run", 3 * PATIENCE)
    site.expect(ALL, 0, "", "lake", "late")
    give_a_new_sink_its_past(site)
    correct_an_hour_beside_a_topic(site)
    correct_an_hour_after_optimize(site)
    bring_back_a_table_that_went_back(site)
    assert site.tab.errors == []


def give_a_new_sink_its_past(site: Site) -> None:
    site.ask_code(0, "lake", "late", "new")
    window = ["--from-date", "2024-01-01T01:00:00", "--to-date", "2024-01-01T02:00:00"]
    conf = json.dumps({"only": ["new"], "reason": "its past"})
    options = ["--run-backwards", "--max-active-runs", "2", "--reprocess-behavior", "completed"]
    site.call("airflow", "backfill", "create", "--dag-id", "hours", *window, *options, "--dag-run-conf", conf)

    def committed() -> bool:
        return [cp.only for cp in site.state.view("hours").iterate_committed()].count(("new",)) == 2

    wait_until(committed, "two hours of the new sink are committed", 3 * PATIENCE)
    wait_until(lambda: set(site.runs().values()) == {"success"}, "the backfill has ended", PATIENCE)
    site.expect([1, 2], 0, "", "new")
    site.click(0, "Complete new", "the first hour too")
    site.expect([0], 0, "", "new")


def correct_an_hour_beside_a_topic(site: Site) -> None:
    site.ask_code(100, "lake", "late", "new")
    run = site.click(0, "Correct…", "wrong numbers", late="again", new="keep")
    site.expect([0], 100, "late", "lake", "late")
    done = site.last()
    assert (done.state, done.sinks, done.again) == (State.COMMITTED, ("lake", "late"), ("late",))
    assert done.requested_by == {"who": USER, "reason": "wrong numbers"}

    site.airflow.call("POST", f"/dags/hours/dagRuns/{run}/clear", {"dry_run": False, "only_failed": False})
    wait_until(lambda: site.airflow.task_states("hours", run)["plan"] == "skipped", "plan is skipped", 2 * PATIENCE)
    site.wait(run)
    site.expect()
    assert site.last().epoch == done.epoch

    site.click(1, "Correct…", "kept by page", late="keep", new="keep")
    site.expect([1], 100, "", "lake")
    correct = ["dags/hours.py:hours", "--interval", "2024-01-01T02:00:00", "2024-01-01T03:00:00", "--reprocess"]
    site.call("onceonly", "run", *correct, "--again", "late", "--keep", "new", "--reason", "again by command")
    site.expect([2], 100, "late", "lake", "late")


def correct_an_hour_after_optimize(site: Site) -> None:
    table = DeltaTable(str(site.project.folder / "home" / "lake" / "hours"))
    table.optimize.compact()
    assert len(table.file_uris()) == 1, "the rows of all hours are in one file"
    site.ask_code(1000, "lake", "late", "new")
    site.click(0, "Correct…", "after OPTIMIZE", late="keep", new="keep")
    site.expect([0], 1000, "", "lake")
    wish = {"reprocess": True, "keep": ["late", "new"], "epoch": site.first(2).epoch, "reason": "after it, by command"}
    site.trigger(wish)
    site.expect([2], 1000, "", "lake")


def bring_back_a_table_that_went_back(site: Site) -> None:
    """The copy of the table is from before its last two publications: one hour of the backfill, and the first hour."""
    site.ask_code(0, "lake", "late", "new")
    log = site.project.folder / "home" / "lake" / "new" / "_delta_log"
    versions = sorted(int(file.stem) for file in log.glob("*.json"))
    for version in versions[-2:]:
        for file in log.glob(f"{version:020}.*"):
            file.unlink()
    (left,) = [n for n in (1, 2) if set(site.table("new")) == set(NUMBERS[n])]
    look = json.loads(site.call("onceonly", "repair", "dags/hours.py:hours", "new", "--dry-run", "--json"))
    assert [lack["how"] for lack in look["lacks"]] == ["missing", "missing"]
    accept = ["--reason", "an old copy", "--seen", str(look["seen"])]
    site.call("onceonly", "accept-loss", "hours", "new", *accept)
    site.page(0)
    site.photograph("lost")
    assert "No rows of these records are in force in sink new." in site.tab.text()

    site.shown["new"] = {left: NUMBERS[left]}
    site.click(0, "Complete new", "it was lost")
    site.expect([0], 0, "", "new")
    look = json.loads(site.call("onceonly", "repair", "dags/hours.py:hours", "new", "--dry-run", "--json"))
    assert [lack["how"] for lack in look["lacks"]] == ["recorded"]
    reason = ["--reason", "it was lost as well", "--seen", str(look["seen"])]
    site.call("onceonly", "repair", "dags/hours.py:hours", "new", *reason)
    site.expect([3 - left], 0, "", "new")
    site.page(3 - left)
    site.photograph("repaired")
    assert "it was lost as well" in site.tab.text()
    described = site.call("onceonly", "describe", "hours", str(site.first(3 - left).epoch), "--json")
    assert json.loads(described)["in_force"]["new"] == [site.last().epoch]
