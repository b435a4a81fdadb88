"""What operators tell OpenLineage: put together at work, asked for afterwards in another process."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.world import World

from onceonly.airflow.lineage import InputDataset, OutputDataset
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import TopicRange
from onceonly.coordinator.coordinator import Coordinator
from onceonly.errors import CannotPublish
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import DeltaSink, KafkaSink, StateSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.settings import Settings

pytestmark = pytest.mark.usefixtures("airflow_home")
FLIGHTS = Pipeline(
    name="flights", source=KafkaSource("flights"), transform="a:b", sinks=[DeltaSink("lake", "lake/flights")]
)


def parts(folder: Path) -> Any:
    settings = Settings.from_env({"ONCEONLY_HOME": str(folder)})
    return SimpleNamespace(settings=settings, kafka=lambda *_: SimpleNamespace(bootstrap="one:9092"))


def committed(folder: Path, name: str) -> Checkpoint:
    world = World(folder, name=name, sinks=[DeltaSink("lake", f"lake/{name}")])
    world.plan()
    world.coordinator.stage(name, 1, world.parts.produce)
    return world.coordinator.commit(name, 1)


def test_inputs_are_left_out_where_they_would_seem_to_go_into_every_output(tmp_path: Path) -> None:
    from onceonly.airflow import lineage

    done = [committed(tmp_path, name) for name in ("flights", "orders")]
    one, both = lineage.collect_lineage(parts(tmp_path), done[0]), lineage.collect_lineage(parts(tmp_path), *done)
    assert [dataset.name for dataset in one.inputs] == ["flights"]
    assert [output.name for output in one.outputs] == [str(tmp_path / "lake" / "flights")]
    assert (len(both.inputs), len(both.outputs)) == (0, 2)
    assert [(checkpoint["pipeline"], checkpoint["epoch"], checkpoint["state"]) for checkpoint in both.checkpoints] == [
        ("flights", 1, "committed"),
        ("orders", 1, "committed"),
    ]


def test_without_the_provider_or_a_transport_nothing_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from onceonly.airflow import CommitOperator, lineage

    monkeypatch.setattr(lineage, "find_spec", lambda name: None)
    assert not lineage.is_enabled()
    assert lineage.add_parent_run({"spark.a": "1"}, {}) == {"spark.a": "1"}
    task = CommitOperator(task_id="commit", pipeline="flights")
    monkeypatch.setattr(lineage, "collect_lineage", lambda *_: pytest.fail("asked"))
    task._report_lineage()
    assert task.reported_lineage is None


def test_what_cannot_be_told_stops_no_task(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from onceonly.airflow import CommitOperator, lineage

    def broken(*_: Any) -> None:
        raise KeyError("no such handle")

    monkeypatch.setattr(lineage, "is_enabled", lambda: True)
    monkeypatch.setattr(lineage, "collect_lineage", broken)
    task = CommitOperator(task_id="commit", pipeline="flights")
    task._report_lineage()
    assert task.reported_lineage is None
    assert "could not be sent" in caplog.text


def test_the_provider_gets_offsets_counts_and_columns() -> None:
    pytest.importorskip("airflow.providers.openlineage")
    from openlineage.client.serde import Serde

    from onceonly.airflow import lineage

    read = InputDataset("kafka://one:9092", "flights", TopicRange("flights", "id-1", {1: (0, 6), 0: (2, 4)}))
    written = OutputDataset("file", "/lake/flights", "lake", 7, 900, 2, (("day", "date"),))
    told = lineage.make_facets(lineage.Lineage([read], [written], [{"pipeline": "flights", "epoch": 3}]))
    (source,), (table,) = (
        [Serde.to_dict(dataset) for dataset in told.inputs],
        [Serde.to_dict(output) for output in told.outputs],
    )
    offsets = source["inputFacets"]["onceonly_offsets"]
    assert (offsets["unit"], offsets["id"]) == ("offset", "id-1")
    assert offsets["partitions"] == [{"partition": 0, "start": 2, "end": 4}, {"partition": 1, "start": 0, "end": 6}]
    assert offsets["_producer"] and offsets["_schemaURL"]
    counted = table["outputFacets"]["outputStatistics"]
    assert (counted["rowCount"], counted["size"], counted["fileCount"]) == (7, 900, 2)
    assert [(column["name"], column["type"]) for column in table["facets"]["schema"]["fields"]] == [("day", "date")]
    assert Serde.to_dict(told.run_facets["onceonly_checkpoints"])["checkpoints"] == [
        {"pipeline": "flights", "epoch": 3}
    ]
    assert not lineage.make_facets(lineage.Lineage()).outputs


# ---- the stage, wherever its driver ran


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Spark has staged a checkpoint, OpenLineage is asked for."""
    from onceonly.airflow import lineage, operators
    from onceonly.runtime import driver_submission

    world = World(tmp_path, sinks=[DeltaSink("lake", "lake/flights")])
    world.plan("airflow:flights:a run")
    world.stage()
    monkeypatch.setattr(lineage, "is_enabled", lambda: True)
    monkeypatch.setattr(operators.OnceonlyOperator, "services", lambda self: parts(tmp_path))
    monkeypatch.setattr(driver_submission.Work, "read_checkpoint", lambda self, settings: world.now(self.epoch))
    return world


