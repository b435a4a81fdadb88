"""The command line on a real state table: what it shows, what it changes, how it ends."""

from __future__ import annotations

import getpass
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from codes import raises
from deltalake import DeltaTable
from person import seen

from onceonly import errors
from onceonly.checkpoint.interval_text import parse_time
from onceonly.checkpoint.model import Event, Row
from onceonly.cli import app, main
from onceonly.cli.app import Cli, json_option
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import owners, pipeline_file
from onceonly.runtime.job_report import Report
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.statetable import location
from onceonly.statetable.table import StateTable

pytestmark = pytest.mark.slow

Invoke = Callable[..., Result]
ENDED = "cli:elsewhere:1:1"  # of another machine: counts as alive for an hour
RANGES = [{"topic": "flights", "topic_id": "t", "partitions": {"0": [0, 10], "1": [5, 5]}}]


class Table:
    """Writes transitions as the coordinator does, one by one."""

    def __init__(self, home: Path) -> None:
        self.home, self.state = home, StateTable.make(str(home / "state"))

    def add(self, pipeline: str, event: Event, epoch: int = 1, attempt: int = 1, **columns: Any) -> None:
        view = self.state.view(pipeline)
        self.state.append(view, Row(pipeline, view.head.seq + 1, epoch, event, attempt, **columns))

    def plan(self, name: str = "flights", epoch: int = 1, owner: str = ENDED) -> None:
        pipeline = Pipeline(
            name=name, source=KafkaSource("flights"), transform="jobs:clean", sinks=[DeltaSink("lake", path="lake")]
        )
        body = {"definition": pipeline.to_json(), "ranges": RANGES}
        self.add(name, Event.PLANNED, epoch, 0, owner=owner, body=body)

    def stage(self, name: str = "flights", epoch: int = 1, owner: str = ENDED, **handle: Any) -> None:
        self.plan(name, epoch, owner)
        claim = {"nonce": "abc", "state_id": self.state.id, "worker": "vm:7"}
        self.add(name, Event.CLAIMED, epoch, body=claim)
        told = {
            **{"kind": "delta", "uri": str(self.home / "lake"), "table_id": "x", "fingerprint": "f", "added": []},
            **{"app_id": f"onceonly/{self.state.id}/{name}/lake", "folder": f"staged-0-{name}-lake-{epoch}-1-abc"},
            **{"publish": "delta-rs", "files": 1, "rows": 10, "bytes": 100},
        }
        self.add(name, Event.STAGED, epoch, body={"handles": {"lake": told | handle}})

    def commit(self, name: str = "flights", epoch: int = 1) -> None:
        self.stage(name, epoch)
        self.decide(name, epoch)
        self.add(name, Event.PUBLISHED, epoch, sink="lake", decision=epoch, body={"rows": 10, "version": 4})
        self.add(name, Event.COMMITTED, epoch, decision=epoch)

    def decide(self, name: str = "flights", epoch: int = 1) -> None:
        self.add(name, Event.COMMITTING, epoch, decision=epoch)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ONCEONLY_STATE", "ONCEONLY_KAFKA_BOOTSTRAP", "ONCEONLY_NOTIFY", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONCEONLY_PROJECT", str(tmp_path))
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def table(home: Path) -> Table:
    return Table(home)


@pytest.fixture
def onceonly(home: Path) -> Invoke:
    def invoke(*args: object) -> Result:
        return CliRunner(env={"COLUMNS": None}).invoke(main, [str(arg) for arg in args])  # as in a pipe: wide

    return invoke


def told(result: Result) -> Any:
    return json.loads(result.stdout)


# ---- errors


