"""Targets that went back: noticed by plan, stage and commit, and given up only by a person's word."""

import shutil
from functools import partial

import pytest
from codes import raises
from person import Person
from unit.world import World, minutes, values

from onceonly.checkpoint.model import State
from onceonly.checkpoint.sink import Answer, History
from onceonly.coordinator import target_history
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.coordinator.reprocess import Reprocess
from onceonly.coordinator.stage import find_state_before
from onceonly.errors import ActionNeeded, InvalidPipeline, NotCommitted, OutcomeUnknown, TargetWentBack
from onceonly.pipeline.sinks import DeltaSink, StateSink
from onceonly.testing.fakes import FakeSink

pytestmark = pytest.mark.slow

THREE = [DeltaSink("lake", "lake"), DeltaSink("files", "files"), DeltaSink("late", "late")]
ANN = Acceptance("ann", "the copy is all there is")


@pytest.fixture
def world(tmp_path) -> World:
    """Three sinks; epoch 1 is published."""
    world = World(tmp_path, sinks=THREE)
    world.run("run-1")
    return world


def sink(world: World, name: str) -> FakeSink:
    return world.parts.sink(world.pipeline, name)


def back_up(world: World, name: str = "lake", to: str = "backup") -> None:
    shutil.copytree(sink(world, name).folder, world.parts.folder / f"{name}-{to}")


def restore(world: World, name: str = "lake", to: str = "backup") -> None:
    """The target as it was; what it was until now is kept beside it."""
    folder, kept = sink(world, name).folder, world.parts.folder / f"{name}-newest"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.move(folder, kept)
    shutil.copytree(world.parts.folder / f"{name}-{to}", folder)


def unmount(world: World, name: str = "lake") -> None:
    (world.parts.folder / f"{name}-empty").mkdir(exist_ok=True)
    restore(world, name, "empty")


def bring_back(world: World, name: str = "lake") -> None:
    folder = sink(world, name).folder
    shutil.rmtree(folder)
    shutil.copytree(world.parts.folder / f"{name}-newest", folder)


def run(world: World, *numbers: int) -> None:
    for number in numbers:
        world.put(number)
        world.run(f"run-{number}")


@pytest.fixture
def restored(world) -> World:
    """`lake` is as it was after epoch 1; epochs 2 and 3 are missing there."""
    back_up(world)
    run(world, 10, 11)
    restore(world)
    return world


def refused(world: World, step, code: str = "target-went-back", error: type = ActionNeeded):
    before = world.state.view("flights").head.seq
    with pytest.raises(error) as refusal:
        step()
    assert refusal.value.code == code
    assert world.state.view("flights").head.seq == before
    return refusal.value


def accept(world: World, name: str = "lake", **options) -> list[int]:
    word = Acceptance("ann", "the copy is all there is", **options)
    return [publication.epoch for publication in Person(world.coordinator).accept_loss("flights", name, word)]


# ---- noticed


def test_plan_names_what_is_missing_and_the_ways_out(restored):
    restored.put(20)
    error = refused(restored, lambda: restored.plan("run-20"))
    assert "sink 'lake'" in error.what
    assert "epochs 2, 3 (2 rows)" in error.why
    assert "onceonly accept-loss flights lake --reason …" in error.todo
    assert "files" not in str(error)


@pytest.mark.parametrize("name", ["lake", "files", "late"])
@pytest.mark.parametrize("change", [restore, unmount])
def test_each_sink_of_three_is_noticed(world, name, change):
    back_up(world, name)
    run(world, 10)
    change(world, name)
    error = refused(world, lambda: world.plan("run-11"))
    assert f"sink '{name}'" in error.what


def test_two_lost_targets_are_named_together(world):
    for name in ("lake", "late"):
        unmount(world, name)
    error = refused(world, lambda: world.plan("run-2"))
    assert "'lake', 'late'" in error.what


