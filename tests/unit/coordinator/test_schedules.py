"""Schedules that lost or doubled rows, or went unnoticed, each with its steps in the order in which it happened."""

from dataclasses import replace

import pytest
from codes import raises
from person import Person
from unit.tables import KIND
from unit.world import World

from onceonly.checkpoint.model import Event, State
from onceonly.coordinator.coordinator import Coordinator
from onceonly.errors import CannotPublish, Fenced, InDoubt, InvalidPipeline, OutcomeUnknown
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.testing.fakes import FakeSink, FakeSource


def values(sink: FakeSink) -> list[int]:
    return sorted(row["value"] for row in sink.rows())


def before_staging(world: World, sink: str, step) -> None:
    """The next stage process is slow: `step` happens before it writes to `sink`."""
    make, done = world.parts.sink, []

    def slow(pipeline, name):
        live = make(pipeline, name)
        write = live.stage

        def stage(txn, rows):
            if name == sink and not done:
                done.append(txn)
                step()
            return write(txn, rows)

        live.stage = stage
        return live

    world.parts.sink = slow


def staged(world: World) -> list[str]:
    """Names of what is still staged, for whichever sink."""
    return [path.name for path in world.parts.folder.glob("*/*.staged.json")]


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


# ---- a stage process that everyone took for dead


def test_what_was_claimed_before_an_abort_is_not_recorded_after_the_next_plan(world):
    world.plan("run-1")
    world.ended.add("run-1")
    before_staging(world, "files", lambda: world.plan("run-2"))
    with raises(Fenced, "ownership-lost", match="attempt 1 is current and this was attempt 1, which has been ended"):
        world.stage(owner=None)
    assert world.events() == ["planned", "claimed", "aborting", "aborted", "planned"]
    world.stage(owner="run-2")
    world.commit()
    assert values(world.lake) == values(world.files) == [0, 1, 2, 3, 4]
    assert [name for name in staged(world) if "-1-1-" in name] == []


def test_a_plan_that_was_stopped_does_not_take_its_old_look_at_the_topic_for_a_loss(world, monkeypatch):
    """Between its look and its row another run has read on, further than the topic went then."""
    append = KIND.append

    def slow(self, view, row):
        monkeypatch.setattr(KIND, "append", append)
        world.put(10)
        world.run("run-2")
        return append(self, view, row)

    monkeypatch.setattr(KIND, "append", slow)
    assert world.plan("run-1") is None  # no new data
    assert values(world.lake) == [0, 1, 2, 3, 4, 10]


def test_what_was_claimed_under_another_definition_is_not_recorded(world):
    world.plan("run-1")
    lake = world.pipeline.sinks[0]
    changed = replace(world.pipeline, sinks=[lake, DeltaSink("copy", "copy")])

    def plan_again() -> None:
        world.coordinator.plan(changed, "run-1", world.alive)

    before_staging(world, "files", plan_again)
    with pytest.raises(Fenced):
        world.stage(owner="run-1")
    world.stage(owner="run-1")
    world.commit()
    assert values(world.parts.sink(changed, "copy")) == values(world.lake) == [0, 1, 2, 3, 4]
    assert values(world.files) == []


def without_files(world: World) -> None:
    world.pipeline = replace(world.pipeline, sinks=[world.pipeline.sinks[0]])


def test_what_a_killed_process_staged_for_a_sink_is_removed_although_the_next_plan_has_it_no_more(world):
    world.plan("run-1")
    claimed = world.coordinator._stager.claim("flights", 1, None).require(1)
    world.files.stage(claimed.transaction("files"), [])  # and here it is killed
    without_files(world)
    world.plan("run-1")
    world.stage()
    world.commit()
    assert [name for name in staged(world) if "-1-1-" in name] == []


def test_so_it_is_when_it_was_aborted_in_between_and_the_abort_was_killed(world):
    world.plan("run-1")
    world.stage()
    world.files.fail("discard", "before")
    with pytest.raises(OutcomeUnknown):
        world.abort()
    without_files(world)
    world.recover()
    assert (world.now().state, staged(world)) == (State.ABORTED, [])


def test_the_sweep_looks_at_the_sinks_of_every_definition_that_was_claimed_under(world):
    world.plan("run-1")
    claimed = world.coordinator._stager.claim("flights", 1, None).require(1)
    files = world.files
    without_files(world)
    world.plan("run-1")
    world.stage()
    files.stage(claimed.transaction("files"), [])  # a zombie, which is killed before it learns that it was fenced
    assert [txn.sink for txn in world.coordinator.sweep("flights")] == ["files"]


