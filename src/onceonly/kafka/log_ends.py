"""The record batch that ends a part of a log: by it, a log is recognised whose end a broker has lost and written again.

A batch never changes while it is in the log: the broker that appends it adds its leader epoch, and its CRC covers all
that the producer wrote. Only compaction rewrites it, which shows. See KIP-101 and KIP-320 for leader epochs.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.kafka.admin import OUT_OF_RANGE, BrokerClient, check, id_text

FIRST_FETCH_BYTES, MAX_FETCH_BYTES = 32 << 10, 1 << 30  # for one partition
CONSUMER = -1  # in place of a replica's id
NO_EPOCH = -1
# base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and last timestamp, producer id,
# producer epoch, base sequence, number of records
HEADER = struct.Struct(">qiibIhiqqqhii")
LENGTH_END = 12  # the length counts what follows it
MAGIC = 2  # older batches have neither leader epoch nor producer
TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x10, 0x20, 0x40  # attributes; compaction sets the last one

Topic = tuple[str, str]  # its name and id


@dataclass(frozen=True)
class Batch:
    """The header of a record batch, as far as it identifies one.

    Args:
        epoch: of the leader that appended it; NO_EPOCH: none is known.
        is_compacted: compaction has rewritten it, and its CRC is no longer that of the producer's batch.
    """

    epoch: int
    base_offset: int
    crc: int
    is_compacted: bool = False

    def to_json(self) -> list[int]:
        return [self.epoch, self.base_offset, self.crc]

    def is_replaced_by(self, now: Batch) -> bool:
        """Whether `now`, found at the same offset, is another one; compaction keeps epoch and first offset."""
        if (self.epoch, self.base_offset) != (now.epoch, now.base_offset):
            return True
        return self.crc != now.crc and not now.is_compacted


@dataclass(frozen=True)
class Replacement:
    """A log that holds other records now than those that it once ended with, as far as that is known.

    Args:
        batch: the one at that offset; None: there is none any more.
        cut: the offset at which the log was cut off; None: no broker knows it.
    """

    batch: Batch | None
    cut: int | None


@dataclass(frozen=True)
class LogComparison:
    """How the logs of a topic compare with the batches that they once ended with.

    Args:
        unknown: the partitions of which neither the batch nor its leader epoch exists any more.
    """

    replaced: Mapping[int, Replacement]
    unknown: tuple[int, ...]


def read_end_batches(client: BrokerClient, topic: Topic, ends: Mapping[int, int]) -> dict[int, Batch | None]:
    """Read the batch that holds the last offset below each end, by one fetch per leader where batches are small.

    Args:
        ends: an offset above 0, by partition.
    Returns:
        By partition; None: the log has no such batch any more (compaction, retention), or one of an old format.
    Raises:
        NotCommitted: the brokers did not answer, or refuse the request.
    """
    if not ends:
        return {}
    return client.call(lambda: _read_end_batches(client, topic, ends))


def read_epoch_ends(client: BrokerClient, topic: Topic, epochs: Mapping[int, int]) -> dict[int, int | None]:
    """Read the offset at which the records of a leader epoch end, by partition; None: the broker does not know it.

    An epoch that is older than the log's first one ends, for the broker, where that one begins.

    Raises:
        NotCommitted: the brokers did not answer, or refuse the request.
    """
    if not epochs:
        return {}
    return client.call(lambda: _read_epoch_ends(client, topic, epochs))


def compare(client: BrokerClient, topic: Topic, ends: Mapping[int, int], marks: Mapping[int, Batch]) -> LogComparison:
    """Compare the logs with the batches that ended them once. If one no longer exists, its leader epoch's end decides.

    The answer is valid for the moment of the reading: a log can be cut off later, and a copy of it can be restored.
    Of a partition in `unknown` there is no evidence left, for or against.

    Args:
        ends: the offset that each log had reached then, by partition.
        marks: the batch that held the last offset below it, by partition.
    Raises:
        NotCommitted: the brokers did not answer, or refuse the request.
    """
    end_batches = read_end_batches(client, topic, {partition: ends[partition] for partition in marks})
    changed, missing = _changed_or_missing(end_batches, marks)
    epochs: dict[int, int] = {}
    for partition, mark in marks.items():
        is_in_question = partition in changed or partition in missing
        if is_in_question and mark.epoch != NO_EPOCH:
            epochs[partition] = mark.epoch
    epoch_ends = read_epoch_ends(client, topic, epochs)
    # A missing batch alone proves nothing, as retention and compaction remove batches too
    cut_off, unknown = set(), []
    for partition in sorted(missing):
        epoch_end = epoch_ends.get(partition)
        if epoch_end is None:
            unknown.append(partition)
        elif epoch_end < ends[partition]:
            cut_off.add(partition)
    replaced: dict[int, Replacement] = {}
    for partition in sorted(changed | cut_off):
        replaced[partition] = Replacement(end_batches[partition], epoch_ends.get(partition))
    return LogComparison(replaced, tuple(unknown))


def _changed_or_missing(
    end_batches: Mapping[int, Batch | None], marks: Mapping[int, Batch]
) -> tuple[set[int], set[int]]:
    """Return the partitions in which another batch is at the mark's offset, and those in which there is none."""
    changed, missing = set(), set()
    for partition, batch in end_batches.items():
        if batch is None:
            missing.add(partition)
        elif marks[partition].is_replaced_by(batch):
            changed.add(partition)
    return changed, missing