def failing(error: BaseException) -> click.Group:
    @click.group(cls=Cli)
    def group() -> None: ...

    @group.command()
    @json_option
    def fail(as_json: bool) -> None:
        raise error

    return group


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NotCommitted("what", "why", "todo"), 1),
        (errors.Fenced("what", "why", "todo"), 1),
        (errors.InvalidPipeline("what", "why", "todo"), 2),
        (errors.CannotPublish("what", "why", "todo"), 3),
        (errors.GateHeld("what", "why", "todo"), 4),
    ],
)
def test_an_error_is_three_lines_and_its_own_exit_code(error: errors.OnceonlyError, code: int) -> None:
    result = CliRunner().invoke(failing(error), ["fail"])
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.splitlines() == ["✗ what", "  why", "  todo"]


def test_with_json_an_error_is_an_object() -> None:
    result = CliRunner().invoke(failing(errors.Busy("what", "why", "todo")), ["fail", "--json"])
    assert (result.exit_code, result.stderr) == (1, "")
    assert told(result) == {"error": "Busy", "what": "what", "why": "why", "todo": "todo"}


def test_an_error_that_nobody_classified_leaves_the_outcome_unknown() -> None:
    result = CliRunner().invoke(failing(ZeroDivisionError("by zero")), ["fail"])
    assert result.exit_code == 3
    assert "ZeroDivisionError: by zero" in result.stderr and "onceonly recover" in result.stderr


def test_markup_in_an_error_is_shown_as_it_is() -> None:
    result = CliRunner().invoke(failing(errors.NotCommitted("columns [red] of [/x]", "", "")), ["fail"])
    assert result.stderr == "✗ columns [red] of [/x]\n"


def test_ctrl_c_ends_with_130() -> None:
    result = CliRunner().invoke(failing(KeyboardInterrupt()), ["fail", "--json"])
    assert result.exit_code == 130
    assert told(result)["error"] == "KeyboardInterrupt"


# ---- status and describe


def test_status_before_anything_has_run_says_what_to_do_and_makes_nothing(onceonly: Invoke, home: Path) -> None:
    result = onceonly("status")
    assert result.exit_code == 0
    assert "Nothing has run yet" in result.stdout and "onceonly run" in result.stdout
    assert told(onceonly("status", "--json")) == {
        "state_table": str(home / "state"),
        "state_table_from": "ONCEONLY_HOME",
        "pipelines": [],
    }
    assert not home.exists()


@pytest.mark.parametrize("command", [("status", "flights"), ("describe", "flights", 1), ("recover",)])
def test_without_a_state_table_nothing_is_made(command: tuple[str], onceonly: Invoke, home: Path) -> None:
    result = onceonly(*command)
    assert result.exit_code == 2
    assert "there is no state table" in result.stderr
    assert not home.exists()


def test_status_of_all(onceonly: Invoke, table: Table) -> None:
    table.commit(epoch=1)
    table.stage(epoch=2)
    table.plan("other")
    assert told(onceonly("status", "--json"))["pipelines"] == [
        {"pipeline": "flights", "epoch": 2, "state": "staged", "committed_at": CommittedAt(), "rows": 10}
        | {
            "committed_epoch": 1,
            "rows_by_sink": {"lake": 10},
            "bad": None,
            "complete_until": CommittedAt(),
            "unsettled": [2],
            "held": [],
            "refused": [],
            "stage_again": [],
            "missing": {},
            "gaps": [],
        },
        {"pipeline": "other", "epoch": 1, "state": "planned", "committed_at": None, "rows": None}
        | {
            "committed_epoch": None,
            "rows_by_sink": {},
            "bad": None,
            "complete_until": None,
            "unsettled": [1],
            "held": [],
            "refused": [],
            "stage_again": [],
            "missing": {},
            "gaps": [],
        },
    ]
    lines = onceonly("status").stdout.splitlines()
    assert lines[0].split() == ["pipeline", "epoch", "state", "last", "commit", "its", "rows", "unsettled"]
    assert lines[2].split() == ["other", "1", "planned", "never", "-", "epoch", "1"]


class CommittedAt:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other.endswith("Z")