def test_a_sink_that_cannot_be_made_keeps_no_other_from_being_swept(world, monkeypatch):
    """Such as one whose Airflow connection was deleted."""
    world.plan("run-1")
    claimed = world.coordinator._stager.claim("flights", 1, None).require(1)
    world.abort()
    world.files.stage(claimed.transaction("files"), [])
    make = world.parts.sink

    def without_lake(pipeline, name):
        if name == "lake":
            raise InvalidPipeline("there is no connection 'lake'.", code="test-no-connection")
        return make(pipeline, name)

    monkeypatch.setattr(world.parts, "sink", without_lake)
    with raises(InvalidPipeline, "test-no-connection"):
        world.coordinator.sweep("flights")
    assert staged(world) == []


def test_a_checkpoint_is_not_taken_over_by_a_pipeline_that_reads_another_topic(world):
    world.plan("run-1")
    world.abort()
    FakeSource("trains", world.parts.folder).append(0, None)
    world.pipeline = replace(world.pipeline, source=KafkaSource("trains"))
    with raises(InvalidPipeline, "pipeline-changed"):
        world.plan("run-2")
    assert world.now().state is State.ABORTED


def test_recovery_that_saw_an_abort_leaves_what_was_planned_again_since(world):
    """It is stopped between its look and its step; meanwhile another ends the abort, plans again and stages."""
    world.plan("run-1")
    world.stage()
    world.files.fail("discard", "before")
    with pytest.raises(OutcomeUnknown):
        world.abort()
    seen = world.state.view("flights")
    world.plan("run-2")
    world.stage(owner="run-2")
    assert world.coordinator._settle(seen, world.alive) == []
    assert world.now().state is State.STAGED
    world.commit()
    assert values(world.lake) == values(world.files) == [0, 1, 2, 3, 4]


# ---- a sink that is gone before the decision


@pytest.fixture
def dead(world, monkeypatch) -> World:
    """What is staged in `files` cannot be removed: its cluster was given back."""
    world.plan("run-1")
    world.stage()
    discard = FakeSink.discard

    def unless_dead(self, txn, handle):
        if self.name == "files":
            raise ConnectionError("no such host")
        discard(self, txn, handle)

    monkeypatch.setattr(FakeSink, "discard", unless_dead)
    with pytest.raises(OutcomeUnknown):
        world.abort()
    without_files(world)
    with pytest.raises(OutcomeUnknown):
        world.plan("run-2")
    return world


def abort_without(world: World, *gone: str):
    return Person(world.coordinator).abort("flights", 1, "its cluster is gone", who="ann", gone=gone)


def test_a_sink_that_is_gone_for_good_does_not_hold_up_the_pipeline(dead):
    done = abort_without(dead, "files")
    assert (done.state, done.gone) == (State.ABORTED, {(1, "files")})
    dead.recover()
    dead.plan("run-2")
    dead.stage(owner="run-2")
    assert dead.commit().state is State.COMMITTED
    dead.recover()
    assert values(dead.lake) == [0, 1, 2, 3, 4]


def test_another_that_does_not_answer_does(dead):
    with pytest.raises(OutcomeUnknown):
        abort_without(dead, "lake")
    assert dead.now().state is State.ABORTING


def test_one_that_answers_after_all_is_not_gone(dead, monkeypatch):
    monkeypatch.undo()
    assert abort_without(dead, "files").gone == frozenset()
    assert staged(dead) == []


def test_an_abort_that_ends_late_does_not_end_the_next_one(world, monkeypatch):
    """Two processes abort one checkpoint; it is planned and aborted again before the slower one is done."""
    world.plan("run-1")
    world.stage()
    discard, slow = world.coordinator._publisher.__class__.discard, []

    def discarding(self, *given):
        left = discard(self, *given)
        if not slow:
            slow.append(True)
            Coordinator(world.state, world.parts).abort("flights", 1, "by another")
            world.plan("run-2")
            monkeypatch.setattr(type(self), "discard", lambda *_: (_ for _ in ()).throw(ConnectionError("killed")))
            with pytest.raises(OutcomeUnknown):
                world.abort()
            monkeypatch.setattr(type(self), "discard", discard)
        return left

    monkeypatch.setattr(world.coordinator._publisher.__class__, "discard", discarding)
    assert world.abort().state is State.ABORTING
    assert world.events()[-2:] == ["planned", "aborting"]