# ---- coroutines


async def _read_end_batches(client: BrokerClient, topic: Topic, ends: Mapping[int, int]) -> dict[int, Batch | None]:
    end_batches: dict[int, Batch | None] = {}
    for node, node_ends in (await partitions_by_leader(client, topic, ends)).items():
        fetch_bytes, waiting = FIRST_FETCH_BYTES, dict(node_ends)
        while waiting:
            answers = await _fetch_ends(client, topic, waiting, node, fetch_bytes)
            end_batches |= answers
            for number in answers:
                del waiting[number]
            if fetch_bytes == MAX_FETCH_BYTES and not answers:  # nothing is left there, although the log continues
                end_batches |= dict.fromkeys(waiting)
                break
            fetch_bytes = min(8 * fetch_bytes, MAX_FETCH_BYTES)
    return end_batches


async def _fetch_ends(
    client: BrokerClient, topic: Topic, ends: Mapping[int, int], node: int, fetch_bytes: int
) -> dict[int, Batch | None]:
    """Fetch the batches that hold the last offset below each end, by partition.

    Partitions whose batch did not fit are left out. The broker gives the first batch whole, however large it is.
    """
    from kafka.errors import OffsetNotAvailableError, ThrottlingQuotaExceededError

    last_offsets = {number: end - 1 for number, end in ends.items()}
    request = fetch_request(topic[0], last_offsets, fetch_bytes, MAX_FETCH_BYTES)
    response = await client.send(request, node)
    check(response.error_code)
    end_batches: dict[int, Batch | None] = {}
    for result in _partitions_in(response.responses):
        end, records = ends[result.partition_index], bytes(result.records or b"")
        if result.error_code == OUT_OF_RANGE:
            end_batches[result.partition_index] = None
            continue
        check(result.error_code)
        if result.high_watermark < end:
            raise OffsetNotAvailableError  # a new leader does not know yet how far the log is replicated
        if len(records) >= HEADER.size:
            end_batches[result.partition_index] = _batch_with(records, end - 1)
    if not end_batches and response.throttle_time_ms:
        raise ThrottlingQuotaExceededError
    return end_batches


