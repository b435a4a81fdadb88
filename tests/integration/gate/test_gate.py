"""The gate on real Spark, Delta, Great Expectations and Airflow: what it fails is nowhere, and can be looked at."""

from __future__ import annotations

import getpass
import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner, Result
from codes import raises
from deltalake import DeltaTable
from integration.airflow import test_airflow
from integration.airflow.test_airflow import Airflow
from integration.projects.project import Project, hour, make_project, produce
from patience import PATIENCE
from person import Person

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.cli import main
from onceonly.coordinator.coordinator import Coordinator
from onceonly.errors import Busy, GateFailed, InvalidPipeline
from onceonly.runtime import live_services, owners, spark_stage

airflow = test_airflow.airflow  # the fixture
pytestmark = [pytest.mark.integration]

SUITE = {
    "name": "numbers",
    "expectations": [
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "part"}},
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "n", "max_value": 99}},
        {"type": "expect_column_max_to_be_between", "kwargs": {"column": "n", "max_value": 30}, "severity": "warning"},
    ],
}


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str) -> Project:
    made = make_project(tmp_path, broker, spark_server, f"gate_{uuid.uuid4().hex[:8]}")
    (tmp_path / "numbers.expectations.json").write_text(json.dumps(SUITE))
    made.set_gate(suites="numbers.expectations.json")
    return made


def staged(project: Project) -> tuple[Coordinator, Checkpoint]:
    through, pipeline = live_services.open_coordinator(project.parts), project.pipeline()
    planned = through.plan(pipeline, owners.process_owner(), owners.is_alive).checkpoint
    assert planned is not None
    return through, spark_stage.stage(project.parts, through, pipeline.name, planned.epoch, None)


@pytest.mark.parametrize("path", ["in process", "spark"])
def test_bad_rows_are_reported_and_not_published(project: Project, path: str) -> None:
    project.set_gate(suites="numbers.expectations.json", in_process_rows=0 if path == "spark" else 100)
    produce(project, [1, 2, 50, 100])
    through, checkpoint = staged(project)
    judged = through.gate(checkpoint.pipeline, checkpoint.epoch, "test")
    assert judged.verdict is not None
    seen = judged.verdict["sinks"]["numbers"]
    assert (judged.verdict["outcome"], seen["rows"], seen["path"]) == ("failed", 4, path)
    assert [(check["ok"], check["severity"]) for check in seen["checks"]] == [
        (True, "critical"),
        (False, "critical"),
        (False, "warning"),
    ]
    assert seen["checks"][1]["observed"] == "1 of 4 rows"
    page = file_of(judged.verdict["docs"]).with_name("numbers.html").read_text()
    assert "values must be less than or equal to" in page
    assert "://" not in page, "nothing is loaded from anywhere"
    with raises(GateFailed, "gate-failed", match="expect_column_values_to_be_between"):
        through.commit(checkpoint.pipeline, checkpoint.epoch)
    assert not project.published()


@pytest.mark.heavy
def test_the_run_is_failed_and_the_fixed_one_publishes(airflow: Airflow, project: Project) -> None:
    produce(project, [1, 2, 100])
    failed = airflow.run(project, "chained")
    assert failed["run"] == "failed", failed["log"]
    assert failed["tasks"] == {
        "plan": "success",
        "stage": "success",
        "gate": "failed",
        "commit": "upstream_failed",
        "abort": "success",
    }
    assert "CRITICAL: expect_column_values_to_be_between(column=n, max_value=99) (1 of 3 rows)" in failed["log"]
    assert not project.published()
    through = live_services.open_coordinator(project.parts)
    aborted = latest(through)
    assert (aborted.state, aborted.verdict and aborted.verdict["outcome"]) == (State.ABORTED, "failed")
    assert aborted.verdict is not None
    assert aborted.verdict["docs"].replace("index.html", "numbers.html") in failed["log"]
    assert [link.partition("/onceonly/")[2] for link in failed["docs"]] == [
        f"pipelines/{aborted.pipeline}/{aborted.epoch}/docs/1/numbers.html"  # behind the login, and not file:///
    ]
    page = file_of(aborted.verdict["docs"]).with_name("numbers.html").read_text()
    assert "values must be less than or equal to" in page
    [kept] = project.staged_folders()
    bad = DeltaTable(str(project.folder / "home" / "lake" / "chained" / kept)).to_pyarrow_table()
    assert sorted(bad["n"].to_pylist()) == [1, 2, 100], "the bad rows can be looked at"
    through.recover("numbers_chained", owners.is_never_alive)
    assert project.staged_folders() == [kept], "no sweep takes them"

    fixed = airflow.run(project, "chained", "below_100")
    assert fixed["run"] == "success", fixed["log"]
    assert fixed["tasks"]["gate"] == "success"
    assert project.published() == Counter([1, 2])
    assert kept not in project.staged_folders()