def test_status_of_one_shows_its_last_checkpoints_and_every_open_one(onceonly: Invoke, table: Table) -> None:
    table.stage(epoch=1)
    for epoch in (2, 3, 4):
        table.commit(epoch=epoch)
    found = told(onceonly("status", "flights", "--last", 2, "--json"))["checkpoints"]
    assert [(checkpoint["epoch"], checkpoint["state"]) for checkpoint in found] == [
        (4, "committed"),
        (3, "committed"),
        (1, "staged"),
    ]
    assert found[0]["ranges"] == RANGES
    assert found[0]["decision"] == 4
    assert "10 offsets of 'flights' in 1 partition" in onceonly("status", "flights").stdout


def test_a_pipeline_or_epoch_that_is_not_there(onceonly: Invoke, table: Table) -> None:
    table.plan()
    refused = onceonly("status", "flight").stderr
    assert "[no-such-pipeline]" in refused and "Its pipelines are: flights." in refused
    result = onceonly("describe", "flights", 7, "--json")
    assert (result.exit_code, told(result)["error"]) == (2, "InvalidPipeline")


def test_describe_tells_everything_but_a_password(onceonly: Invoke, table: Table) -> None:
    table.stage(uri="s3://key:secret@bucket/lake")
    table.decide()
    shown, data = onceonly("describe", "flights", 1).stdout, onceonly("describe", "flights", 1, "--json")
    for words in ("committing, waiting: lake", "s3://…@bucket/lake", "vm:7", ENDED, "Timeline"):
        assert words in shown
    assert "secret" not in shown + data.stdout
    assert [row["event"] for row in told(data)["timeline"]] == ["planned", "claimed", "staged", "committing"]
    assert told(data)["attempts"] == [{"attempt": 1, "worker": "vm:7", "nonce": "abc", "code": None}]
    assert told(data)["waiting"] == ["lake"]


# ---- recover, abort, resolve


def test_recover_leaves_a_living_owner_alone_until_forced(onceonly: Invoke, table: Table) -> None:
    table.plan(owner=owners.process_owner())
    result = onceonly("recover")
    assert result.exit_code == 0
    assert "flights epoch 1: planned still" in result.stdout and "--force" in result.stdout
    assert "planned → aborted" in onceonly("recover", "flights", "--force").stdout
    assert "Nothing to settle" in onceonly("recover").stdout


def test_recover_tries_everything_and_ends_with_the_first_error(onceonly: Invoke, table: Table) -> None:
    table.stage("first")  # its target is gone
    table.plan("second")
    result = onceonly("recover", "--force", "--json")
    assert result.exit_code == 4
    assert [(e["pipeline"], e["error"]) for e in told(result)["errors"]] == [("first", "ActionNeeded")]
    became = [
        (checkpoint["pipeline"], checkpoint["was"], checkpoint["state"]) for checkpoint in told(result)["recovered"]
    ]
    assert became == [("first", "staged", "staged"), ("second", "planned", "aborted")]


@pytest.mark.parametrize("as_json", [True, False])
def test_status_shows_the_others_where_the_rows_of_one_pipeline_are_damaged(
    as_json: bool, onceonly: Invoke, table: Table
) -> None:
    table.stage("first")
    table.plan("second")
    rows = DeltaTable(location.table_folder(table.state.uri, "first"))
    rows.alter.set_table_properties({"delta.appendOnly": "false"}, raise_if_not_exists=False)
    rows.delete("seq = 3")
    result = onceonly("status", *(["--json"] if as_json else []))
    assert result.exit_code == 3
    if as_json:
        assert [line["pipeline"] for line in told(result)["pipelines"]] == ["second"]
        assert ["damaged" in error["what"] for error in told(result)["errors"]] == [True]
    else:
        assert "second" in result.stdout and "first: the state table" in result.stderr


def test_recover_goes_on_where_the_rows_of_one_pipeline_are_damaged(onceonly: Invoke, table: Table) -> None:
    table.stage("first")
    table.plan("second")
    rows = DeltaTable(location.table_folder(table.state.uri, "first"))
    rows.alter.set_table_properties({"delta.appendOnly": "false"}, raise_if_not_exists=False)
    rows.delete("seq = 3")
    result = onceonly("recover", "--force", "--json")
    assert [(e["pipeline"], e["error"]) for e in told(result)["errors"]] == [("first", "OutcomeUnknown")]
    assert [(checkpoint["pipeline"], checkpoint["state"]) for checkpoint in told(result)["recovered"]] == [
        ("second", "aborted")
    ]