def test_a_target_brought_back_doubles_nothing(restored):
    restored.put(20)
    refused(restored, lambda: restored.plan("run-20"))
    bring_back(restored)
    restored.run("run-20")
    assert values(restored.lake) == values(restored.files) == [0, 1, 2, 3, 4, 10, 11, 20]


def test_stage_refuses_before_it_claims(world):
    world.put(10)
    world.plan("run-2")
    unmount(world)
    refused(world, lambda: world.stage(2))
    assert world.now(2).claims == {}
    assert not list(sink(world, "lake").folder.glob("*.json"))
    bring_back(world)
    world.stage(2)
    assert world.commit(2).state is State.COMMITTED


def test_commit_publishes_nothing_and_keeps_the_decision(world, monkeypatch):
    world.put(10)
    world.plan("run-2")
    world.stage(2)
    monkeypatch.setattr(FakeSink, "rehearse", lambda self, handle, decision, last=None: handle)
    unmount(world)
    with pytest.raises(TargetWentBack) as refusal:
        world.commit(2)
    assert refusal.value.code == "target-went-back"
    assert "Missing there: epoch 1 (5 rows)" in refusal.value.why
    assert "accept-loss flights lake" in refusal.value.todo
    assert (world.now(2).state, world.now(2).waiting) == (State.COMMITTING, ("lake",))
    bring_back(world)
    world.recover()
    assert values(world.lake) == values(world.files) == [0, 1, 2, 3, 4, 10]


def test_a_first_checkpoint_makes_the_target_of_a_new_sink(world):
    world.pipeline = World(world.parts.folder / "other", sinks=[*THREE, DeltaSink("new", "new")]).pipeline
    run(world, 10)
    assert values(sink(world, "new")) == [10]
    unmount(world, "new")
    assert "sink 'new'" in refused(world, lambda: world.plan("run-11")).what


def test_a_sink_that_returns_is_compared_with_what_it_had(world):
    world.pipeline = World(world.parts.folder / "other", sinks=THREE[1:]).pipeline
    run(world, 10)
    world.pipeline = World(world.parts.folder / "again", sinks=THREE).pipeline
    unmount(world)
    assert "sink 'lake'" in refused(world, lambda: world.plan("run-12")).what
    assert accept(world) == [1]


def test_another_target_is_no_loss(world):
    world.pipeline = World(world.parts.folder / "o", sinks=[DeltaSink("lake", "lake-two"), *THREE[1:]]).pipeline
    run(world, 10)
    assert values(world.lake) == [10]
    unmount(world)
    refused(world, lambda: world.plan("run-11"))


def test_a_target_is_compared_after_another_one_was_used(world):
    world.pipeline = World(world.parts.folder / "o", sinks=[DeltaSink("lake", "lake-two"), *THREE[1:]]).pipeline
    run(world, 10)
    world.pipeline = World(world.parts.folder / "again", sinks=THREE).pipeline
    unmount(world)
    error = refused(world, lambda: world.plan("run-11"))
    assert "epoch 1 (5 rows)" in error.why  # what went to the other target is not missing here
    bring_back(world)
    run(world, 11)
    assert values(world.lake) == [0, 1, 2, 3, 4, 11]


def test_a_rewind_is_refused(restored):
    refused(restored, lambda: Person(restored.coordinator).rewind("flights", 1, "ann", "wrong"))


def test_a_fork_compares_with_what_its_origin_published(world):
    """Its publications stay proofs of the targets, until it has its own."""
    publications = world.state.view("flights").head.last_publications
    unmount(world)
    history = sink(world, "lake").compare(publications["lake"])
    assert history.answer is Answer.WENT_BACK


def test_the_head_keeps_each_last_publication(world):
    run(world, 10, 11)
    head = world.state.view("flights").head
    assert {name: each.epoch for name, each in head.last_publications.items()} == {"lake": 3, "files": 3, "late": 3}
    Person(world.coordinator).rewind("flights", 1, "ann", "wrong")
    assert {publication.epoch for publication in world.state.view("flights").head.last_publications.values()} == {4}


