"""Requests about a topic whose leaders have just changed."""

from __future__ import annotations

import pytest
from codes import raises
from confluent_kafka import KafkaError, KafkaException

from onceonly.errors import NotCommitted
from onceonly.kafka import topic
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.topic import TopicClient


class Moving:
    """A request that is answered so once, and carried out then."""

    def __init__(self, code: int) -> None:
        self.code, self.asked = code, 0

    def __call__(self) -> str:
        self.asked += 1
        if self.asked == 1:
            raise KafkaException(KafkaError(self.code))
        return "answer"


@pytest.fixture
def client() -> TopicClient:
    return TopicClient("flights", KafkaConnection.plaintext("nowhere:1"))


NEW_LEADER = ["NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"]


@pytest.mark.parametrize("name", [*NEW_LEADER, "OFFSET_NOT_AVAILABLE"])
def test_new_leader_is_waited_for(client: TopicClient, name: str) -> None:
    assert client._request(Moving(getattr(KafkaError, name))) == "answer"


def test_leader_that_stays_away_is_no_answer(client: TopicClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.admin is not None  # made with the usual time-out
    monkeypatch.setattr(topic, "REQUEST_SECONDS", -1.0)
    with raises(NotCommitted, "kafka-unreachable"):
        client._request(Moving(KafkaError.UNKNOWN_LEADER_EPOCH))


def test_other_errors_are_not_repeated(client: TopicClient) -> None:
    request = Moving(KafkaError.UNKNOWN)
    with raises(NotCommitted, "kafka-unreachable"):
        client._request(request)
    assert request.asked == 1
