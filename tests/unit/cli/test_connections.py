"""Commands look where tasks look: the environment first, then whoever provides `onceonly.connections`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceonly.cli import connections
from onceonly.errors import InvalidPipeline, NotCommitted

VARIABLE = "AIRFLOW_CONN_KAFKA_EV"
EXTRA = {"bootstrap.servers": "b:9092"}
JSON = '{"conn_type": "generic", "extra": {"bootstrap.servers": "b:9092"}}'


class Provider:
    """An entry point whose function answers by `answer`, and remembers what it was asked."""

    def __init__(self, answer: Callable[[], tuple[str | None, str]]) -> None:
        self.answer, self.asked = answer, list[str]()

    def load(self) -> Any:
        return self

    def __call__(self, conn_id: str) -> tuple[str | None, str]:
        self.asked.append(conn_id)
        return self.answer()


@pytest.fixture
def provide(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Provider]]:
    def use(*answers: Callable[[], tuple[str | None, str]]) -> list[Provider]:
        providers = [Provider(answer) for answer in answers]
        monkeypatch.setattr(connections, "entry_points", lambda group: providers)
        monkeypatch.setenv(VARIABLE, "")
        return providers

    return use


def test_environment_comes_first(provide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (provider,) = provide(lambda: (None, "never asked"))
    monkeypatch.setenv(VARIABLE, JSON)
    assert connections.read_extra("kafka_ev") == EXTRA
    assert provider.asked == []


def test_what_a_provider_knows_is_asked_for_once(provide: Any) -> None:
    first, second, third = provide(lambda: (None, "unknown"), lambda: (JSON, ""), lambda: (None, "unknown"))
    for _ in range(2):
        assert connections.read_extra("kafka_ev") == EXTRA
    assert (first.asked, second.asked, third.asked) == (["kafka_ev"], ["kafka_ev"], [])


def test_stores_ask_too(provide: Any) -> None:
    provide(lambda: ('{"conn_type": "aws", "login": "key", "password": "s3cret"}', ""))
    found = connections.read_store_connection("kafka_ev", "ONCEONLY_AWS_CONNECTION", "aws")
    assert found == ({}, "key", "s3cret")


@pytest.mark.parametrize(
    "read",
    [connections.read_extra, lambda id: connections.read_store_connection(id, "ONCEONLY_AWS_CONNECTION", "aws")],
)
def test_missing_one_says_where_it_was_looked_for(provide: Any, read: Callable[[str], Any]) -> None:
    provide(lambda: (None, "Airflow has none."))
    with pytest.raises(InvalidPipeline) as caught:
        read("kafka_ev")
    assert caught.value.code == "connection-missing"
    assert VARIABLE in caught.value.why and "Airflow has none." in caught.value.why


def test_unknown_is_not_missing(provide: Any) -> None:
    def fail() -> tuple[str | None, str]:
        raise NotCommitted("not known.", "No answer.", code="connection-unanswered")

    provide(fail)
    with pytest.raises(NotCommitted) as caught:
        connections.read_extra("kafka_ev")
    assert caught.value.code == "connection-unanswered"