def test_abort_without_a_sink_that_is_gone_for_good(onceonly: Invoke, table: Table, monkeypatch: Any) -> None:
    def unreachable(*given: object) -> None:
        raise ConnectionError("no such host")

    monkeypatch.setattr(DeltaWriter, "discard", unreachable)
    table.stage()
    abort = ("abort", "flights", 1, "--reason", "over", *seen(table.state, "flights", 1))
    assert onceonly(*abort).exit_code == 3
    done = onceonly(*abort, "--gone", "lake", "--json")
    assert (done.exit_code, told(done)["state"]) == (0, "aborted")
    assert "no such host" in onceonly("describe", "flights", 1, "--json").stdout


@pytest.mark.parametrize("action", ["abort", "approve"])
def test_nothing_is_recorded_where_a_sink_cannot_be_opened(
    onceonly: Invoke, table: Table, monkeypatch: Any, action: str
) -> None:
    """The message says so, and it is true: this shell lacks a connection, or a package."""

    def refuse(*given: object) -> None:
        raise InvalidPipeline("the Airflow connection 'k' does not exist.", code="connection-missing")

    monkeypatch.setattr(DeltaWriter, "make", refuse)
    table.stage()
    before = table.state.view("flights").require(1)
    refused = onceonly(action, "flights", 1, "--reason", "over", "--json", *seen(table.state, "flights", 1))
    assert (refused.exit_code, told(refused)["code"]) == (2, "connection-missing")
    assert table.state.view("flights").require(1) == before
    if action == "abort":
        gone = onceonly("abort", "flights", 1, "--reason", "over", *seen(table.state, "flights", 1), "--gone", "lake")
        assert gone.exit_code != 2


def test_recover_of_a_pipeline_that_is_not_there(onceonly: Invoke, table: Table) -> None:
    assert onceonly("recover", "flights").exit_code == 2


def test_resolve_shows_the_checkpoint_and_records_who_gave_up_and_why(onceonly: Invoke, table: Table) -> None:
    table.stage()
    table.decide()
    look = seen(table.state, "flights", 1)
    give_up = ("resolve", "flights", 1, "--give-up", "lake", "--reason", "dropped for good", *look)
    unclear = onceonly(*give_up)
    assert unclear.exit_code == 3
    assert "--give-up lake --gone" in unclear.stderr
    result = onceonly(*give_up, "--gone")
    assert result.exit_code == 0
    assert "waiting to be published" in result.stdout and "committing → committed" in result.stdout
    assert "lake lacks 10 rows, which are of 10 offsets of 'flights'" in " ".join(result.stdout.split())
    given_up = told(onceonly("describe", "flights", 1, "--json"))["given_up"]["lake"]
    assert (given_up["who"], given_up["reason"]) == (getpass.getuser(), "dropped for good")
    (shown,) = told(onceonly("status", "flights", "--json"))["checkpoints"]
    assert (shown["rows"], shown["rows_by_sink"]) == (0, {"lake": 0})


def test_resolve_is_refused_where_nothing_waits(onceonly: Invoke, table: Table) -> None:
    table.commit()
    look = seen(table.state, "flights", 1)
    result = onceonly("resolve", "flights", 1, "--give-up", "lake", "--reason", "x", "--json", *look)
    assert (result.exit_code, told(result)["error"]) == (2, "InvalidPipeline")


def test_sweep_names_what_it_removes_and_leaves_live_attempts_alone(onceonly: Invoke, table: Table) -> None:
    table.stage()
    assert "Nothing to sweep" in onceonly("sweep").stdout
    result = onceonly("sweep", "flights", "--json")
    assert (result.exit_code, told(result)) == (0, {"swept": [], "errors": []})
    assert onceonly("sweep", "nobody").exit_code == 2


