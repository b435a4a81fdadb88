"""What the command line shows of states that are people's own to act on, or that later checkpoints have changed."""

import json

import pytest
from click.testing import CliRunner
from person import Person
from unit.world import Durable, World, minutes

from onceonly.checkpoint.model import State
from onceonly.checkpoint.sink import no_retraction_error
from onceonly.cli import main
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import ActionNeeded, InvalidPipeline, OnceonlyError, StageAgain
from onceonly.pipeline.gate import Gate
from onceonly.runtime import live_services, pipeline_file
from onceonly.testing.fakes import FakeSink

pytestmark = pytest.mark.slow
DECIDE = "onceonly approve flights 1 --reason … --seen 4, or onceonly abort flights 1 --reason … --seen 4"


@pytest.fixture
def make(tmp_path, monkeypatch):
    for name in ("ONCEONLY_STATE", "ONCEONLY_KAFKA_BOOTSTRAP", "ONCEONLY_NOTIFY", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))
    monkeypatch.setenv("ONCEONLY_PROJECT", str(tmp_path))

    def made(**changes) -> World:
        world = Durable(tmp_path, **changes)
        world.parts.settings = None
        coordinator = world.coordinator
        monkeypatch.setattr(live_services, "open_coordinator", lambda *_, **__: coordinator)
        return world

    return made


def onceonly(*args: str, **more):
    result = CliRunner(env={"COLUMNS": None}).invoke(main, args, **more)
    return json.loads(result.stdout) if "--json" in args else result


@pytest.fixture
def held(make) -> World:
    world = make(gate=Gate(min_rows={"lake": 9}, on_fail="hold"))
    world.plan()
    world.stage()
    world.parts.inspector(world.pipeline).find("critical")
    world.coordinator.gate("flights", 1, "run-1")
    return world


def test_what_is_held_is_called_so_and_advises_approve_or_abort(held):
    for command in (("status",), ("status", "flights"), ("describe", "flights", "1")):
        said = onceonly(*command).stdout
        assert "held" in said and DECIDE in said, command
        assert "staged  " not in said.split("Timeline")[0] and "onceonly recover" not in said, command
    (summary,) = onceonly("status", "--json")["pipelines"]
    assert (summary["state"], summary["held"], summary["unsettled"]) == ("staged", [1], [1])  # what is recorded stays


def test_recover_leaves_it_and_says_how_to_decide(held):
    said = onceonly("recover", "--force").stdout
    assert "flights epoch 1: held still: its gate failed it. Decide: onceonly approve flights 1" in said


def test_once_it_is_decided_it_is_held_no_more(held):
    assert (
        "flights epoch 1: held → aborted"
        in onceonly("abort", "flights", "1", "--reason", "bad rows", "--seen", "4").stdout
    )
    assert held.now(1).state is State.ABORTED
    assert "held" not in onceonly("status", "flights").stdout


def test_rows_are_told_by_sink_and_not_added_up(make):
    make().run("run-1")
    assert "files 5, lake 5" in onceonly("status").stdout
    assert "files 5, lake 5" in onceonly("status", "flights").stdout
    assert "files 5, lake 5" in onceonly("describe", "flights", "1").stdout
    assert onceonly("status", "flights", "--json")["checkpoints"][0]["rows_by_sink"] == {"lake": 5, "files": 5}


def test_several_unsettled_ones_are_counted_and_the_oldest_is_named(make):
    world = make(mode="interval")
    world.put(*range(5, 40))
    world.staged(3)
    assert "3, the oldest is epoch 1" in onceonly("status").stdout


def test_a_replaced_epoch_says_so(make):
    world = make(mode="interval")
    world.put(*range(5, 40))
    world.run("run-1", minutes(0, 10))
    world.coordinator.plan(world.pipeline, "again", world.alive, minutes(0, 10), Reprocess("a request"))
    assert (
        "replaced" not in onceonly("status", "flights").stdout.partition("State table")[0]
    )  # it is in force until the new one is published
    world.stage(2)
    world.commit(2)
    assert "committed, replaced by epoch 2" in onceonly("status", "flights").stdout
    assert "committed, replaced by epoch 2" in onceonly("describe", "flights", "1").stdout
    newest, oldest = onceonly("status", "flights", "--json")["checkpoints"]
    assert (oldest["replaced_by"], oldest["rewound_by"], newest["replaced_by"]) == (2, None, None)


def test_a_rewound_epoch_says_so(make):
    world = make()
    for run in ("run-1", "run-2"):
        world.run(run)
        world.put(7, 8)
    Person(world.coordinator).rewind("flights", 1, "ann", "wrong rates")
    said = onceonly("status", "flights").stdout
    assert "committed, rewound by epoch 3" in said and "takes back what came after epoch 1" in said
    assert [checkpoint["rewound_by"] for checkpoint in onceonly("status", "flights", "--json")["checkpoints"]] == [
        None,
        3,
        None,
    ]