async def _read_epoch_ends(client: BrokerClient, topic: Topic, epochs: Mapping[int, int]) -> dict[int, int | None]:
    from kafka.protocol.consumer.offsets import OffsetForLeaderEpochRequest

    of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    ends: dict[int, int | None] = {}
    for node, node_epochs in (await partitions_by_leader(client, topic, epochs)).items():
        questions = []
        for number, epoch in node_epochs.items():
            question = of_topic.OffsetForLeaderPartition(
                partition=number, current_leader_epoch=NO_EPOCH, leader_epoch=epoch
            )
            questions.append(question)
        topics = [of_topic(topic=topic[0], partitions=questions)]
        response = await client.send(OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=topics), node)
        for result in _partitions_in(response.topics):
            check(result.error_code)
            ends[result.partition] = result.end_offset if result.end_offset >= 0 else None
    return ends


def _partitions_in(topics: Iterable[Any]) -> Iterator[Any]:
    """Yield what a response says of each partition."""
    for topic in topics:
        yield from topic.partitions


async def partitions_by_leader(
    client: BrokerClient, topic: Topic, partitions: Mapping[int, int]
) -> dict[int, dict[int, int]]:
    """Return, by the broker that leads them, the partitions with their values.

    Raises:
        UnknownTopicOrPartitionError: there is no topic of that name and id.
        LeaderNotAvailableError: a partition has no leader.
    """
    from kafka.errors import LeaderNotAvailableError, UnknownTopicOrPartitionError

    name, topic_id = topic
    metadata = (await client.topics([name])).get(name)
    if metadata is None or id_text(metadata["topic_id"]) != topic_id:
        raise UnknownTopicOrPartitionError(name)
    leaders = {partition["partition_index"]: partition["leader_id"] for partition in metadata["partitions"]}
    by_leader: dict[int, dict[int, int]] = defaultdict(dict)
    for number, value in partitions.items():
        if leaders.get(number, -1) < 0:
            raise LeaderNotAvailableError(f"{name} partition {number}")
        by_leader[leaders[number]][number] = value
    return by_leader


def _batch_with(records: bytes, offset: int) -> Batch | None:
    """Return the batch that holds the offset; None if there is none, or one of a format without leader epochs."""
    for header in read_headers(records):
        if header.magic != MAGIC or header.base_offset > offset:
            return None
        if header.last_offset >= offset:
            return Batch(header.epoch, header.base_offset, header.crc, header.is_compacted)
    return None


# ---- record batches as they lie in a log


@dataclass(frozen=True)
class Header:
    """The header of one batch."""

    base_offset: int
    last_offset: int
    epoch: int
    magic: int
    crc: int
    attributes: int
    producer_id: int
    count: int

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_compacted(self) -> bool:
        """Return whether compaction has rewritten the batch: those of producers have a record at each offset."""
        return self.count != self.last_offset - self.base_offset + 1 or bool(self.attributes & DELETE_HORIZON)


def read_headers(records: bytes) -> Iterator[Header]:
    """Yield the headers of all batches of which the whole header is there; the last batch may be cut short."""
    start = 0
    while start + HEADER.size <= len(records):
        fields = HEADER.unpack_from(records, start)
        base, length, epoch, magic, crc, attributes, delta, _, _, producer_id, _, _, count = fields
        yield Header(base, base + delta, epoch, magic, crc, attributes, producer_id, count)
        start += LENGTH_END + length


def fetch_request(topic: str, offsets: Mapping[int, int], partition_bytes: int, max_bytes: int) -> Any:
    """Return a fetch outside of any session.

    Version 11 is the last one with topic names and without compact encoding.

    Args:
        offsets: where to begin, by partition.
    """
    from kafka.protocol.consumer.fetch import FetchRequest

    fetch = FetchRequest.FetchTopic
    partitions = []
    for number, offset in offsets.items():
        partition = fetch.FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=partition_bytes)
        partitions.append(partition)
    return FetchRequest(
        version=11,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[fetch(topic=topic, partitions=partitions)],
    )
