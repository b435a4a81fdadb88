"""Whatever is accepted while staging is taken by a real broker afterwards, exactly as it is; and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from time import time
from typing import Any

import pytest
from codes import raises
from integration.projects.late_kafka import Late
from integration.readers.kafka_reader import committed, new_topic, set_config
from integration.services.own_broker import running

from onceonly.dev.services import machine
from onceonly.dev.services.kafka import KafkaBroker
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.sinks.kafka import limits
from onceonly.sinks.kafka.limits import Topic

pytestmark = pytest.mark.integration
Make = Callable[..., Late]
MILLISECONDS = int(time() * 1000)
HOUR = 3600 * 1000
DAY = 24 * HOUR
codecs = pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
both_stamps = pytest.mark.parametrize("stamp", ["CreateTime", "LogAppendTime"])


@pytest.fixture
def make(tmp_path: Path, broker: str) -> Make:
    return lambda **config: Late(tmp_path, broker, new_topic(broker, 1, **config))


def refusals(step: Callable[[], Any]) -> Iterator[str]:
    with pytest.raises(InvalidPipeline) as refusal:
        step()
    assert refusal.value.code == "row-not-accepted"
    yield str(refusal.value)


def refused_by_the_broker(late: Late, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], words: str) -> None:
    """While staging; and were it not for that, after the decision, for ever, which names the row, too."""
    for _ in refusals(lambda: late.stage([row])):
        pass
    with monkeypatch.context() as without:
        without.setattr(limits, "check", lambda *_: None)
        without.setattr(Topic, "room", property(lambda _: limits.QUEUE))  # nor does the client refuse it
        late.stage([row])
        for _ in range(2):
            with raises(NotCommitted, "broker-not-writable", match=words):
                late.commit()
    for said in refusals(late.commit):
        assert "row 0 of " in said
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
    late, times = make(), [MILLISECONDS, 1, MILLISECONDS + HOUR - 60_000, 1357016400000]
    for wrong in (0, -1, -2, -DAY):
        with raises(InvalidPipeline, "row-not-accepted", match="1970"):
            late.stage([{"timestamp": millis} for millis in (*times, wrong)])
    late.stage([{"timestamp": millis} for millis in times], [{"timestamp": 2}])
    late.commit()
    found = [record.timestamp for record in committed(late.bootstrap, late.topic)]
    assert sorted(found) == sorted([*times, 2])


def test_a_topic_that_the_brokers_stamp_takes_any_time_that_clients_send(make: Make) -> None:
    late = make(message_timestamp_type="LogAppendTime")
    with raises(InvalidPipeline, "row-not-accepted", match="before 1970"):
        late.stage([{"timestamp": -1}])
    late.stage([{"timestamp": millis} for millis in (0, 1, MILLISECONDS + 9 * DAY)])
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
    over = limits._smallest_batch_size(late.batch([{**row, "value": b"x" * (largest - 400)}]), 0) - largest
    fits = {**row, "value": b"x" * (largest - 400 - over)}
    refused_by_the_broker(late, monkeypatch, {**fits, "value": fits["value"] + b"x"}, "Message size too large")
    late.stage([{}, {}, fits, {}, fits, {}])
    late.commit()
    found = committed(late.bootstrap, late.topic)
    assert [record.value for record in found] == [b"v", b"v", fits["value"], b"v", fits["value"], b"v"]
    assert found[2].headers == tuple((header["key"], header["value"]) for header in row.get("headers", ()))


def test_small_rows_fit_a_topic_of_small_batches(make: Make) -> None:
    """The client's own smallest bound is 1000 bytes."""
    late = make(max_message_bytes="300")
    late.stage([{"value": b"%d" % number} for number in range(500)])
    late.commit()
    assert len(committed(late.bootstrap, late.topic)) == 500


# ---- topics that compress again, and segments


@both_stamps
@codecs
def test_a_time_before_1970_into_a_topic_that_compresses_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, codec: str, stamp: str
) -> None:
    late = make(compression_type=codec, message_timestamp_type=stamp)
    refused_by_the_broker(late, monkeypatch, {"timestamp": -DAY}, "compression.type must allow these rows")
    late.stage([{"timestamp": 1}, {"timestamp": MILLISECONDS}, {}])
    late.commit()
    assert len(committed(late.bootstrap, late.topic)) == 3


