"""A request to a broker that has died: it is tried again until the others have noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from codes import raises

from onceonly.errors import NotCommitted
from onceonly.kafka import admin
from onceonly.kafka.admin import ADMIN_TIMEOUT_SECONDS, FAILOVER, BrokerClient

SESSION_SECONDS = 9.0  # broker.session.timeout.ms of Kafka


class Clock:
    """Passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.start = self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def passed(self) -> float:
        return self.now - self.start


def error_of_kafka(name: str) -> Exception:
    import kafka.errors  # not before the client has silenced the warnings of that import

    made: Exception = getattr(kafka.errors, name)()
    return made


class Failing(BrokerClient):
    """Its request fails until some time has passed; what asks for the brokers may be answered."""

    def __init__(self, clock: Clock, error: str, until: float, others_answer: bool) -> None:
        super().__init__({"bootstrap_servers": "nowhere:1"})
        self.clock, self.until, self.others_answer = clock, until, others_answer
        self.error = error_of_kafka(error)

    def _call_once(self, request: Callable[[], Any], deadline: float, is_retry: bool) -> Any:
        if request == self.brokers:
            if self.others_answer:
                return [2, 3]
            raise error_of_kafka("NodeNotReadyError")
        if self.clock.passed < self.until:
            raise self.error
        return "answer"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(admin, "monotonic", lambda: made.now)
    monkeypatch.setattr(admin, "sleep", made.sleep)
    return made


async def _request() -> str:
    return "answer"


GONE = ["KafkaConnectionError", "NodeNotReadyError"]


@pytest.mark.parametrize("error", GONE)
@pytest.mark.parametrize("until", [SESSION_SECONDS, 2 * SESSION_SECONDS])
def test_a_dead_broker_is_waited_for_while_another_answers(clock: Clock, error: str, until: float) -> None:
    assert Failing(clock, error, until, others_answer=True).call(_request) == "answer"


@pytest.mark.parametrize("error", GONE)
def test_brokers_that_are_all_gone_are_no_answer_in_the_usual_time(clock: Clock, error: str) -> None:
    with raises(NotCommitted, "kafka-unreachable"):
        Failing(clock, error, 1_000, others_answer=False).call(_request)
    assert clock.passed <= ADMIN_TIMEOUT_SECONDS


def test_another_error_is_not_waited_for_longer(clock: Clock) -> None:
    with raises(NotCommitted, "kafka-unreachable"):
        Failing(clock, "CoordinatorLoadInProgressError", 1_000, others_answer=True).call(_request)
    assert clock.passed <= ADMIN_TIMEOUT_SECONDS


def test_a_broker_that_stays_away_is_no_answer(clock: Clock) -> None:
    with raises(NotCommitted, "kafka-unreachable"):
        Failing(clock, GONE[0], 1_000, others_answer=True).call(_request)
    assert 2 * SESSION_SECONDS < clock.passed <= FAILOVER * ADMIN_TIMEOUT_SECONDS
