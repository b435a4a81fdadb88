"""What a page offers to repair, and the conf of the run that it starts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from person import Person
from unit.coordinator.test_repairs import LAKE, NEW, NEXT, TEN, Shop

from onceonly.coordinator.accept_loss import Acceptance
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import KafkaSink
from onceonly.testing.fakes import FakeParts
from onceonly.views.story import read_story

pytestmark = pytest.mark.usefixtures("airflow_home")
LATE = KafkaSink(name="late", topic="late", mode="late")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path, sinks=[LAKE, LATE])
    shop.run("run-1", TEN)
    return shop


def offer(shop: Shop, epoch: int = 1) -> Any:
    from onceonly.airflow.ui import repairs

    return repairs.make_offer(shop.now(epoch), read_story(shop.state, shop.now(epoch)))


def words(shop: Shop) -> dict[str, list[str]]:
    return {choice["sink"]: [word for word, _ in choice["options"]] for choice in offer(shop).choices}


def test_a_topic_is_kept_unless_somebody_says_otherwise(shop: Shop) -> None:
    assert words(shop) == {"lake": ["replace", "keep"], "late": ["keep", "again"]}
    assert offer(shop).lacking == ()


def test_a_sink_that_a_repair_has_completed_can_be_kept_on_each_page(shop: Shop) -> None:
    shop.pipeline = replace(shop.pipeline, sinks=[LAKE, LATE, NEW])
    shop.repair("ann: its past", only=("new",))
    assert words(shop) == {"lake": ["replace", "keep"], "late": ["keep", "again"], "new": ["replace", "keep"]}
    assert [choice["sink"] for choice in offer(shop, 2).choices] == ["lake", "late", "new"]


def test_a_sink_that_lacks_the_rows_gets_them_with_a_correction_unless_it_is_kept(shop: Shop) -> None:
    """As on the command line: --reprocess writes it, --reprocess --keep does not."""
    shop.pipeline = replace(shop.pipeline, sinks=[LAKE, LATE, NEW])
    shop.run("run-2", NEXT)
    assert words(shop)["new"] == ["add", "keep"]
    for keep, written in ((["late"], ("lake", "new")), (["late", "new"], ("lake",))):
        assert shop.coordinator.check_request("flights", 1, _request(shop, keep)) == written
    shop.repair("ann: rates", keep=("late",))
    assert shop.now(shop.state.view("flights").head.epoch).sinks == ("lake", "new")


def _request(shop: Shop, keep: list[str]) -> Any:
    from onceonly.airflow.ui import repairs

    conf = repairs.make_conf(shop.now(1), "rates", {"keep": keep, "again": [], "only": []})
    return repairs.make_request(conf, "ann")


def test_nothing_is_offered_while_something_is_under_way(shop: Shop) -> None:
    from onceonly.airflow.ui import repairs

    seen = offer(shop).seen
    shop.ask(keep=("late",))
    assert offer(shop) is None
    story = read_story(shop.state, shop.now(1))
    for number in (seen, repairs.number_of(story), None):
        with raises(InvalidPipeline, "seen-outdated"):
            repairs.refuse_changed(story, number)


def test_nothing_is_offered_of_what_was_never_published(tmp_path: Path) -> None:
    shop = Shop(tmp_path, sinks=[LAKE])
    shop.plan("run-1", TEN)
    shop.abort(1)
    assert offer(shop) is None


def test_a_chain_is_completed_and_not_corrected(tmp_path: Path) -> None:
    from onceonly.airflow.ui import repairs

    chain = Shop(tmp_path, mode="chained", sinks=[LAKE])
    chain.run("run-1")
    chain.pipeline = replace(chain.pipeline, sinks=[LAKE, NEW])
    chain.put(20)
    chain.run("run-2")
    assert (offer(chain).choices, offer(chain).lacking) == ((), (("new", False),))
    conf = repairs.make_conf(chain.now(1), "its past", {"keep": [], "again": [], "only": ["new"]})
    assert conf == {"only": ["new"], "epoch": 1, "reason": "its past"}
    assert chain.coordinator.check_request("flights", 1, repairs.make_request(conf, "ann")) == ("new",)


def test_rows_that_a_topic_has_lost_come_once_more(tmp_path: Path) -> None:
    chain = Shop(tmp_path, mode="chained", sinks=[LAKE, replace(LATE, name="events")])
    chain.run("run-1")
    folder = FakeParts(chain.parts.folder).sink(chain.pipeline, "events").folder
    older = folder.with_name("older")
    shutil.copytree(folder, older)
    chain.put(30)
    chain.run("run-2")
    shutil.rmtree(folder)
    shutil.copytree(older, folder)
    Person(chain.coordinator).accept_loss("flights", "events", Acceptance("ann", "the disk is gone"))
    assert offer(chain, 2).lacking == (("events", True),)


def test_the_conf_of_a_correction_names_its_interval_and_what_is_kept(shop: Shop) -> None:
    from onceonly.airflow.ui import repairs

    conf = repairs.make_conf(shop.now(1), "rates", {"keep": ["late"], "again": [], "only": []})
    interval = [TEN.start.isoformat(), TEN.end.isoformat()]
    assert conf == {"keep": ["late"], "reprocess": True, "interval": interval, "reason": "rates"}
    plain = repairs.make_conf(shop.now(1), "rates", {"keep": [], "again": [], "only": []})
    assert plain == {"reprocess": True, "interval": interval, "reason": "rates"}
    assert not repairs.make_request(plain, "ann").is_for_some_sinks
