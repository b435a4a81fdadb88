"""A sink that was given up may have the rows in truth: they never come beside themselves unless a person has looked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from codes import raises
from person import Person
from unit.coordinator.test_lost_targets import LostShop
from unit.coordinator.test_repairs import LAKE, TEN, corrected

from onceonly.checkpoint.model import State
from onceonly.errors import InvalidPipeline, OutcomeUnknown
from onceonly.testing.fakes import FakeSink


def give_up_unclear(shop: LostShop, epoch: int, sink: str = "lake", is_there: bool = True) -> None:
    """The commit is not answered, and may have arrived; then the target does not answer, and is said to be gone."""
    shop.stage(epoch)
    shop.target(sink).fail("commit", *(["after"] if is_there else []), *["unknown"] * 2)
    with pytest.raises(OutcomeUnknown):
        shop.commit(epoch)
    with pytest.MonkeyPatch.context() as patch:
        for call in ("fence", "commit"):
            patch.setattr(FakeSink, call, lambda *_: (_ for _ in ()).throw(ConnectionError("silent")))
        Person(shop.coordinator).give_up("flights", epoch, sink, "ann", "it is silent", gone=True)
    while shop.target(sink)._next_failure("commit"):
        pass


@pytest.fixture
def there(tmp_path: Path) -> Iterator[LostShop]:
    """The lake has the rows of its only interval, and nobody knows."""
    shop = LostShop(tmp_path)
    give_up_unclear(shop, shop.plan("run-1", TEN).epoch)
    assert "not_fenced" in shop.now(1).given_up["lake"]
    assert shop.rows("lake") == list(range(10))
    yield shop


@pytest.fixture
def absent(tmp_path: Path) -> LostShop:
    shop = LostShop(tmp_path)
    give_up_unclear(shop, shop.plan("run-1", TEN).epoch, is_there=False)
    assert shop.rows("lake") == []
    return shop


@pytest.mark.parametrize("wish", [{"keep": ("late",)}, {"again": ("late",)}, {"only": ("lake",)}])
def test_rows_that_may_be_there_do_not_come_beside_themselves(
    there: LostShop, wish: dict[str, tuple[str, ...]]
) -> None:
    head = there.head()
    with raises(InvalidPipeline, "rows-unclear") as refused:
        there.ask(**wish)
    assert "--keep lake" in refused.value.todo
    assert "--epoch 1 --only lake --again lake" in refused.value.todo
    assert there.head() == head
    assert there.rows("lake") == list(range(10))


def test_a_whole_interval_is_not_processed_again_beside_them(tmp_path: Path) -> None:
    shop = LostShop(tmp_path, sinks=[LAKE])
    give_up_unclear(shop, shop.plan("run-1", TEN).epoch)
    with raises(InvalidPipeline, "rows-unclear"):
        shop.ask()


def test_they_are_kept_where_a_person_says_so(there: LostShop) -> None:
    assert there.repair(keep=("lake",), again=("late",)).sinks == ("late",)
    assert there.rows("lake") == list(range(10))


def test_they_are_written_where_a_person_says_that_they_are_not_there(absent: LostShop) -> None:
    for _ in range(2):
        done = absent.repair(only=("lake",), again=("lake",))
        assert (done.epoch, done.sinks, done.again, done.absent) == (2, ("lake",), (), ("lake",))
    assert absent.rows("lake") == corrected(*range(10))
    assert absent.repair("ann: later", keep=("late",)).epoch == 3, "what is there now is known"
    assert len(absent.rows("lake")) == 10


def test_the_word_of_a_person_is_kept_over_an_abort(absent: LostShop) -> None:
    planned = absent.ask(only=("lake",), again=("lake",), owner="run-2")
    absent.stage_corrected(planned.epoch)
    absent.abort(planned.epoch)
    resumed = absent.ask(only=("lake",), again=("lake",), owner="run-3")
    assert (resumed.epoch, resumed.absent) == (planned.epoch, ("lake",))
    absent.stage_corrected(planned.epoch)
    assert absent.commit(planned.epoch).state is State.COMMITTED
    assert absent.rows("lake") == corrected(*range(10))


def test_the_earlier_rows_that_are_in_force_are_replaced_with_that_word(tmp_path: Path) -> None:
    """A correction was given up unclear, and did not arrive: the rows that it corrects are there."""
    shop = LostShop(tmp_path)
    shop.run("run-1", TEN)
    give_up_unclear(shop, shop.ask(keep=("late",)).epoch, is_there=False)
    with raises(InvalidPipeline, "rows-unclear"):
        shop.ask("ann: more", keep=("late",))
    done = shop.repair("ann: more", again=("lake", "late"))
    assert (done.again, done.absent) == (("late",), ("lake",))
    assert shop.rows("lake") == corrected(*range(10))


def test_a_topic_that_may_have_them_gets_them_by_the_same_word(tmp_path: Path) -> None:
    shop = LostShop(tmp_path)
    give_up_unclear(shop, shop.plan("run-1", TEN).epoch, "late", is_there=False)
    with raises(InvalidPipeline, "rows-unclear"):
        shop.ask(only=("late",))
    assert shop.repair(only=("late",), again=("late",)).again == ("late",)
    assert shop.rows("late") == corrected(*range(10))


def test_what_is_known_needs_no_such_word(tmp_path: Path) -> None:
    shop = LostShop(tmp_path)
    shop.run("run-1", TEN)
    with raises(InvalidPipeline, "again-not-needed"):
        shop.ask(again=("lake", "late"))


def test_no_rewind_passes_over_rows_that_may_be_there(tmp_path: Path) -> None:
    """Their records would be read again, beside them."""
    chain = LostShop(tmp_path, mode="chained", sinks=[LAKE])
    chain.run("run-1")
    chain.put(30)
    give_up_unclear(chain, chain.plan("run-2").epoch)
    with raises(InvalidPipeline, "rows-unclear"):
        Person(chain.coordinator).rewind("flights", 1, "ann", "wrong rates")
    assert chain.rows("lake") == [*range(20), 30]


def test_a_rewind_takes_back_what_was_completed_by_hand(tmp_path: Path) -> None:
    chain = LostShop(tmp_path, mode="chained", sinks=[LAKE])
    chain.run("run-1")
    chain.put(30)
    give_up_unclear(chain, chain.plan("run-2").epoch, is_there=False)
    chain.repair(interval=None, epoch=2, only=("lake",), again=("lake",))
    Person(chain.coordinator).rewind("flights", 1, "ann", "wrong rates")
    chain.run("run-3")
    assert chain.rows("lake") == [*range(20), 30]
