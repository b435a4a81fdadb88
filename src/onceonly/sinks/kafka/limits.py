"""Finds rows that the brokers or the client would always refuse, while staging and so before the decision.

Each batch takes a few passes over whole columns. Single rows are examined only if one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import time

import pyarrow as pa
import pyarrow.compute as pc

from onceonly.counts import count
from onceonly.sinks.kafka import refusals
from onceonly.sinks.kafka.refusals import Words
from onceonly.sinks.staging.row_text import is_valid

QUEUE = 64 << 20  # maximum bytes that wait to be sent: limits the memory, and the size of a row
BATCH = 61  # bytes of a record batch before its records
AROUND = 36  # maximum bytes of a record in addition to key, value and headers, as librdkafka counts
AROUND_HEADER = 10  # the same for one header
CODEC_HEAD = 256  # maximum bytes that a codec adds to a batch beside what grows with it
DAY_MILLISECONDS = 24 * 3600 * 1000  # milliseconds
NOW = 0  # the meaning of this timestamp in librdkafka


@dataclass(frozen=True)
class Topic:
    """What the brokers accept for a topic.

    Source: LogValidator and UnifiedLog of Kafka 4.3, and SocketServer for a request.

    Args:
        largest: maximum bytes of a record batch, and `setting`, which says so.
        recompressed: the brokers compress each batch again (compression.type), so it may grow, and rebuild its records.
        keyed: a record needs a key, because the topic is compacted.
        stamped: the brokers set the timestamps, and ignore those of the records.
        behind, ahead: milliseconds by which a record's time may differ from the broker's clock; None: no limit.
        margin: whether rows are written some time after they are checked.
    """

    partitions: int
    largest: int
    setting: str = "max.message.bytes"
    recompressed: bool = False
    keyed: bool = False
    stamped: bool = False
    behind: int | None = None
    ahead: int | None = None
    margin: bool = True

    @property
    def room(self) -> int:
        """Bytes of a batch that is accepted however little it can be compressed: with Snappy, 60 bytes become 62."""
        if not self.recompressed:
            return self.largest
        return self.largest * 30 // 31 - CODEC_HEAD

    @property
    def accepted_behind(self) -> int | None:
        """Milliseconds before now that a timestamp may be when it is checked; None: any."""
        if self.behind is None:
            return None
        margin = min(self.behind // 10, DAY_MILLISECONDS) if self.margin else 0
        return self.behind - margin

    def earliest(self, now: int) -> int | None:
        """Return the earliest timestamp that is accepted, in milliseconds; None: any is."""
        if self.accepted_behind is None:
            return None
        return now - self.accepted_behind

    def latest(self, now: int) -> int | None:
        """Return the latest timestamp that is accepted, in milliseconds; None: any is."""
        if self.ahead is None:
            return None
        return now + self.ahead


@dataclass(frozen=True)
class Topics:
    """The limits of all topics of a sink, by name."""

    limits: Mapping[str, Topic]

    @property
    def only(self) -> str:
        """The name of the only topic."""
        (name,) = self.limits
        return name

    @property
    def narrowest(self) -> Topic:
        """The limits of the topic that accepts the smallest record batches, which the others accept as well."""
        return min(self.limits.values(), key=lambda topic: topic.room)

    def without_margin(self) -> Topics:
        """Return the limits for rows that are about to be written."""
        return Topics({name: replace(topic, margin=False) for name, topic in self.limits.items()})


@dataclass(frozen=True)
class CheckedRows:
    """One batch, with what is needed to identify a row of it in a message.

    Args:
        first: number of its first row, from 0.
        where: what the rows belong to, such as "Spark partition 3".
    """

    sink: str
    batch: pa.RecordBatch
    first: int
    where: str

    def refuse(self, bad: pa.Array, describe: Callable[[int], Words]) -> None:
        """Refuse the batch if `bad` is true for a row.

        Args:
            describe: says what is wrong with the row of that number in the batch.
        Raises:
            InvalidPipeline: names the first such row.
        """
        bad_rows = pc.sum(bad).as_py()
        if not bad_rows:
            return
        row = pc.index(bad, pa.scalar(True)).as_py()
        more = ""
        if bad_rows > 1:
            more = f"; the same applies to {bad_rows - 1:,} more of {count(len(self.batch), 'row')}"
        place = f"row {self.first + row} of {self.where}"
        raise refusals.error(self.sink, place, self.batch.column("key")[row].as_py(), describe(row), more)


def check(topics: Topics, rows: CheckedRows) -> None:
    """Refuse rows that Kafka would refuse after the decision, and name the first one.

    Raises:
        InvalidPipeline: a row has a topic or partition that is not allowed, is too large, or has a key, time or header
            that is not accepted.
    """
    column = rows.batch.column("topic")
    names = pc.unique(column).to_pylist()
    for name in names:
        is_in_topic = None  # for all rows
        if len(names) > 1 and name is not None:
            is_in_topic = pc.equal(column, name)
        _check_topic(topics, rows, name)
        topic = topics.limits[name]
        _check_partitions(rows, name, topic, is_in_topic)
        _check_keys(rows, name, topic, is_in_topic)
        _check_times(rows, name, topic, is_in_topic)
    _check_headers(rows)
    _check_sizes(rows, topics.narrowest)


def _check_topic(topics: Topics, rows: CheckedRows, name: str | None) -> None:
    """Refuse rows with that topic, unless it is one of the sink's. Null is none."""
    if name in topics.limits:
        return
    column = rows.batch.column("topic")
    bad = pc.is_null(column) if name is None else pc.equal(column, name)
    rows.refuse(bad, lambda _: refusals.topic(name, topics.limits))


