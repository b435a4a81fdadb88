"""A state table that went back, or was begun anew, is noticed before it publishes; and how a person goes on then."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from codes import raises
from person import Person
from unit.lightfiles import FileParts
from unit.world import World, minutes, values

from onceonly.checkpoint.model import State
from onceonly.checkpoint.sink import Trace
from onceonly.cli import main
from onceonly.coordinator import restore_check
from onceonly.coordinator.forward import Forward
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import Fenced, InvalidPipeline, OutcomeUnknown
from onceonly.pipeline.sinks import DeltaSink, StateSink
from onceonly.runtime import live_services, spark_stage
from onceonly.runtime.owners import is_never_alive
from onceonly.spark import check as spark_check
from onceonly.statetable.location import fork
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts, FakeSink, FakeSource

pytestmark = pytest.mark.slow
BEHIND = "is behind its targets"
BEFORE = "has published before"


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


@pytest.fixture
def restored(world) -> World:
    """Three checkpoints, and the state table as it was after the first of them."""
    world.run("run-1")
    back_up(world)
    for number in (2, 3):
        world.put(10 * number)
        world.run(f"run-{number}")
    restore(world)
    world.put(40)
    return world


def back_up(world: World) -> None:
    shutil.copytree(world.state.uri, f"{world.state.uri}-backup")


def restore(world: World) -> None:
    """In place: the folder, and so the table's place, is the same."""
    for path in Path(world.state.uri).iterdir():
        shutil.rmtree(path)
    shutil.copytree(f"{world.state.uri}-backup", world.state.uri, dirs_exist_ok=True)


def forward(world: World, decision: int = 3, ends: dict[int, int] | None = None, **more):
    given = {"flights": {0: 7} if ends is None else ends} if world.pipeline.mode == "chained" else {}
    return Person(world.coordinator).forward(world.pipeline, Forward(decision, "ann", "restored", given, **more))


def without_group(monkeypatch) -> None:
    """As where nobody is allowed to read it."""

    def denied(self: FakeSource, pipeline: str) -> list[Trace]:
        raise OutcomeUnknown("the group cannot be read.")

    monkeypatch.setattr(FakeSource, "traces", denied)


# ---- restored from an older copy


def test_a_restored_table_plans_nothing(restored):
    with raises(InvalidPipeline, "state-behind", match=BEHIND) as refused:
        restored.plan("run-4")
    assert "It ends at decision 1; the group of 'flights' shows decision 3" in refused.value.why
    assert restored.events().count("planned") == 1
    assert values(restored.lake) == [0, 1, 2, 3, 4, 20, 30]


def test_where_the_group_cannot_be_read_it_stages_nothing(restored, monkeypatch):
    without_group(monkeypatch)
    with pytest.warns(RuntimeWarning, match="cannot be read"):
        planned = restored.plan("run-4")
    with pytest.warns(RuntimeWarning), raises(InvalidPipeline, "state-behind", match=BEHIND) as refused:
        restored.coordinator.stage("flights", planned.epoch, lambda claimed: pytest.fail("Spark is asked"))
    assert f"fake {restored.lake.folder} shows decision 3" in refused.value.why
    assert restored.events()[-1] == "claimed"


def test_the_command_in_the_message_goes_on_with_every_row_once(restored):
    with pytest.raises(InvalidPipeline) as refused:
        restored.plan("run-4")
    [(decision, partition, end)] = re.findall(r"--decision (\d+) --ends flights:(\d+)=(\d+) ", refused.value.todo)
    done = forward(restored, int(decision), {int(partition): int(end)})
    assert (done.epoch, done.state, done.decision, done.owner, done.reason) == (
        *(2, State.COMMITTED, 3, "ann"),
        "restored",
    )
    assert restored.run("run-4").decision == 4
    assert values(restored.lake) == values(restored.files) == [0, 1, 2, 3, 4, 20, 30, 40]


def test_what_was_planned_and_refused_meanwhile_is_not_read_again(restored, monkeypatch):
    without_group(monkeypatch)
    with pytest.warns(RuntimeWarning):
        planned = restored.plan("run-4")
    with pytest.warns(RuntimeWarning), pytest.raises(InvalidPipeline):
        restored.stage(planned.epoch)
    restored.abort(planned.epoch)
    monkeypatch.undo()
    forward(restored)
    with raises(Fenced, "ownership-lost"):
        restored.stage(planned.epoch)
    restored.run("run-4")
    assert values(restored.lake) == [0, 1, 2, 3, 4, 20, 30, 40]


