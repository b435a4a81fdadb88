"""What belongs to a repair beside its rows: the state that it computes from, dead letters, and a gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from codes import raises
from unit.coordinator.test_capabilities import Bare
from unit.coordinator.test_repairs import LAKE, LATE, NEW, TEN, Parts, Shop

from onceonly.checkpoint.model import Handle, State
from onceonly.checkpoint.sink import StateBackend
from onceonly.errors import GateFailed, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import StateSink
from onceonly.testing.fakes import FakeParts

TOTALS = StateSink("totals", "n INT", ["n"])


class Totals(Bare, StateBackend):
    """A state whose earlier runs may have been removed."""

    def __init__(self, fake: Any, gone: Path) -> None:
        super().__init__(fake)
        self._gone = gone

    def read(self, spark: Any, before: Handle | None) -> Any:
        return []

    def find_missing(self, before: Handle) -> str:
        return "its run is missing" if self._gone.exists() else ""


class StateParts(Parts):
    @property
    def gone(self) -> Path:
        return self.folder / "runs-removed"

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        live = FakeParts.sink(self, pipeline, name)
        return Totals(live, self.gone) if name == "totals" else live


class Counting(Shop):
    """A chain that keeps state."""

    def __init__(self, folder: Path, *sinks: Any) -> None:
        super().__init__(folder, mode="chained", sinks=[LAKE, *sinks])
        self.parts: StateParts = StateParts(folder)

    def begin(self) -> None:
        for number in (1, 2):
            self.run(f"run-{number}")
            self.put(20 + number)


@pytest.fixture
def counting(tmp_path: Path) -> Counting:
    counting = Counting(tmp_path, TOTALS)
    counting.begin()
    counting.define(LAKE, NEW, TOTALS)
    return counting


# ---- state


def test_a_repair_whose_state_is_not_there_any_more_is_refused_before_it_is_planned(counting: Counting) -> None:
    counting.parts.gone.touch()
    with raises(InvalidPipeline, "state-before-missing", match="its run is missing"):
        counting.ask(interval=None, epoch=2, only=("new",))
    assert counting.state.view("flights").head.epoch == 2
    assert counting.ask(interval=None, epoch=1, only=("new",)).replaces == 1, "there was no state before the first"


def test_a_state_that_is_removed_between_plan_and_stage_is_found_before_a_claim(counting: Counting) -> None:
    planned = counting.ask(interval=None, epoch=2, only=("new",))
    counting.parts.gone.touch()
    with raises(InvalidPipeline, "state-before-missing"):
        counting.stage_corrected(planned.epoch)
    assert (counting.now(planned.epoch).state, counting.now(planned.epoch).attempt) == (State.PLANNED, 0)
    counting.parts.gone.unlink()
    counting.stage_corrected(planned.epoch)
    assert counting.commit(planned.epoch).state is State.COMMITTED


def test_the_next_checkpoint_needs_no_state_but_the_last(counting: Counting) -> None:
    counting.parts.gone.touch()
    assert counting.run("run-3").epoch == 3


@pytest.mark.parametrize("before", [(), (StateSink("sums", "n INT", ["n"]),)])
def test_what_was_computed_without_this_state_is_not_computed_from_nothing(tmp_path: Path, before: Any) -> None:
    counting = Counting(tmp_path, *before)
    counting.begin()
    counting.define(LAKE, NEW, TOTALS)
    with raises(InvalidPipeline, "state-before-missing", match="without the state 'totals'"):
        counting.ask(interval=None, epoch=2, only=("new",))
    assert counting.state.view("flights").head.epoch == 2


# ---- dead letters


def test_dead_letters_that_cannot_be_taken_back_name_the_only_way_out(tmp_path: Path) -> None:
    shop = Shop(tmp_path, dead_letters="late")
    shop.run("run-1", TEN)
    shop.define(LAKE, LATE, NEW)
    with raises(InvalidPipeline, "rows-not-retractable") as refused:
        shop.ask(only=("new",))
    assert "--again late" in refused.value.todo
    assert "--keep" not in refused.value.todo
    assert shop.repair(only=("new",), again=("late",)).sinks == ("late", "new")
    assert shop.rows("lake") == list(range(10))


def test_dead_letters_that_were_added_later_get_their_past_alone(tmp_path: Path) -> None:
    shop = Shop(tmp_path, sinks=[LAKE])
    shop.run("run-1", TEN)
    shop.define(LAKE, NEW, dead_letters="new")
    assert shop.repair(only=("new",)).sinks == ("new",)


# ---- a gate


def test_a_gate_judges_what_a_repair_writes(tmp_path: Path) -> None:
    shop = Shop(tmp_path, gate=Gate(min_rows={"lake": 1, "late": 1}))
    first = shop.plan("run-1", TEN)
    shop.stage(first.epoch)
    shop.coordinator.gate("flights", first.epoch, "run-1")
    shop.commit(first.epoch)
    planned = shop.ask(keep=("late",))
    shop.stage_corrected(planned.epoch)
    shop.parts.inspector(shop.pipeline).find("critical")
    judged = shop.coordinator.gate("flights", planned.epoch, "ann")
    assert judged.verdict is not None
    assert list(judged.verdict["sinks"]) == ["lake"]
    with raises(GateFailed, "gate-failed"):
        shop.commit(planned.epoch)
    assert shop.rows("lake") == list(range(10))
