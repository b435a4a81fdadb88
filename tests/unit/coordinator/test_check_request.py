"""A request for some sinks, looked at before a run is started for it: nothing is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from codes import raises
from person import Person
from unit.coordinator.test_repairs import LAKE, LATE, NEW, NEXT, TEN, Shop

from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import Busy, InvalidPipeline
from onceonly.views.story import read_story


@pytest.fixture
def shop(tmp_path) -> Shop:
    shop = Shop(tmp_path)
    shop.run("run-1", TEN)
    return shop


def test_a_request_is_looked_at_without_writing_anything(shop):
    def check(**wish: Any) -> tuple[str, ...]:
        return shop.coordinator.check_request("flights", 1, Reprocess("ann: x", **wish))

    assert check(keep=("late",)) == ("lake",)
    assert check(again=("late",)) == ("lake", "late")
    with raises(InvalidPipeline, "rows-not-retractable"):
        check()
    with raises(InvalidPipeline, "nothing-to-repair"):
        check(only=("lake",))
    shop.ask(keep=("late",))
    with raises(Busy, "checkpoint-open"):
        check(keep=("late",))
    assert shop.state.view("flights").head.epoch == 2


def test_a_sink_that_only_a_repair_has_written_is_known(shop):
    shop.run("run-2", NEXT)
    shop.pipeline = replace(shop.pipeline, sinks=[LAKE, LATE, NEW])
    shop.repair("ann: its past", only=("new",))
    request = Reprocess("ann: x", keep=("new", "late"))
    assert shop.coordinator.check_request("flights", 1, request) == ("lake",)
    assert read_story(shop.state, shop.now(2)).lacking == ("new",)


def test_a_request_about_rows_that_are_taken_back_is_refused(tmp_path):
    chain = Shop(tmp_path, mode="chained", sinks=[LAKE])
    chain.run("run-1")
    chain.put(31)
    chain.run("run-2")
    Person(chain.coordinator).rewind("flights", 1, "ann", "wrong rates")
    with raises(InvalidPipeline, "epoch-not-in-force"):
        chain.coordinator.check_request("flights", 2, Reprocess("ann: x", only=("lake",)))
