"""A request that is repeated: it does nothing a second time, unless its rows were lost since, whoever continues it."""

from __future__ import annotations

from pathlib import Path

import pytest
from person import Person
from unit.coordinator.test_lost_targets import LostShop
from unit.coordinator.test_repairs import LAKE, LATE, NEW, TEN, corrected

from onceonly.coordinator.accept_loss import Acceptance


@pytest.fixture
def shop(tmp_path: Path) -> LostShop:
    shop = LostShop(tmp_path)
    shop.run("run-1", TEN)
    return shop


def lose(shop: LostShop, copy: str, sink: str = "lake") -> None:
    shop.restore(copy, sink)
    Person(shop.coordinator).accept_loss("flights", sink, Acceptance("bob", "gone"))


# ---- lost a second time


def test_a_sink_that_loses_its_past_again_gets_it_again_by_the_same_words(shop: LostShop) -> None:
    shop.define(LAKE, LATE, NEW)
    shop.copy("empty", "new")
    for epoch in (2, 3):
        assert shop.repair(only=("new",)).epoch == epoch
        assert shop.repair(only=("new",)).epoch == epoch, "a run that is cleared writes nothing"
        lose(shop, "empty", "new")
    assert shop.repair(only=("new",)).replaces == 3
    assert shop.rows("new") == corrected(*range(10))
    assert shop.rows("lake") == shop.rows("late") == list(range(10))


def test_a_topic_that_loses_its_past_again_gets_it_again_by_the_same_words(shop: LostShop) -> None:
    for epoch in (2, 3):
        lose(shop, "nothing", "late")
        for _ in range(2):
            assert shop.repair(only=("late",), again=("late",)).epoch == epoch
    assert shop.rows("late") == corrected(*range(10))


def test_a_correction_that_was_lost_is_made_again_by_the_same_words(shop: LostShop) -> None:
    shop.copy("before")
    assert shop.repair(keep=("late",)).epoch == 2
    lose(shop, "before")
    for _ in range(2):
        done = shop.repair(keep=("late",))
        assert (done.epoch, done.replaces, done.sinks) == (3, 2, ("lake",))
    assert shop.rows("lake") == corrected(*range(10))
    assert shop.rows("late") == list(range(10))


def test_of_a_correction_only_what_was_lost_is_made_again(shop: LostShop) -> None:
    """A topic that has the rows twice does not get them a third time."""
    shop.copy("before")
    assert shop.repair(again=("late",)).epoch == 2
    lose(shop, "before")
    for _ in range(2):
        done = shop.repair(again=("late",))
        assert (done.epoch, done.sinks, done.again) == (3, ("lake",), ())
    assert shop.rows("lake") == corrected(*range(10))
    assert shop.rows("late") == sorted([*range(10), *corrected(*range(10))])


def test_what_another_has_corrected_since_is_not_made_again(shop: LostShop) -> None:
    shop.copy("before")
    shop.repair(keep=("late",))
    shop.repair("bob: other rates", keep=("late",))
    lose(shop, "before")
    assert shop.repair(keep=("late",)).epoch == 3, "it is bob's that was lost last"
    assert shop.repair("bob: other rates", keep=("late",)).epoch == 4


# ---- continued by another


def test_who_continues_what_another_has_asked_for_is_recorded(shop: LostShop) -> None:
    planned = shop.ask(keep=("late",))
    shop.abort(planned.epoch)
    asked = shop.ask_as("bob", "the same", keep=("late",))
    assert asked.epoch == planned.epoch
    assert asked.requested_by == {"who": "ann", "reason": "rates"}
    assert asked.continued_by == ({"who": "bob", "reason": "the same"},)
    shop.abort(planned.epoch)
    assert len(shop.ask_as("bob", "the same", keep=("late",)).continued_by) == 1
    shop.abort(planned.epoch)
    assert shop.ask(keep=("late",)).continued_by[-1] == {"who": "ann", "reason": "rates"}


def test_who_asks_again_for_the_own_request_is_no_other(shop: LostShop) -> None:
    shop.abort(shop.ask(keep=("late",)).epoch)
    assert shop.ask(keep=("late",)).continued_by == ()
