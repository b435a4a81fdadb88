"""Words for a row that Kafka would always refuse: what it is, why it is refused, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from onceonly.counts import count
from onceonly.errors import InvalidPipeline
from onceonly.unix_time import MILLISECOND, UNIX_EPOCH

SHOWN_KEY = 80  # bytes
TIME_TODO = "Leave 'timestamp' null (the time of writing), or raise the topic's setting."


class Words(NamedTuple):
    """What completes "row 3 …", as a clause, and two sentences."""

    what: str
    why: str
    todo: str


def error(sink: str, place: str, key: bytes | None, words: Words, more: str = "") -> InvalidPipeline:
    """Return the error of one row.

    Args:
        place: such as "row 3 of Spark partition 0".
        more: a clause about other rows.
    """
    subject = place
    if key:
        subject += f" (key {key[:SHOWN_KEY]!r})"
    return InvalidPipeline(
        f"sink '{sink}': Kafka does not accept all of its rows.",
        f"Of these, {subject} {words.what}{more}. {words.why}",
        f"{words.todo} Nothing was published.",
        code="row-not-accepted",
    )


def topic(name: str | None, allowed: Iterable[str]) -> Words:
    return Words(
        f"has topic {name!r}",
        f"Allowed: {', '.join(sorted(allowed))}.",
        "Fix the column 'topic', or add the topic to KafkaSink(topics=…).",
    )


def partition(number: int, topic: str, partitions: int) -> Words:
    return Words(
        f"has partition {number} of topic '{topic}'",
        f"The topic has {count(partitions, 'partition')}, numbered from 0.",
        "Fix the column 'partition', or leave it null to let the key decide.",
    )


def key(topic: str) -> Words:
    return Words(
        f"for topic '{topic}' has no key",
        "The topic is compacted (cleanup.policy), so each record needs a key.",
        "Give each row a key, or use another topic.",
    )


def before_1970(time: int, topic: str) -> Words:
    return Words(
        f"for topic '{topic}' has the timestamp {_date(time)}, before 1970",
        "Kafka's Java client sends no such time, and to the brokers a millisecond before 1970 means 'no timestamp'.",
        "Leave 'timestamp' null (the time of writing), and put the time into the value.",
    )


def start_of_1970(topic: str) -> Words:
    return Words(
        f"for topic '{topic}' has the timestamp {_date(0)}",
        "In librdkafka, the start of 1970 means 'now'.",
        "Change it by a millisecond, or leave 'timestamp' null for the time of writing.",
    )


def too_old(time: int, topic: str, setting: int | None, earliest: int) -> Words:
    return Words(
        f"has the timestamp {_date(time)}, too old for topic '{topic}'",
        f"The topic's message.timestamp.before.max.ms is {setting:,}. The limit here is {_date(earliest)}, "
        "because rows may be written some time after they were staged.",
        TIME_TODO,
    )


def too_far_ahead(time: int, topic: str, setting: int | None, latest: int) -> Words:
    return Words(
        f"has the timestamp {_date(time)}, too far in the future for topic '{topic}'",
        f"The topic's message.timestamp.after.max.ms is {setting:,}: the limit is now {_date(latest)}.",
        TIME_TODO,
    )


UNUSABLE_HEADER = Words(
    "has a header whose key cannot be sent",
    "The key of a header has to be UTF-8 text without a zero byte, at which the client would cut it off.",
    "Fix the column 'headers'.",
)


def size(size: int, batch_size: int, limit: str, client_limit: int, setting: str) -> Words:
    return Words(
        f"has {size:,} bytes, or {batch_size:,} as a Kafka record batch",
        f"The topic accepts at most {limit}, and the client at most {client_limit:,}.",
        f"Make the rows smaller, or raise {setting}.",
    )


def _date(millis: int) -> str:
    try:
        return (UNIX_EPOCH + millis * MILLISECOND).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{millis:,} ms from 1970"
