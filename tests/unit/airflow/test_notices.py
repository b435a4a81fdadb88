"""What a DAG's tasks tell people: why a checkpoint was aborted, and that one is held."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from codes import raises
from person import Person
from unit.world import World

from onceonly.airflow import base
from onceonly.checkpoint.model import State
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import DeltaSink
from onceonly.runtime.owners import airflow_owner

pytestmark = pytest.mark.usefixtures("airflow_home")
OWNER = airflow_owner("flights", "a run")


class TaskInstance:
    """As a task of the run sees Airflow."""

    def __init__(self, states: dict[str, str], answers: bool = True) -> None:
        self.dag_id, self.run_id, self.xcoms = "flights", "a run", dict[tuple[str, str], object]()
        self.task_id, self._states, self._answers = "stage", states, answers

    def get_task_states(self, dag_id, task_ids, run_ids):
        if not self._answers:
            raise ConnectionError("no API")
        return {run_ids[0]: {name: self._states[name] for name in task_ids if name in self._states}}

    def xcom_push(self, key, value):
        self.xcoms[self.task_id, key] = value

    def xcom_pull(self, task_ids, key="return_value"):
        return self.xcoms.get((task_ids, key))


def context(states: dict[str, str], answers: bool = True) -> dict:
    return {"ti": TaskInstance(states, answers), "run_id": "a run"}


def test_the_abort_records_which_task_failed_and_with_what(tmp_path, monkeypatch):
    from onceonly.airflow import base, operators

    world = World(tmp_path)
    world.plan(OWNER)
    run = context({"stage": "failed", "gate": "upstream_failed"})
    with pytest.raises(NotCommitted), base.task_outcome(run):
        raise NotCommitted("flights epoch 1 could not be staged.", "KeyError: 'carrier'", "Fix it.")
    task = operators.AbortOperator(task_id="abort", pipeline="flights", epoch=1)
    task.upstream_task_ids.update({"stage", "gate"})
    monkeypatch.setattr(operators.AbortOperator, "coordinator", lambda self: world.coordinator)
    task.execute(run)
    assert world.now(1).state is State.ABORTED
    assert world.now(1).reason == (
        "task 'stage' failed in Airflow: flights epoch 1 could not be staged. KeyError: 'carrier'"
    )


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (
            context({"stage": "failed"}),
            "task 'stage' failed in Airflow: it was marked failed or killed, or it timed out",
        ),
        (context({"stage": "success", "gate": "upstream_failed"}), "an earlier task of the run failed in Airflow"),
        (
            context({}, answers=False),
            "an earlier task of the run failed in Airflow; which one is not known, because Airflow's API "
            "did not answer",
        ),
    ],
)
def test_an_abort_needs_no_reason_of_a_task(run, reason):
    from onceonly.airflow import base

    assert base.explain_abort(run, ["stage", "gate"]) == reason


def test_what_is_left_for_the_abort_holds_no_secret():
    from airflow.sdk.log import mask_secret

    from onceonly.airflow import base

    mask_secret("Kn0wn-t0-few")
    run = context({})
    with pytest.raises(NotCommitted), base.task_outcome(run):
        raise NotCommitted("s3://key:secret@bucket refused Kn0wn-t0-few.")
    assert run["ti"].xcoms["stage", "onceonly_error"] == "s3://…@bucket refused ***."


def test_an_error_is_what_it_was_where_it_cannot_be_left(monkeypatch):
    from airflow.sdk.exceptions import AirflowFailException

    from onceonly.airflow import base

    run = context({})
    monkeypatch.delattr(TaskInstance, "xcom_push")
    with pytest.raises(AirflowFailException, match="no such topic"), base.task_outcome(run):
        raise InvalidPipeline("no such topic")


# ---- held


@pytest.fixture
def world(tmp_path) -> World:
    sinks = [DeltaSink("lake", "lake")]
    world = World(tmp_path, sinks=sinks, gate=Gate(min_rows={"lake": 9}, on_fail="hold"))
    world.plan(OWNER)
    world.stage()
    world.parts.inspector(world.pipeline).find("critical")
    return world


def test_a_gate_task_notifies_of_what_it_holds(world, monkeypatch):
    from airflow.sdk import BaseNotifier
    from airflow.sdk.exceptions import AirflowFailException

    from onceonly.airflow import GateOperator

    class Chat(BaseNotifier):
        template_fields = ("text",)

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

        def notify(self, context) -> None:
            said.append(self.text)

    def broken(context) -> None:
        raise ConnectionError("the chat does not answer")

    said: list[str] = []
    chat = Chat("{{ held.pipeline }} {{ held.epoch }}: {{ held.approve }} ({{ held.page }})")
    task = GateOperator(task_id="gate", pipeline="flights", epoch=1, on_held=[broken, chat])
    monkeypatch.setattr(GateOperator, "coordinator", lambda self: world.coordinator)
    run = context({})
    with pytest.raises(AirflowFailException, match="the gate failed"):
        task._take_verdict(run)
    assert len(said) == 1
    assert said[0].startswith("flights 1: onceonly approve flights 1 --reason … --seen 4 (")
    assert said[0].endswith("/onceonly/pipelines/flights/1)")
    Person(world.coordinator).approve("flights", 1, "ann", "known")
    task._take_verdict(run)
    assert len(said) == 1  # it is not held any more


def test_a_gate_task_names_the_page_of_its_data_docs(world, monkeypatch):
    from onceonly.airflow import GateOperator

    task = GateOperator(task_id="gate", pipeline="flights", epoch=1)
    monkeypatch.setattr(GateOperator, "coordinator", lambda self: world.coordinator)
    with pytest.raises(Exception, match="the gate failed") as failed:
        task._take_verdict(context({}))
    page, stored = "/onceonly/pipelines/flights/1/docs/1/index.html", world.now(1).verdict["docs"]
    assert page in str(failed.value)
    assert stored not in str(failed.value)
    Person(world.coordinator).approve("flights", 1, "ann", "known")
    assert task._take_verdict(context({}))["docs"].endswith(page)


def test_a_cleared_gate_passes_once_its_rows_are_published_by_approval(world, monkeypatch):
    """So the run gets green, as the page says, and nothing is examined or published again."""
    from onceonly.airflow import GateOperator

    task = GateOperator(task_id="gate", pipeline="flights", epoch=1)
    monkeypatch.setattr(GateOperator, "coordinator", lambda self: world.coordinator)
    with pytest.raises(Exception, match="the gate failed"):
        task._take_verdict(context({}))
    Person(world.coordinator).approve("flights", 1, "ann", "known")
    world.commit()
    rows = len(world.state.history("flights"))
    assert task._take_verdict(context({}))["outcome"] == "failed"
    world.commit()
    assert len(world.state.history("flights")) == rows


def test_the_notice_and_the_error_name_the_same_checks(world, monkeypatch):
    from onceonly.airflow import notices
    from onceonly.coordinator import gate

    held = world.coordinator.gate("flights", 1, "run")
    checks = notices.make_notice(held)["checks"]
    assert checks == ["sink 'lake': a fake check (critical)"]
    with raises(Exception, "gate-held") as failed:
        gate.require_passed(held)
    assert failed.value.why == f"{checks[0]}."


def test_recovery_notifies_once_of_what_its_gate_holds(world, monkeypatch):
    from onceonly.airflow import recovery
    from onceonly.runtime import job_report

    held: list[dict] = []
    task = recovery.RecoverOperator(task_id="recover", on_held=lambda context: held.append(context["held"]))
    through = type(world.coordinator)(world.state, world.parts, task._log_transition)
    monkeypatch.setattr(recovery.RecoverOperator, "coordinator", lambda self: through)
    monkeypatch.setattr(recovery, "make_alive_check", lambda context: lambda checkpoint: False)
    monkeypatch.setattr("onceonly.runtime.driver.stop_orphaned_drivers", lambda *_: [])
    monkeypatch.setattr(job_report, "sweep_reports", lambda state: [])
    for _ in range(2):
        task.execute(context({}))
    assert [(checkpoint["pipeline"], checkpoint["epoch"]) for checkpoint in held] == [("flights", 1)]
    assert held[0]["checks"]
    assert world.now(1).is_held


def test_the_factories_hand_notifiers_over():
    from onceonly.airflow import checkpoint_dag, recovery_dag
    from onceonly.pipeline.definition import Pipeline
    from onceonly.pipeline.sources import KafkaSource

    def tell(context) -> None: ...

    gated = Pipeline(
        name="p", source=KafkaSource("t"), transform="a:b", sinks=[DeltaSink("out", "out")], gate=Gate(min_rows=1)
    )
    dag = checkpoint_dag(gated, schedule=None, on_held=tell)
    assert dag.get_task("gate").on_held == [tell]
    assert recovery_dag(on_held=[tell]).get_task("recover").on_held == [tell]


# ---- Data Docs


@pytest.mark.parametrize(
    ("docs", "folder"),
    [
        ("file:///srv/docs/p/7-1-0123456789ab/index.html", "p/7-1-0123456789ab"),
        ("file:///srv/docs/p/7-1-0123456789ab/../../../etc/index.html", None),
        ("file:///srv/docs/p/7-2-0123456789ab/index.html", None),
        ("file:///srv/docs/q/7-1-0123456789ab/index.html", None),
        ("file:///etc/p/7-1-0123456789ab/index.html", None),
        ("file:///srv/docs/p/7-1-0123456789ab/passwd", None),
        ("https://elsewhere/p/7-1-0123456789ab/index.html", None),
        (None, None),
        (["file:///srv/docs"], None),
    ],
)
@pytest.mark.filterwarnings("ignore:Using `httpx` with")  # of Airflow's own, when its server is imported
def test_only_what_a_gate_writes_counts_as_an_address_of_data_docs(docs, folder):
    from onceonly.airflow.ui import pages

    assert pages.find_docs_folder(docs, "/srv/docs", "p/7-1") == folder


@pytest.mark.filterwarnings("ignore:Using `httpx` with")
def test_a_page_of_data_docs_is_not_read_through_a_link(tmp_path, monkeypatch):
    from fastapi import HTTPException

    from onceonly.airflow.ui import pages

    docs = tmp_path / "docs" / "p" / "7-1-0123456789ab"
    docs.mkdir(parents=True)
    (docs / "index.html").write_text("<p>all checks")
    secret = tmp_path / "secret"
    secret.write_text("a password")
    (docs / "out.html").symlink_to(secret)
    monkeypatch.setattr(
        pages.Settings, "from_env", classmethod(lambda cls: SimpleNamespace(docs=str(tmp_path / "docs")))
    )
    verdict = {"docs": f"{docs.as_uri()}/index.html", "sinks": {"out": {}, "../../../../secret": {}}}
    assert pages.serve_docs(verdict, "p", 7, 1, "index.html").body == b"<p>all checks"
    for page in ("out.html", "other.html", "../../../../secret.html", "..", ""):
        with pytest.raises(HTTPException) as refused:
            pages.serve_docs(verdict, "p", 7, 1, page)
        assert refused.value.status_code == 404
    with pytest.raises(HTTPException):
        pages.serve_docs(None, "p", 7, 1, "index.html")


@pytest.mark.parametrize("code", ["no-such-column", "type-of-expression", "executor-lost"])
def test_an_error_that_only_an_edit_can_mend_is_not_tried_again(code):
    from airflow.sdk.exceptions import AirflowFailException

    from onceonly.airflow import base

    expected = NotCommitted if code == "executor-lost" else AirflowFailException
    with pytest.raises(expected), base.task_outcome(context({})):
        raise NotCommitted("the stage failed.", code=code)


def test_commands_in_a_task_log_name_the_file_as_the_project_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the log is in the project's folder, and not where the task has run."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "shop.py").write_text('orders = Pipeline(name="sales", source=x)')
    monkeypatch.setenv("ONCEONLY_PROJECT", str(tmp_path))
    for pipeline, file in (("sales", "dags/shop.py:orders"), ("others", "FILE.py:NAME")):
        error = NotCommitted("failed.", "", "Retry: onceonly run FILE.py:NAME", code="executor-lost")
        with pytest.raises(NotCommitted) as caught, base.task_outcome():
            raise error.naming(pipeline)
        assert str(caught.value).endswith(f"Retry: onceonly run {file}")
        with pytest.raises(NotCommitted) as caught, base.task_outcome(pipeline=pipeline):
            raise NotCommitted("failed.", "", "Retry: onceonly run FILE.py:NAME", code="executor-lost")
        assert str(caught.value).endswith(f"Retry: onceonly run {file}")