def test_sweep_removes_what_jobs_have_said_to_nobody(onceonly: Invoke, table: Table) -> None:
    table.commit()
    said = Report.for_job(table.state.uri, "stage-flights-1-0123456789ab")
    said.say("60 of 100 tasks")
    os.utime(said.uri, (0, 0))
    assert onceonly("sweep").exit_code == 0
    assert not Path(said.uri).exists()


def test_resolve_wants_one_word_on_one_sink(onceonly: Invoke, table: Table) -> None:
    table.stage()
    table.decide()
    for words in ([], ["--committed", "lake", "--aborted", "lake"]):
        result = onceonly("resolve", "flights", 1, *words, "--reason", "x")
        assert result.exit_code == 2
        assert "Nothing was changed" in result.stderr
    refused = onceonly(
        "resolve", "flights", 1, "--committed", "lake", "--reason", "x", *seen(table.state, "flights", 1)
    )
    assert refused.exit_code == 2
    assert "not in doubt" in refused.stderr


def test_abort_discards_before_the_decision_and_never_after(onceonly: Invoke, table: Table) -> None:
    table.stage()
    result = onceonly("abort", "flights", 1, "--reason", "wrong day", *seen(table.state, "flights", 1))
    assert "staged → aborted (wrong day)" in result.stdout
    table.commit("other")
    result = onceonly("abort", "other", 1, "--reason", "too late", "--json", *seen(table.state, "other", 1))
    assert (result.exit_code, told(result)["error"]) == (1, "Fenced")


# ---- a moved or copied state table


def test_a_moved_table_is_refused_until_relocated(onceonly: Invoke, table: Table) -> None:
    table.commit()
    copy = table.home / "copy"
    shutil.copytree(table.home / "state", copy)
    shutil.rmtree(table.home / "state")
    copy.rename(table.home / "state")
    assert "onceonly state relocate" in onceonly("status").stderr
    assert onceonly("state", "relocate").exit_code == 0
    assert onceonly("status").exit_code == 0
    assert StateTable(table.state.uri).id == table.state.id
    assert "nothing to do" in onceonly("state", "relocate").stdout


def test_a_copy_is_forked_only_when_nothing_in_it_is_open(
    onceonly: Invoke, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.commit("done")
    table.plan("flights")
    monkeypatch.setenv("ONCEONLY_STATE", str(table.home / "copy"))
    shutil.copytree(table.home / "state", table.home / "copy")
    refused = onceonly("state", "fork")
    assert refused.exit_code == 2
    assert "[checkpoints-unsettled]" in refused.stderr
    assert "flights epoch 1" in refused.stderr and "done" not in refused.stderr
    monkeypatch.delenv("ONCEONLY_STATE")
    onceonly("abort", "flights", 1, "--reason", "to be copied", *seen(table.state, "flights", 1))
    shutil.rmtree(table.home / "copy")
    shutil.copytree(table.home / "state", table.home / "copy")
    monkeypatch.setenv("ONCEONLY_STATE", str(table.home / "copy"))
    assert onceonly("state", "fork").exit_code == 0
    assert StateTable(str(table.home / "copy")).id != table.state.id


def test_the_state_table_itself_is_never_forked(onceonly: Invoke, table: Table) -> None:
    refused = onceonly("state", "fork")
    assert refused.exit_code == 2
    assert "[state-table-not-copied]" in refused.stderr
    assert StateTable(table.state.uri).id == table.state.id


@pytest.mark.parametrize("command", ["relocate", "fork"])
def test_what_is_no_state_table_is_left_alone(command: str, onceonly: Invoke, home: Path) -> None:
    assert onceonly("state", command).exit_code == 2
    assert not home.exists()


# ---- FILE.py:NAME and --interval

DEFINITION = """
from onceonly import *
print("loading")
{} = Pipeline(name="flights", source=KafkaSource("flights"), transform="a:b", sinks=[DeltaSink("s", path="p")])
"""


def test_the_only_pipeline_of_a_file_needs_no_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dag.py").write_text(DEFINITION.format("flights"))
    assert pipeline_file.load(str(tmp_path / "dag.py"), tmp_path).name == "flights"
    assert pipeline_file.load("dag.py:flights", tmp_path).name == "flights"  # found in the project
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "name", "code", "detail"),
    [
        ("", "flights", "pipeline-file-not-found", ""),
        (DEFINITION.format("other"), "flights", "pipeline-file-not-found", "other."),
        (DEFINITION.format("a") + DEFINITION.format("b"), "", "pipeline-file-not-found", "a, b."),
        ("x = 1\nimport nowhere", "flights", "pipeline-file-broken", "(line 2)"),
        ("x = ", "flights", "pipeline-file-broken", "SyntaxError"),
        ("raise SystemExit(1)", "flights", "pipeline-file-broken", "SystemExit"),
    ],
)
def test_a_file_that_does_not_serve_is_refused(text: str, name: str, code: str, detail: str, tmp_path: Path) -> None:
    (tmp_path / "dag.py").write_text(text)
    with raises(InvalidPipeline, code) as refused:
        pipeline_file.load(f"{tmp_path}/dag.py:{name}" if name else f"{tmp_path}/dag.py", tmp_path)
    assert detail in refused.value.why