def test_given_twice_it_is_recorded_once(restored):
    assert forward(restored) == forward(restored)
    assert restored.events().count("empty") == 1


def test_no_offsets_are_proposed_where_targets_disagree(restored):
    """The last decision reached one sink only, and the process died before it told the group."""
    file = restored.lake.folder / "published.json"
    shown = json.loads(file.read_text())
    file.write_text(json.dumps({**shown, "last": {app_id: [4, "other"] for app_id in shown["last"]}}))
    with raises(InvalidPipeline, "state-behind", match="--decision 4 --ends TOPIC:PARTITION=OFFSET") as refused:
        restored.plan("run-4")
    assert "shows decision 4" in refused.value.why and "shows decision 3" in refused.value.why


@pytest.mark.parametrize(
    ("decision", "ends", "code", "why"),
    [
        (2, {0: 7}, "decision-too-low", "show decision 3, and --decision is 2"),
        (3, {0: 4}, "offset-outside-log", "was read up to 5"),
        (3, {0: 9}, "offset-outside-log", "holds 8"),
        (3, {}, "ends-incomplete", r"has partitions \[0\], and you name \[\]"),
        (3, {0: 7, 1: 0}, "ends-incomplete", r"and you name \[0, 1\]"),
    ],
)
def test_what_cannot_be_is_refused(restored, decision, ends, code, why):
    with raises(InvalidPipeline, code, match=why):
        forward(restored, decision, ends)
    assert "empty" not in restored.events()


def test_a_table_is_not_carried_back(world, monkeypatch):
    for number in (1, 2):
        world.put(10 * number)
        world.run(f"run-{number}")
    with raises(InvalidPipeline, "decision-too-low", match="show decision 2"):
        forward(world, 1)
    for kind in (FakeSource, FakeSink):  # such as a Kafka topic, and a group that nobody may read
        monkeypatch.setattr(kind, "traces", lambda self, pipeline: [])
    with raises(InvalidPipeline, "decision-too-low", match="is at decision 2 already"):
        forward(world, 1)


def test_nothing_may_be_unsettled(world):
    world.plan()
    with raises(InvalidPipeline, "checkpoint-open", match=r"Epoch 1 is planned.(.|\n)*onceonly recover flights"):
        forward(world, 1, {0: 5})


def test_a_pipeline_with_state_is_refused(tmp_path):
    world = World(tmp_path, sinks=[DeltaSink("lake", "lake"), StateSink("totals", schema="n INT", key=["n"])])
    with raises(InvalidPipeline, "pipeline-keeps-state"):
        forward(world, 1, {0: 5})


def test_a_restored_table_takes_nothing_back(world):
    for number in (1, 2):
        world.put(10 * number)
        world.run(f"run-{number}")
    back_up(world)
    world.put(30)
    world.run("run-3")
    restore(world)
    before = world.state.view("flights").head
    with raises(InvalidPipeline, "state-behind", match=BEHIND):
        Person(world.coordinator).rewind("flights", 1, "ann", "wrong rows")
    assert world.state.view("flights").head == before


def test_a_rewind_does_not_go_past_what_is_not_known(restored):
    forward(restored)
    restored.run("run-4")
    with raises(InvalidPipeline, "publication-not-recorded"):
        Person(restored.coordinator).rewind("flights", 1, "ann", "wrong prices")
    assert Person(restored.coordinator).rewind("flights", 2, "ann", "wrong prices").state is State.COMMITTED
    assert values(restored.lake) == [0, 1, 2, 3, 4, 20, 30]


def test_after_a_rewind_the_group_proposes_where_the_pipeline_goes_on(restored):
    """Its offsets, which only move forward, would leave out what was taken back."""
    forward(restored)
    restored.run("run-4")
    back_up_again = f"{restored.state.uri}-backup"
    shutil.rmtree(back_up_again)
    back_up(restored)
    Person(restored.coordinator).rewind("flights", 2, "ann", "wrong prices")
    restore(restored)
    with raises(InvalidPipeline, "state-behind", match="--decision 5 --ends flights:0=7 "):
        restored.plan("run-5")


