"""Whatever is accepted while staging is taken by a real broker afterwards, exactly as it is; and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any

import pytest
from integration.projects.late_kafka import Late
from integration.readers.kafka_reader import committed, new_topic

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.sinks.kafka import limits

pytestmark = [pytest.mark.integration]
Make = Callable[..., Late]
MILLISECONDS = int(time() * 1000)
HOUR = 3600 * 1000
DAY = 24 * HOUR


@pytest.fixture
def make(tmp_path: Path, broker: str) -> Make:
    return lambda **config: Late(tmp_path, broker, new_topic(broker, 1, **config))


def refused_by_the_broker(late: Late, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], words: str) -> None:
    """While staging; and were it not for that, after the decision, for ever."""
    with pytest.raises(InvalidPipeline):
        late.stage([row])
    with monkeypatch.context() as without:
        without.setattr(limits, "check", lambda *_: None)
        late.stage([row])
    for _ in range(2):
        with pytest.raises(NotCommitted, match=words):
            late.commit()
    assert (committed(late.bootstrap, late.topic), late.open()) == ([], [])


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_row_without_a_key_into_a_compacted_topic(make: Make, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    late = make(cleanup_policy=policy)
    refused_by_the_broker(late, monkeypatch, {}, "failed to validate record.*cleanup.policy must allow these rows")
    late.stage([{"key": b""}, {"key": b"k", "value": b""}, {"key": b"k", "value": None}])
    late.commit()
    found = [(record.key, record.value) for record in committed(late.bootstrap, late.topic)]
    assert found == [(b"", b"v"), (b"k", b""), (b"k", None)]


@pytest.mark.parametrize(
    ("millis", "config"),
    [(MILLISECONDS + 2 * HOUR, {}), (MILLISECONDS - 8 * DAY, {"message_timestamp_before_max_ms": str(7 * DAY)})],
    ids=["ahead", "back"],
)
def test_a_time_out_of_the_topics_bounds(
    make: Make, monkeypatch: pytest.MonkeyPatch, millis: int, config: dict[str, str]
) -> None:
    refused_by_the_broker(make(**config), monkeypatch, {"timestamp": millis}, "Invalid timestamp.*message.timestamp")


def test_every_time_that_is_accepted_arrives_as_it_is(make: Make) -> None:
    late, times = make(), [MILLISECONDS, 1, -2, -DAY, MILLISECONDS + HOUR - 60_000, 1357016400000]
    for wrong in (0, -1):
        with pytest.raises(InvalidPipeline, match="the start of 1970 means 'now'"):
            late.stage([{"timestamp": millis} for millis in (*times, wrong)])
    late.stage([{"timestamp": millis} for millis in times], [{"timestamp": -DAY}], [{"timestamp": -2}])
    late.commit()
    found = [record.timestamp for record in committed(late.bootstrap, late.topic)]
    assert sorted(found) == sorted([*times, -DAY, -2])


def test_a_topic_that_the_brokers_stamp_takes_any_time(make: Make) -> None:
    late = make(message_timestamp_type="LogAppendTime")
    late.stage([{"timestamp": millis} for millis in (0, -1, MILLISECONDS + 9 * DAY)])
    late.commit()
    assert all(abs(r.timestamp - MILLISECONDS) < HOUR for r in committed(late.bootstrap, late.topic))


@pytest.mark.parametrize(
    ("largest", "row"),
    [
        (500, {}),
        (1_048_588, {}),
        (1_048_588, {"key": b"k" * 200}),
        (3_000_000, {"headers": [{"key": "я" * 70, "value": None}, {"key": "", "value": b""}]}),
    ],
)
def test_the_largest_row_that_is_accepted_is_the_largest_that_fits(
    make: Make, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], largest: int
) -> None:
    late = make(max_message_bytes=str(largest))
    over = limits._exact(late.batch([{**row, "value": b"x" * (largest - 400)}]), 0) - largest
    fits = {**row, "value": b"x" * (largest - 400 - over)}
    refused_by_the_broker(late, monkeypatch, {**fits, "value": fits["value"] + b"x"}, "Message size too large")
    late.stage([{}, {}, fits, {}, fits, {}])
    late.commit()
    found = committed(late.bootstrap, late.topic)
    assert [record.value for record in found] == [b"v", b"v", fits["value"], b"v", fits["value"], b"v"]
    assert found[2].headers == tuple((each["key"], each["value"]) for each in row.get("headers", ()))


def test_small_rows_fit_a_topic_of_small_batches(make: Make) -> None:
    """The client's own smallest bound is 1000 bytes."""
    late = make(max_message_bytes="300")
    late.stage([{"value": b"%d" % number} for number in range(500)])
    late.commit()
    assert len(committed(late.bootstrap, late.topic)) == 500
