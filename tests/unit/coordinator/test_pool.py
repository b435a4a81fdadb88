"""Slots of the pool of transactional ids: leased by the state table, given back when the outcome is recorded."""

from collections.abc import Sequence

import pytest
from codes import raises
from unit.world import World, minutes

from onceonly.checkpoint.sink import PooledTransaction, TransactionalIdPool
from onceonly.coordinator import sweep
from onceonly.errors import CannotPublish, NotCommitted
from onceonly.pipeline.sinks import KafkaSink

POOL = KafkaSink(name="lake", topic="lake", ids="pool", pool_size=2)


@pytest.fixture
def world(tmp_path) -> World:
    world = World(tmp_path, mode="interval", sinks=[POOL])
    world.put(*range(5, 40))
    return world


class Brokers(TransactionalIdPool):
    """Stands beside the fake sink: what is open under pooled ids, and which of it was ended."""

    name = "lake"

    def __init__(self, *open_: tuple[int, int]) -> None:
        self.open = [PooledTransaction("flights", "lake", slot, f"pool-{slot}-0", (7, epoch)) for slot, epoch in open_]
        self.ended: list[tuple[int, int]] = []
        self.meanwhile = lambda: None

    def list_pooled(self, prefix: str) -> list[PooledTransaction]:
        found = list(self.open)
        self.meanwhile()
        return found

    def is_needed(self, handle, txn: PooledTransaction) -> bool:
        return txn.producer[1] == 1  # a handle names producers of epoch 1

    def discard_pooled(self, txns: Sequence[PooledTransaction]) -> None:
        self.ended += [(txn.slot, txn.producer[1]) for txn in txns]


def slots(world: World, epoch: int) -> list[int | None]:
    return [claim.slot for claim in world.now(epoch).claims.values()]


def ended(world: World, *open_: tuple[int, int], attempts=()) -> list[tuple[int, int]]:
    brokers = Brokers(*open_)
    sweep.discard_idle(world.state, brokers, "flights", attempts)
    return brokers.ended


def claim(world: World, epoch: int) -> None:
    """A stage process that was killed as soon as it had claimed the attempt."""
    world.coordinator._stager.claim("flights", epoch, None)


def test_each_unsettled_checkpoint_has_a_slot_of_its_own(world):
    world.staged(2)
    assert (slots(world, 1), slots(world, 2)) == ([0], [1])


def test_a_full_pool_is_an_error_that_says_what_to_do(world):
    world.staged(2)
    world.plan("run-3", minutes(20, 30))
    with raises(NotCommitted, "pool-exhausted") as refused:
        world.stage(3)
    assert "every slot" in refused.value.what
    assert "onceonly recover flights" in refused.value.todo
    assert "pool_size" in refused.value.todo
    assert slots(world, 3) == []


@pytest.mark.parametrize("settle", ["commit", "abort"])
def test_a_slot_is_free_when_the_outcome_is_recorded(world, settle):
    world.staged(2)
    world.plan("run-3", minutes(20, 30))
    getattr(world, settle)(1)
    world.stage(3)
    assert slots(world, 3) == [0]


def test_attempts_that_were_killed_use_up_no_more_than_the_pool(world):
    world.plan(interval=minutes(0, 10))
    for _ in range(4):
        claim(world, 1)
    assert slots(world, 1) == [0, 1, 0, 0]
    world.stage(1)
    assert world.commit(1).published["lake"]["rows"] == 10


def test_a_checkpoint_that_is_staged_again_does_not_hold_what_it_gave_back(world):
    world.staged(1)
    world.abort(1)
    world.plan("run-2", minutes(10, 20))
    world.stage(2)
    world.plan("run-1 again", minutes(0, 10))
    world.stage(1)
    world.commit(2)
    world.plan("run-3", minutes(20, 30))
    world.stage(3)
    assert [slots(world, epoch)[-1] for epoch in (1, 2, 3)] == [1, 0, 0]


def test_only_pipelines_with_a_pool_lease(tmp_path):
    world = World(tmp_path)
    world.plan()
    world.stage()
    assert slots(world, 1) == [None]


# ---- what is open without a lease


def test_what_is_being_staged_is_left_alone_and_what_no_one_leases_is_ended(world):
    world.plan(interval=minutes(0, 10))
    claim(world, 1)
    assert ended(world, (0, 1), (1, 1)) == [(1, 1)]


def test_of_what_is_staged_only_what_the_handle_names_is_left(world):
    world.staged(1)
    assert ended(world, (0, 1), (0, 2)) == [(0, 2)]


def test_a_damaged_handle_keeps_what_its_slot_has_open(world, monkeypatch):
    """Others go on beside it: its own checkpoint is refused."""
    world.staged(1)
    damaged = CannotPublish("sink 'lake': the handle is damaged.", code="handle-damaged")
    monkeypatch.setattr(Brokers, "is_needed", lambda *_: (_ for _ in ()).throw(damaged))
    assert ended(world, (0, 1), (1, 1)) == [(1, 1)]


def test_an_attempt_that_another_has_replaced_needs_nothing(world):
    world.plan(interval=minutes(0, 10))
    claim(world, 1)
    world.stage(1)
    assert ended(world, (0, 1), (1, 1)) == [(0, 1)]


def test_what_is_published_needs_nothing(world):
    world.staged(1)
    world.commit()
    assert ended(world, (0, 1)) == [(0, 1)]


def test_the_caller_may_know_that_an_attempt_is_over(world):
    world.plan(interval=minutes(0, 10))
    claim(world, 1)
    assert ended(world, (0, 1), attempts={(1, 1)}) == [(0, 1)]
    assert ended(world, (0, 1), attempts={(1, 2)}) == []


def test_a_lease_that_begins_while_we_look_is_seen(world):
    """What is open may belong to a newer attempt: the list comes first, then the state table."""
    world.plan(interval=minutes(0, 10))
    brokers = Brokers((0, 1))
    brokers.meanwhile = lambda: claim(world, 1)
    sweep.discard_idle(world.state, brokers, "flights")
    assert brokers.ended == []