def test_files_take_what_comes_after_it_although_they_go_by_epochs(world):
    """Epochs 2 to 4 of the table that is lost are published: one of those numbers would be refused for ever."""
    world.parts = FileParts(world.parts.folder)
    world.run("run-1")
    back_up(world)
    for number in (2, 3, 4):
        world.put(10 * number)
        world.run(f"run-{number}")
    restore(world)
    assert Person(world.coordinator).forward(world.pipeline, Forward(4, "ann", "restored", {"flights": {0: 8}}))
    for number in (5, 6):
        world.put(10 * number)
        world.run(f"run-{number}")
    assert world.lake.values() == world.files.values() == [0, 1, 2, 3, 4, 20, 30, 40, 50, 60]


# ---- intervals


@pytest.fixture
def intervals(tmp_path) -> World:
    """Three intervals, and the state table as it was after the first one."""
    world = World(tmp_path, mode="interval")
    world.put(*range(10, 40))
    world.run("run-1", minutes(0, 10))
    back_up(world)
    for number in (2, 3):
        world.run(f"run-{number}", minutes(10 * number - 10, 10 * number))
    restore(world)
    return world


def test_intervals_are_named_one_by_one(intervals):
    for number in (2, 4):
        with raises(InvalidPipeline, "state-behind", match="--decision 3 --interval START END"):
            intervals.plan(f"run-{number}", minutes(10 * number - 10, 10 * number))
    forward(intervals, intervals=[minutes(10, 20), minutes(20, 30)])
    assert [intervals.now(epoch).decision for epoch in (1, 2, 3)] == [1, None, 3]
    for number in (2, 3):
        assert intervals.plan(f"run-{number}", minutes(10 * number - 10, 10 * number)).state is State.COMMITTED
    intervals.run("run-4", minutes(30, 40))
    assert sorted(values(intervals.lake)) == [*range(5), *range(10, 40)]


def test_an_interval_that_was_aborted_and_is_said_to_be_published_is_not_staged_again(intervals, monkeypatch):
    with monkeypatch.context() as unseen:
        unseen.setattr(FakeSource, "traces", lambda self, pipeline: [])
        intervals.plan("run-4", minutes(30, 40))
    intervals.abort(2)
    forward(intervals, intervals=[minutes(10, 20), minutes(20, 30), minutes(30, 40)])
    with raises(Fenced, "ownership-lost"):
        intervals.stage(2)
    assert sorted(values(intervals.lake)) == [*range(5), *range(10, 30)]


def test_what_dies_half_way_is_still_refused_and_is_given_again(intervals, monkeypatch):
    append, left = StateTable.append, [1]

    def dying(self, view, row):
        if not left.pop() if left else True:
            raise KeyboardInterrupt
        return append(self, view, row)

    monkeypatch.setattr(StateTable, "append", dying)
    both = [minutes(10, 20), minutes(20, 30)]
    with pytest.raises(KeyboardInterrupt):
        forward(intervals, intervals=both)
    monkeypatch.undo()
    assert intervals.events().count("empty") == 1
    with raises(InvalidPipeline, "state-behind", match=BEHIND):
        intervals.plan("run-3", minutes(20, 30))
    assert forward(intervals, intervals=both) == forward(intervals, intervals=both)
    assert intervals.events().count("empty") == 2
    assert intervals.plan("run-3", minutes(20, 30)).state is State.COMMITTED


def test_an_interval_that_was_processed_again_since_can_be_named(intervals):
    """The copy knows it, with what was published at first."""
    forward(intervals, intervals=[minutes(10, 20), minutes(20, 30)])
    shutil.rmtree(f"{intervals.state.uri}-backup")
    back_up(intervals)
    with raises(InvalidPipeline, "publication-not-recorded"):
        intervals.coordinator.plan(intervals.pipeline, "again", is_never_alive, minutes(10, 20), Reprocess("again, 1"))
    again = intervals.coordinator.plan(
        intervals.pipeline, "again", is_never_alive, minutes(0, 10), Reprocess("again, 1")
    ).checkpoint
    intervals.stage(again.epoch)
    assert intervals.commit(again.epoch).decision == 4
    restore(intervals)
    assert forward(intervals, 4, intervals=[minutes(0, 10)]).decision == 4
    with raises(InvalidPipeline, "publication-not-recorded"):
        intervals.coordinator.plan(intervals.pipeline, "again", is_never_alive, minutes(0, 10), Reprocess("again, 2"))
    intervals.run("run-4", minutes(30, 40))
    assert sorted(values(intervals.lake)) == [*range(5), *range(10, 40)]


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        ({}, "mode-mismatch", "runs by intervals"),
        ({"intervals": [minutes(15, 25)]}, "interval-overlaps", "ends in|overlaps"),
        ({"ends": {0: 3}}, "mode-mismatch", "runs by"),
    ],
)
def test_intervals_that_cannot_be_are_refused(intervals, given, code, why):
    forward(intervals, intervals=[minutes(10, 20)])
    ends = {"flights": given["ends"]} if "ends" in given else {}
    with raises(InvalidPipeline, code, match=why):
        Person(intervals.coordinator).forward(
            intervals.pipeline, Forward(3, "ann", "restored", ends, given.get("intervals", ()))
        )


