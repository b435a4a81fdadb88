"""Rows that the brokers, or the client, would refuse after the decision are refused before it, and named."""

from __future__ import annotations

from time import time
from typing import Any

import pyarrow as pa
import pytest
from codes import raises

from onceonly.errors import InvalidPipeline
from onceonly.sinks.kafka import limits
from onceonly.sinks.kafka.limits import DAY_MILLISECONDS, CheckedRows, Topic, Topics
from onceonly.sinks.kafka.spool import SPOOL_SCHEMA

NOW = int(time() * 1000)
HOUR = DAY_MILLISECONDS // 24
USUAL = Topic(4, 1_048_588, ahead=HOUR)


def rows(*changes: dict[str, Any], first: int = 0) -> CheckedRows:
    plain = {"topic": "out", "value": b"v", "headers": []}
    batch = pa.RecordBatch.from_pylist([{**plain, **change} for change in changes], SPOOL_SCHEMA)
    return CheckedRows("late", batch, first, "Spark partition 3")


def refused(topic: Topic, *changes: dict[str, Any]) -> str:
    with pytest.raises(InvalidPipeline) as error:
        limits.check(Topics({"out": topic}), rows(*changes, first=100))
    assert "Nothing was published" in error.value.todo
    return str(error.value)


def accepted(topic: Topic, *changes: dict[str, Any]) -> None:
    limits.check(Topics({"out": topic}), rows(*changes))


# ---- keys


def test_a_compacted_topic_takes_no_row_without_a_key():
    compacted = Topic(4, 1_048_588, keyed=True)
    accepted(compacted, {"key": b""}, {"key": b"k"})
    said = refused(compacted, {"key": b"k"}, {}, {}, {"key": b"k"})
    assert "row 101 of Spark partition 3 for topic 'out' has no key" in said
    assert "the same applies to 1 more of 4 rows" in said


# ---- times


@pytest.mark.parametrize("time", [0, -1, -2, -DAY_MILLISECONDS])
def test_a_time_that_kafka_takes_for_another_is_refused(time):
    assert "has the timestamp 19" in refused(USUAL, {"timestamp": time})


@pytest.mark.parametrize("time", [1, NOW, NOW + HOUR - 60_000, None], ids=str.split("1ms now soon none"))
def test_any_other_time_that_the_topic_takes_is_accepted(time):
    accepted(USUAL, {"timestamp": time}, {"timestamp": 1})


def test_a_time_too_far_ahead_is_refused():
    ahead = int(time() * 1000) + 2 * HOUR  # NOW was an hour ago, where the whole suite takes that long
    said = refused(USUAL, {"key": b"k", "timestamp": NOW}, {"key": b"k", "timestamp": ahead})
    assert "row 101 of Spark partition 3 (key b'k') has the timestamp" in said
    assert "too far in the future for topic 'out'." in said
    assert "The topic's message.timestamp.after.max.ms is 3,600,000" in said


def test_a_time_too_far_back_is_refused_with_a_margin_for_the_time_until_it_is_written():
    week = Topic(4, 1_048_588, behind=7 * DAY_MILLISECONDS)
    accepted(week, {"timestamp": NOW - 6 * DAY_MILLISECONDS})
    for age in (8 * DAY_MILLISECONDS, 7 * DAY_MILLISECONDS - HOUR, int(6.5 * DAY_MILLISECONDS)):
        assert "message.timestamp.before.max.ms is 604,800,000" in refused(week, {"timestamp": NOW - age})


def test_where_the_brokers_stamp_the_rows_their_own_time_is_of_no_account():
    accepted(Topic(4, 1_048_588, stamped=True), {"timestamp": 0}, {"timestamp": NOW + DAY_MILLISECONDS})


@pytest.mark.parametrize("bound", [2**63 - 2, 10**17])
def test_bounds_beyond_all_dates_refuse_nothing(bound):
    accepted(Topic(4, 1_048_588, behind=bound, ahead=bound), {"timestamp": 253402300799999}, {"timestamp": 1})


# ---- sizes


@pytest.mark.parametrize(
    ("key", "headers", "around"),
    [
        (None, [], 72),
        (b"k" * 200, [], 73),
        (None, [{"key": "я" * 100, "value": None}], 75),
        (None, [{"key": "h", "value": b"x" * 100}] * 3, 81),
    ],
)
def test_a_row_is_accepted_up_to_the_last_byte(key, headers, around):
    """The figures are a broker's: tests/integration/test_kafka_rows.py."""
    payload = len(key or b"") + sum(len(h["key"].encode()) + len(h["value"] or b"") for h in headers)
    largest = 1_000_000 - payload - around
    topic = Topic(4, 1_000_000)
    accepted(topic, {"key": key, "headers": headers, "value": b"x" * largest})
    assert "1,000,001 as a Kafka record batch" in refused(
        topic, {"key": key, "headers": headers, "value": b"x" * (largest + 1)}
    )


def test_the_row_that_is_too_large_is_named_among_others():
    said = refused(Topic(4, 1000), {"value": b"x" * 900}, {"key": b"big", "value": b"x" * 1200}, {"value": b"x" * 1201})
    assert "row 101 of Spark partition 3 (key b'big') has 1,203 bytes" in said
    assert "1 more of 3 rows" in said


def test_no_row_is_larger_than_what_the_client_holds():
    said = refused(Topic(4, 500 << 20), {"value": b"x" * (65 << 20)})
    assert "the client at most 67,108,864" in said


# ---- headers, partitions, topics


@pytest.mark.parametrize("key", [None, "a\0b"])
def test_a_header_whose_key_cannot_be_sent_is_refused(key):
    good = {"headers": [{"key": "", "value": b""}]}
    accepted(USUAL, good, {"headers": None})
    assert "row 101 of Spark partition 3 has a header" in refused(
        USUAL, good, {"headers": [{"key": "a", "value": None}, {"key": key, "value": None}]}
    )


def test_a_header_whose_key_is_no_text_is_refused():
    keys = pa.array([b"\xff"]).view(pa.string())
    headers = pa.ListArray.from_arrays([0, 1], pa.StructArray.from_arrays([keys, pa.array([b"v"])], ["key", "value"]))
    columns = dict(zip(SPOOL_SCHEMA.names, rows({}).batch.columns, strict=True)) | {"headers": headers}
    batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=SPOOL_SCHEMA)
    with raises(InvalidPipeline, "row-not-accepted"):
        limits.check(Topics({"out": USUAL}), CheckedRows("late", batch, 0, "here"))


@pytest.mark.parametrize("partition", [4, -1])
def test_a_partition_that_is_not_there_is_refused(partition):
    said = refused(USUAL, {"partition": 3}, {"partition": partition}, {"partition": None})
    assert f"row 101 of Spark partition 3 has partition {partition} of topic 'out'" in said


def test_each_topic_is_asked_for_its_own_rows_alone():
    topics = Topics({"out": Topic(4, 1_048_588), "keyed": Topic(1, 1_048_588, keyed=True)})
    limits.check(topics, rows({"partition": 3}, {"topic": "keyed", "key": b"k", "partition": 0}))
    with raises(InvalidPipeline, "row-not-accepted"):
        limits.check(topics, rows({}, {}, {"topic": "keyed"}, {"topic": "keyed", "key": b"k"}))
    with raises(InvalidPipeline, "row-not-accepted"):
        limits.check(topics, rows({}, {"topic": "else"}))
    with raises(InvalidPipeline, "row-not-accepted"):
        limits.check(topics, rows({"topic": None}))