@pytest.mark.heavy
def test_what_is_held_is_published_once_it_is_approved(airflow: Airflow, project: Project) -> None:
    project.set_gate(max_rows=2, on_fail="hold")
    produce(project, range(3))
    held = airflow.run(project, "chained")
    assert (held["run"], held["tasks"]["gate"], held["tasks"]["abort"]) == ("failed", "failed", "skipped"), held["log"]
    assert "great_expectations" not in held["log"], "bounds need no suite"
    through = live_services.open_coordinator(project.parts)
    through.recover("numbers_chained", owners.is_never_alive)
    assert latest(through).is_held, "recovery leaves it to a person"
    with raises(Busy, "checkpoint-open", match="onceonly approve numbers_chained 1 --reason"):
        through.plan(project.pipeline(), "the next run", owners.is_never_alive)
    assert not project.published()
    Person(through).approve("numbers_chained", 1, "ann", "a known gap")
    assert airflow.run(project, "recovery")["run"] == "success"
    assert latest(through).state is State.COMMITTED
    assert project.published() == Counter(range(3))


def test_an_invalid_suite_is_refused_before_anything_is_written(project: Project) -> None:
    produce(project, [1])
    through, _ = staged(project)
    through.abort("numbers_chained", 1, "only to make the table")
    before = len(through.state_table.history("numbers_chained"))
    file = project.folder / "numbers.expectations.json"
    cases = {
        "suite-missing": None,
        "suite-invalid": "{",
        "no-such-column": asks("expect_column_to_exist", column="m"),
    }
    for code, suite in cases.items():
        file.write_text(suite) if suite else file.unlink()
        with raises(InvalidPipeline, code):
            live_services.check_pipeline(project.pipeline(), project.parts)
        with raises(InvalidPipeline, code):
            through.plan(project.pipeline(), "run-2", owners.is_never_alive)
    file.write_text(asks("expect_nonsense"))
    with raises(InvalidPipeline, "suite-invalid", match="expect_nonsense"):
        project.parts.inspector(project.pipeline()).check_suites()
    assert len(through.state_table.history("numbers_chained")) == before


@pytest.mark.heavy
def test_the_examination_runs_on_a_spark_master_too(project: Project) -> None:
    project.set_gate(suites="numbers.expectations.json", in_process_rows=0)
    produce(project, [1, 2, 100])
    _, checkpoint = staged(project)
    told, _ = project.child("programs/gate_on_master.py", checkpoint.pipeline, str(checkpoint.epoch)).communicate(
        timeout=PATIENCE
    )
    shown = [line for line in told.splitlines() if line.startswith("{")]
    assert shown, told
    seen = json.loads(shown[0])
    assert seen["master"] == "local[1]"
    assert (seen["verdict"]["outcome"], seen["verdict"]["sinks"]["numbers"]["path"]) == ("failed", "spark")


def test_a_column_that_no_table_has_yet_is_refused_before_a_row_is_staged(project: Project) -> None:
    (project.folder / "numbers.expectations.json").write_text(asks("expect_column_to_exist", column="m"))
    produce(project, [1])
    with raises(InvalidPipeline, "no-such-column", match="names 'm', and sink 'numbers'"):
        staged(project)
    assert not (project.folder / "home" / "lake").exists()