def _check_partitions(rows: CheckedRows, name: str, topic: Topic, is_in_topic: pa.Array | None) -> None:
    column = rows.batch.column("partition")
    if column.null_count == len(column):
        return
    rows.refuse(
        _in_topic(is_in_topic, pc.or_(pc.less(column, 0), pc.greater_equal(column, topic.partitions))),
        lambda row: refusals.partition(column[row].as_py(), name, topic.partitions),
    )


def _check_keys(rows: CheckedRows, name: str, topic: Topic, is_in_topic: pa.Array | None) -> None:
    column = rows.batch.column("key")
    if topic.keyed and column.null_count:
        rows.refuse(_in_topic(is_in_topic, pc.is_null(column)), lambda _: refusals.key(name))


def _check_times(rows: CheckedRows, name: str, topic: Topic, is_in_topic: pa.Array | None) -> None:
    column = rows.batch.column("timestamp")
    if column.null_count == len(column):
        return
    rows.refuse(_in_topic(is_in_topic, pc.less(column, 0)), lambda row: refusals.before_1970(column[row].as_py(), name))
    if topic.stamped:
        return
    rows.refuse(_in_topic(is_in_topic, pc.equal(column, NOW)), lambda _: refusals.start_of_1970(name))
    _check_span(rows, name, topic, is_in_topic)


def _check_span(rows: CheckedRows, name: str, topic: Topic, is_in_topic: pa.Array | None) -> None:
    """Refuse rows whose time differs too much from the broker's clock."""
    column, now = rows.batch.column("timestamp"), int(time() * 1000)
    earliest, latest = topic.earliest(now), topic.latest(now)
    if earliest is not None:
        rows.refuse(
            _in_topic(is_in_topic, pc.less(column, max(earliest, -(2**63)))),
            lambda row: refusals.too_old(column[row].as_py(), name, topic.behind, earliest),
        )
    if latest is not None:
        rows.refuse(
            _in_topic(is_in_topic, pc.greater(column, min(latest, 2**63 - 1))),
            lambda row: refusals.too_far_ahead(column[row].as_py(), name, topic.ahead, latest),
        )


