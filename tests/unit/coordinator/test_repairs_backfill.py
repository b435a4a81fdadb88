"""A backfill whose conf names sinks: many days at the same time, runs that die, and the same backfill once more."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from patience import PATIENCE
from unit.coordinator.test_repairs import LAKE, LATE, NEW, Shop, corrected
from unit.world import minutes

from onceonly.checkpoint.model import Checkpoint
from onceonly.coordinator.reprocess import make_request
from onceonly.errors import Busy, Fenced, InvalidPipeline, StageAgain

pytestmark = pytest.mark.slow

DAYS = [minutes(10 * number, 10 * number + 10) for number in range(8)]
RECORDS = range(80)
KEEP = {"keep": ["late"], "reason": "rates"}
AGAIN = {"again": ["late"], "reason": "rates"}
ONLY_NEW = {"only": ["new"], "reason": "its past"}
STEPS = ("plan", "stage", "commit")


class Backfill:
    """The runs of a backfill, four at a time; each may die after a step, and is cleared."""

    def __init__(self, shop: Shop, conf: dict[str, Any], seed: int | None = None) -> None:
        self.shop, self.conf, self.seed = shop, conf, seed

    def run(self) -> list[Checkpoint]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(self._run_day, reversed(range(len(DAYS)))))

    def _run_day(self, day: int) -> Checkpoint:
        die_after = random.Random(f"{self.seed} {day}").choice(STEPS) if self.seed is not None else None
        deadline = time.monotonic() + PATIENCE
        while True:
            owner = f"a try of day {day}, {uuid.uuid4().hex}"
            try:
                done = self._try(day, owner, die_after)
            except (Busy, Fenced, StageAgain):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            else:
                if done:
                    return done
                die_after = None
            self.shop.ended.add(owner)

    def _try(self, day: int, owner: str, die_after: str | None) -> Checkpoint | None:
        replacing = None if "only" in self.conf else "replaced"
        request = make_request(replacing, f"backfill__{day}: {self.conf['reason']}", self.conf, "ann")
        through = self.shop.coordinator
        planned = through.plan(self.shop.pipeline, owner, self.shop.alive, DAYS[day], request).checkpoint
        assert planned is not None
        if planned.state.is_settled:
            return planned
        if die_after == "plan":
            return None
        self.shop.stage_corrected(planned.epoch)
        if die_after == "stage":
            return None
        done = self.shop.commit(planned.epoch)
        return None if die_after == "commit" else done


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path)
    shop.put(*range(20, len(RECORDS)))
    for number, day in enumerate(DAYS):
        shop.run(f"run-{number}", day)
    assert shop.rows("lake") == shop.rows("late") == list(RECORDS)
    return shop


def check(shop: Shop, conf: dict[str, Any], seed: int | None) -> None:
    """Run it twice: the second time there is nothing to do. Each day has one repair."""
    before = shop.state.view("flights").head.epoch
    done = {cp.epoch for cp in Backfill(shop, conf, seed).run()}
    last = shop.state.view("flights").head.epoch
    assert {cp.epoch for cp in Backfill(shop, conf).run()} == done
    assert shop.state.view("flights").head.epoch == last == before + len(DAYS)
    assert shop.state.view("flights").open == []
    repaired = Counter(shop.now(epoch).interval for epoch in done)
    assert repaired == Counter(DAYS)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_days_are_corrected_beside_rows_that_stay(shop: Shop, seed: int | None) -> None:
    entries = shop.parts.folder / "late"
    kept = {path: path.read_bytes() for path in entries.rglob("*") if path.is_file()}
    check(shop, KEEP, seed)
    assert shop.rows("lake") == corrected(*RECORDS)
    assert {path: path.read_bytes() for path in entries.rglob("*") if path.is_file()} == kept


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_rows_of_each_day_come_once_more_and_once(shop: Shop, seed: int | None) -> None:
    check(shop, AGAIN, seed)
    assert shop.rows("lake") == corrected(*RECORDS)
    assert shop.rows("late") == sorted([*RECORDS, *corrected(*RECORDS)])


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_new_sink_gets_its_past(shop: Shop, seed: int | None) -> None:
    shop.define(LAKE, LATE, NEW)
    check(shop, ONLY_NEW, seed)
    assert shop.rows("new") == corrected(*RECORDS)
    assert shop.rows("lake") == shop.rows("late") == list(RECORDS)


def test_two_backfills_for_two_sinks_at_the_same_time(shop: Shop) -> None:
    """One corrects the table, one gives the new sink its past: each sink has each record once."""
    shop.define(LAKE, LATE, NEW)
    confs = [{**KEEP, "keep": ["late", "new"]}, ONLY_NEW]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda conf: Backfill(shop, conf).run(), confs))
    assert shop.rows("lake") == shop.rows("new") == corrected(*RECORDS)
    assert shop.rows("late") == list(RECORDS)


# ---- the same name, for other sinks


@pytest.mark.parametrize(
    "first, then",
    [
        ({"keep": ("late",)}, {"keep": ("lake",), "again": ("late",)}),
        ({"keep": ("late",)}, {"again": ("late",)}),
        ({"only": ("new",)}, {"keep": ("late", "new")}),
        ({"again": ("late",)}, {"keep": ("late",)}),
    ],
)
def test_a_name_that_was_used_for_other_sinks_is_refused(
    shop: Shop, first: dict[str, Any], then: dict[str, Any]
) -> None:
    """It would do nothing, and a script would take that for done."""
    shop.define(LAKE, LATE, NEW)
    done = shop.repair("ann: rates", DAYS[0], **first)
    with raises(InvalidPipeline, "request-differs"):
        shop.ask("ann: rates", DAYS[0], **then)
    assert shop.state.view("flights").head.epoch == done.epoch
    assert shop.ask("ann: rates", DAYS[0], **first).epoch == done.epoch
    assert shop.ask("ann: another", DAYS[0], **then).epoch == done.epoch + 1


def test_a_request_stays_done_when_a_sink_is_added(shop: Shop) -> None:
    done = shop.repair("ann: rates", DAYS[0], keep=("late",))
    shop.define(LAKE, LATE, NEW)
    assert shop.ask("ann: rates", DAYS[0], keep=("late",)).epoch == done.epoch
    assert shop.ask("ann: rates", DAYS[0], only=("lake",)).epoch == done.epoch, "it has its rows"


def test_a_sink_is_completed_whatever_the_name_and_the_first_request_stays_done(shop: Shop) -> None:
    shop.define(LAKE, LATE, NEW)
    first = {"keep": ("late", "new")}
    assert shop.repair("ann: rates", DAYS[0], **first).sinks == ("lake",)
    done = shop.repair("ann: rates", DAYS[0], only=("new",))
    assert done.sinks == ("new",)
    assert shop.ask("ann: rates", DAYS[0], **first).epoch == done.epoch
    assert shop.state.view("flights").head.epoch == done.epoch