@codecs
def test_rows_that_grow_when_they_are_compressed_again(make: Make, monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """Whatever cannot be compressed at all: it arrives if it is accepted, however many rows share a batch."""
    late, largest, chance = make(compression_type=codec, max_message_bytes="200000"), 200_000, Random(7)
    most = Topic(1, largest, recompressed=True).room
    around = limits._smallest_batch_size(late.batch([{"value": b"x" * 150_000}]), 0) - 150_000
    full = {"value": chance.randbytes(largest - around)}
    refused_by_the_broker(late, monkeypatch, full, "max.message.bytes must allow these rows")
    rows = [{"value": chance.randbytes(size)} for size in (most - around, most // 2 - 50, most // 2 - 50, *range(300))]
    late.stage(rows)
    late.commit()
    assert [record.value for record in committed(late.bootstrap, late.topic)] == [row["value"] for row in rows]


def test_a_row_larger_than_a_segment(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    late = make(max_message_bytes="10000000", segment_bytes="1048576")
    row = {"value": b"x" * 2_000_000}
    refused_by_the_broker(late, monkeypatch, row, "segment.bytes must allow these rows")
    late.stage([{"value": b"x" * 1_000_000}] * 3)
    late.commit()
    assert len(committed(late.bootstrap, late.topic)) == 3


SETTINGS: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("max_message_bytes", {"max_message_bytes": "5000"}, {"value": b"x" * 6000}),
    ("segment_bytes", {"segment_bytes": "1048576"}, {"value": b"x" * 2_000_000}),
    ("cleanup_policy", {"cleanup_policy": "compact"}, {}),
    ("compression_type", {"compression_type": "zstd"}, {"value": Random(7).randbytes(9_990_000)}),
    ("before", {"message_timestamp_before_max_ms": str(DAY)}, {"timestamp": MILLISECONDS - 2 * DAY}),
    ("after", {"message_timestamp_after_max_ms": "60000"}, {"timestamp": MILLISECONDS + HOUR - 60_000}),
]


@pytest.mark.parametrize(
    ("config", "row"), [setting[1:] for setting in SETTINGS], ids=[setting[0] for setting in SETTINGS]
)
def test_a_setting_that_changes_after_the_decision(make: Make, config: dict[str, str], row: dict[str, Any]) -> None:
    """The message names it and the row; and once it is changed back, the commit publishes."""
    before = {"max_message_bytes": "10000000", "segment_bytes": "1073741824", "cleanup_policy": "delete"}
    before |= {"compression_type": "producer", "message_timestamp_before_max_ms": str(2**63 - 1)}
    before |= {"message_timestamp_after_max_ms": str(HOUR)}
    late = make(**before)
    late.stage([{"key": b"k"}, row])
    set_config(late.bootstrap, late.topic, **config)
    for said in refusals(late.commit):
        assert "row 1 of " in said
        assert next(iter(config)).replace("_", ".") in said
    set_config(late.bootstrap, late.topic, **{key: before[key] for key in config})
    late.commit()
    assert len(committed(late.bootstrap, late.topic)) == 2
    assert late.open() == []


def test_a_row_larger_than_a_request_may_be(tmp_path: Path) -> None:
    """Brokers close the connection then, and say nothing."""
    with running(SmallRequests(tmp_path / "own", machine.free_port())) as own:
        started = own.daemon.running()
        assert started is not None
        bootstrap = own.address(started.port)
        late = Late(tmp_path, bootstrap, new_topic(bootstrap, 1, max_message_bytes="10000000"))
        for said in refusals(lambda: late.stage([{"value": b"x" * 400_000}])):
            assert "socket.request.max.bytes" in said
        late.stage([{"value": b"x" * 298_000}] * 3)
        late.commit()
        assert len(committed(bootstrap, late.topic)) == 3


class SmallRequests(KafkaBroker):
    def properties(self, port: int) -> str:
        return super().properties(port) + "\nsocket.request.max.bytes=300000\n"
