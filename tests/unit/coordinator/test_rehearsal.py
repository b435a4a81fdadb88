"""The rehearsal before the decision: what passes is published, and whatever else is not decided."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from codes import raises
from person import Person
from unit.world import World, minutes, values

from onceonly.checkpoint.model import State
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.rehearsal import MAX_UNFIT_ATTEMPTS
from onceonly.errors import ActionNeeded, InDoubt, InvalidPipeline, NotCommitted, OnceonlyError, StageAgain
from onceonly.pipeline.gate import Gate
from onceonly.testing.fakes import FakeSink

ROWS = list(range(5))


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def hourly(tmp_path):
    world = World(tmp_path, mode="interval")
    world.put(*range(5, 60))
    return world


@pytest.fixture
def held(tmp_path):
    """A checkpoint that its gate holds."""
    world = World(tmp_path, gate=Gate(min_rows={"lake": 1}, on_fail="hold"))
    stage(world)
    world.parts.inspector(world.pipeline).find("critical")
    world.coordinator.gate("flights", 1, "run-1")
    return world


def stage(world: World) -> None:
    world.plan()
    world.stage()


def staged_file(sink: FakeSink):
    (path,) = sink.folder.glob("*.staged.json")
    return path


def before_rehearsal(monkeypatch, *actions, sink="lake"):
    """Let other processes act, each once, just before a sink rehearses."""
    rehearse, pending = FakeSink.rehearse, list(actions)

    def rehearsing(self, *arguments):
        if self.name == sink and pending:
            pending.pop(0)()
        return rehearse(self, *arguments)

    monkeypatch.setattr(FakeSink, "rehearse", rehearsing)


def after_rehearsal(monkeypatch, *actions, sink="files"):
    """Let other processes act, each once, just after a sink has passed its rehearsal."""
    rehearse, pending = FakeSink.rehearse, list(actions)

    def rehearsing(self, *arguments):
        handle = rehearse(self, *arguments)
        if self.name == sink and pending:
            pending.pop(0)()
        return handle

    monkeypatch.setattr(FakeSink, "rehearse", rehearsing)


def record_calls(monkeypatch, *names):
    """The calls of these methods: (name, sink, arguments)."""
    calls = []
    for name in names:
        monkeypatch.setattr(FakeSink, name, recording(calls, name, getattr(FakeSink, name)))
    return calls


def recording(calls, name, method):
    def record(self, *arguments):
        calls.append((name, self, arguments))
        return method(self, *arguments)

    return record


# ---- passes


def test_same_objects_rehearse_and_commit(world, monkeypatch):
    called = record_calls(monkeypatch, "rehearse", "commit")
    stage(world)
    world.commit()
    assert [name for name, *_ in called] == ["rehearse", "rehearse", "commit", "commit"]
    sinks = [sink for _, sink, _ in called]
    assert sinks[0] is sinks[2]
    assert sinks[1] is sinks[3]


def test_copies_are_named_by_the_decision(world):
    stage(world)
    world.lake.fail("rehearse", "copied")
    world.lake.fail("commit", "unknown")
    with pytest.raises(OnceonlyError):
        world.commit()
    decided = world.now()
    assert "copy" in decided.handles["lake"]
    assert "copy" not in decided.handles["files"]
    staged_file(world.lake).unlink()  # a VACUUM
    assert world.recover()[0].state is State.COMMITTED
    assert values(world.lake) == values(world.files) == ROWS


def test_commit_that_returns_has_committed(world):
    stage(world)
    for step in ("rehearse", "commit"):
        for failure in ("before", "unknown", "after", "refused"):
            world.files.fail(step, failure)
            with suppress(OnceonlyError):
                assert world.commit().state is State.COMMITTED
    assert world.commit().state is State.COMMITTED
    assert values(world.lake) == values(world.files) == ROWS


# ---- no answer


@pytest.mark.parametrize("failure", ["before", "unknown", "after"])
def test_no_answer_leaves_it_staged(world, failure):
    stage(world)
    world.files.fail("rehearse", failure)
    with pytest.raises(NotCommitted) as unanswered:
        world.commit()
    assert unanswered.value.code == "no-answer"
    assert "sink 'files'" in unanswered.value.what
    assert world.events() == ["planned", "claimed", "staged"]
    assert world.commit().state is State.COMMITTED
    assert values(world.lake) == values(world.files) == ROWS


def test_no_answer_keeps_verdict_and_approval(held):
    Person(held.coordinator).approve("flights", 1, "ann", "fine")
    held.files.fail("rehearse", "before")
    with pytest.raises(NotCommitted):
        held.commit()
    assert held.now().state is State.STAGED
    assert (held.now().verdict["outcome"], held.now().approved["who"]) == ("failed", "ann")
    assert held.commit().state is State.COMMITTED


def test_rehearsal_that_dies_decides_nothing(world, monkeypatch):
    stage(world)
    after_rehearsal(monkeypatch, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        world.commit()
    assert world.events() == ["planned", "claimed", "staged"]
    assert world.commit().state is State.COMMITTED


# ---- staged again


def test_damaged_rows_are_staged_again(world):
    stage(world)
    staged_file(world.lake).unlink()
    with pytest.raises(StageAgain) as again:
        world.commit()
    assert again.value.code == "staged-rows-damaged"
    assert world.now().state is State.ABORTED
    assert world.now().has_to_be_staged_again
    assert "sink 'lake'" in world.now().reason
    assert list(world.files.folder.glob("*.staged.json")) == []
    assert world.stage(owner="run-1").attempt == 2
    assert world.commit().state is State.COMMITTED
    assert values(world.lake) == values(world.files) == ROWS


def test_abort_that_fails_can_be_finished(world):
    stage(world)
    world.lake.fail("rehearse", "again")
    world.files.fail("discard", "before")
    with pytest.raises(OnceonlyError):
        world.commit()
    assert (world.now().state, world.now().has_to_be_staged_again) == (State.ABORTING, True)
    assert world.abort().state is State.ABORTED
    world.stage()
    assert world.commit().state is State.COMMITTED


def test_approval_ends_with_its_attempt(held):
    Person(held.coordinator).approve("flights", 1, "ann", "fine")
    held.lake.fail("rehearse", "again")
    with raises(StageAgain, "staged-rows-damaged"):
        held.commit()
    assert held.now().state is State.ABORTED
    assert "The approval by ann ended with it" in held.now().reason
    held.stage()
    held.parts.inspector(held.pipeline).find("critical")
    assert held.coordinator.gate("flights", 1, "run-1").is_held
    with raises(NotCommitted, "gate-held"):
        held.commit()
    Person(held.coordinator).approve("flights", 1, "bob", "fine, too")
    assert held.commit().state is State.COMMITTED


def test_staging_again_is_bounded(world):
    world.plan()
    for attempt in range(1, MAX_UNFIT_ATTEMPTS + 1):
        assert world.stage().attempt == attempt
        world.lake.fail("rehearse", "again")
        with pytest.raises(StageAgain):
            world.commit()
    world.stage()
    for _ in range(3):
        world.lake.fail("rehearse", "again")
        with raises(ActionNeeded, "staged-rows-damaged", match=f"staged {MAX_UNFIT_ATTEMPTS + 1} times"):
            world.commit()
    assert world.now().state is State.STAGED
    assert world.events().count("refused") == 1
    Person(world.coordinator).abort("flights", 1, "found it", who="ann")
    world.stage()
    world.lake.fail("rehearse", "again")
    with pytest.raises(StageAgain):
        world.commit()


def test_recovery_aborts_what_nobody_stages_again(world):
    stage(world)
    world.ended.add("run-1")
    world.lake.fail("rehearse", "again")
    assert [checkpoint.state for checkpoint in world.recover()] == [State.ABORTED]
    assert world.run("run-2").state is State.COMMITTED
    assert values(world.lake) == values(world.files) == ROWS


# ---- a person has to act


@pytest.mark.parametrize(("failure", "code"), [("action", "test-requested-it"), ("refused", "test-refused")])
def test_refusal_is_recorded_once(world, failure, code):
    stage(world)
    for _ in range(3):
        world.lake.fail("rehearse", failure)
        with raises(ActionNeeded, code, match="sink 'lake' waits for a person"):
            world.commit()
    now = world.now()
    assert (now.state, now.refused["sink"]) == (State.STAGED, "lake")
    assert "The test requested it." in now.refused["why"]
    assert world.events() == ["planned", "claimed", "staged", "refused"]
    assert world.commit().refused is None
    assert values(world.lake) == values(world.files) == ROWS


def test_refusal_keeps_the_approval(held):
    Person(held.coordinator).approve("flights", 1, "ann", "fine")
    held.lake.fail("rehearse", "action")
    with pytest.raises(ActionNeeded):
        held.commit()
    assert held.now().approved["who"] == "ann"
    assert held.commit().state is State.COMMITTED


def test_missing_target_is_no_reason_to_abort(world):
    world.run("run-1")
    world.put(5)
    world.plan("run-2")
    world.stage(2)
    published = world.lake.folder / "published.json"
    content = published.read_bytes()
    published.unlink()
    with pytest.raises(ActionNeeded) as refused:
        world.commit(2)
    assert refused.value.code == "target-went-back"
    assert world.now(2).state is State.STAGED
    published.write_bytes(content)
    assert world.commit(2).state is State.COMMITTED
    assert values(world.lake) == values(world.files) == [*ROWS, 5]


def test_refused_checkpoint_can_be_aborted(world):
    stage(world)
    world.lake.fail("rehearse", "action")
    with pytest.raises(ActionNeeded):
        world.commit()
    assert world.abort().refused is None
    assert world.now().state is State.ABORTED


# ---- what changes meanwhile


def test_another_attempt_is_rehearsed_itself(tmp_path, monkeypatch):
    """It has passed its gate while the first one was rehearsed: what passed is not what would be published."""
    world = World(tmp_path, gate=Gate(min_rows={"lake": 1}))
    stage(world)
    world.coordinator.gate("flights", 1, "run-1")

    def replace_attempt():
        world.abort()
        world.stage()
        world.coordinator.gate("flights", 1, "run-1")
        world.files.fail("rehearse", "action")

    after_rehearsal(monkeypatch, replace_attempt)
    with pytest.raises(ActionNeeded):
        world.commit()
    assert (world.now().state, world.now().attempt) == (State.STAGED, 2)
    assert world.commit().attempt == 2
    assert values(world.lake) == ROWS


def test_attempt_without_verdict_is_not_decided(tmp_path, monkeypatch):
    world = World(tmp_path, gate=Gate(min_rows={"lake": 1}))
    stage(world)
    world.coordinator.gate("flights", 1, "run-1")
    after_rehearsal(monkeypatch, lambda: (world.abort(), world.stage()))
    with raises(NotCommitted, "verdict-missing"):
        world.commit()
    assert "committing" not in world.events()


def test_attempt_staged_before_the_rehearsal_needs_a_verdict(tmp_path, monkeypatch):
    """It was staged while the commit published an earlier decision, after it had looked at the verdict."""
    world = World(tmp_path, mode="interval", gate=Gate(min_rows={"lake": 1}))
    world.put(*range(5, 60))
    for epoch in (1, 2):
        world.plan(f"run-{epoch}", minutes(30 * epoch - 30, 30 * epoch))
        world.stage(epoch)
        world.coordinator.gate("flights", epoch, f"run-{epoch}")
    world.lake.fail("commit", "before")
    with suppress(OnceonlyError):
        world.commit(1)
    commit, pending = FakeSink.commit, [lambda: (world.abort(2), world.stage(2))]

    def committing(self, *arguments):
        if pending:
            pending.pop()()
        return commit(self, *arguments)

    monkeypatch.setattr(FakeSink, "commit", committing)
    with raises(NotCommitted, "verdict-missing"):
        world.commit(2)
    assert (world.now(1).state, world.now(2).state) == (State.COMMITTED, State.STAGED)


def test_recovery_leaves_a_later_attempt_to_its_owner(world, monkeypatch):
    """The attempt of an ended owner is aborted, and staged by another one, after recovery has looked at it."""
    stage(world)

    def take_over(self, staged, *, settle=Coordinator._settle_staged):
        world.abort()
        world.plan("run-2")
        world.stage()
        return settle(self, staged)

    monkeypatch.setattr(Coordinator, "_settle_staged", take_over)
    world.coordinator.recover("flights", lambda checkpoint: checkpoint.owner == "run-2")
    assert (world.now().state, world.now().attempt) == (State.STAGED, 2)


def test_abort_wins_over_rehearsal(world, monkeypatch):
    stage(world)
    after_rehearsal(monkeypatch, world.abort)
    with raises(NotCommitted, "not-staged"):
        world.commit()
    assert values(world.lake) == []


def test_refusal_of_an_ended_attempt_does_not_count(world, monkeypatch):
    """Its rows were discarded, which is why they were found missing."""
    stage(world)
    before_rehearsal(monkeypatch, lambda: (world.abort(), world.stage()))
    assert world.commit().attempt == 2
    assert world.events().count("aborting") == 1


def test_two_processes_decide_once(world, monkeypatch):
    stage(world)
    after_rehearsal(monkeypatch, world.commit)
    assert world.commit().state is State.COMMITTED
    assert world.events().count("committing") == 1
    assert values(world.lake) == values(world.files) == ROWS


def test_other_decision_repeats_the_rehearsal(hourly, monkeypatch):
    called = record_calls(monkeypatch, "rehearse")
    hourly.staged(2)
    after_rehearsal(monkeypatch, lambda: hourly.commit(2))
    assert hourly.commit(1).decision == 2
    assert [decision for _, _, (_, decision, _) in called] == [1, 1, 1, 1, 2, 2]
    assert [entry["decision"] for entry in hourly.lake.entries()] == [1, 2]


def test_two_intervals_add_one_column(hourly, monkeypatch):
    """With two types: each fits the table as it was. The second is refused before its decision."""
    check_rows = FakeSink._check_rows

    def check_columns(self, handle):
        rows = check_rows(self, handle)
        types = {type(row["value"]) for row in [*self.rows(), *rows]}
        if len(types) > 1:
            raise StageAgain("the column 'value' was added with another type.", code="schema-changed")
        return rows

    monkeypatch.setattr(FakeSink, "_check_rows", check_columns)
    hourly.plan("run-1", minutes(0, 10))
    hourly.plan("run-2", minutes(10, 20))
    hourly.stage(1)
    hourly.coordinator.stage(
        "flights",
        2,
        lambda cp: {
            name: [{**row, "value": str(row["value"])} for row in rows]
            for name, rows in hourly.parts.produce(cp).items()
        },
    )
    after_rehearsal(monkeypatch, lambda: hourly.commit(2))
    with pytest.raises(StageAgain) as again:
        hourly.commit(1)
    assert again.value.code == "schema-changed"
    assert (hourly.now(1).state, hourly.now(1).decision) == (State.ABORTED, None)
    assert hourly.now(2).state is State.COMMITTED


def test_late_end_of_a_doubt_repeats_the_rehearsal(hourly, monkeypatch):
    """The sink's last publication is another one than that which was rehearsed upon."""
    hourly.staged(2)
    hourly.lake.fail("commit", "doubt", "doubt")
    with pytest.raises(InDoubt):
        hourly.commit(1)
    called = record_calls(monkeypatch, "rehearse")
    after_rehearsal(
        monkeypatch, lambda: Person(hourly.coordinator).resolve_doubt("flights", 1, "lake", False, "ann", "looked")
    )
    assert hourly.commit(2).state is State.COMMITTED
    assert [last and last.epoch for _, sink, (_, _, last) in called if sink.name == "lake"] == [None, 1]