def test_a_sink_given_up_keeps_the_publication_before(world):
    world.put(10)
    world.plan("run-2")
    world.stage(2)
    world.lake.fail("commit", "refused", "refused")
    with pytest.raises(OutcomeUnknown):
        world.commit(2)
    Person(world.coordinator).give_up("flights", 2, "lake", "ann", "full")
    assert world.state.view("flights").head.last_publications["lake"].epoch == 1
    run(world, 11)
    assert values(world.lake) == [0, 1, 2, 3, 4, 11]


# ---- what is no loss


@pytest.mark.parametrize(
    ("history", "note"),
    [
        (History(Answer.UNKNOWN, "its log was cleaned up"), "cannot be known: its log was cleaned up"),
        (History(Answer.SAME, remarks=("RESTORE to version 3 by its owner",)), "RESTORE to version 3"),
    ],
)
def test_plan_goes_on_with_a_note(world, monkeypatch, history, note):
    monkeypatch.setattr(FakeSink, "compare", lambda self, last: history)
    world.put(10)
    planned = world.coordinator.plan(world.pipeline, "run-2", world.alive)
    assert [note in line for line in planned.notes] == [True] * 3
    world.stage(2)
    assert world.commit(2).state is State.COMMITTED


@pytest.mark.parametrize("error", [OutcomeUnknown("no answer"), ConnectionError("reset")])
def test_a_silent_target_is_asked_again(world, monkeypatch, error):
    world.put(10)
    world.plan("run-2")

    def silent(self, last):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(FakeSink, "compare", silent)
        refused(world, lambda: world.plan("run-2"), "target-silent", NotCommitted)
        refused(world, lambda: world.stage(2), "target-silent", NotCommitted)
    world.stage(2)
    assert world.commit(2).state is State.COMMITTED


def test_a_publication_meanwhile_is_no_loss(world, monkeypatch):
    """Another process publishes between the look at the state table and that at the target."""
    compare, looks = FakeSink.compare, []

    def slow(self, last):
        if not looks:
            looks.append(last)
            run(world, 10)
        return compare(self, last)

    monkeypatch.setattr(FakeSink, "compare", slow)
    assert world.coordinator.compare_targets(world.pipeline) == []


def test_a_word_meanwhile_is_no_loss(restored, monkeypatch):
    """A difference counts only if the state table, read again, has the same last publication."""
    compare, looks = FakeSink.compare, []

    def slow(self, last):
        history = compare(self, last)
        if not looks:
            looks.append(last)
            accept(restored)
        return history

    monkeypatch.setattr(FakeSink, "compare", slow)
    assert restored.coordinator.compare_targets(restored.pipeline) == []


def test_an_open_decision_with_evidence_is_finished_first(world, monkeypatch):
    """It is in the target and not recorded; the publication before it cannot be found there any more."""
    world.put(10)
    world.plan("run-2")
    world.stage(2)
    world.lake.fail("commit", "after")
    with pytest.raises(OutcomeUnknown):
        world.commit(2)
    compare = FakeSink.compare
    lost = History(Answer.WENT_BACK, "its log begins with epoch 2", 2)
    monkeypatch.setattr(
        FakeSink, "compare", lambda self, last: lost if last.epoch == 1 and self.name == "lake" else compare(self, last)
    )
    view, settle = world.state.view("flights"), world.coordinator._publisher.publish
    assert target_history.check(world.state, world.parts, world.pipeline, view, settle) == []
    assert world.now(2).state is State.COMMITTED


# ---- a person's word


def test_an_accepted_loss_is_recorded_and_the_sink_goes_on(restored):
    assert accept(restored) == [2, 3]
    restored.put(20)
    restored.run("run-20")
    assert values(restored.lake) == [0, 1, 2, 3, 4, 20]
    assert values(restored.files) == [0, 1, 2, 3, 4, 10, 11, 20]
    assert [sorted(restored.now(epoch).missing) for epoch in (1, 2, 3, 4)] == [[], ["lake"], ["lake"], []]
    row = restored.now(2).missing["lake"]
    assert (row["who"], row["reason"], row["rows"]) == ("ann", ANN.reason, 1)
    assert restored.state.view("flights").head.missing == {"lake": 2}


