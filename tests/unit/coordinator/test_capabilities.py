"""What a sink is able to do beside the six calls is asked of it exactly where it says that it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from codes import raises
from person import Person
from unit.coordinator.test_gating import Gated
from unit.world import World, values

from onceonly.checkpoint.model import Handle, Outcome, State, Transaction
from onceonly.checkpoint.sink import Publication, Receipts, Sink
from onceonly.coordinator.stage import Produced
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.testing.fakes import FakeParts, FakeSink


class Open(FakeSink):
    """Writes down what it was asked to end."""

    asked: list[tuple[str, int, int]]

    def revoke(self, txn: Transaction) -> None:
        self.asked.append(("revoke", txn.epoch, txn.attempt))

    def release(self, txn: Transaction) -> None:
        self.asked.append(("release", txn.epoch, txn.attempt))

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        self.asked.append(("discard", txn.epoch, txn.attempt))
        super().discard(txn, handle)


class Bare(Sink):
    """The seven calls, and nothing else; the fake one does the work."""

    def __init__(self, fake: FakeSink) -> None:
        self.name, self._fake = fake.name, fake

    def check(self) -> list[str]:
        return self._fake.check()

    def stage(self, txn: Transaction, rows: list[object]) -> Handle:
        return self._fake.stage(txn, rows)

    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        return self._fake.rehearse(handle, decision, last)

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        return self._fake.commit(handle, decision, receipts, last)

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        return self._fake.fence(handle, decision)

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        self._fake.discard(txn, handle)

    def leftovers(self, prefix: str) -> list[Transaction]:
        return self._fake.leftovers(prefix)


class OpenParts(FakeParts):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked: list[tuple[str, int, int]] = []

    def sink(self, pipeline: Pipeline, name: str) -> FakeSink:
        made = Open(name, self.folder / name)
        made.asked = self.asked
        return made


class BareParts(FakeParts):
    def sink(self, pipeline: Pipeline, name: str) -> Bare:  # type: ignore[override]
        return Bare(super().sink(pipeline, name))


def opened(world: World, folder: Path) -> OpenParts:
    world.parts = parts = OpenParts(folder)
    return parts


def test_what_is_kept_is_revoked_and_not_discarded(tmp_path: Path) -> None:
    world = Gated(tmp_path)
    parts = opened(world, tmp_path)
    world.failed()
    world.abort()
    assert set(parts.asked) == {("revoke", 1, 1)}
    parts.asked.clear()
    world.coordinator.sweep("flights")
    assert set(parts.asked) == {("revoke", 1, 1)}  # a zombie may have opened it again


def test_what_was_given_up_is_revoked_by_each_sweep(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.plan()
    world.stage()
    world.lake.fail("commit", *["refused"] * 3)
    with raises(Exception, "test-refused"):
        world.commit()
    Person(world.coordinator).give_up("flights", 1, "lake", "ann", "lost")
    parts = opened(world, tmp_path)
    world.coordinator.sweep("flights")
    assert set(parts.asked) == {("revoke", 1, 1)}


def test_copies_are_released_once_the_outcome_is_recorded(tmp_path: Path) -> None:
    world = World(tmp_path)
    parts = opened(world, tmp_path)
    world.run("run-1")
    assert parts.asked == [("release", 1, 1)] * 2  # of both sinks, and nothing is discarded


def test_six_calls_are_enough_for_every_step(tmp_path: Path) -> None:
    world = Gated(tmp_path)
    lake = world.lake
    world.parts = BareParts(tmp_path)
    world.failed()
    world.abort()
    world.stage()
    world.gate()
    assert world.commit().state is State.COMMITTED
    assert values(lake) == [0, 1, 2, 3, 4]
    world.coordinator.sweep("flights")
    assert world.coordinator.evidence("flights", 1, "lake") == []
    world.put(5)
    assert world.plan("run-2")
    world.stage(2)
    world.gate(2)
    world.commit(2)
    with raises(InvalidPipeline, "rows-not-retractable"):
        Person(world.coordinator).rewind("flights", 1, "ann", "wrong day")


class TakesSmall(FakeSink):
    """Writes down how it was told to stage."""

    told: list[bool]

    def stage_small_batch(self, txn: Transaction, rows: list[object]) -> Handle:
        self.told.append(True)
        return super().stage(txn, rows)

    def stage(self, txn: Transaction, rows: list[object]) -> Handle:
        self.told.append(False)
        return super().stage(txn, rows)


class SmallParts(FakeParts):
    """Its tables take small batches, and its other sinks know nothing of them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.told: list[bool] = []

    def sink(self, pipeline: Pipeline, name: str) -> FakeSink:
        if name != "lake":
            return super().sink(pipeline, name)
        made = TakesSmall(name, self.folder / name)
        made.told = self.told
        return made


@pytest.mark.parametrize("is_small", [True, False])
def test_small_batches_are_named_to_sinks_that_take_them(tmp_path: Path, is_small: bool) -> None:
    world = World(tmp_path)
    world.parts = parts = SmallParts(tmp_path)
    world.plan()
    outputs = parts.produce
    world.coordinator.stage("flights", 1, lambda checkpoint: Produced(outputs(checkpoint), {}, is_small))
    assert parts.told == [is_small]