def test_parallel_intervals_all_commit(hourly):
    hourly.staged(6)
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(hourly.commit, range(1, 7)))
    assert {checkpoint.state for checkpoint in done} == {State.COMMITTED}
    assert sorted(checkpoint.decision for checkpoint in done) == list(range(1, 7))
    assert sorted(values(hourly.lake)) == sorted(values(hourly.files)) == list(range(60))


# ---- going back


@pytest.mark.parametrize(
    ("failure", "error"), [("action", ActionNeeded), ("again", ActionNeeded), ("before", NotCommitted)]
)
def test_rewind_that_cannot_work_is_not_decided(world, failure, error):
    world.run("run-1")
    world.put(5)
    world.run("run-2")
    world.files.fail("rehearse", failure)
    events = world.events()
    with pytest.raises(error, match="cannot go back"):
        Person(world.coordinator).rewind("flights", 1, "ann", "wrong rows")
    assert world.events() == events
    assert Person(world.coordinator).rewind("flights", 1, "ann", "wrong rows").state is State.COMMITTED
    assert values(world.lake) == values(world.files) == ROWS


def test_rewind_that_is_overtaken_is_refused(world, monkeypatch):
    world.run("run-1")
    world.put(5)
    world.run("run-2")
    world.put(6)
    after_rehearsal(monkeypatch, lambda: world.run("run-3"))
    with pytest.raises(InvalidPipeline) as overtaken:
        Person(world.coordinator).rewind("flights", 1, "ann", "wrong rows")
    assert overtaken.value.code == "seen-outdated"
    assert values(world.lake) == values(world.files) == [*ROWS, 5, 6]
