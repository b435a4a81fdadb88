"""What a sink lacks comes there again, once, whatever dies, comes back or is asked for twice."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
from codes import raises
from person import Person
from unit.coordinator.test_capabilities import Bare
from unit.coordinator.test_repairs import LAKE, LATE, NEXT, TEN, Shop, corrected
from unit.world import minutes

from onceonly.checkpoint.model import Checkpoint, Event, State
from onceonly.checkpoint.sink import History, Publication, TargetHistory
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.coordinator.manual import Seen
from onceonly.coordinator.repair import Wish
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import (
    ActionNeeded,
    Busy,
    CannotPublish,
    InDoubt,
    InvalidPipeline,
    OutcomeUnknown,
    SourceLost,
    StageAgain,
)
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, StateSink
from onceonly.testing.fakes import FakeParts, FakeSink

pytestmark = pytest.mark.slow

THIRD = minutes(20, 30)


class Topic(Bare, TargetHistory):
    """A sink that cannot take rows back, and notices where its target went back."""

    def compare(self, last: Publication) -> History:
        return self._fake.compare(last)

    def find_current_publication(self, last: Publication) -> Publication | None:
        return self._fake.find_current_publication(last)


class Parts(FakeParts):
    def sink(self, pipeline: Pipeline, name: str) -> Any:
        live = super().sink(pipeline, name)
        return Topic(live) if name == "late" else live


class LostShop(Shop):
    """Targets that go back, and a person who repairs them."""

    def __init__(self, folder, **changes: Any) -> None:
        super().__init__(folder, **changes)
        self.parts = Parts(folder)

    def target(self, sink: str = "lake") -> FakeSink:
        return FakeParts(self.parts.folder).sink(self.pipeline, sink)

    def copy(self, name: str, sink: str = "lake") -> None:
        shutil.copytree(self.target(sink).folder, self.parts.folder / f"copy-{name}-{sink}")

    def restore(self, name: str, sink: str = "lake") -> None:
        folder = self.target(sink).folder
        shutil.rmtree(folder, ignore_errors=True)
        if name != "nothing":
            shutil.copytree(self.parts.folder / f"copy-{name}-{sink}", folder)

    def lacks(self, sink: str = "lake", again: bool = False) -> list[tuple[int, str]]:
        return [(each.checkpoint.epoch, each.how) for each in self.coordinator.lack(self.pipeline, sink, again).lost]

    def wish(self, who: str = "ann", reason: str = "the disk", **more: Any) -> Wish:
        seen = Seen(self.state.view("flights").head.changed)
        return Wish(who, reason, **{"seen": seen, **more})

    def begin(self, sink: str = "lake", wish: Wish | None = None, **more: Any) -> list[Reprocess]:
        return self.coordinator.begin_repair(self.pipeline, sink, wish or self.wish(**more))

    def carry_out(self, request: Reprocess, owner: str = "ann") -> Checkpoint:
        planned = self.coordinator.plan(self.pipeline, owner, self.alive, None, request).checkpoint
        if planned.state is State.COMMITTED:
            return planned
        if planned.state is State.PLANNED:
            self.stage_corrected(planned.epoch)
        return self.commit(planned.epoch)

    def bring_back(self, sink: str = "lake", wish: Wish | None = None, **more: Any) -> list[Checkpoint]:
        return [self.carry_out(request) for request in self.begin(sink, wish, **more)]

    def head(self) -> int:
        return self.state.view("flights").head.seq


@pytest.fixture
def shop(tmp_path) -> LostShop:
    """By intervals: the lake has lost the second and the third one."""
    shop = LostShop(tmp_path)
    shop.put(*range(20, 30))
    shop.run("run-1", TEN)
    shop.copy("old")
    shop.run("run-2", NEXT)
    shop.run("run-3", THIRD)
    shop.copy("newest")
    shop.restore("old")
    return shop


@pytest.fixture
def chain(tmp_path) -> LostShop:
    """A chain whose lake has lost its last two checkpoints."""
    shop = LostShop(tmp_path, mode="chained")
    shop.run("run-1")
    shop.copy("old")
    for number in (20, 21):
        shop.put(number)
        shop.run(f"run-{number}")
    shop.copy("newest")
    shop.restore("old")
    return shop


# ---- one after the other


def test_it_shows_what_the_sink_lacks_and_changes_nothing(shop):
    before = shop.head()
    assert shop.lacks() == [(2, "missing"), (3, "missing")]
    assert shop.lacks("late") == []
    assert shop.head() == before


def test_a_repair_is_made_for_each_lost_checkpoint_oldest_first(shop):
    done = shop.bring_back()
    assert [(each.epoch, each.replaces, each.only) for each in done] == [(4, 2, ("lake",)), (5, 3, ("lake",))]
    assert done[0].requested_by == {"who": "ann", "reason": "the disk"}
    assert shop.rows("lake") == [*range(10), *corrected(*range(10, 30))]
    assert shop.rows("late") == list(range(30))
    assert shop.lacks() == []
    assert shop.run("run-4", minutes(30, 40)).state is State.COMMITTED


def test_a_chain_gets_back_what_it_lost_and_goes_on(chain):
    chain.bring_back()
    chain.put(30)
    chain.run("run-30")
    assert chain.rows("lake") == sorted([*range(20), *corrected(20, 21), 30])
    assert chain.rows("late") == [*range(20), 20, 21, 30]


def test_a_target_that_no_longer_exists_is_made_again_with_all_its_rows(shop):
    shop.restore("nothing")
    assert [epoch for epoch, _ in shop.lacks()] == [1, 2, 3]
    shop.bring_back()
    assert shop.rows("lake") == corrected(*range(30))


def test_what_was_recorded_as_missing_before_is_repaired_as_well(shop):
    Person(shop.coordinator).accept_loss("flights", "lake", Acceptance("bob", "gone"))
    shop.run("run-4", minutes(30, 40))
    assert shop.lacks() == [(2, "recorded"), (3, "recorded")]
    shop.bring_back()
    assert shop.rows("lake") == [*range(10), *corrected(*range(10, 30))]


def test_nothing_is_repaired_twice(shop):
    shop.bring_back()
    before = shop.head()
    assert shop.begin() == []
    assert shop.head() == before


# ---- repeated, and two at once


STEPS = [Event.MISSING, Event.ACCEPTED, Event.PLANNED, Event.CLAIMED, Event.STAGED, Event.COMMITTING, Event.PUBLISHED]


class Died(BaseException):
    """The end of a process."""


def dies_after(monkeypatch, shop: LostShop, event: Event, nth: int) -> None:
    """Let the process die after the nth row of that event."""
    table, rows = type(shop.state), []
    append = table.append

    def dying(self, view, row):
        after = append(self, view, row)
        rows.extend([row] if row.event is event else [])
        if row.event is event and len(rows) == nth:
            raise Died
        return after

    monkeypatch.setattr(table, "append", dying)


@pytest.mark.parametrize("looks_again", [False, True])
@pytest.mark.parametrize(("event", "nth"), [(event, 1) for event in STEPS] + [(event, 2) for event in STEPS[2:]])
def test_it_may_die_after_any_step_and_is_repeated(shop, monkeypatch, event, nth, looks_again):
    wish = shop.wish()
    with monkeypatch.context() as patch:
        dies_after(patch, shop, event, nth)
        with pytest.raises(Died):
            shop.bring_back(wish=wish)
    shop.ended.add("ann")
    repeated = shop.wish() if looks_again else wish
    for request in shop.begin(wish=repeated):
        shop.carry_out(request, "ann, again")
    assert shop.rows("lake") == [*range(10), *corrected(*range(10, 30))]
    assert shop.rows("late") == list(range(30))
    assert shop.lacks() == []


@pytest.mark.parametrize("event", [Event.MISSING, Event.GIVEN_UP, Event.COMMITTED, Event.ACCEPTED, Event.PLANNED])
def test_it_may_die_while_an_open_decision_is_given_up(chain, monkeypatch, event):
    open_decision(chain)
    chain.restore("old")
    wish = chain.wish()
    with monkeypatch.context() as patch:
        dies_after(patch, chain, event, 1)
        with pytest.raises(Died):
            chain.bring_back(wish=wish)
    chain.ended.add("ann")
    for request in chain.begin(wish=wish):
        chain.carry_out(request, "ann, again")
    assert chain.rows("lake") == sorted([*range(20), *corrected(20, 21, 30)])
    assert chain.rows("late") == [*range(20), 20, 21, 30]


def test_what_has_changed_since_the_person_looked_is_refused(shop):
    ann, bob = shop.wish("ann"), shop.wish("bob")
    requests = shop.begin(wish=ann)
    with raises(InvalidPipeline, "seen-outdated"):
        shop.begin(wish=bob)
    assert shop.begin(wish=ann) == requests, "the same person and reason ask for the same"


def test_two_people_repair_one_checkpoint_once(shop):
    first = shop.begin()
    second = shop.begin(who="bob")
    planned = shop.coordinator.plan(shop.pipeline, "ann", shop.alive, None, first[0]).checkpoint
    with raises(Busy, "checkpoint-open"):
        shop.carry_out(second[0], "bob")
    shop.stage_corrected(planned.epoch)
    shop.commit(planned.epoch)
    assert shop.carry_out(second[0], "bob").epoch == planned.epoch
    shop.carry_out(second[1], "bob")
    assert shop.carry_out(first[1]).requested_by["who"] == "bob"
    assert shop.rows("lake") == [*range(10), *corrected(*range(10, 30))]


def test_what_is_lost_a_second_time_is_repaired_a_second_time(shop):
    """By the same person with the same reason."""
    shop.bring_back()
    shop.restore("old")
    done = shop.bring_back()
    assert [each.replaces for each in done] == [4, 5]
    assert shop.rows("lake") == [*range(10), *corrected(*range(10, 30))]


def test_it_waits_for_a_person_who_has_looked(shop):
    with raises(InvalidPipeline, "seen-missing"):
        shop.begin(seen=None)


# ---- a target that comes back


def test_a_target_that_is_mounted_again_before_the_first_repair_is_refused_not_doubled(shop):
    requests = shop.begin()
    shop.restore("newest")
    with raises(ActionNeeded, "target-is-back"):
        shop.carry_out(requests[0])
    assert shop.lacks() == []
    assert shop.begin() == []
    assert shop.carry_out(requests[0]).epoch == 2, "it shows those rows again"
    assert shop.rows("lake") == list(range(30))


def test_a_target_that_is_mounted_again_while_a_repair_is_staged(shop):
    requests = shop.begin()
    planned = shop.coordinator.plan(shop.pipeline, "ann", shop.alive, None, requests[0]).checkpoint
    shop.stage_corrected(planned.epoch)
    shop.restore("newest")
    with pytest.raises(ActionNeeded):
        shop.commit(planned.epoch)
    assert shop.begin() == []
    with raises(StageAgain, "rows-in-force-changed"):
        shop.commit(planned.epoch)
    assert shop.rows("lake") == list(range(30))


@pytest.mark.parametrize("sink", ["lake", "late"])
def test_a_target_that_is_mounted_again_after_a_repair_was_decided(shop, topic, sink):
    """Where the staged rows are still there, as those of a topic are."""
    world, again = (shop, False) if sink == "lake" else (topic, True)
    requests = world.begin(sink, again=again)
    planned = world.coordinator.plan(world.pipeline, "ann", world.alive, None, requests[0]).checkpoint
    world.stage_corrected(planned.epoch)
    world.target(sink).fail("commit", "before")
    with pytest.raises(OutcomeUnknown):
        world.commit(planned.epoch)
    staged = {path.name: path.read_bytes() for path in world.target(sink).folder.glob("*.staged.json")}
    world.restore("newest", sink)
    for name, content in staged.items():
        (world.target(sink).folder / name).write_bytes(content)
    rows = world.rows(sink)
    with raises(InvalidPipeline, "decision-open") as refused:
        Person(world.coordinator).accept_loss("flights", sink, Acceptance("bob", "it is back"))
    assert f"--give-up {sink}" in refused.value.todo
    with pytest.raises(CannotPublish):
        world.commit(planned.epoch)
    world.begin(sink, again=again)
    assert world.rows(sink) == rows
    assert sink in world.now(planned.epoch).given_up


# ---- decisions that are open


def open_decision(chain: LostShop) -> None:
    """Take the fourth decision, by a process that dies before anything is published."""
    chain.restore("newest")
    chain.put(30)
    chain.plan("run-30")
    chain.stage(4)
    for sink in ("lake", "late"):
        chain.target(sink).fail("commit", "before")
    with pytest.raises(OutcomeUnknown):
        chain.commit(4)


def test_an_open_decision_whose_evidence_exists_is_finished_first(chain):
    chain.restore("newest")
    chain.put(30)
    chain.plan("run-30")
    chain.stage(4)
    chain.target("lake").fail("commit", "after")
    with pytest.raises(OutcomeUnknown):
        chain.commit(4)
    assert chain.lacks() == [(4, "open")]
    assert chain.begin() == []
    assert chain.now(4).given_up == {}
    assert chain.rows("lake") == [*range(20), 20, 21, 30]


def test_another_open_decision_is_given_up_and_repaired_with_the_rest(chain):
    open_decision(chain)
    chain.restore("old")
    assert chain.lacks() == [(2, "missing"), (3, "missing"), (4, "open")]
    done = chain.bring_back()
    assert [each.replaces for each in done] == [2, 3, 4]
    assert chain.now(4).given_up["lake"]["reason"] == "the disk"
    assert chain.rows("lake") == sorted([*range(20), *corrected(20, 21, 30)])
    assert chain.rows("late") == [*range(20), 20, 21, 30]


def test_what_another_process_still_publishes_of_an_open_decision_is_fenced(chain):
    """It saw the target as it was, and goes on when the target is mounted again."""
    open_decision(chain)
    chain.copy("open")
    chain.restore("old")
    requests = chain.begin()
    chain.restore("open")
    chain.recover()
    with raises(ActionNeeded, "target-is-back"):
        chain.carry_out(requests[0])
    assert chain.rows("lake") == [*range(20), 20, 21]


def test_rows_whose_staged_file_has_vanished_after_the_decision_are_written_again(chain):
    open_decision(chain)
    for path in chain.target("lake").folder.glob("*-4-1-*.staged.json"):
        path.unlink()
    assert chain.lacks() == [(4, "open")]
    assert [each.replaces for each in chain.bring_back()] == [4]
    assert chain.rows("lake") == sorted([*range(20), 20, 21, *corrected(30)])


def test_what_was_given_up_is_written_again(shop):
    shop.restore("newest")
    shop.put(*range(30, 40))
    shop.plan("run-4", minutes(30, 40))
    shop.stage(4)
    shop.target().fail("commit", "refused", "refused")
    with pytest.raises(CannotPublish):
        shop.commit(4)
    Person(shop.coordinator).give_up("flights", 4, "lake", "ann", "it refuses")
    assert shop.lacks() == [(4, "given_up")]
    shop.bring_back()
    assert shop.rows("lake") == [*range(30), *corrected(*range(30, 40))]


def test_a_decision_in_doubt_is_not_given_up(chain):
    chain.restore("newest")
    chain.put(30)
    chain.plan("run-30")
    chain.stage(4)
    chain.target().fail("commit", "doubt")
    with pytest.raises(InDoubt):
        chain.commit(4)
    with raises(InvalidPipeline, "sink-in-doubt") as refused:
        chain.begin()
    assert "onceonly resolve flights 4 --committed lake" in refused.value.todo


def test_a_decision_that_came_into_doubt_meanwhile_is_not_given_up(chain, monkeypatch):
    """Another process has recorded it while this one fenced the sink."""
    open_decision(chain)
    chain.target().fail("commit", "refused", "refused")
    fence = FakeSink.fence

    def fence_late(sink: FakeSink, *given: Any) -> Any:
        monkeypatch.setattr(FakeSink, "fence", fence)
        chain.target().fail("commit", "doubt")
        with pytest.raises(InDoubt):
            chain.commit(4)
        return fence(sink, *given)

    monkeypatch.setattr(FakeSink, "fence", fence_late)
    with raises(InvalidPipeline, "sink-in-doubt"):
        chain.begin()
    assert chain.now(4).in_doubt
    assert chain.now(4).given_up == {}


def test_a_rewind_that_waits_for_the_sink_is_not_given_up_beside_the_rows(tmp_path):
    chain = LostShop(tmp_path, mode="chained", sinks=[LAKE])
    chain.run("run-1")
    chain.put(20)
    chain.run("run-2")
    chain.target().fail("commit", *["refused"] * 3)
    with pytest.raises(CannotPublish):
        Person(chain.coordinator).rewind("flights", 1, "ann", "wrong rates")
    with raises(InvalidPipeline, "rows-not-removed") as refused:
        chain.begin()
    assert "--removed" in refused.value.todo
    assert chain.now(3).given_up == {}
    chain.target().remove(chain.now(2).handles["lake"]["txn"])
    assert chain.bring_back(removed=True) == []
    assert "lake" in chain.now(3).given_up
    chain.run("run-4")
    assert chain.rows("lake") == [*range(20), 20]


def test_what_was_given_up_in_doubt_is_not_written_again(chain):
    chain.restore("newest")
    chain.put(30)
    chain.plan("run-30")
    chain.stage(4)
    chain.target().fail("commit", "doubt", "doubt")
    with pytest.raises(InDoubt):
        chain.commit(4)
    Person(chain.coordinator).give_up("flights", 4, "lake", "ann", "who knows")
    with raises(InvalidPipeline, "not-repairable") as refused:
        chain.begin()
    assert "whether sink 'lake' has its rows is not known" in refused.value.why


def test_what_was_given_up_while_its_target_did_not_answer_is_not_written_again(chain):
    open_decision(chain)
    folder = chain.target().folder
    chain.target().fail("commit", "unknown")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeSink, "fence", lambda *_: (_ for _ in ()).throw(ConnectionError("silent")))
        Person(chain.coordinator).give_up("flights", 4, "lake", "ann", "it is silent", gone=True)
    assert folder.exists()
    with raises(InvalidPipeline, "not-repairable"):
        chain.begin()
    assert chain.coordinator.lack(chain.pipeline, "lake").lost[0].refusal.code == "rows-unclear"


def test_an_open_decision_of_a_target_that_does_not_answer_is_not_given_up(chain):
    open_decision(chain)
    chain.target().fail("commit", "unknown", "unknown")
    with pytest.raises(OutcomeUnknown):
        chain.begin()
    assert chain.now(4).given_up == {}
    assert chain.begin() == []
    assert chain.rows("lake") == [*range(20), 20, 21, 30]


def test_a_decision_that_nobody_was_shown_is_not_given_up(chain):
    wish = chain.wish()
    open_decision(chain)
    chain.target().fail("commit", *["refused"] * 3)
    with raises(InvalidPipeline, "seen-outdated") as refused:
        chain.begin(wish=wish)
    assert "its publication was decided" in refused.value.why
    assert chain.now(4).given_up == {}


def test_what_runs_beside_it_is_no_change(chain):
    chain.begin()
    wish = chain.wish()
    chain.put(30)
    chain.plan("run-30")
    assert [request.lost for request in chain.begin(wish=wish)] == [2, 3]


# ---- a sink that cannot take rows back


@pytest.fixture
def topic(tmp_path) -> LostShop:
    """The topic has lost the second interval."""
    shop = LostShop(tmp_path / "topic")
    shop.run("run-1", TEN)
    shop.copy("old", "late")
    shop.run("run-2", NEXT)
    shop.copy("newest", "late")
    shop.restore("old", "late")
    return shop


def test_a_topic_is_repaired_where_a_person_says_so(topic):
    before = topic.head()
    with raises(InvalidPipeline, "rows-not-retractable") as refused:
        topic.begin("late")
    assert "onceonly repair FILE.py:NAME late --again" in refused.value.todo
    assert topic.head() == before
    topic.bring_back("late", again=True)
    assert topic.rows("late") == [*range(10), *corrected(*range(10, 20))]
    assert topic.rows("lake") == list(range(20))


def test_a_table_needs_no_such_word(shop):
    with raises(InvalidPipeline, "again-not-needed"):
        shop.begin(again=True)


def test_rows_that_a_topic_shows_again_do_not_come_twice(topic):
    requests = topic.begin("late", again=True)
    planned = topic.coordinator.plan(topic.pipeline, "ann", topic.alive, None, requests[0]).checkpoint
    assert planned.lacking == ("late",)
    topic.stage_corrected(planned.epoch)
    topic.restore("newest", "late")
    with pytest.raises(ActionNeeded):
        topic.commit(planned.epoch)
    Person(topic.coordinator).accept_loss("flights", "late", Acceptance("bob", "it is back"))
    with raises(StageAgain, "rows-there-again"):
        topic.commit(planned.epoch)
    with raises(InvalidPipeline, "rows-there-again"):
        topic.stage_corrected(planned.epoch)
    assert topic.rows("late") == list(range(20))
    assert topic.begin("late", again=True) == []


def test_a_repair_that_was_lost_is_not_repeated_where_the_first_rows_are_there_again(topic):
    topic.bring_back("late", again=True)
    topic.restore("newest", "late")
    assert topic.lacks("late", again=True) == []
    assert topic.begin("late", again=True) == []
    assert topic.rows("late") == list(range(20))
    topic.restore("old", "late")
    assert [epoch for epoch, _ in topic.lacks("late", again=True)] == [3]
    topic.bring_back("late", again=True)
    assert topic.rows("late") == [*range(10), *corrected(*range(10, 20))]


def test_two_people_do_not_write_a_topic_twice(topic):
    ann, bob = topic.begin("late", again=True), topic.begin("late", who="bob", again=True)
    topic.carry_out(ann[0])
    topic.carry_out(bob[0], "bob")
    assert topic.rows("late") == [*range(10), *corrected(*range(10, 20))]


# ---- what is left out, and what cannot be repaired


def test_records_that_retention_has_taken_are_named_before_anything_is_written(shop):
    shop.source.expire(0, 18)
    before = shop.head()
    with raises(InvalidPipeline, "not-repairable") as refused:
        shop.begin()
    assert "epoch 2 " in refused.value.why
    assert "epoch 3 " not in refused.value.why
    assert shop.head() == before
    assert [isinstance(each.refusal, SourceLost) for each in shop.coordinator.lack(shop.pipeline, "lake").lost] == [
        True,
        False,
    ]


def test_the_others_are_repaired_alone(shop):
    shop.source.expire(0, 18)
    assert [each.replaces for each in shop.bring_back(partly=True)] == [3]
    assert shop.rows("lake") == [*range(10), *corrected(*range(20, 30))]
    assert shop.lacks() == [(2, "recorded")]


def test_what_was_replaced_since_is_not_repaired(shop):
    Person(shop.coordinator).accept_loss("flights", "lake", Acceptance("bob", "gone"))
    shop.repair(interval=NEXT, keep=("late",))
    assert shop.lacks() == [(3, "recorded")]


def test_a_correction_that_was_lost_comes_in_place_of_the_rows_that_it_corrected(tmp_path):
    shop = LostShop(tmp_path)
    shop.run("run-1", TEN)
    shop.copy("old")
    shop.repair(keep=("late",))
    shop.restore("old")
    assert shop.lacks() == [(2, "missing")]
    assert shop.rows("lake") == list(range(10))
    shop.bring_back()
    assert shop.rows("lake") == corrected(*range(10))


def test_of_a_day_that_was_corrected_the_correction_alone_is_repaired(tmp_path):
    shop = LostShop(tmp_path)
    shop.copy("empty")
    shop.run("run-1", TEN)
    shop.repair(keep=("late",))
    shop.restore("empty")
    assert shop.lacks() == [(2, "missing")]
    shop.bring_back()
    assert shop.rows("lake") == corrected(*range(10))


def test_what_was_rewound_is_not_repaired(tmp_path):
    chain = LostShop(tmp_path, mode="chained", sinks=[LAKE])
    chain.run("run-1")
    chain.put(20)
    chain.run("run-2")
    chain.copy("old")
    Person(chain.coordinator).rewind("flights", 1, "ann", "wrong rates")
    chain.restore("old")
    with raises(InvalidPipeline, "rows-returned"):
        chain.begin()
    chain.target().remove(chain.now(2).handles["lake"]["txn"])
    assert chain.bring_back(removed=True) == []
    chain.run("run-3")
    assert chain.rows("lake") == [*range(20), 20]


def test_what_a_sink_published_to_another_target_is_not_repaired_in_this_one(shop):
    Person(shop.coordinator).accept_loss("flights", "lake", Acceptance("bob", "gone"))
    shop.pipeline = replace(shop.pipeline, sinks=[DeltaSink("lake", "elsewhere"), LATE])
    assert shop.lacks() == []


def test_a_sink_that_is_none_or_keeps_the_state_is_refused(tmp_path):
    shop = LostShop(tmp_path, mode="chained", sinks=[LAKE, StateSink("totals", "n INT", ["n"])])
    shop.run("run-1")
    with raises(InvalidPipeline, "no-such-sink"):
        shop.begin("nowhere")
    with raises(InvalidPipeline, "state-not-repairable"):
        shop.begin("totals")


def test_a_new_sink_lacks_nothing_that_it_ever_had(shop):
    shop.pipeline = replace(shop.pipeline, sinks=[LAKE, LATE, DeltaSink("new", "new")])
    assert shop.lacks("new") == []


def test_a_pipeline_of_one_sink_is_repaired_too(tmp_path):
    shop = LostShop(tmp_path, sinks=[LAKE])
    shop.run("run-1", TEN)
    shop.copy("old")
    shop.run("run-2", NEXT)
    shop.restore("old")
    done = shop.bring_back()
    assert done[0].requested_by == {"who": "ann", "reason": "the disk"}
    assert shop.rows("lake") == [*range(10), *corrected(*range(10, 20))]


def test_dead_letters_come_with_the_repaired_sink_once(tmp_path):
    shop = LostShop(tmp_path, sinks=[LAKE, DeltaSink("letters", "letters")], dead_letters="letters")
    shop.run("run-1", TEN)
    shop.copy("old")
    shop.run("run-2", NEXT)
    shop.restore("old")
    assert shop.bring_back()[0].sinks == ("lake", "letters")
    assert shop.rows("lake") == shop.rows("letters") == [*range(10), *corrected(*range(10, 20))]