def test_a_definition_that_is_refused_says_why_itself(tmp_path: Path) -> None:
    (tmp_path / "dag.py").write_text(DEFINITION.format("x").replace('"flights"', '"Flights!"'))
    with raises(InvalidPipeline, "option-invalid") as refused:
        pipeline_file.load(f"{tmp_path}/dag.py:x", tmp_path)
    assert refused.value.code != "pipeline-file-broken"


def test_project_is_named_where_a_folder_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with raises(InvalidPipeline, "pipeline-file-not-found") as refused:
        pipeline_file.load("dags/flights.py", tmp_path)
    assert "ONCEONLY_PROJECT" in refused.value.todo
    (tmp_path / "dag.py").write_text(DEFINITION.format("flights"))
    with raises(InvalidPipeline, "pipeline-file-not-found") as refused:
        pipeline_file.load("dags/flights.py", tmp_path)
    assert "dag.py:flights" in refused.value.todo


def test_no_such_file(onceonly: Invoke) -> None:
    assert "there is no file 'nowhere.py'" in onceonly("run", "nowhere.py:flights").stderr


def test_a_time_without_a_zone_is_utc() -> None:
    assert parse_time("2013-01-01") == parse_time("2013-01-01T00:00Z") == parse_time("2013-01-01T01:00+01:00")
    with raises(InvalidPipeline, "option-invalid"):
        parse_time("noon")


def test_periods_of_the_demo_exclude_each_other(onceonly: Invoke) -> None:
    assert onceonly("demo", "load", "--all", "--month", "2013-01").exit_code == 2


def test_every_command_explains_itself(onceonly: Invoke) -> None:
    for name, command in main.commands.items():
        assert onceonly(name, "--help").exit_code == 0
        assert command.get_short_help_str(80).endswith(".")


def test_explain_without_a_code_lists_all(onceonly: Invoke) -> None:
    listed = onceonly("explain").stdout
    assert "target-went-back" in listed and "gate-held" in listed
    unknown = onceonly("explain", "xyz")
    assert unknown.exit_code == 2
    assert "onceonly explain" in unknown.stderr and "docs/" not in unknown.stderr
    assert "kafka-unreachable" in onceonly("explain", "kafka-unreachabel").stderr
    assert "Similar codes" in onceonly("explain", "staged").stderr


def test_errors_name_the_file_that_the_command_was_given() -> None:
    error = {"what": "failed.", "why": "", "todo": "Retry: onceonly run FILE.py:NAME --interval START END"}
    named = app._name_file(error, ["run", "dags/my orders.py:orders"])
    assert named["todo"] == "Retry: onceonly run 'dags/my orders.py:orders' --interval START END"
    assert app._name_file(error, ["recover", "nobody"]) == error