def test_a_rewind_that_cannot_be_done_is_refused_before_the_question(make, monkeypatch):
    world = make()
    for run in ("run-1", "run-2"):
        world.run(run)
        world.put(7, 8)

    def refuses(self, txn, olds, held):
        raise no_retraction_error(self.name)

    monkeypatch.setattr(FakeSink, "retraction", refuses)
    result = onceonly("rewind", "flights", "1", "--reason", "wrong rates", input="n\n")
    assert result.exit_code == 2
    assert "cannot be taken back" in result.stderr
    assert "Take all of this back" not in result.stdout
    with pytest.raises(InvalidPipeline):
        world.coordinator.list_undone("flights", 1)


@pytest.fixture
def refused(make) -> World:
    """A checkpoint that a sink refuses before the decision, until a person acts."""
    world = make()
    world.plan()
    world.stage()
    world.lake.fail("rehearse", "action")
    with pytest.raises(ActionNeeded):
        world.commit()
    return world


@pytest.mark.usefixtures("refused")
def test_what_is_refused_says_why_and_what_to_do():
    for command in (("status",), ("status", "flights"), ("describe", "flights", "1")):
        said = onceonly(*command).stdout
        assert "refused" in said and "(test-requested-it)" in said, command
        assert "When that is done: onceonly recover flights" in said, command
        assert "Unsettled checkpoints of ended owners" not in said
    (summary,) = onceonly("status", "--json")["pipelines"]
    assert (summary["state"], summary["refused"], summary["stage_again"]) == ("staged", [1], [])
    (checkpoint,) = onceonly("status", "flights", "--json")["checkpoints"]
    assert checkpoint["refused"] == {"sink": "lake", "code": "test-requested-it"}
    assert onceonly("describe", "flights", "1", "--json")["refused"]["todo"].endswith("onceonly recover flights")
    actions = onceonly("describe", "flights", "1").stdout.split("What you can do")[1]
    assert "  onceonly recover flights " in actions and "onceonly abort flights 1" in actions


def test_recover_tells_what_a_sink_still_refuses(refused):
    refused.lake.fail("rehearse", "action")
    result = onceonly("recover", "--force")
    assert result.exit_code == 4
    assert "flights epoch 1: refused still: sink 'lake' refuses it until a person acts" in result.stdout


def test_a_missing_interval_has_its_command(make):
    """Its run has ended, and later ones are published: nothing else would ever say so."""
    world = make(mode="interval")
    world.put(*range(5, 40))
    world.staged(2)
    world.lake.fail("rehearse", "again")
    with pytest.raises(StageAgain):
        world.commit(1)
    world.commit(2)
    run = "onceonly run FILE.py:NAME --interval 2013-01-01T12:00:00Z 2013-01-01T12:10:00Z"
    for command in (("status",), ("status", "flights", "--last", "1"), ("describe", "flights", "1")):
        said = onceonly(*command).stdout
        assert run in said and "is missing until then" in said, command
    assert "aborted, to be staged again, 1 of 3 times" in onceonly("status", "flights").stdout
    assert onceonly("status", "--json")["pipelines"][0]["stage_again"] == [1]
    world.stage(1)
    world.commit(1)
    assert "staged again" not in onceonly("status").stdout
    assert onceonly("status", "--json")["pipelines"][0]["stage_again"] == []


def test_what_is_in_doubt_says_so(make):
    world = make()
    world.plan()
    world.stage()
    world.lake.fail("commit", "doubt")
    with pytest.raises(OnceonlyError) as doubt:
        world.commit()
    assert "onceonly resolve flights 1 --aborted lake" in str(doubt.value)
    assert "committing, in doubt: lake" in onceonly("status").stdout
    assert "committing, in doubt: lake" in onceonly("status", "flights").stdout


def test_hints_name_the_files_of_the_users_own_project(tmp_path, monkeypatch):
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ONCEONLY_PROJECT", str(tmp_path))
    monkeypatch.delenv("ONCEONLY_STATE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert "Start with: onceonly run FILE.py:NAME" in onceonly("status").stdout
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "sales.py").write_text(
        "import nothing_that_is_installed\nsales = Pipeline(\n  name='sales')\n"
    )
    assert pipeline_file.find_example(tmp_path) == "dags/sales.py:sales"
    assert "Start with: onceonly run dags/sales.py:sales" in onceonly("status").stdout
    assert "Pass dags/sales.py:sales." in onceonly("run", "dags/sale.py").stderr