def test_an_accepted_loss_without_a_target_lets_a_stage_make_it(world):
    run(world, 10)
    unmount(world)
    assert accept(world) == [1, 2]
    run(world, 11)
    assert values(world.lake) == [11]
    unmount(world)
    assert "epoch 3 (1 row)" in refused(world, lambda: world.plan("run-12")).why


def test_what_is_the_same_cannot_be_accepted(restored):
    bring_back(restored)
    refused(restored, lambda: accept(restored), "nothing-lost", InvalidPipeline)
    refused(restored, lambda: accept(restored, "files"), "nothing-lost", InvalidPipeline)
    refused(restored, lambda: accept(restored, "nowhere"), "no-such-sink", InvalidPipeline)


def test_a_loss_waits_for_open_decisions(world, monkeypatch):
    world.put(10)
    world.plan("run-2")
    world.stage(2)
    monkeypatch.setattr(FakeSink, "rehearse", lambda self, handle, decision, last=None: handle)
    back_up(world)
    run_before = values(world.lake)
    unmount(world)
    with pytest.raises(TargetWentBack):
        world.commit(2)
    give_up = partial(Person(world.coordinator).give_up, "flights", 2, "lake", "ann", "it is lost")
    refused(world, give_up, error=InvalidPipeline)  # its evidence would hide what is missing
    with pytest.raises(InvalidPipeline) as refusal:
        accept(world)
    assert refusal.value.code == "decision-open"
    refused(world, lambda: world.commit(2), "target-is-back", TargetWentBack)
    give_up()
    assert accept(world) == [1]
    run(world, 11)
    assert (run_before, values(world.lake)) == ([0, 1, 2, 3, 4], [11])


def test_a_target_that_may_have_gone_back_is_not_fenced(world, monkeypatch):
    """The fence would be a later decision there, and nobody would look for what was lost before."""
    world.put(10)
    world.plan("run-2")
    world.stage(2)
    monkeypatch.setattr(FakeSink, "rehearse", lambda self, handle, decision, last=None: handle)
    unmount(world)
    with pytest.raises(TargetWentBack):
        world.commit(2)
    give_up = partial(Person(world.coordinator).give_up, "flights", 2, "lake", "ann", "it is lost")

    def silent(self, last):
        raise ConnectionError("reset")

    with monkeypatch.context() as patched:
        patched.setattr(FakeSink, "compare", silent)
        with raises(OutcomeUnknown, "sink-not-fenced"):
            give_up()
    refused(world, give_up, error=InvalidPipeline)
    bring_back(world)
    assert world.commit(2).state is State.COMMITTED


@pytest.mark.parametrize("rows", [1, 2])
def test_what_dies_half_way_is_refused_and_given_again(restored, monkeypatch, rows):
    kind, left = type(restored.state), [None] * rows
    append = kind.append

    def dying(self, view, row):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return append(self, view, row)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "append", dying)
        with pytest.raises(KeyboardInterrupt):
            accept(restored)
    refused(restored, lambda: restored.plan("run-20"))
    assert accept(restored) == [2, 3]
    assert restored.events().count("missing") == 2
    assert restored.events().count("accepted") == 1


def test_a_target_brought_back_half_way_is_found_again(restored, monkeypatch):
    """Recorded as missing, its rows would be read again by a rewind, and not be taken out."""
    kind = type(restored.state)
    append, left = kind.append, [None]

    def dying(self, view, row):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return append(self, view, row)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "append", dying)
        patched.setattr(target_history.Comparison, "list_missing", lambda self: [self.view.require(3)])
        with pytest.raises(KeyboardInterrupt):
            accept(restored)
    bring_back(restored)
    refused(restored, lambda: restored.plan("run-20"), "target-is-back")
    assert accept(restored) == []
    run(restored, 20)
    assert values(restored.lake) == [0, 1, 2, 3, 4, 10, 11, 20]


