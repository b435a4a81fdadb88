"""Late mode on a slow network: each round is recorded and ended before its time-out, whatever the whole takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from codes import raises

from onceonly.checkpoint.model import Transaction
from onceonly.errors import Fenced, NotCommitted, OutcomeUnknown
from onceonly.sinks.kafka import commit
from onceonly.sinks.kafka.commit import Republisher
from onceonly.sinks.kafka.handle import Ids, Part, Tx
from onceonly.sinks.kafka.limits import Topics
from onceonly.sinks.kafka.producer import SendTarget

TXN = Transaction("0123456789ab", "flights", "late", 1, 1, "nonce")


class Slow:
    """Brokers that take so many seconds for each part, one after the other, and end what is open for too long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float, longest: float = 0.0) -> None:
        self.now, self.seconds, self.longest = 0.0, seconds, longest
        self.begun: dict[str, float] = {}
        self.timeouts: dict[str, float] = {}
        self.fenced: list[str] = []
        self.rounds: list[int] = []
        monkeypatch.setattr(commit, "monotonic", lambda: self.now)
        monkeypatch.setattr(commit, "side_by_side", self._side_by_side)
        monkeypatch.setattr(commit.producer, "write_all", self._write_all)

    def again(self, timeout: float) -> Republisher:
        known: Any = self
        ids = Ids("onceonly", TXN, None)
        return Republisher(known, SendTarget("late", {}, Topics({}), timeout), ids, lambda part: [], self.confirm)

    def publish(self, parts: int, timeout: float) -> list[int]:
        """As a commit does it: round after round, each recorded and ended. How many parts each round had."""
        again, rounds, lost = self.again(timeout), list[int](), pieces(parts)
        while lost:
            opened = again.write(lost)
            rounds.append(len(opened))
            lost = [part for part in lost if part.spool not in opened]
        return rounds

    def fence(self, id: str) -> None:
        self.fenced.append(id)

    def read_max_transaction_timeout(self) -> float:
        return self.longest

    def confirm(self, written: Mapping[str, Any]) -> dict[str, Tx]:
        for id in written:
            if self.now - self.begun[id] >= self.timeouts[id]:
                raise NotCommitted(f"{id} is CompleteAbort")
        return {id: Tx(id, 1, 0, {}) for id in written}

    def _side_by_side(self, function: Any, items: Sequence[Any]) -> list[Any]:
        """All begin at once, and share the way to the brokers."""
        begun, results = self.now, []
        for item in items:
            results.append(function(item))
            self.begun |= {id: begun for id in self.begun if self.begun[id] > begun}
        return results

    def _write_all(self, target: SendTarget, id: str, *_: Any) -> None:
        self.begun[id], self.timeouts[id] = self.now, target.timeout
        self.now += self.seconds


def pieces(count: int) -> list[Part]:
    return [Part(f"{number}-spool.parquet", 5, None) for number in range(count)]


def test_what_is_quick_is_written_in_one_round(monkeypatch):
    assert Slow(monkeypatch, 0.01).publish(200, timeout=60) == [200]


def test_what_takes_longer_than_the_time_out_is_written_in_several_rounds(monkeypatch):
    slow = Slow(monkeypatch, seconds=1)
    rounds = slow.publish(100, timeout=60)
    assert rounds == [24, 24, 24, 24, 4]
    assert slow.now == 100, "nothing was written twice"


def test_where_eight_at_once_are_too_many_it_goes_on_with_fewer(monkeypatch):
    slow = Slow(monkeypatch, seconds=10)
    assert slow.publish(5, timeout=30) == [2, 2, 1]
    assert len(slow.fenced) == 5 + 4, "what was lost was ended: the rounds of five and of four"


def test_at_last_one_alone_gets_as_long_as_the_brokers_allow(monkeypatch):
    slow = Slow(monkeypatch, seconds=300, longest=900)
    assert slow.publish(3, timeout=30) == [1, 1, 1]
    assert set(list(slow.timeouts.values())[-3:]) == {900}


def test_a_part_that_takes_longer_than_any_transaction_says_what_to_do(monkeypatch):
    slow = Slow(monkeypatch, seconds=1000, longest=900)
    with pytest.raises(OutcomeUnknown) as error:
        slow.publish(2, timeout=30)
    assert "writing 5 rows takes longer than a transaction may last" in error.value.what
    assert "transaction_timeout" in error.value.why
    assert "transaction.max.timeout.ms" in error.value.todo
    assert sorted(slow.fenced) == sorted(slow.begun), "nothing is left open"


@pytest.mark.parametrize("error", [NotCommitted("no broker"), Fenced("a rival"), KeyboardInterrupt()])
def test_what_fails_before_the_time_out_is_no_time_out(monkeypatch, error):
    slow = Slow(monkeypatch, seconds=1)

    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(slow, "confirm", fails)
    with pytest.raises(type(error)):
        slow.publish(3, timeout=30)
    assert len(slow.begun) == len(slow.fenced) == 3


def test_a_part_that_is_lost_again_and_again_is_not_written_for_ever(monkeypatch):
    again, lost = Slow(monkeypatch, 0.01).again(60), pieces(1)
    for _ in range(commit.MAX_TRIES):
        again.write(lost)
    with raises(OutcomeUnknown, "transaction-lost"):
        again.write(lost)