# ---- a person gives up


def rewound(world: World) -> None:
    """Three checkpoints, and a rewind to the first whose sink `files` refuses."""
    world.run("run-1")
    for number in (2, 3):
        world.put(10 * number)
        run_epoch(world, number)
    world.files.fail("commit", "refused", "refused")
    with raises(Exception, "test-refused"):
        Person(world.coordinator).rewind("flights", 1, "ann", "bad rows")


def run_epoch(world: World, number: int) -> None:
    world.plan(f"run-{number}")
    world.stage(number)
    world.commit(number)


def test_a_sink_whose_rows_a_rewind_has_not_taken_out_is_not_given_up(world):
    rewound(world)
    with raises(InvalidPipeline, "rows-not-removed") as refused:
        Person(world.coordinator).give_up("flights", 4, "files", "ann", "it refuses")
    assert "--give-up files --removed" in refused.value.todo
    assert world.now(4).state is State.COMMITTING


def test_it_is_given_up_once_the_rows_were_removed_by_hand(world):
    rewound(world)
    later = [entry["txn"] for entry in world.files.entries()[1:]]
    world.files.remove(*later)
    done = Person(world.coordinator).give_up("flights", 4, "files", "ann", "removed", removed=True)
    assert done.state is State.COMMITTED
    run_epoch(world, 5)
    assert values(world.lake) == values(world.files) == [0, 1, 2, 3, 4, 20, 30]


def decided(world: World, *failures: str) -> None:
    world.plan()
    world.stage()
    world.lake.fail("commit", *failures)


def test_a_committer_that_hangs_publishes_nothing_after_its_sink_was_given_up(world, monkeypatch):
    decided(world)
    publish, hung = FakeSink._publish, []

    def hang(self, handle, decision, last):
        if not hung:
            hung.append(True)
            monkeypatch.setattr(FakeSink, "_publish", lambda *_: (_ for _ in ()).throw(OSError("no answer")))
            Person(world.coordinator).give_up("flights", 1, "lake", "ann", "it does not answer")
            monkeypatch.setattr(FakeSink, "_publish", publish)
        return publish(self, handle, decision, last)

    monkeypatch.setattr(FakeSink, "_publish", hang)
    monkeypatch.setattr("onceonly.testing.fake_sink.lock_folder", unlocked)
    with pytest.raises(Fenced):
        world.commit()
    assert (values(world.lake), list(world.now().given_up)) == ([], ["lake"])


def unlocked(folder):
    """The hung committer has read what is published and holds no lock."""
    from contextlib import nullcontext

    return nullcontext()


def test_nothing_is_given_up_that_cannot_be_fenced_unless_a_person_says_that_it_is_gone(world, monkeypatch):
    decided(world, "refused", "refused", "refused")
    with raises(Exception, "test-refused"):
        world.commit()
    monkeypatch.setattr(FakeSink, "fence", lambda *_: (_ for _ in ()).throw(OSError("no answer")))
    with raises(OutcomeUnknown, "sink-not-fenced") as unknown:
        Person(world.coordinator).give_up("flights", 1, "lake", "ann", "it does not answer")
    assert "--give-up lake --gone" in unknown.value.todo
    assert world.now().waiting == ("lake",)
    done = Person(world.coordinator).give_up("flights", 1, "lake", "ann", "it burned down", gone=True)
    assert "no answer" in done.given_up["lake"]["not_fenced"]


def test_a_damaged_handle_is_given_up_only_as_gone(world, monkeypatch):
    """What it names cannot be fenced, and the message says the way out."""
    decided(world, "refused", "refused", "refused")
    with raises(Exception, "test-refused"):
        world.commit()
    damaged = CannotPublish("sink 'lake': the handle is damaged.", "Its folder is '../x'.", code="handle-damaged")
    monkeypatch.setattr(FakeSink, "fence", lambda *_: (_ for _ in ()).throw(damaged))
    with raises(OutcomeUnknown, "handle-damaged") as unknown:
        Person(world.coordinator).give_up("flights", 1, "lake", "ann", "it is damaged")
    assert "Its folder is '../x'." in unknown.value.why and "does not answer" not in unknown.value.why
    assert "onceonly resolve flights 1 --give-up lake --gone" in unknown.value.todo
    assert world.now().waiting == ("lake",)
    done = Person(world.coordinator).give_up("flights", 1, "lake", "ann", "no copy of the table exists", gone=True)
    assert "damaged" in done.given_up["lake"]["not_fenced"]