def test_an_interval_without_records_is_judged_and_publishes_no_row(project: Project) -> None:
    """Also where the transform makes a row of nothing."""
    project.set_gate(min_rows=1, on_fail="hold")
    (project.folder / f"transforms_{project.topic}.py").write_text(COUNTED)
    produce(project, [0])
    through, pipeline = live_services.open_coordinator(project.parts), project.pipeline("interval", transform="counted")
    planned = through.plan(pipeline, "run-1", owners.is_never_alive, hour(1)).checkpoint
    assert planned is not None
    spark_stage.stage(project.parts, through, pipeline.name, planned.epoch, None)
    judged = through.gate(pipeline.name, planned.epoch, "test")
    assert judged.verdict is not None
    assert (judged.verdict["outcome"], judged.verdict["sinks"]["numbers"]["rows"]) == ("failed", 0)
    with raises(GateFailed, "gate-held", match="at least 1 row"):
        through.commit(pipeline.name, planned.epoch)
    Person(through).approve(pipeline.name, planned.epoch, "ann", "a holiday")
    assert through.commit(pipeline.name, planned.epoch).state is State.COMMITTED
    assert not project.published("interval")


COUNTED = """
def counted(batch):
    return batch.selectExpr("COUNT(*) AS n", "'all' AS part")
"""
PIPELINES = """
from onceonly import DeltaSink, Gate, KafkaSource, Pipeline

def pipeline(name, **gate):
    sinks = [DeltaSink("numbers", path="lake/" + name)]
    transform = "transforms_{topic}:numbers"
    return Pipeline(name=name, source=KafkaSource("{topic}"), transform=transform, sinks=sinks, gate=Gate(**gate))

strict = pipeline("strict", max_rows=2)
holding = pipeline("holding", suites="numbers.expectations.json", on_fail="hold")
"""


def test_the_command_line_gates_holds_and_approves(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (project.env() | {"SPARK_REMOTE": project.spark}).items():
        monkeypatch.setenv(name, value)
    (project.folder / "pipelines.py").write_text(PIPELINES.format(topic=project.topic))
    produce(project, [1, 2, 100])

    failed = onceonly("run", "pipelines.py:strict")
    assert failed.exit_code == 1, failed.output
    assert "the gate failed the staged rows of attempt 1. Nothing was published." in failed.stderr
    assert "epoch 1: nothing of it stays" not in failed.output
    assert told("describe", "strict", 1)["state"] == "aborted"

    held = onceonly("run", "pipelines.py:holding")
    assert held.exit_code == 4, held.output
    seen = ("--seen", told("describe", "holding", 1)["seen"])
    assert f"Decide: onceonly approve holding 1 --reason … --seen {seen[1]}" in held.stderr
    assert "its gate failed it. Decide: onceonly approve holding 1" in onceonly("recover", "holding", "--force").stdout
    described = onceonly("describe", "holding", 1).stdout
    assert all(words in described for words in ("max_value=99)", "critical", "1 of 3 rows"))
    assert not project.published("holding")
    assert onceonly("approve", "holding", 1, "--reason", "a known gap").exit_code == 2
    approved = onceonly("approve", "holding", 1, "--reason", "a known gap", *seen)
    assert "held → committed, 3 rows" in approved.stdout, approved.output
    assert project.published("holding") == Counter([1, 2, 100])
    shown = told("describe", "holding", 1)
    assert shown["approved"] == {"who": getpass.getuser(), "reason": "a known gap", "seen": seen[1]}
    assert shown["verdict"]["outcome"] == "failed"
    again = onceonly("approve", "strict", 1, "--reason", "please", "--seen", told("describe", "strict", 1)["seen"])
    assert (again.exit_code, "does not wait for an approval" in again.stderr) == (2, True)


def onceonly(*words: object) -> Result:
    return CliRunner(env={"COLUMNS": None}).invoke(main, [str(word) for word in words])  # as in a pipe: wide


def told(*words: object) -> Any:
    return json.loads(onceonly(*words, "--json").stdout)


def asks(kind: str, **kwargs: object) -> str:
    return json.dumps({"expectations": [{"type": kind, "kwargs": kwargs}]})


def latest(through: Coordinator) -> Checkpoint:
    found = through.state_table.view("numbers_chained").latest
    assert found is not None
    return found


def file_of(address: str) -> Path:
    return Path(unquote(urlsplit(address).path))
