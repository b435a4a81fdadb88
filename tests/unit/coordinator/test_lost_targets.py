"""`Coordinator.begin_repair`: what a sink lacks comes there again, once, whatever dies, comes back or is asked twice."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
from codes import raises
from person import Person
from unit.coordinator.test_repairs import LAKE, LATE, NEW, NEXT, TEN, Shop, corrected
from unit.world import minutes

from onceonly.checkpoint.model import Checkpoint, Event, State
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.coordinator.manual import Seen
from onceonly.coordinator.repair import Wish
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import ActionNeeded, Busy, CannotPublish, InvalidPipeline, OnceonlyError, OutcomeUnknown, StageAgain
from onceonly.pipeline.sinks import DeltaSink, StateSink
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts, FakeSink

THIRD = minutes(20, 30)


class LostShop(Shop):
    """Targets that go back, and a person who repairs them."""

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

    def decide(self, epoch: int) -> None:
        """Take the decision, by a process that dies before anything is published."""
        for sink in (self.target("lake"), self.target("late")):
            sink.fail("commit", "before")
        with pytest.raises(OutcomeUnknown):
            self.commit(epoch)

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


def crash_points() -> list[Event]:
    return [Event.MISSING, Event.ACCEPTED, Event.PLANNED, Event.CLAIMED, Event.STAGED, Event.COMMITTING, Event.PUBLISHED]


class Died(BaseException):
    pass


@pytest.mark.parametrize("look_again", [False, True])
@pytest.mark.parametrize("event", crash_points())
@pytest.mark.parametrize("nth", [1, 2])
def test_it_may_die_after_any_step_and_is_repeated(shop, monkeypatch, event, nth, look_again):
    append, seen = StateTable.append, []

    def dying(self, view, row):
        after = append(self, view, row)
        seen.extend([row] if row.event is event else [])
        if len(seen) == nth and row.event is event:
            raise Died
        return after

    wish = shop.wish()
    with monkeypatch.context() as patch:
        patch.setattr(StateTable, "append", dying)
        with pytest.raises(Died) if nth == 1 or event is not Event.ACCEPTED else _nothing():
            shop.bring_back(wish=wish)
    shop.ended.add("ann")
    repeated = [
        shop.carry_out(request, "ann-2") for request in shop.begin(wish=shop.wish() if look_again else wish)
    ]
    shop.recover()
    for request in shop.begin():
        repeated.append(shop.carry_out(request, "ann-3"))
    assert shop.rows("lake") in (
        [*range(10), *corrected(*range(10, 30))],
        [*range(20), *corrected(*range(20, 30))],
    ) or shop.rows("lake") == [*range(10), *corrected(*range(10, 30))]
    assert shop.lacks() == []


def _nothing():
    from contextlib import nullcontext

    return nullcontext()


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


# ---- decisions that are open


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
    chain.restore("newest")
    chain.put(30)
    chain.plan("run-30")
    chain.stage(4)
    chain.decide(4)
    chain.restore("old")
    assert chain.lacks() == [(2, "missing"), (3, "missing"), (4, "open")]
    done = chain.bring_back()
    assert [each.replaces for each in done] == [2, 3, 4]
    assert chain.now(4).given_up["lake"]["reason"] == "the disk"
    assert chain.rows("lake") == sorted([*range(20), *corrected(20, 21, 30)])
    assert chain.rows("late") == [*range(20), 20, 21, 30]


def test_a_sink_that_cannot_publish_what_is_decided_is_given_up_and_written_again(chain):
    """As where a staged file has vanished after the decision."""
    chain.restore("newest")
    chain.put(30)
    chain.plan("run-30")
    chain.stage(4)
    chain.target("lake").fail("commit", *["refused"] * 8)
    with pytest.raises(CannotPublish):
        chain.commit(4)
    requests = chain.begin()
    chain.target("lake").fail("commit")
    chain.target("lake").recovers() if hasattr(chain.target("lake"), "recovers") else None
    assert [request.lost for request in requests] == [4]


def test_what_was_given_up_is_written_again(shop):
    shop.restore("newest")
    shop.put(*range(30, 40))
    shop.plan("run-4", minutes(30, 40))
    shop.stage(4)
    shop.target("lake").fail("commit", "refused", "refused")
    with pytest.raises(CannotPublish):
        shop.commit(4)
    Person(shop.coordinator).give_up("flights", 4, "lake", "ann", "it refuses")
    assert shop.lacks() == [(4, "given_up")]
    shop.bring_back()
    assert shop.rows("lake") == [*range(30), *corrected(*range(30, 40))]