def test_what_the_fence_has_found_counts_although_what_follows_fails(world, monkeypatch):
    decided(world)
    monkeypatch.setattr(FakeSink, "_fail_as_planned", broken_after_the_first(world))
    with pytest.raises(OutcomeUnknown):
        world.commit()
    monkeypatch.setattr("onceonly.coordinator.publish.Publisher.publish", lambda *_: [])
    broken = lambda *_: (_ for _ in ()).throw(OSError("no answer"))  # noqa: E731
    with monkeypatch.context() as patched:
        patched.setattr("onceonly.coordinator.resolve.discard_idle", broken)
        patched.setattr("onceonly.coordinator.publish.Publisher.finish", lambda self, view, epoch: view)
        done = Person(world.coordinator).give_up("flights", 1, "lake", "ann", "it is gone", gone=True)
    assert (dict(done.given_up), "lake" in done.published) == ({}, True)


def test_what_the_fence_finds_published_is_not_given_up(world, monkeypatch):
    decided(world)
    monkeypatch.setattr(FakeSink, "_fail_as_planned", broken_after_the_first(world))
    with pytest.raises(OutcomeUnknown):
        world.commit()
    done = Person(world.coordinator).give_up("flights", 1, "lake", "ann", "it does not answer")
    assert (done.state, dict(done.given_up), done.published["lake"]["already"]) == (State.COMMITTED, {}, True)
    assert values(world.lake) == [0, 1, 2, 3, 4]


def test_a_later_decision_is_not_given_up_before_an_earlier_one(tmp_path):
    """Fenced at the later one, a table would take the earlier one for something that it has missed."""
    world = World(tmp_path, mode="interval")
    world.put(11)
    world.staged(2)
    world.lake.fail("commit", *["doubt"] * 99)
    for epoch in (1, 2):
        with pytest.raises(InDoubt):
            world.commit(epoch)
    with raises(
        InvalidPipeline, "earlier-decision-open", match="Epoch 1, which was decided before it, still waits"
    ) as refused:
        Person(world.coordinator).give_up("flights", 2, "lake", "ann", "it was altered")
    assert "onceonly resolve flights 1 --give-up lake" in refused.value.todo
    for epoch in (1, 2):
        Person(world.coordinator).give_up("flights", epoch, "lake", "ann", "it was altered")
    assert [world.now(epoch).state for epoch in (1, 2)] == [State.COMMITTED] * 2


def broken_after_the_first(world: World):
    """The lake publishes, and says nothing any more."""
    from contextlib import contextmanager

    @contextmanager
    def failing(self, step):
        yield None
        if step == "commit" and self.name == "lake":
            raise ConnectionError("the answer is lost")

    return failing


# ---- what is told, and what is swallowed


def test_a_notify_function_that_fails_is_shown_and_stops_nobody(world):
    def down(checkpoint, row) -> None:
        raise ConnectionError("the chat is down")

    with pytest.warns(RuntimeWarning, match="'planned' is recorded, but the notify function failed"):
        Coordinator(world.state, world.parts, down).plan(world.pipeline, "run-1", world.alive)
    with pytest.warns(RuntimeWarning, match="the chat is down"):
        Coordinator(world.state, world.parts, down).stage("flights", 1, world.parts.produce)
    assert world.events() == ["planned", "claimed", "staged"]


def test_recovery_does_not_pass_over_a_sink_that_was_fenced_at_its_target(world, monkeypatch):
    world.plan()
    world.stage()
    monkeypatch.setattr(FakeSink, "commit", lambda *_: (_ for _ in ()).throw(Fenced("another process has ended it")))
    with raises(OutcomeUnknown, "outcome-unknown"):
        world.commit()
    with raises(OutcomeUnknown, "outcome-unknown") as unknown:
        world.recover()
    assert "onceonly resolve flights 1 --give-up files" in unknown.value.todo  # a person may have died giving it up
    assert world.events().count(Event.PUBLISHED.value) == 0
