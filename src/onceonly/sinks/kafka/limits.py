"""Rows that the brokers, or the client, would always refuse: found while staging, before the decision.

For each batch some passes over whole columns; single rows are looked at only where one is about to be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import time

import pyarrow as pa
import pyarrow.compute as pc

from onceonly.errors import InvalidPipeline
from onceonly.sinks.staging.row_text import is_valid

QUEUE = 64 << 20  # bytes that wait to be sent, at most: what bounds the memory, and the largest row
BATCH = 61  # bytes of a record batch before its records
AROUND = 36  # bytes around a record's key, value and headers, as librdkafka counts: at most what they can be
AROUND_HEADER = 10  # the same of one header
DAY = 24 * 3600 * 1000  # milliseconds
NOW, NO_TIME = 0, -1  # what librdkafka, and Kafka, take these timestamps for


@dataclass(frozen=True)
class Topic:
    """What the brokers take for it.

    Args:
        largest: bytes of a record batch.
        keyed: a record has to have a key, as the topic is compacted.
        stamped: by the brokers; what time a record has of its own is of no account.
        behind, ahead: milliseconds by which a record's time may differ from the broker's clock; None: any.
    """

    partitions: int
    largest: int
    keyed: bool = False
    stamped: bool = False
    behind: int | None = None
    ahead: int | None = None

    def earliest(self, now: int) -> int | None:
        """In milliseconds, with a margin: rows may be written a while after they were staged, and again."""
        return None if self.behind is None else now - self.behind + min(self.behind // 10, DAY)

    def latest(self, now: int) -> int | None:
        return None if self.ahead is None else now + self.ahead


@dataclass(frozen=True)
class Topics:
    """What has to be known of the topics before a row is written, by name."""

    limits: Mapping[str, Topic]

    @property
    def only(self) -> str:
        """The one there is."""
        (name,) = self.limits
        return name

    @property
    def smallest(self) -> int:
        """The largest record batch that all of them take."""
        return min(topic.largest for topic in self.limits.values())


@dataclass(frozen=True)
class Rows:
    """One batch, and how to name a row of it to people.

    Args:
        first: number of its first row, from 0.
        where: what the rows are part of.
    """

    sink: str
    batch: pa.RecordBatch
    first: int
    where: str

    def refuse(self, bad: pa.Array, what: Callable[[int], str], why: str, todo: str) -> None:
        """Name the first row of which `bad` is true, if there is one.

        Raises:
            InvalidPipeline: there is.
        """
        count = pc.sum(bad).as_py()
        if not count:
            return
        row = pc.index(bad, pa.scalar(True)).as_py()
        key = self.batch.column("key")[row].as_py()
        named = f"row {self.first + row} of {self.where}" + (f" (key {key[:80]!r})" if key else "")
        others = f", and so it is with {count - 1:,} more of {len(self.batch):,} rows" if count > 1 else ""
        raise InvalidPipeline(
            f"sink '{self.sink}': {named} {what(row)}{others}.", why, f"{todo} Nothing was published."
        )


def check(topics: Topics, rows: Rows) -> None:
    """Refuse what would be refused after the decision, and say which row it is.

    Raises:
        InvalidPipeline: a row goes where it must not, is too large, or has a key, time or header that is not taken.
    """
    column = rows.batch.column("topic")
    names = pc.unique(column).to_pylist()
    for name in names:
        mine = pc.equal(column, name) if len(names) > 1 and name is not None else None
        _check_topic(topics, rows, name)
        _check_partitions(rows, name, topics.limits[name], mine)
        _check_keys(rows, name, topics.limits[name], mine)
        _check_times(rows, name, topics.limits[name], mine)
    _check_headers(rows)
    _check_sizes(rows, min(topics.smallest, QUEUE))


def _check_topic(topics: Topics, rows: Rows, name: str | None) -> None:
    if name in topics.limits:
        return
    column = rows.batch.column("topic")
    rows.refuse(
        pc.is_null(column) if name is None else pc.equal(column, name),
        lambda _: f"goes to topic {name!r}",
        f"Allowed: {', '.join(sorted(topics.limits))}.",
        "Fix the column 'topic', or add the topic to KafkaSink(topics=…).",
    )


def _check_partitions(rows: Rows, name: str, topic: Topic, mine: pa.Array | None) -> None:
    column = rows.batch.column("partition")
    if column.null_count == len(column):
        return
    rows.refuse(
        _both(mine, pc.or_(pc.less(column, 0), pc.greater_equal(column, topic.partitions))),
        lambda row: f"names partition {column[row]} of topic '{name}'",
        f"It has {topic.partitions} partitions, from 0.",
        "Fix the column 'partition', or leave it null to let the key decide.",
    )


def _check_keys(rows: Rows, name: str, topic: Topic, mine: pa.Array | None) -> None:
    column = rows.batch.column("key")
    if topic.keyed and column.null_count:
        rows.refuse(
            _both(mine, pc.is_null(column)),
            lambda _: f"has no key, and goes to topic '{name}'",
            "That topic is compacted (cleanup.policy), and takes no record without a key.",
            "Give each row a key, or take another topic.",
        )


def _check_times(rows: Rows, name: str, topic: Topic, mine: pa.Array | None) -> None:
    column = rows.batch.column("timestamp")
    if topic.stamped or column.null_count == len(column):
        return
    rows.refuse(
        _both(mine, pc.is_in(column, pa.array([NOW, NO_TIME], pa.int64()))),
        lambda row: f"is dated {_date(column[row].as_py())}, and goes to topic '{name}'",
        "In Kafka a millisecond before 1970 means 'no time', and librdkafka takes 1970 itself for 'now'.",
        "Move it by a millisecond, or leave 'timestamp' null for the time of writing.",
    )
    _check_span(rows, name, topic, mine)


def _check_span(rows: Rows, name: str, topic: Topic, mine: pa.Array | None) -> None:
    column, now = rows.batch.column("timestamp"), int(time() * 1000)
    if (earliest := topic.earliest(now)) is not None:
        rows.refuse(
            _both(mine, pc.less(column, max(earliest, -(2**63)))),
            lambda row: f"is dated {_date(column[row].as_py())}, too old for topic '{name}'",
            f"Its message.timestamp.before.max.ms is {topic.behind:,}. The limit here is {_date(earliest)}, as "
            "rows may be written a while after they were staged.",
            "Leave such rows out, leave 'timestamp' null, or raise the topic's setting.",
        )
    if (latest := topic.latest(now)) is not None:
        rows.refuse(
            _both(mine, pc.greater(column, min(latest, 2**63 - 1))),
            lambda row: f"is dated {_date(column[row].as_py())}, too far ahead for topic '{name}'",
            f"Its message.timestamp.after.max.ms is {topic.ahead:,}: {_date(latest)} is the limit now.",
            "Leave such rows out, leave 'timestamp' null, or raise the topic's setting.",
        )


def _check_headers(rows: Rows) -> None:
    column = rows.batch.column("headers")
    if not len(flat := column.flatten()):
        return
    keys = flat.field("key")
    bad = (
        pc.or_kleene(pc.is_null(keys), pc.match_substring(keys, "\0")) if is_valid(keys) else pa.repeat(True, len(keys))
    )
    rows.refuse(
        pc.greater(_sums(column, pc.cast(bad, pa.int64())), 0),
        lambda _: "has a header whose key cannot be sent",
        "A header has to have a key, of UTF-8 text without a zero byte (the client would cut it there).",
        "Fix the column 'headers'.",
    )


def _check_sizes(rows: Rows, most: int) -> None:
    sizes = _sizes(rows.batch)
    if (pc.max(sizes).as_py() or 0) + BATCH + AROUND <= most:
        return
    room = most - BATCH - AROUND
    exact = [0 if size <= room else _exact(rows.batch, row) for row, size in enumerate(sizes.to_pylist())]
    rows.refuse(
        pc.or_(pc.greater(pa.array(exact, pa.int64()), most), pc.greater(sizes, most - AROUND)),
        lambda row: f"has {sizes[row].as_py():,} bytes, {exact[row]:,} with all that Kafka puts around them",
        f"The topic takes {most:,} at most (max.message.bytes), and the client never more than {QUEUE:,}.",
        "Make the rows smaller, or raise the topic's max.message.bytes.",
    )


# ---- sizes


def _sizes(batch: pa.RecordBatch) -> pa.Array:
    """Bytes of each row's key, value and headers, as librdkafka counts them."""
    lengths = [pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in ("key", "value")]
    total = pc.add(pc.cast(lengths[0], pa.int64()), lengths[1])
    headers = batch.column("headers")
    if not len(flat := headers.flatten()):
        return total
    each = [pc.fill_null(pc.binary_length(flat.field(name)), 0) for name in ("key", "value")]
    return pc.add(total, _sums(headers, pc.add(pc.add(each[0], each[1]), AROUND_HEADER)))