def _check_headers(rows: CheckedRows) -> None:
    column = rows.batch.column("headers")
    headers = column.flatten()
    if not len(headers):
        return
    keys = headers.field("key")
    if is_valid(keys):
        bad = pc.or_kleene(pc.is_null(keys), pc.match_substring(keys, "\0"))
    else:
        bad = pa.repeat(True, len(keys))
    rows.refuse(pc.greater(_sums(column, pc.cast(bad, pa.int64())), 0), lambda _: refusals.UNUSABLE_HEADER)


def _check_sizes(rows: CheckedRows, topic: Topic) -> None:
    """Refuse rows that are too large for a batch of the topic, or for the client's queue."""
    max_size = min(topic.room, QUEUE)
    sizes = _sizes(rows.batch)
    if (pc.max(sizes).as_py() or 0) + BATCH + AROUND <= max_size:
        return
    room = max_size - BATCH - AROUND
    batch_sizes = [0] * len(rows.batch)  # only of rows that may be too large
    for row, size in enumerate(sizes.to_pylist()):
        if size > room:
            batch_sizes[row] = _smallest_batch_size(rows.batch, row)
    rows.refuse(
        pc.or_(pc.greater(pa.array(batch_sizes, pa.int64()), max_size), pc.greater(sizes, max_size - AROUND)),
        lambda row: describe_size(sizes[row].as_py(), batch_sizes[row], topic),
    )


def describe_size(size: int, batch_size: int, topic: Topic) -> Words:
    """Return the words for a row that no batch of that topic holds, or that the client's queue does not."""
    growth = ""
    if topic.recompressed:
        growth = ", and the brokers compress again, which may add to it: compression.type"
    limit = f"{topic.room:,} ({topic.setting} is {topic.largest:,}{growth})"
    return refusals.size(size, batch_size, limit, QUEUE, topic.setting)


# ---- sizes


def _sizes(batch: pa.RecordBatch) -> pa.Array:
    """Return the bytes of each row's key, value and headers, as librdkafka counts them."""
    keys, values = _lengths(batch.column("key")), _lengths(batch.column("value"))
    total = pc.add(pc.cast(keys, pa.int64()), values)
    column = batch.column("headers")
    headers = column.flatten()
    if not len(headers):
        return total
    header_sizes = pc.add(_lengths(headers.field("key")), _lengths(headers.field("value")))
    return pc.add(total, _sums(column, pc.add(header_sizes, AROUND_HEADER)))


def _lengths(column: pa.Array) -> pa.Array:
    """Return the length of each value, 0 for null."""
    return pc.fill_null(pc.binary_length(column), 0)


def _smallest_batch_size(batch: pa.RecordBatch, row: int) -> int:
    """Return the bytes of the smallest record batch that holds this row.

    Source: Kafka protocol, "Record Batch", version 2.
    """
    record = {name: batch.column(name)[row].as_py() for name in ("key", "value", "headers")}
    headers = record["headers"] or []
    body = 3  # attributes, two deltas of 0
    body += _field_size(record["key"]) + _field_size(record["value"]) + _varint_size(len(headers))
    for header in headers:
        body += _field_size(header["key"].encode()) + _field_size(header["value"])
    return BATCH + _varint_size(body) + body


def _field_size(value: bytes | None) -> int:
    if value is None:
        return _varint_size(-1)
    return _varint_size(len(value)) + len(value)


def _varint_size(number: int) -> int:
    """Return the bytes of a number's encoding in Kafka: zigzag, seven bits per byte."""
    return max(1, -(-(abs(2 * number + (number < 0))).bit_length() // 7))


# ---- columns


def _in_topic(is_in_topic: pa.Array | None, bad: pa.Array) -> pa.Array:
    """Return which rows are bad, and of the topic; `is_in_topic`: None if all rows are of it."""
    if is_in_topic is None:
        return bad
    return pc.and_(is_in_topic, bad)


def _sums(lists: pa.Array, numbers: pa.Array) -> pa.Array:
    """Return, for each list, the sum of the numbers of its elements."""
    import numpy as np

    parents = pc.list_parent_indices(lists).to_numpy()
    return pa.array(np.bincount(parents, weights=numbers.to_numpy(), minlength=len(lists)).astype("int64"))
