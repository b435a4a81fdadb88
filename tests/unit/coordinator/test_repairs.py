"""A checkpoint that writes only some sinks, in place of an earlier one: what each shows, and what goes on after it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
from codes import raises
from person import Person
from unit.coordinator.test_capabilities import Bare
from unit.world import World, minutes, values

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.coordinator.reprocess import Reprocess, make_request
from onceonly.coordinator.stage import find_state_before
from onceonly.errors import (
    ActionNeeded,
    Busy,
    CannotPublish,
    Fenced,
    InvalidPipeline,
    OutcomeUnknown,
    SourceLost,
    StageAgain,
)
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, StateSink
from onceonly.testing.fakes import FakeParts

TEN = minutes(0, 10)
NEXT = minutes(10, 20)
LAKE, LATE, NEW = DeltaSink("lake", "lake"), DeltaSink("late", "late"), DeltaSink("new", "new")
OTHER = DeltaSink("other", "other")


class Parts(FakeParts):
    """A sink named 'late' cannot take back what it has published, as a topic."""

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        live = super().sink(pipeline, name)
        return Bare(live) if name == "late" else live


class Shop(World):
    """A table, and a topic that cannot take rows back."""

    def __init__(self, folder, **changes: Any) -> None:
        super().__init__(folder, **{"mode": "interval", "sinks": [LAKE, LATE], **changes})
        self.parts = Parts(folder)
        self.put(*range(5, 20))

    def define(self, *sinks: Any, **changes: Any) -> None:
        """The pipeline has these sinks from now on."""
        self.pipeline = replace(self.pipeline, sinks=list(sinks), **changes)

    def rows(self, sink: str) -> list[int]:
        return sorted(values(FakeParts(self.parts.folder).sink(self.pipeline, sink)))

    def ask(self, request: str = "ann: rates", interval=TEN, owner: str = "", **wish: Any) -> Checkpoint:
        asked = Reprocess(request, who="ann", reason="rates", **wish)
        return self.coordinator.plan(self.pipeline, owner or request, self.alive, interval, asked).checkpoint

    def ask_as(self, who: str, reason: str, interval=TEN, **wish: Any) -> Checkpoint:
        asked = Reprocess(f"{who}: {reason}", who=who, reason=reason, **wish)
        return self.coordinator.plan(self.pipeline, asked.request, self.alive, interval, asked).checkpoint

    def stage_corrected(self, epoch: int) -> Checkpoint:
        """Stage with a transform that was mended: 100 more."""

        def produce(checkpoint: Checkpoint):
            rows = self.parts.produce(checkpoint)
            return {name: [{**row, "value": row["value"] + 100} for row in own] for name, own in rows.items()}

        return self.coordinator.stage("flights", epoch, produce)

    def repair(self, *names: Any, **wish: Any) -> Checkpoint:
        planned = self.ask(*names, **wish)
        if planned.state is State.COMMITTED:
            return planned
        self.stage_corrected(planned.epoch)
        return self.commit(planned.epoch)


@pytest.fixture
def shop(tmp_path) -> Shop:
    shop = Shop(tmp_path)
    shop.run("run-1", TEN)
    return shop


def corrected(*numbers: int) -> list[int]:
    return [number + 100 for number in numbers]


# ---- correct a day beside a sink that cannot take rows back


def test_a_sink_that_cannot_take_rows_back_names_the_ways_out(shop):
    with raises(InvalidPipeline, "rows-not-retractable") as refused:
        shop.ask()
    assert "--keep late" in refused.value.todo
    assert "--again late" in refused.value.todo
    assert shop.state.view("flights").head.epoch == 1


def test_kept_rows_stay_and_the_others_are_replaced(shop):
    done = shop.repair(keep=("late",))
    assert (done.epoch, done.replaces, done.only, done.sinks) == (2, 1, ("lake",), ("lake",))
    assert done.requested_by == {"who": "ann", "reason": "rates"}
    assert shop.rows("lake") == corrected(*range(10))
    assert shop.rows("late") == list(range(10))
    assert list(done.handles) == ["lake"]


def test_rows_come_once_more_where_the_request_says_so_and_once(shop):
    for _ in range(3):
        done = shop.repair(again=("late",))
    assert done.epoch == 2
    assert shop.rows("lake") == corrected(*range(10))
    assert shop.rows("late") == sorted([*range(10), *corrected(*range(10))])
    assert shop.repair("ann: another", again=("late",)).epoch == 3
    assert len(shop.rows("late")) == 30


def test_a_request_that_was_aborted_goes_on_with_its_sinks(shop):
    first = shop.ask(keep=("late",), owner="run-2")
    shop.stage_corrected(first.epoch)
    shop.ended.add("run-2")
    shop.abort(first.epoch)
    other = shop.ask("bob: all", again=("late",))
    assert (other.epoch, other.replaces, other.only) == (3, 1, None), "another wish is another checkpoint"
    shop.abort(other.epoch)
    assert shop.plan("run-5", TEN).epoch == 1, "what is in force stays so"
    resumed = shop.ask(keep=("late",), owner="run-6")
    assert (resumed.epoch, resumed.only) == (2, ("lake",))


def test_what_was_aborted_and_has_a_successor_cannot_be_staged_late(shop):
    first = shop.ask(keep=("late",))
    shop.abort(first.epoch)
    shop.repair("bob: all", again=("late",))
    with raises(Fenced, "ownership-lost", match="continued without it"):
        shop.stage_corrected(first.epoch)


@pytest.fixture
def two_wishes(shop) -> Shop:
    """Ann wants a past for one new sink, bob for two; both requests, epochs 2 and 3, were aborted."""
    shop.pipeline = replace(shop.pipeline, sinks=[LAKE, LATE, NEW, OTHER])
    for epoch, (request, sinks) in enumerate({"ann": ("new",), "bob": ("new", "other")}.items(), 2):
        assert shop.ask(request, only=sinks).epoch == epoch
        shop.abort(epoch)
    return shop


def test_an_aborted_request_is_not_continued_where_another_has_added_rows_since(two_wishes):
    assert two_wishes.repair("ann", only=("new",)).epoch == 2
    done = two_wishes.repair("bob", only=("new", "other"))
    assert (done.epoch, done.replaces, done.sinks) == (4, 2, ("other",))
    assert two_wishes.rows("new") == two_wishes.rows("other") == corrected(*range(10))


def test_an_aborted_request_is_not_staged_while_another_goes_on(two_wishes):
    two_wishes.ask("ann", only=("new",))
    with raises(Fenced, "ownership-lost"):
        two_wishes.stage_corrected(3)
    two_wishes.stage_corrected(2)
    two_wishes.commit(2)
    assert two_wishes.rows("new") == corrected(*range(10))


def test_a_repair_keeps_its_sinks_whoever_plans_it_again(shop):
    planned = shop.ask(keep=("late",), owner="run-2")
    shop.pipeline = replace(shop.pipeline, transform="jobs.flights:mended")
    again = shop.ask(keep=("late",), owner="run-2")
    assert (again.epoch, again.only) == (planned.epoch, ("lake",))
    assert again.definition.json["transform"] == "jobs.flights:mended"


def test_what_is_in_force_is_asked_of_each_sink(shop):
    """A later full reprocess takes out what is in force: in the lake that of epoch 2, elsewhere that of epoch 1."""
    shop.pipeline = replace(shop.pipeline, sinks=[LAKE, NEW])
    shop.run("run-1b", NEXT)
    shop.repair("ann: one", interval=NEXT, keep=("new",))
    view = shop.state.view("flights")
    in_force = view.handles_in_force(view.require(3))
    assert in_force["lake"] == view.require(3).handles["lake"]
    assert in_force["new"] == view.require(2).handles["new"]
    shop.repair("ann: both", interval=NEXT)
    assert shop.rows("new") == corrected(*range(10, 20))
    assert shop.rows("lake") == [*range(10), *corrected(*range(10, 20))]


def test_two_people_at_once_do_not_both_repair(shop):
    shop.ask(keep=("late",))
    with raises(Busy, "checkpoint-open"):
        shop.ask("bob: too", keep=("late",))


def test_a_repair_that_died_after_its_publication_is_finished(shop):
    planned = shop.ask(keep=("late",), owner="run-2")
    shop.stage_corrected(planned.epoch)
    shop.lake.fail("commit", "after")
    with pytest.raises(OutcomeUnknown):
        shop.commit(planned.epoch)
    shop.ended.add("run-2")
    assert [done.state for done in shop.recover()] == [State.COMMITTED]
    assert shop.rows("lake") == corrected(*range(10))


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        ({"keep": ("nowhere",)}, "no-such-sink"),
        ({"keep": ("late",), "again": ("late",)}, "options-conflict"),
        ({"keep": ("late",), "again": ("lake",)}, "options-conflict"),
    ],
)
def test_a_wish_that_cannot_be_is_refused(shop, wish, code):
    with raises(InvalidPipeline, "again-not-needed" if wish.get("again") == ("lake",) else code):
        shop.ask(**wish)
    assert shop.state.view("flights").head.epoch == 1


@pytest.mark.parametrize(
    ("replacing", "wish", "code"),
    [
        (None, {"keep": ["late"], "reason": "x"}, "options-conflict"),
        ("run", {"only": ["late"], "reason": "x"}, "options-conflict"),
        ("run", {"epoch": 1}, "options-conflict"),
        ("run", {"keep": ["late"]}, "reason-missing"),
        ("run", {"keep": [1], "reason": "x"}, "option-invalid"),
        ("run", {"keep": {"late": 1}, "reason": "x"}, "option-invalid"),
        (None, {"only": ["new"], "epoch": "3", "reason": "x"}, "option-invalid"),
    ],
)
def test_what_does_not_go_together_is_refused(replacing, wish, code):
    with raises(InvalidPipeline, code):
        make_request(replacing, "ann", wish, "ann")


def test_a_wish_becomes_a_request():
    assert make_request(None, "ann", {}, "ann") is None
    assert make_request("run-1", "ann", {"reason": "x"}, "ann") == Reprocess("run-1")
    wanted = Reprocess("ann: x", keep=("late",), who="ann", reason="x")
    assert make_request("run-1", "ann: x", {"keep": "late", "reason": "x"}, "ann") == wanted


def test_dead_letters_go_with_the_sinks_that_are_written(tmp_path):
    shop = Shop(tmp_path, sinks=[LAKE, NEW], dead_letters="new")
    shop.run("run-1", TEN)
    with raises(InvalidPipeline, "dead-letters-kept"):
        shop.ask(keep=("new",))
    with raises(InvalidPipeline, "dead-letters-alone"):
        shop.ask(keep=("lake",))
    assert shop.state.view("flights").head.epoch == 1


def test_records_that_retention_has_taken_are_named_before_anything_is_written(shop):
    shop.source.expire(0, 5)
    with pytest.raises(SourceLost):
        shop.ask(keep=("late",))
    assert shop.state.view("flights").head.epoch == 1


# ---- a past for a new sink


def test_a_new_sink_gets_its_past_in_any_order_and_once(shop):
    shop.run("run-2", NEXT)
    shop.pipeline = replace(shop.pipeline, sinks=[LAKE, LATE, NEW])
    for interval in (NEXT, TEN, NEXT):
        shop.repair("ann: past", interval=interval, only=("new",))
    assert shop.rows("new") == corrected(*range(20))
    assert shop.rows("lake") == list(range(20))
    assert shop.rows("late") == list(range(20))
    assert shop.state.view("flights").head.epoch == 4


def test_a_day_that_never_ran_or_is_skipped_gets_no_part(shop):
    with raises(InvalidPipeline, "interval-not-processed"):
        shop.ask(interval=NEXT, only=("lake",))


def test_what_a_sink_was_given_up_is_completed(shop):
    shop.plan("run-2", NEXT)
    shop.stage(2)
    shop.lake.fail("commit", "refused", "refused")
    with pytest.raises(CannotPublish):
        shop.commit(2)
    Person(shop.coordinator).give_up("flights", 2, "lake", "ann", "it refuses")
    done = shop.repair(interval=NEXT, only=("lake", "late"))
    assert done.sinks == ("lake",)
    assert shop.rows("lake") == [*range(10), *corrected(*range(10, 20))]
    assert shop.rows("late") == list(range(20))


# ---- chains


@pytest.fixture
def chain(tmp_path) -> Shop:
    shop = Shop(tmp_path, mode="chained")
    shop.run("run-1")
    shop.put(20, 21)
    shop.run("run-2")
    return shop


def test_the_chain_goes_on_from_the_last_checkpoint_of_all_sinks(chain):
    chain.pipeline = replace(chain.pipeline, sinks=[LAKE, LATE, NEW])
    for epoch in (2, 1):
        chain.repair(f"ann: {epoch}", interval=None, epoch=epoch, only=("new",))
    chain.put(30)
    done = chain.run("run-3")
    assert (done.epoch, done.only) == (5, None)
    assert chain.rows("lake") == [*range(20), 20, 21, 30]
    assert chain.rows("new") == sorted([*corrected(*range(20), 20, 21), 30])
    assert chain.state.view("flights").latest.epoch == 5


def test_a_repair_does_not_hold_up_the_chain_and_is_not_held_up_by_it(chain):
    chain.pipeline = replace(chain.pipeline, sinks=[LAKE, LATE, NEW])
    planned = chain.ask(interval=None, epoch=1, only=("new",), owner="ann")
    chain.put(30)
    assert chain.run("run-3").epoch == 4
    chain.stage_corrected(planned.epoch)
    chain.commit(planned.epoch)
    chain.put(31)
    assert chain.run("run-4").epoch == 5
    assert chain.rows("lake") == [*range(20), 20, 21, 30, 31]
    assert chain.rows("new") == sorted([*corrected(*range(20)), 30, 31])


def test_a_request_in_a_chain_names_its_epoch(chain):
    with raises(InvalidPipeline, "option-invalid"):
        chain.ask(interval=None, only=("lake",))


def test_a_request_names_an_interval_by_its_epoch(shop):
    assert shop.repair(interval=None, epoch=1, keep=("late",)).interval == TEN
    with raises(InvalidPipeline, "options-conflict"):
        shop.ask("bob: other", interval=NEXT, epoch=1, only=("lake",))


def test_a_chain_is_not_replaced(chain):
    with raises(InvalidPipeline, "not-reprocessable"):
        chain.ask(interval=None, epoch=1, keep=("late",))


def test_an_aborted_checkpoint_of_the_chain_comes_first_whatever_was_repaired(chain):
    chain.put(30)
    chain.plan("run-3")
    chain.abort(3)
    chain.pipeline = replace(chain.pipeline, sinks=[LAKE, LATE, NEW])
    chain.repair(interval=None, epoch=1, only=("new",))
    assert chain.plan("run-4").epoch == 3
    chain.stage(3)
    assert chain.commit(3).state is State.COMMITTED


def test_a_rewind_takes_back_the_repairs_of_what_it_takes_back_and_no_others(tmp_path):
    chain = Shop(tmp_path, mode="chained", sinks=[LAKE])
    chain.run("run-1")
    chain.put(20, 21)
    chain.run("run-2")
    chain.pipeline = replace(chain.pipeline, sinks=[LAKE, NEW])
    chain.repair("ann: 2", interval=None, epoch=2, only=("new",))
    chain.repair("ann: 1", interval=None, epoch=1, only=("new",))
    Person(chain.coordinator).rewind("flights", 1, "ann", "wrong rates")
    assert chain.rows("lake") == list(range(20))
    assert chain.rows("new") == corrected(*range(20))
    chain.run("run-3")
    assert chain.rows("lake") == [*range(20), 20, 21]
    assert chain.rows("new") == [20, 21, *corrected(*range(20))]
    with raises(InvalidPipeline, "epoch-not-in-force"):
        chain.ask(interval=None, epoch=2, only=("new",))


def test_a_repair_of_what_a_rewind_has_taken_back_is_not_staged(tmp_path):
    chain = Shop(tmp_path, mode="chained", sinks=[LAKE])
    chain.run("run-1")
    chain.put(20, 21)
    chain.run("run-2")
    chain.pipeline = replace(chain.pipeline, sinks=[LAKE, NEW])
    chain.abort(chain.ask("ann: 2", interval=None, epoch=2, only=("new",)).epoch)
    Person(chain.coordinator).rewind("flights", 1, "ann", "wrong rates")
    with raises(Fenced, "ownership-lost"):
        chain.stage_corrected(3)
    chain.run("run-3")
    assert chain.rows("new") == [20, 21]


def test_rows_come_once_more_in_all_sinks_of_a_chain_and_it_goes_on_from_its_end(tmp_path):
    chain = Shop(tmp_path, mode="chained", sinks=[LATE])
    chain.run("run-1")
    chain.put(20, 21)
    chain.run("run-2")
    done = chain.repair(interval=None, epoch=1, again=("late",))
    assert (done.only, done.is_repair) == (("late",), True)
    chain.put(30)
    chain.run("run-3")
    assert chain.rows("late") == sorted([*range(20), 20, 21, 30, *corrected(*range(20))])


def test_a_chain_of_one_sink_that_has_lost_rows_goes_on_from_its_end(tmp_path):
    chain = Shop(tmp_path, mode="chained", sinks=[LAKE])
    chain.run("run-1")
    folder = chain.lake.folder
    older = folder.with_name("older")
    shutil.copytree(folder, older)
    for owner, number in (("run-2", 20), ("run-3", 21)):
        chain.put(number)
        chain.run(owner)
    shutil.rmtree(folder)
    shutil.copytree(older, folder)
    Person(chain.coordinator).accept_loss("flights", "lake", Acceptance("ann", "the disk is gone"))
    for epoch in (2, 3):
        chain.repair(f"ann: {epoch}", interval=None, epoch=epoch, only=("lake",))
    chain.put(30)
    chain.run("run-4")
    assert chain.rows("lake") == [*range(20), 30, 120, 121]


def test_progress_is_shown_of_the_last_checkpoint_of_all_sinks(chain):
    def shown() -> tuple[Any, Any]:
        topic = chain.source._topic()
        return topic["reported"], topic["shown"]

    before = shown()
    chain.pipeline = replace(chain.pipeline, sinks=[LAKE, LATE, NEW])
    chain.repair(interval=None, epoch=1, only=("new",))
    assert shown() == before
    assert before[0]["flights"]["0"] == 22


def test_a_repair_computes_from_the_state_before_what_it_repairs_and_writes_none(tmp_path):
    state_sink = StateSink("totals", "n INT", ["n"])
    chain = Shop(tmp_path, mode="chained", sinks=[LAKE, state_sink])
    for number in (1, 2, 3):
        chain.run(f"run-{number}")
        chain.put(20 + number)
    chain.pipeline = replace(chain.pipeline, sinks=[LAKE, NEW, state_sink])
    done = chain.repair(interval=None, epoch=2, only=("new",))
    view = chain.state.view("flights")
    assert done.sinks == ("new",)
    assert find_state_before(view, done) == view.require(1).handles["totals"]
    chain.put(30)
    fifth = chain.plan("run-5")
    assert find_state_before(chain.state.view("flights"), fifth) == view.require(3).handles["totals"]
    with raises(InvalidPipeline, "state-not-repairable"):
        chain.ask(interval=None, epoch=1, only=("totals",))


def test_rows_that_are_there_again_are_not_doubled(chain, tmp_path):
    """A sink loses an epoch, and its volume is mounted again while that epoch is being repaired."""
    folder = chain.lake.folder
    newest = folder.with_name("newest")
    chain.put(30)
    older = folder.with_name("older")
    shutil.copytree(folder, older)
    chain.run("run-3")
    shutil.copytree(folder, newest)
    shutil.rmtree(folder)
    shutil.copytree(older, folder)
    Person(chain.coordinator).accept_loss("flights", "lake", Acceptance("ann", "the disk is gone"))
    planned = chain.ask(interval=None, epoch=3, only=("lake",))
    chain.stage_corrected(planned.epoch)
    shutil.copytree(newest, folder, dirs_exist_ok=True)
    with pytest.raises(ActionNeeded):
        chain.commit(planned.epoch)
    Person(chain.coordinator).accept_loss("flights", "lake", Acceptance("ann", "it is mounted again"))
    with raises(StageAgain, "rows-in-force-changed"):
        chain.commit(planned.epoch)
    assert chain.rows("lake") == [*range(20), 20, 21, 30]
    chain.stage_corrected(planned.epoch)
    chain.commit(planned.epoch)
    assert chain.rows("lake") == sorted([*range(20), 20, 21, 130])