def _exact(batch: pa.RecordBatch, row: int) -> int:
    """Bytes of the smallest record batch that holds this row. Source: Kafka protocol, "Record Batch", version 2."""
    record = {name: batch.column(name)[row].as_py() for name in ("key", "value", "headers")}
    headers = record["headers"] or []
    body = 3 + _field(record["key"]) + _field(record["value"]) + _varint(len(headers))  # attributes, two deltas of 0
    body += sum(_field(header["key"].encode()) + _field(header["value"]) for header in headers)
    return BATCH + _varint(body) + body


def _field(value: bytes | None) -> int:
    return _varint(-1) if value is None else _varint(len(value)) + len(value)


def _varint(number: int) -> int:
    """Bytes of it as Kafka writes it: zigzag, seven bits a byte."""
    return max(1, -(-(abs(2 * number + (number < 0))).bit_length() // 7))


# ---- columns


def _both(mine: pa.Array | None, bad: pa.Array) -> pa.Array:
    return bad if mine is None else pc.and_(mine, bad)


def _sums(lists: pa.Array, numbers: pa.Array) -> pa.Array:
    """Of the numbers that belong to the elements of each list."""
    import numpy as np

    parents = pc.list_parent_indices(lists).to_numpy()
    return pa.array(np.bincount(parents, weights=numbers.to_numpy(), minlength=len(lists)).astype("int64"))


def _date(millis: int) -> str:
    try:
        return (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=millis)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{millis:,} ms from 1970"
