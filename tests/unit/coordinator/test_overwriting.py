"""A table whose partitions are replaced whole: what is corrected or completed there never takes out newer rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from codes import raises
from unit.coordinator.test_repairs import NEW, NEXT, TEN, Shop
from unit.lightdelta import LightReplace

from onceonly.checkpoint.model import State, Transaction
from onceonly.errors import ActionNeeded
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.testing.fakes import FakeParts

DAYS = DeltaSink("days", "days", partition_by=["day"], replace="partitions")


class Days(LightReplace):
    """A partition is made of so many numbers, or of all of them."""

    size = 10

    def rows(self, txn: Transaction, rows: Any) -> pa.Table:
        numbers = [row["value"] for row in rows]
        days = [str(number % 100 // self.size) for number in numbers]
        return pa.table({"n": pa.array(numbers, pa.int64()), "day": pa.array(days, pa.string())})


class Whole(Days):
    size = 100


class DayParts(FakeParts):
    kind: type[Days] = Days

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        return self.kind(self.folder / name, name) if name == "days" else super().sink(pipeline, name)


class DayShop(Shop):
    def __init__(self, folder: Path, kind: type[Days], **changes: Any) -> None:
        super().__init__(folder, **{"sinks": [NEW, DAYS], **changes})
        self.parts = DayParts(folder)
        self.parts.kind = kind

    def numbers(self) -> list[int]:
        return self.parts.sink(self.pipeline, "days").numbers()


def test_an_older_day_does_not_take_out_a_newer_one(tmp_path: Path) -> None:
    shop = DayShop(tmp_path, Whole, sinks=[NEW])
    shop.run("run-1", TEN)
    shop.define(NEW, DAYS)
    shop.run("run-2", NEXT)
    with raises(ActionNeeded, "newer-rows-there") as refused:
        shop.repair(only=("days",))
    assert "onceonly abort flights 3" in refused.value.todo
    assert shop.numbers() == list(range(10, 20))
    shop.abort(3)
    assert shop.now(3).state is State.ABORTED


def test_days_in_partitions_of_their_own_come_in_any_order(tmp_path: Path) -> None:
    shop = DayShop(tmp_path, Days, sinks=[NEW])
    shop.run("run-1", TEN)
    shop.define(NEW, DAYS)
    shop.run("run-2", NEXT)
    shop.repair(only=("days",))
    assert shop.numbers() == sorted([*range(10, 20), *range(100, 110)])


def test_the_newest_day_is_corrected(tmp_path: Path) -> None:
    shop = DayShop(tmp_path, Whole)
    shop.run("run-1", TEN)
    shop.run("run-2", NEXT)
    shop.repair(interval=NEXT, keep=("new",))
    assert shop.numbers() == list(range(110, 120))


def test_a_new_interval_replaces_partitions_as_it_always_did(tmp_path: Path) -> None:
    shop = DayShop(tmp_path, Whole)
    shop.run("run-2", NEXT)
    shop.run("run-1", TEN)
    assert shop.numbers() == list(range(10))


def test_an_older_epoch_of_a_chain_does_not_take_out_a_newer_one(tmp_path: Path) -> None:
    chain = DayShop(tmp_path, Whole, mode="chained", sinks=[NEW])
    chain.run("run-1")
    chain.define(NEW, DAYS)
    chain.put(20, 21)
    chain.run("run-2")
    with raises(ActionNeeded, "newer-rows-there"):
        chain.repair(interval=None, epoch=1, only=("days",))
    assert chain.numbers() == [20, 21]
