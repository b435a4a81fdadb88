"""What is said about the end of a transaction that was sent and not answered."""

from __future__ import annotations

from typing import Any

from codes import raises

from onceonly.errors import NotCommitted, OutcomeUnknown
from onceonly.kafka.transactions import Transactions


class Silent:
    """Brokers that take the request, and answer "not now" until the time is over."""

    address, timeout = "nowhere:1", 10.0

    def call(self, attempt: Any) -> None:
        attempt.__self__.is_sent = True
        raise NotCommitted("the Kafka broker did not answer.", "Error 51.", "Nothing was published.")


def test_an_end_without_an_answer_is_not_said_to_have_published_nothing() -> None:
    known = Transactions({"bootstrap_servers": "nowhere:1"})
    known._client, known._version = Silent(), 2  # type: ignore[assignment]
    with raises(OutcomeUnknown, "transaction-end-unconfirmed", r"Error 51\.") as error:
        known.end("an id", 1, 0, commit=True)
    assert "Nothing was published" not in str(error.value)