def context() -> dict[str, Any]:
    xcom = {"xcom_push": lambda **_: None, "xcom_pull": lambda **_: None}
    ti = SimpleNamespace(dag_id="flights", run_id="a run", task_id="stage", **xcom)
    return {"ti": ti, "run_id": "a run", "dag_run": SimpleNamespace(conf={}, clear_number=0)}


def test_a_deferred_stage_tells_its_inputs_when_it_comes_back(staged: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from onceonly.airflow import StageOperator
    from onceonly.runtime import driver_submission

    monkeypatch.setattr(driver_submission.Work, "require_staged", lambda *_: None)
    task = StageOperator(task_id="stage", pipeline="flights", epoch=1)
    event = {"master": "http://m:6066", "driver": "driver-1", "report": "/r", "state": "FINISHED", "started": 0.0}
    task.execute_complete(context(), event)
    assert task.reported_lineage is not None
    assert [(dataset.name, dataset.range.partitions[0]) for dataset in task.reported_lineage.inputs] == [
        ("flights", (0, 5))
    ]
    assert list(task.reported_lineage.outputs) == []  # nothing is published yet


@pytest.mark.parametrize("rest", [None, "http://master:6066"])
def test_the_stage_names_its_run_to_spark(staged: World, monkeypatch: pytest.MonkeyPatch, rest: str | None) -> None:
    from onceonly.airflow import StageOperator, connections, lineage
    from onceonly.runtime import client_job, driver_submission
    from onceonly.runtime.spark_connection import SparkConnection

    given: list[dict[str, str]] = []

    def started(spark: SparkConnection, *_: Any) -> Any:
        given.append(spark.conf)
        return SimpleNamespace(run=lambda *_: None)

    monkeypatch.setattr(
        connections, "read_spark_connection", lambda conn_id: SparkConnection(cluster=rest, conf={"spark.a": "1"})
    )
    monkeypatch.setattr(client_job, "make_stage_job", started)
    monkeypatch.setattr(driver_submission.Work, "prepare_stage", lambda self, spark, *_: given.append(spark.conf))
    named = {"spark.openlineage.parentRunId": "an id"}
    monkeypatch.setattr(lineage, "add_parent_run", lambda conf, context: {**conf, **named})
    StageOperator(task_id="stage", pipeline="flights", epoch=1).execute(context())
    assert given == [{"spark.a": "1", **named}]


def test_a_parent_that_cannot_be_named_starts_the_stage_all_the_same(
    staged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onceonly.airflow import StageOperator, connections, lineage
    from onceonly.runtime import client_job
    from onceonly.runtime.spark_connection import SparkConnection

    def broken(*_: Any) -> None:
        raise KeyError("no such run")

    given: list[dict[str, str]] = []
    monkeypatch.setattr(connections, "read_spark_connection", lambda conn_id: SparkConnection(conf={"spark.a": "1"}))
    monkeypatch.setattr(
        client_job, "make_stage_job", lambda spark, *_: SimpleNamespace(run=lambda *_: given.append(spark.conf))
    )
    monkeypatch.setattr(lineage, "add_parent_run", broken)
    StageOperator(task_id="stage", pipeline="flights", epoch=1).execute(context())
    assert given == [{"spark.a": "1"}]


@pytest.mark.parametrize("outcome", ["success", "failed"])
def test_the_provider_itself_finds_it_and_a_task_that_failed_has_published_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    pytest.importorskip("airflow.providers.openlineage")
    from airflow.providers.openlineage.extractors import ExtractorManager
    from airflow.sdk import DAG
    from airflow.utils.state import TaskInstanceState

    from onceonly.airflow import CommitOperator, assets, lineage

    with DAG("flights", schedule=None):
        task = CommitOperator(task_id="commit", pipeline="flights", outlets=assets.outlets(FLIGHTS))
    if outcome == "success":
        task.reported_lineage = lineage.collect_lineage(parts(tmp_path), committed(tmp_path, "flights"))
    run, state = SimpleNamespace(run_id="a run"), TaskInstanceState(outcome)
    found = ExtractorManager().extract_metadata(run, task, state, SimpleNamespace())
    names = [f"{dataset.namespace} {dataset.name}" for dataset in (*found.inputs, *found.outputs)]
    told = ["kafka://one:9092 flights", f"file {tmp_path / 'lake' / 'flights'}"]
    assert names == (told if outcome == "success" else [])


@pytest.mark.parametrize("asked", [True, False])
def test_the_parent_of_sparks_own_events_is_the_task_where_airflow_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    pytest.importorskip("airflow.providers.openlineage")
    from onceonly.airflow import lineage

    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", '{"type": "console"}')
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__SPARK_INJECT_PARENT_JOB_INFO", str(asked))
    run = SimpleNamespace(
        logical_date=None, run_after=datetime(2024, 1, 1, tzinfo=UTC), clear_number=0, run_id="a run", conf={}
    )
    ti: Any = SimpleNamespace(
        xcom_pull=lambda **_: None,
        dag_id="flights",
        task_id="stage",
        run_id="a run",
        try_number=1,
        map_index=-1,
        dag_run=run,
    )
    ti.task = SimpleNamespace(dag_id="flights", task_id="stage")
    ti.get_template_context = lambda: {"dag_run": run, "task": ti.task}
    found = lineage.add_parent_run({"spark.a": "1"}, {"ti": ti})
    assert found.pop("spark.a") == "1"
    assert bool(found) == asked
    if asked:
        assert found["spark.openlineage.parentJobName"] == "flights.stage"
        assert found["spark.openlineage.parentRunId"] != found["spark.openlineage.rootParentRunId"]


# ---- the gate and the abort: nothing of either is an output


GATED: dict[str, Any] = {"sinks": [DeltaSink("lake", "lake/flights")], "gate": Gate(min_rows={"lake": 9})}


def taken_by_provider(task: Any, state: str) -> Any:
    """What the provider takes of the task that has ended, as events show it."""
    pytest.importorskip("airflow.providers.openlineage")
    from airflow.providers.openlineage.extractors import ExtractorManager
    from airflow.utils.state import TaskInstanceState
    from openlineage.client.serde import Serde

    found = ExtractorManager().extract_metadata(
        SimpleNamespace(run_id="a run"), task, TaskInstanceState(state), SimpleNamespace()
    )
    return json.loads(Serde.to_json(found))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """OpenLineage is asked for."""
    from onceonly.airflow import lineage, operators

    monkeypatch.setattr(lineage, "is_enabled", lambda: True)
    monkeypatch.setattr(operators.OnceonlyOperator, "services", lambda self: parts(tmp_path))


@pytest.mark.parametrize(
    ("found", "on_fail", "state"),
    [(None, "abort", "success"), ("critical", "abort", "failed"), ("critical", "hold", "failed")],
)
@pytest.mark.usefixtures("told")
def test_a_gate_tells_its_checks_of_what_is_staged_whether_its_task_fails_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str | None, on_fail: str, state: str
) -> None:
    from airflow.sdk import DAG

    from onceonly.airflow import GateOperator
    from onceonly.airflow.versions import AirflowFailException

    world = World(tmp_path, **{**GATED, "gate": Gate(min_rows={"lake": 9}, on_fail=on_fail)})
    world.plan("airflow:flights:a run")
    world.stage()
    world.parts.inspector(world.pipeline).find(found)
    monkeypatch.setattr(GateOperator, "coordinator", lambda self: world.coordinator)
    with DAG("flights", schedule=None):
        task = GateOperator(task_id="gate", pipeline="flights", epoch=1)
    with pytest.raises(AirflowFailException) if state == "failed" else nullcontext():
        task._take_verdict(context())
    event = taken_by_provider(task, state)
    (staged,) = event["inputs"]
    assert (staged["namespace"], staged["name"]) == ("file", str(tmp_path / "lake" / "flights"))
    (check,) = staged["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (check["assertion"], check["success"]) == ("a fake check", state == "success")
    assert event["outputs"] == []
    (named,) = event["run_facets"]["onceonly_checkpoints"]["checkpoints"]
    assert (named["epoch"], named["gate"]) == (1, "passed" if state == "success" else "failed")


@pytest.mark.usefixtures("told")
def test_a_check_of_a_column_names_it(tmp_path: Path) -> None:
    from onceonly.airflow import lineage

    world = World(tmp_path, **GATED)
    world.plan()
    checks = [
        {"what": "carrier is not null", "ok": False, "severity": "warning", "observed": "3", "column": "carrier"},
        {"what": "at least 9 rows", "ok": True, "severity": "critical", "observed": "11"},
    ]
    seen = {"outcome": "warning", "sinks": {"lake": {"rows": 11, "checks": checks}}}
    made = lineage.collect_gate_lineage(parts(tmp_path), replace(world.stage(), verdict=seen))
    pytest.importorskip("airflow.providers.openlineage")
    assertions = lineage.make_facets(made).inputs[0].inputFacets["dataQualityAssertions"].assertions
    assert [(check.assertion, check.success, check.column, check.severity) for check in assertions] == [
        ("carrier is not null", False, "carrier", "warn"),
        ("at least 9 rows", True, None, "error"),
    ]


@pytest.mark.usefixtures("told")
def test_a_client_that_knows_no_severity_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("airflow.providers.openlineage")
    from openlineage.client.generated import data_quality_assertions_dataset as generated

    from onceonly.airflow import lineage

    def assertion(assertion: str, success: bool, column: str | None = None) -> Any:
        return SimpleNamespace(**locals())

    monkeypatch.setattr(generated, "Assertion", assertion)
    world = World(tmp_path, **GATED)
    world.plan()
    checks = [{"what": "at least 9 rows", "ok": True, "severity": "critical", "observed": "11"}]
    seen = {"outcome": "passed", "sinks": {"lake": {"rows": 11, "checks": checks}}}
    told = lineage.make_facets(lineage.collect_gate_lineage(parts(tmp_path), replace(world.stage(), verdict=seen)))
    (made,) = told.inputs[0].inputFacets["dataQualityAssertions"].assertions
    assert vars(made) == {"assertion": "at least 9 rows", "success": True, "column": None}


# ---- gates that no task of their own has asked


def left_staged(world: World, *names: str) -> None:
    """Of pipelines of those names: their runs have ended before their gates were asked."""
    for name in names:
        sinks = [DeltaSink("lake", f"lake/{name}")]
        pipeline = Pipeline(name=name, source=KafkaSource("flights"), transform="a:b", **{**GATED, "sinks": sinks})
        world.coordinator.plan(pipeline, "airflow:flights:a run that has ended", world.alive)
        world.coordinator.stage(name, 1, world.parts.produce)


def asking(task: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The task on that world; each run but its own has ended."""
    from onceonly.airflow import operators, recovery

    through = Coordinator(world.state, world.parts, task._log_transition)
    for name in ("coordinator", "planner"):
        monkeypatch.setattr(task, name, lambda: through, raising=False)
    for module in (operators, recovery):
        monkeypatch.setattr(module, "make_alive_check", lambda context: lambda checkpoint: False)
    return task


def assertions(event: Any) -> dict[str, list[tuple[str, bool, str]]]:
    """By the end of the dataset's name."""
    found = {
        dataset["name"]: dataset["inputFacets"]["dataQualityAssertions"]["assertions"] for dataset in event["inputs"]
    }
    return {
        name.rpartition("/")[2]: [(check["assertion"], check["success"], check["severity"]) for check in told]
        for name, told in found.items()
    }


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("state", ["success", "failed"])
def test_recovery_tells_the_checks_of_each_gate_that_it_asks_and_then_what_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """In two events: in one, rows that were examined would seem to go into the tables that are published."""
    from airflow.sdk import DAG

    from onceonly.airflow import AnnounceOperator, RecoverOperator
    from onceonly.testing.fakes import FakeSink

    world = World(tmp_path, **GATED)
    left_staged(world, "flights", "orders", "refused")
    world.parts.inspector(world.pipeline).find(None, "critical", "warning")
    if state == "failed":
        FakeSink("lake", tmp_path / "lake" / "refused").fail("commit", "refused")
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(
        xcom_push=lambda key, value: pushed.update({key: value}), xcom_pull=lambda task_ids, key: pushed[key]
    )
    sent = SimpleNamespace(add=lambda asset, extra: None)
    ran = {**context(), "ti": ti, "outlet_events": defaultdict(lambda: sent)}
    with DAG("onceonly_recovery", schedule=None):
        recover, announce = RecoverOperator(task_id="recover"), AnnounceOperator(task_id="announce", recovery="recover")
    with pytest.raises(CannotPublish) if state == "failed" else nullcontext():
        asking(recover, world, monkeypatch).execute(ran)
    event = taken_by_provider(recover, state)
    assert assertions(event) == {
        "flights": [("a fake check", True, "error")],
        "orders": [("a fake check", False, "error")],
        "refused": [("a fake check", False, "warn")],
    }
    assert event["outputs"] == []
    named = event["run_facets"]["onceonly_checkpoints"]["checkpoints"]
    missed = {each["pipeline"]: [at["name"].rpartition("/")[2] for at in each.get("unpublished", [])] for each in named}
    assert missed == {"flights": [], "orders": ["orders"], "refused": []}
    asking(announce, world, monkeypatch).execute(ran)
    event = taken_by_provider(announce, "success")
    published = ["flights", "refused"] if state == "success" else ["flights"]
    assert [dataset["name"].rpartition("/")[2] for dataset in event["outputs"]] == published
    assert [dataset["name"] for dataset in event["inputs"]] == ([] if state == "success" else ["flights"])


@pytest.mark.usefixtures("told")
def test_a_plan_that_settles_what_was_left_tells_the_checks_of_its_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk import DAG

    from onceonly.airflow import PlanOperator, operators

    world = World(tmp_path, **GATED)
    left_staged(world, "flights")
    world.put(9)
    monkeypatch.setattr(PlanOperator, "_check", lambda *_: None)
    monkeypatch.setattr(operators, "find_instance", lambda context: None)
    with DAG("flights", schedule=None):
        task = PlanOperator(task_id="plan", pipeline=world.pipeline, reprocess=False)
    assert asking(task, world, monkeypatch).execute(context()) == 2
    event = taken_by_provider(task, "success")
    assert assertions(event) == {"flights": [("a fake check", True, "error")]}
    assert event["outputs"] == []


@pytest.mark.usefixtures("told")
def test_an_abort_tells_which_outputs_did_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import DAG

    from onceonly.airflow import AbortOperator, operators

    sinks = [
        DeltaSink("lake", "lake/flights"),
        KafkaSink(name="late", topic="late"),
        StateSink("seen", schema="i INT", key=["i"]),
    ]
    world = World(tmp_path, sinks=sinks)
    world.plan("airflow:flights:a run")
    monkeypatch.setattr(AbortOperator, "coordinator", lambda self: world.coordinator)
    monkeypatch.setattr(operators, "explain_abort", lambda *_: "told to")
    with DAG("flights", schedule=None):
        task = AbortOperator(task_id="abort", pipeline="flights", epoch=1)
    task.execute(context())
    event = taken_by_provider(task, "success")
    (named,) = event["run_facets"]["onceonly_checkpoints"]["checkpoints"]
    assert named["state"] == "aborted"
    assert named["unpublished"] == [
        {"namespace": "file", "name": str(tmp_path / "lake" / "flights")},
        {"namespace": "kafka://one:9092", "name": "late"},
    ]
    assert (event["inputs"], event["outputs"]) == ([], [])


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("what", ["collect_lineage", "collect_gate_lineage", "collect_abort_lineage"])
def test_no_event_shows_the_password_of_an_address(tmp_path: Path, what: str) -> None:
    pytest.importorskip("airflow.providers.openlineage")
    from openlineage.client.serde import Serde

    from onceonly.airflow import lineage

    secret = "s3://key:hunter2@bucket/lake/flights"
    world = World(tmp_path, sinks=[DeltaSink("lake", secret)])
    world.plan()
    staged = world.stage()
    checks = [{"what": f"in(values={secret})", "ok": True, "severity": "info", "observed": secret}]
    done = replace(
        staged,
        state=State.ABORTED if what == "collect_abort_lineage" else State.COMMITTED,
        published={"lake": {}},
        reason=f"cannot write {secret}",
        handles={"lake": {**staged.handles["lake"], "uri": secret}},
        verdict={"outcome": "passed", "sinks": {"lake": {"rows": 1, "checks": checks}}},
    )
    event = Serde.to_json(lineage.make_facets(getattr(lineage, what)(parts(tmp_path), done)))
    assert "lake/flights" in event and "hunter2" not in event