def test_two_persons_record_each_checkpoint_once(restored, monkeypatch):
    kind = type(restored.state)
    append, others = kind.append, [True]

    def slow(self, view, row):
        if others:
            others.pop()
            accept(restored)
        return append(self, view, row)

    monkeypatch.setattr(kind, "append", slow)
    assert accept(restored) == [2, 3]
    assert restored.events().count("missing") == 2
    assert restored.events().count("accepted") == 1


def test_a_target_brought_back_meanwhile_is_not_accepted(restored, monkeypatch):
    kind = type(restored.state)
    append, others = kind.append, [True]

    def slow(self, view, row):
        if others:
            others.pop()
            bring_back(restored)
            restored.parts.sources(restored.pipeline)["flights"].append(0, None)
            restored.plan("run-20")
        return append(self, view, row)

    monkeypatch.setattr(kind, "append", slow)
    with pytest.raises(InvalidPipeline) as refusal:
        accept(restored)
    assert refusal.value.code == "nothing-lost"
    assert restored.events().count("missing") == 0


def test_the_newest_target_back_after_the_word_is_noticed(restored):
    """What it shows is found again, and what was published to the copy since is missing."""
    accept(restored)
    run(restored, 20)
    newest = restored.parts.folder / "lake-newest"
    shutil.copytree(newest, restored.parts.folder / "lake-mounted")
    restore(restored, to="mounted")
    error = refused(restored, lambda: restored.plan("run-21"))
    assert "Missing there: epoch 4" in error.why
    assert "It shows epochs 2, 3, recorded as missing" in error.why
    assert accept(restored) == [4]
    run(restored, 21)
    assert values(restored.lake) == [0, 1, 2, 3, 4, 10, 11, 21]
    assert restored.state.view("flights").head.missing == {"lake": 1}


def test_a_target_said_to_be_gone_is_noticed_when_it_returns(world):
    run(world, 10)
    unmount(world)
    accept(world)
    bring_back(world)
    error = refused(world, lambda: world.plan("run-11"), "target-is-back")
    assert "It shows epochs 1, 2, recorded as missing" in error.why
    assert accept(world) == []
    run(world, 11)
    assert values(world.lake) == [0, 1, 2, 3, 4, 10, 11]
    assert world.state.view("flights").head.missing == {}


def test_a_target_that_returns_before_the_commit_is_not_published_to(world):
    run(world, 10)
    unmount(world)
    accept(world)
    world.put(11)
    world.plan("run-3")
    world.stage(3)
    shutil.copy(world.parts.folder / "lake-newest" / "published.json", world.lake.folder)
    with pytest.raises((TargetWentBack, ActionNeeded)) as refusal:
        world.commit(3)
    assert refusal.value.code == "target-is-back"
    assert values(world.lake) == [0, 1, 2, 3, 4, 10]
    assert accept(world) == []
    world.commit(3)
    assert values(world.lake) == values(world.files) == [0, 1, 2, 3, 4, 10, 11]


def test_what_was_lost_again_is_not_found(restored):
    accept(restored)
    run(restored, 20)
    back_up(restored, to="second")
    run(restored, 21)
    restore(restored, to="second")
    assert accept(restored) == [2, 3, 5]
    assert restored.events().count("found") == 0


def test_numbers_alone_find_nothing(restored, monkeypatch):
    """A log that has expired shows only that a later decision was published to the copy."""
    accept(restored)
    run(restored, 20)
    back_up(restored, to="second")
    run(restored, 21)
    restore(restored, to="second")

    def compare(self, last):
        at = max(self._read_published()["log"].values())
        return History(Answer.SAME) if at >= last.decision else History(Answer.WENT_BACK, "", at)

    monkeypatch.setattr(FakeSink, "compare", compare)
    assert accept(restored) == [2, 3, 5]
    assert restored.events().count("found") == 0


