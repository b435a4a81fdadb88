"""Repairs beside rewinds, aborts and each other: what a hostile reviewer of the mechanism would try."""

from __future__ import annotations

from pathlib import Path

import pytest
from codes import raises
from person import Person
from unit.coordinator.test_lost_targets import LostShop
from unit.coordinator.test_repairs import LAKE, LATE, NEW, NEXT, TEN, Shop, corrected

from onceonly.checkpoint.model import State
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.errors import ActionNeeded, InvalidPipeline, StageAgain


def test_a_rewind_over_a_repair_takes_out_what_is_in_force_alone(tmp_path: Path) -> None:
    """The lake loses an epoch, and shows it again while it is repaired: then its rows are replaced, and taken back."""
    chain = LostShop(tmp_path, mode="chained", sinks=[LAKE])
    chain.run("run-1")
    chain.copy("old")
    chain.put(30)
    chain.run("run-2")
    chain.copy("newest")
    chain.restore("old")
    Person(chain.coordinator).accept_loss("flights", "lake", Acceptance("ann", "the disk is gone"))
    planned = chain.ask(interval=None, epoch=2, only=("lake",))
    chain.stage_corrected(planned.epoch)
    chain.restore("newest")
    with pytest.raises(ActionNeeded):
        chain.commit(planned.epoch)
    Person(chain.coordinator).accept_loss("flights", "lake", Acceptance("ann", "it is mounted again"))
    with raises(StageAgain, "rows-in-force-changed"):
        chain.commit(planned.epoch)
    chain.stage_corrected(planned.epoch)
    chain.commit(planned.epoch)
    assert chain.rows("lake") == [*range(20), 130]
    rewind = Person(chain.coordinator).rewind("flights", 1, "ann", "wrong rates")
    assert len(rewind.handles["lake"]["retracts"]) == 1, "what was replaced is not there to be taken out"
    assert chain.rows("lake") == list(range(20))
    chain.run("run-3")
    assert chain.rows("lake") == [*range(20), 30]


def test_an_aborted_checkpoint_of_a_chain_is_not_run_by_a_request_for_one_sink(tmp_path: Path) -> None:
    chain = Shop(tmp_path, mode="chained")
    chain.plan("run-1")
    chain.abort(1)
    head = chain.state.view("flights").head.seq
    with raises(InvalidPipeline, "epoch-not-in-force"):
        chain.ask(interval=None, epoch=1, only=("lake",))
    assert chain.state.view("flights").head.seq == head


def test_an_aborted_interval_is_not_run_by_a_request_for_one_sink(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.plan("run-1", TEN)
    shop.abort(1)
    with raises(InvalidPipeline, "interval-not-processed"):
        shop.ask(only=("lake",))
    assert shop.now(1).state is State.ABORTED
    shop.ended.add("run-2")
    shop.plan("run-2", NEXT)
    with raises(InvalidPipeline, "interval-not-processed"):
        shop.ask(interval=NEXT, only=("lake",))


def test_who_wants_rows_once_more_does_not_continue_what_was_to_complete(tmp_path: Path) -> None:
    """A topic shows again what it had lost; ann's repair of it was aborted, and bob wants the rows corrected."""
    shop = LostShop(tmp_path, sinks=[LATE])
    shop.run("run-1", TEN)
    shop.copy("newest", "late")
    shop.restore("nothing", "late")
    Person(shop.coordinator).accept_loss("flights", "late", Acceptance("ann", "gone"))
    planned = shop.ask(only=("late",), again=("late",))
    assert planned.lacking == ("late",)
    shop.abort(planned.epoch)
    shop.restore("newest", "late")
    Person(shop.coordinator).accept_loss("flights", "late", Acceptance("ann", "it is back"))
    assert shop.ask(only=("late",), again=("late",)).epoch == 1, "it has them"
    done = shop.repair("bob: rates", again=("late",))
    assert (done.epoch, done.again, done.lacking) == (3, ("late",), ())
    assert shop.rows("late") == sorted([*range(10), *corrected(*range(10))])


def test_a_repair_of_a_repair_and_a_reprocess_of_all_of_them(tmp_path: Path) -> None:
    shop = Shop(tmp_path, sinks=[LAKE])
    shop.run("run-1", TEN)
    shop.define(LAKE, NEW)
    shop.repair("ann: past", only=("new",))
    shop.repair("ann: lake", keep=("new",))
    shop.repair("ann: new", keep=("lake",))
    assert shop.repair("ann: all").only is None
    assert shop.rows("lake") == shop.rows("new") == corrected(*range(10))