# ---- missing, or another one


def test_a_table_that_is_missing_is_not_made_anew(world):
    world.run("run-1")
    shutil.rmtree(world.state.uri)
    with raises(InvalidPipeline, "state-table-missing"):
        StateTable(world.state.uri)
    with raises(OutcomeUnknown, "state-table-replaced"):
        world.plan("run-2")
    assert not Path(world.state.uri).exists()


@pytest.fixture
def elsewhere(world) -> World:
    """The same command in another folder: another state table, the same topic and targets."""
    world.run("run-1")
    world.known, world.state = world.state, StateTable.make(f"{world.state.uri}-elsewhere")
    return world


@pytest.mark.parametrize("seen", ["group", "sinks"])
def test_a_first_checkpoint_beside_traces_of_another_table_is_refused(elsewhere, seen, monkeypatch):
    monkeypatch.setattr(FakeSink if seen == "group" else FakeSource, "traces", lambda self, pipeline: [])
    with raises(InvalidPipeline, "published-before", match=BEFORE) as refused:
        elsewhere.plan("run-1")
    assert f"shows decision 1 of state table {elsewhere.known.id}" in refused.value.why
    assert "ONCEONLY_STATE" in refused.value.todo
    assert elsewhere.state.pipelines() == []


@pytest.mark.parametrize("has_table", [True, False])
def test_check_finds_what_the_first_plan_would_refuse(elsewhere, has_table):
    table = elsewhere.state if has_table else None
    with raises(InvalidPipeline, "published-before"):
        restore_check.check_first_plan(table, elsewhere.pipeline, elsewhere.parts)
    restore_check.check_first_plan(elsewhere.known, elsewhere.pipeline, elsewhere.parts)


def test_where_that_table_is_lost_a_person_goes_on_in_another(elsewhere):
    with raises(InvalidPipeline, "published-before", match="--decision 1 --ends flights:0=5 "):
        elsewhere.plan("run-1")
    forward(elsewhere, 1, {0: 5})
    elsewhere.put(50)
    elsewhere.run("run-2")
    assert values(elsewhere.lake) == [0, 1, 2, 3, 4, 50]


def test_another_name_is_another_pipeline(elsewhere):
    renamed = World(elsewhere.parts.folder.parent / "new", name="arrivals")
    renamed.parts = elsewhere.parts
    assert renamed.plan("run-1") is not None


def test_a_fork_goes_on(world):
    """It has epochs: whose copy it is, a person has said."""
    world.run("run-1")
    back_up(world)
    fork(f"{world.state.uri}-backup")
    world.state = StateTable(f"{world.state.uri}-backup")
    world.put(10)
    assert world.plan("run-2").epoch == 2


def test_offsets_without_a_mark_count_for_a_first_checkpoint_only(world, monkeypatch):
    """As a person has left them."""
    monkeypatch.setattr(FakeSource, "traces", lambda self, pipeline: [Trace("", 0, "the group")])
    with raises(InvalidPipeline, "published-before"):
        world.plan("run-1")
    monkeypatch.undo()
    world.run("run-1")
    monkeypatch.setattr(FakeSource, "traces", lambda self, pipeline: [Trace("", 0, "the group")])
    world.put(10)
    assert world.plan("run-2").epoch == 2


def test_a_checkpoint_that_is_committed_meanwhile_is_not_taken_for_a_newer_table(world, monkeypatch):
    """Planning has looked at the state table before; what the group shows then is in it by now."""
    shown, at_work = FakeSource.traces, []

    def slow(self: FakeSource, pipeline: str) -> list[Trace]:
        if not at_work:
            at_work.append(True)
            world.run("run-1")
        return shown(self, pipeline)

    monkeypatch.setattr(FakeSource, "traces", slow)
    assert world.plan("run-2") is None  # nothing is left to do
    assert world.events().count("planned") == 1


