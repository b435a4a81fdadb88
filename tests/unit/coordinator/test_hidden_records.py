"""Where somebody's open transaction hides records, a chained pipeline does not say that all is well."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from codes import raises
from unit.world import World, values

from onceonly.cli.run import _nothing_to_do
from onceonly.coordinator.plan import Planned
from onceonly.errors import Busy
from onceonly.kafka.transactions import Described, Holder
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services
from onceonly.sources.kafka_log import _is_overdue
from onceonly.views.summary import Lag, Summary


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Records 0 to 4 are published."""
    made = World(tmp_path)
    made.run("run-1")
    return made


def plan(world: World) -> Planned:
    return world.coordinator.plan(world.pipeline, "run-2", world.alive)


def measure(world: World) -> Lag:
    done = world.now(1)
    return live_services.measure_lag(world.parts, Summary("flights", done, done, ()))  # type: ignore[arg-type]


def test_committed_records_behind_it_make_plan_busy(world: World) -> None:
    world.put(5, 6, 7)
    world.source.hold(0, 5)
    with pytest.raises(Busy) as error:
        plan(world)
    assert error.value.code == "open-transaction"
    assert "partition 0: a transaction of producer 1 is open from offset 5 on" in error.value.why
    assert "the 3 offsets behind it" in error.value.why
    assert world.events()[-1] == "committed"
    world.source.hold(0, None)
    world.run("run-2")
    assert values(world.lake) == list(range(8))


def test_records_of_the_transaction_alone_are_not_new(world: World) -> None:
    world.put(5, 6, 7)
    world.source.hold(0, 5, own=3)
    planned = plan(world)
    assert (planned.checkpoint, planned.hidden_offsets) == (None, 3)
    assert _nothing_to_do(planned) == (
        "no_new_data",
        "no new data: 3 records of open transactions cannot be read before these have ended, nothing to do yet",
    )


def test_overdue_transaction_makes_plan_busy(world: World) -> None:
    world.put(5)
    world.source.hold(0, 5, own=1, overdue=True)
    with raises(Busy, "open-transaction"):
        plan(world)


def test_what_can_be_read_is_read(world: World) -> None:
    world.put(5, 6, 7)
    world.source.hold(0, 6)
    world.run("run-2")
    assert values(world.lake) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(Busy):
        world.plan("run-3")


def test_other_partitions_go_on(world: World) -> None:
    world.put(5, 6, 7)
    world.source.hold(0, 5)
    world.put(10, 11, partition=1)
    world.run("run-2")
    assert values(world.lake) == [0, 1, 2, 3, 4, 10, 11]


def test_transaction_that_ends_meanwhile_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put(5, 6, 7)
    world.source.hold(0, 5)
    source = type(world.source)
    wait = source.await_transactions

    def await_transactions(self: object, log: object) -> object:
        world.source.hold(0, None)
        return wait(self, log)  # type: ignore[arg-type]

    monkeypatch.setattr(source, "await_transactions", await_transactions)
    world.run("run-2")
    assert values(world.lake) == list(range(8))


def test_first_plan_pins_where_it_begins(tmp_path: Path) -> None:
    """It reads what is committed from now on, so it does not wait for what is committed later."""
    world = World(tmp_path, source=KafkaSource("flights", start="latest"))
    world.put(5, 6, 7)
    world.source.hold(0, 5)
    first = world.plan("run-1")
    assert first is not None
    assert first.ranges[0].partitions == {0: (5, 5)}


def test_lag_counts_what_nobody_can_read_yet(world: World) -> None:
    world.put(5, 6, 7, 8)
    world.source.hold(0, 6)
    assert (measure(world).records, measure(world).blocked_records) == (4, 3)
    world.source.hold(0, None)
    assert (measure(world).records, measure(world).blocked_records) == (4, 0)


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("state", "age", "overdue"),
    [
        ("Ongoing", timedelta(minutes=10), False),
        ("Ongoing", timedelta(minutes=17), True),
        ("PrepareAbort", timedelta(minutes=15, seconds=30), False),  # it ends as this is asked
        ("PrepareCommit", timedelta(minutes=17), True),
        ("CompleteAbort", timedelta(0), True),  # its coordinator is done with it, and this partition has no marker
        ("Empty", timedelta(0), True),
    ],
)
def test_transaction_is_overdue_behind_its_time_out(state: str, age: timedelta, overdue: bool) -> None:
    described = Described(state, 1, 0, 900.0, NOW - age, frozenset())
    assert _is_overdue(Holder(1, 0, 5, False, "id", described), NOW) is overdue


def test_transaction_of_an_unknown_id_is_not_overdue() -> None:
    assert not _is_overdue(Holder(1, 0, 5, False), NOW)