def test_a_target_that_changes_meanwhile_is_looked_at_again(restored, monkeypatch):
    find_current_publication, others = FakeSink.find_current_publication, [True]

    def slow(self, last):
        found = find_current_publication(self, last)
        if others:
            others.pop()
            unmount(restored)
        return found

    monkeypatch.setattr(FakeSink, "find_current_publication", slow)
    assert accept(restored) == [1, 2, 3]
    restored.put(20)
    restored.run("run-20")
    assert values(restored.lake) == [20]


def test_state_that_is_missing_is_not_continued(tmp_path):
    totals = StateSink("totals", schema="n INT", key=["n"])
    world = World(tmp_path, sinks=[DeltaSink("lake", "lake"), totals])
    world.run("run-1")
    back_up(world, "totals")
    run(world, 10)
    restore(world, "totals")
    accept(world, "totals")
    world.put(11)
    planned = world.plan("run-11")
    with pytest.raises(InvalidPipeline) as refusal:
        find_state_before(world.state.view("flights"), planned)
    assert refusal.value.code == "state-missing"
    world.abort(3)
    Person(world.coordinator).rewind("flights", 1, "ann", "its state is lost")
    planned = world.plan("run-12")
    assert find_state_before(world.state.view("flights"), planned) == world.now(1).handles["totals"]


def test_a_lost_rewind_needs_its_rows_removed(world):
    run(world, 10)
    back_up(world)
    Person(world.coordinator).rewind("flights", 1, "ann", "wrong")
    restore(world)
    assert values(world.lake) == [0, 1, 2, 3, 4, 10]  # and 10 is read again
    refused(world, lambda: accept(world), "rows-returned", InvalidPipeline)
    txns = [entry["txn"] for entry in world.lake.entries()]
    world.lake.remove(txns[-1])
    assert accept(world, removed=True) == [3]
    world.put(11)
    world.run("run-11")
    assert values(world.lake) == values(world.files) == [0, 1, 2, 3, 4, 10, 11]


def test_a_rewind_takes_out_what_is_not_missing(restored):
    accept(restored)
    run(restored, 20)
    rewind = Person(restored.coordinator).rewind("flights", 1, "ann", "wrong")
    assert [len(rewind.handles[name]["retracts"]) for name in ("lake", "files")] == [1, 3]
    restored.run("run-21")
    assert values(restored.lake) == values(restored.files) == [0, 1, 2, 3, 4, 10, 11, 20]


def test_an_interval_that_is_missing_is_processed_again(tmp_path):
    world = World(tmp_path, mode="interval")
    world.put(*range(10, 40))
    world.run("run-1", minutes(0, 10))
    back_up(world)
    world.run("run-2", minutes(10, 20))
    restore(world)
    with raises(ActionNeeded, "target-went-back", match=r"epoch 2 .2013"):
        world.plan("run-3", minutes(20, 30))
    assert accept(world) == [2]
    again = world.coordinator.plan(
        world.pipeline, "again", world.alive, minutes(10, 20), Reprocess("again, 1")
    ).checkpoint
    world.stage(again.epoch)
    world.commit(again.epoch)
    assert sorted(values(world.lake)) == sorted(values(world.files)) == [*range(5), *range(10, 20)]


def test_a_lost_replacement_leaves_what_it_replaced(tmp_path):
    world = World(tmp_path, mode="interval")
    world.put(*range(10, 40))
    world.run("run-1", minutes(0, 10))
    back_up(world)
    again = world.coordinator.plan(
        world.pipeline, "again", world.alive, minutes(0, 10), Reprocess("again, 1")
    ).checkpoint
    world.stage(again.epoch)
    world.commit(again.epoch)
    restore(world)
    accept(world)
    third = world.coordinator.plan(
        world.pipeline, "third", world.alive, minutes(0, 10), Reprocess("third, 1")
    ).checkpoint
    world.stage(third.epoch)
    world.commit(third.epoch)
    assert values(world.lake) == values(world.files) == [*range(5)]