# ---- by the command line


@dataclass
class Shell:
    """The command line on fakes; each folder is a home of its own, all on one topic and with one set of targets."""

    parts: FakeParts
    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, home: str, *args: object) -> Result:
        self.monkeypatch.setenv("ONCEONLY_HOME", str(self.folder / home))
        self.monkeypatch.setenv("ONCEONLY_PROJECT", str(self.folder))
        return CliRunner(env={"COLUMNS": None}).invoke(main, [str(arg) for arg in args])


@pytest.fixture
def shell(world, tmp_path, monkeypatch) -> Shell:
    for name in ("ONCEONLY_STATE", "ONCEONLY_NOTIFY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pipelines.py").write_text(f"from onceonly import *\nflights = {world.pipeline!r}")

    def live(settings, connections):
        world.parts.settings, world.parts.kafka = settings, lambda connection, bootstrap: SimpleNamespace(describe=str)
        return world.parts

    def stage(parts, through, name, epoch, owner):
        return through.stage(name, epoch, parts.produce, owner)

    monkeypatch.setattr(spark_check, "notes", lambda settings: [])
    monkeypatch.setattr(live_services, "LiveServices", live)
    monkeypatch.setattr(live_services, "check_pipeline", lambda pipeline, parts: [])
    monkeypatch.setattr(spark_stage, "stage", stage)
    return Shell(world.parts, tmp_path, monkeypatch)


RUN = ("run", "pipelines.py:flights")


def test_the_same_command_in_another_folder_is_refused_and_can_be_carried_on(shell, world):
    assert shell("one", *RUN).exit_code == 0
    refused = shell("two", *RUN)
    assert refused.exit_code == 2
    assert BEFORE in refused.stderr and "Was the command given in another folder" in refused.stderr
    assert values(world.lake) == [0, 1, 2, 3, 4]
    [decision, ends] = re.findall(r"--decision (\d+) --ends (\S+) ", refused.stderr)[0]
    carried = ("state", "forward", "pipelines.py:flights", "--decision", decision, "--ends", ends)
    done = shell("two", *carried, "--reason", "the disk is gone", "--seen", 0)
    assert (done.exit_code, "continues after decision 1" in done.stdout) == (0, True), done.output
    assert "the disk is gone" in shell("two", "describe", "flights", 1).stdout
    world.put(50)
    assert shell("two", *RUN).exit_code == 0
    assert values(world.lake) == [0, 1, 2, 3, 4, 50]


@pytest.mark.parametrize("ends", ["flights", "flights:0", "flights=3", "flights:x=3", ":0=3"])
def test_ends_that_are_not_understood_are_refused(shell, ends):
    said = shell("one", "state", "forward", "pipelines.py:flights", "--decision", 1, "--ends", ends, "--reason", "x")
    assert said.exit_code == 2
    assert "TOPIC:PARTITION=OFFSET" in said.stderr


def test_only_a_run_makes_the_embedded_table(shell):
    for reading in (["status"], ["status", "flights"], ["describe", "flights", 1], ["recover"], ["sweep"]):
        shell("one", *reading)
        assert not (shell.folder / "one").exists()
    assert "will be created by the first run" in shell("one", "check", "pipelines.py:flights").stdout
    assert not (shell.folder / "one").exists()
    assert shell("one", *RUN, "--until", "plan").exit_code == 0
    assert (shell.folder / "one" / "state").exists()


def test_a_table_that_somebody_has_placed_is_made_by_state_init_alone(shell, monkeypatch):
    monkeypatch.setenv("ONCEONLY_STATE", str(shell.folder / "volume" / "state"))
    for command in (RUN, ["status"], ["recover"], ["check", "pipelines.py:flights"]):
        refused = shell("one", *command)
        assert refused.exit_code == (5 if command[0] == "check" else 2)
        assert "there is no state table" in refused.stderr
    assert not (shell.folder / "volume").exists()
    assert "was made" in shell("one", "state", "init").stdout
    assert "exists: nothing to do" in shell("one", "state", "init").stdout
    assert shell("one", *RUN).exit_code == 0
    monkeypatch.setenv("ONCEONLY_STATE", "hdfs://lake/state")
    assert "cannot hold the state table" in shell("one", "state", "init").stderr
