"""What a consumer group is told, and what it tells, whatever its coordinator answers; the client is a stand-in."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import confluent_kafka
import pytest
from codes import raises
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from onceonly.checkpoint.sink import Trace
from onceonly.errors import OutcomeUnknown
from onceonly.sources import consumer_group
from onceonly.sources.consumer_group import Group, OffsetMetadata

WHERE = "consumer group 'onceonly-flights' of topic 't'"
Held = dict[int, tuple[int, str]]  # partition -> offset, metadata


class Message:
    def __init__(self, code: int) -> None:
        self._error = KafkaError(code)

    def error(self) -> KafkaError:
        return self._error


class Answer:
    """As a TopicPartition that comes back, which may hold an error."""

    def __init__(self, partition: int, offset: int, metadata: str | None, error: KafkaError | None = None) -> None:
        self.partition, self.offset, self.metadata, self.error = partition, offset, metadata, error


class Coordinator:
    """Takes the place of `Consumer`: what a group holds, and errors to answer with first."""

    def __init__(self) -> None:
        self.held: Held = {}
        self.failures: list[Exception] = []  # of whatever is asked next
        self.wrong: dict[int, int] = {}  # partition -> error code in an answer
        self.messages: list[Message] = []
        self.commits: list[Held] = []
        self.asked = 0

    def __call__(self, settings: dict[str, Any]) -> Coordinator:
        assert settings["group.id"] == "onceonly-flights" and settings["enable.auto.commit"] is False
        return self

    def committed(self, wanted: list[TopicPartition], timeout: float) -> list[Answer]:
        self._fail()
        return [self._answer(at.partition) for at in wanted]

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[Answer]:
        self._fail()
        assert not asynchronous
        told = {at.partition: (at.offset, at.metadata) for at in offsets}
        self.commits.append(told)
        self.held |= told
        return [self._answer(partition) for partition in told]

    def poll(self, timeout: float) -> Message | None:
        return self.messages.pop(0) if self.messages else None

    def close(self) -> None:
        return

    def _answer(self, partition: int) -> Answer:
        error = KafkaError(self.wrong[partition]) if partition in self.wrong else None
        return Answer(partition, *self.held.get(partition, (-1001, None)), error)

    def _fail(self) -> None:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    made = Coordinator()
    monkeypatch.setattr(confluent_kafka, "Consumer", made)
    monkeypatch.setattr(consumer_group, "sleep", lambda seconds: None)
    monkeypatch.setattr(consumer_group, "monotonic", count().__next__)  # a second passes with every look at the clock
    return made


GROUP = Group({}, "onceonly-flights", "t", timeout=9)


def mark(decision: int, end: int, table: str = "one") -> OffsetMetadata:
    return OffsetMetadata(table, decision, decision, end)


def failing(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


# ---- report


def test_a_checkpoint_that_reports_late_takes_nothing_back(broker: Coordinator) -> None:
    GROUP.report({0: mark(6, 60), 1: mark(6, 60)})
    GROUP.report({0: mark(5, 50), 1: mark(5, 70)})
    assert broker.held == {0: (60, mark(6, 60).to_text()), 1: (70, mark(6, 60).to_text())}
    assert len(broker.commits[1]) == 1, "of partition 0 there is nothing to tell"


def test_after_a_rewind_the_mark_says_where_the_pipeline_goes_on(broker: Coordinator) -> None:
    GROUP.report({0: mark(5, 50)})
    GROUP.report({0: mark(6, 20)})
    assert broker.held == {0: (50, mark(6, 20).to_text())}
    assert GROUP.traces([0]) == [Trace("one", 6, WHERE, {"t": {0: 20}})]


def test_another_table_is_named_whatever_its_decision(broker: Coordinator) -> None:
    GROUP.report({0: mark(9, 90)})
    GROUP.report({0: mark(1, 10, "two")})
    assert broker.held == {0: (90, mark(1, 10, "two").to_text())}


def test_what_was_reported_is_not_reported_again(broker: Coordinator) -> None:
    for _ in range(2):
        GROUP.report({0: mark(5, 50)})
    assert len(broker.commits) == 1


@pytest.mark.parametrize("act", [lambda: GROUP.report({0: mark(5, 50)}), lambda: GROUP.traces([0])])
@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNSTABLE_OFFSET_COMMIT])
def test_an_error_of_one_partition_is_no_answer(broker: Coordinator, act: Callable[[], Any], code: int) -> None:
    broker.held, broker.wrong = {0: (70, mark(7, 70).to_text())}, {0: code}
    with raises(OutcomeUnknown, "group-inaccessible"):
        act()
    assert broker.commits == []


def test_an_offset_that_was_not_taken_is_no_success(broker: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = broker.commit

    def refused(**given: Any) -> list[Answer]:
        broker.wrong = {0: KafkaError.OFFSET_METADATA_TOO_LARGE}
        return taken(**given)

    monkeypatch.setattr(broker, "commit", refused)
    with raises(OutcomeUnknown, "group-inaccessible", match="'onceonly-flights'"):
        GROUP.report({0: mark(5, 50)})


# ---- a coordinator that is not there yet, or says no


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TIMED_OUT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    ],
)
def test_a_coordinator_that_is_being_created_is_retried(broker: Coordinator, code: int) -> None:
    broker.failures = [failing(code), failing(code)]
    GROUP.report({0: mark(5, 50)})
    assert broker.held == {0: (50, mark(5, 50).to_text())}


def test_not_for_ever(broker: Coordinator) -> None:
    broker.failures = [failing(KafkaError._TIMED_OUT)] * 1000
    with raises(OutcomeUnknown, "group-inaccessible"):
        GROUP.traces([0])
    assert broker.asked == GROUP.timeout + 1


def test_any_other_error_is_raised_at_once(broker: Coordinator) -> None:
    broker.failures = [failing(KafkaError.INVALID_GROUP_ID)]
    with pytest.raises(OutcomeUnknown):
        GROUP.traces([0])
    assert broker.asked == 1


def test_a_forbidden_group_is_not_retried(broker: Coordinator) -> None:
    """librdkafka would go on asking: it says why among its messages only."""
    broker.failures = [failing(KafkaError._TIMED_OUT)] * 1000
    broker.messages = [Message(KafkaError.GROUP_AUTHORIZATION_FAILED)]
    with raises(OutcomeUnknown, "group-inaccessible", match=r"(?i)author"):
        GROUP.traces([0])
    assert broker.asked == 1


# ---- traces


def test_a_partition_that_an_earlier_decision_was_the_last_to_tell_ends_nowhere(broker: Coordinator) -> None:
    """Proposed as where to go on, its end would be of another checkpoint than the others'."""
    GROUP.report({0: mark(5, 50), 1: mark(5, 55)})
    GROUP.report({0: mark(6, 60)})
    assert GROUP.traces([0, 1, 2]) == [Trace("one", 6, WHERE, {"t": {0: 60}})]


def test_each_table_that_is_named_is_a_trace(broker: Coordinator) -> None:
    GROUP.report({0: mark(9, 90)})
    GROUP.report({1: mark(9, 10, "two")})
    ends = [{"t": {0: 90}}, {"t": {1: 10}}]
    assert GROUP.traces([0, 1]) == [Trace("one", 9, WHERE, ends[0]), Trace("two", 9, WHERE, ends[1])]


@pytest.mark.parametrize("metadata", ["", "by hand", "[]", '{"decision": 7}', None])
def test_offsets_without_a_mark_are_of_an_unknown_table(broker: Coordinator, metadata: str) -> None:
    assert GROUP.traces([0]) == []
    broker.held = {0: (0, metadata)}
    assert GROUP.traces([0, 1]) == [Trace("", 0, WHERE)]
