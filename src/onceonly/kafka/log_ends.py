"""The record batch that ends a part of a log: by it, a log is recognised whose end a broker has lost and written again.

A batch never changes while it is in the log: the broker that appends it adds its leader epoch, and its CRC covers all
that the producer wrote. Only compaction rewrites it, which shows. See KIP-101 and KIP-320 for leader epochs.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.kafka.admin import BrokerClient, check, id_text

FIRST_FETCH_BYTES, MAX_FETCH_BYTES = 32 << 10, 1 << 30  # for one partition
OUT_OF_RANGE = 1  # the error code
# base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and last timestamp, producer id,
# producer epoch, base sequence, number of records
HEADER = struct.Struct(">qiibIhiqqqhii")
MAGIC = 2  # older batches have no leader epoch
DELETE_HORIZON = 0x40  # an attribute that compaction sets
CONSUMER = -1  # in place of a replica's id
NO_EPOCH = -1

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


def read_end_batches(client: BrokerClient, topic: Topic, ends: Mapping[int, int]) -> dict[int, Batch | None]:
    """Read the batch that holds the last offset below each end, by one fetch per leader where batches are small.

    Args:
        ends: an offset above 0, by partition.
    Returns:
        By partition; None: the log has no such batch any more (compaction, retention), or one of an old format.
    Raises:
        NotCommitted: the brokers did not answer, or refuse the request.
    """
    return client.call(lambda: _read_end_batches(client, topic, ends)) if ends else {}


def read_epoch_ends(client: BrokerClient, topic: Topic, epochs: Mapping[int, int]) -> dict[int, int | None]:
    """Read the offset at which the records of a leader epoch end, by partition; None: the broker does not know it.

    An epoch that is older than the log's first one ends, for the broker, where that one begins.

    Raises:
        NotCommitted: the brokers did not answer, or refuse the request.
    """
    return client.call(lambda: _read_epoch_ends(client, topic, epochs)) if epochs else {}


# ---- coroutines


async def _read_end_batches(client: BrokerClient, topic: Topic, ends: Mapping[int, int]) -> dict[int, Batch | None]:
    batches: dict[int, Batch | None] = {}
    for node, numbers in (await _partitions_by_leader(client, topic, ends)).items():
        bytes_, waiting = FIRST_FETCH_BYTES, dict(numbers)
        while waiting:
            answers = await _fetch_ends(client, topic, waiting, node, bytes_)
            batches |= answers
            waiting = {number: end for number, end in waiting.items() if number not in answers}
            if bytes_ == MAX_FETCH_BYTES and not answers:  # nothing is left there, although the log goes on
                batches |= dict.fromkeys(waiting)
                break
            bytes_ = min(8 * bytes_, MAX_FETCH_BYTES)
    return batches


async def _fetch_ends(
    client: BrokerClient, topic: Topic, ends: Mapping[int, int], node: int, bytes_: int
) -> dict[int, Batch | None]:
    """Without the partitions whose batch did not fit. The broker gives the first one whole, however large it is."""
    from kafka.errors import OffsetNotAvailableError, ThrottlingQuotaExceededError

    response = await client.send(_fetch_request(topic[0], ends, bytes_), node)
    check(response.error_code)
    batches: dict[int, Batch | None] = {}
    for result in (partition for each in response.responses for partition in each.partitions):
        end, records = ends[result.partition_index], bytes(result.records or b"")
        if result.error_code == OUT_OF_RANGE:
            batches[result.partition_index] = None
            continue
        check(result.error_code)
        if result.high_watermark < end:
            raise OffsetNotAvailableError  # a new leader does not know yet how far the log is replicated
        if len(records) >= HEADER.size:
            batches[result.partition_index] = _batch_with(records, end - 1)
    if not batches and response.throttle_time_ms:
        raise ThrottlingQuotaExceededError
    return batches


async def _read_epoch_ends(client: BrokerClient, topic: Topic, epochs: Mapping[int, int]) -> dict[int, int | None]:
    from kafka.protocol.consumer.offsets import OffsetForLeaderEpochRequest

    of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    ends: dict[int, int | None] = {}
    for node, numbers in (await _partitions_by_leader(client, topic, epochs)).items():
        wanted = [
            of_topic.OffsetForLeaderPartition(partition=number, current_leader_epoch=NO_EPOCH, leader_epoch=epoch)
            for number, epoch in numbers.items()
        ]
        request = OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=[of_topic(topic=topic[0], partitions=wanted)])
        response = await client.send(request, node)
        for result in (partition for each in response.topics for partition in each.partitions):
            check(result.error_code)
            ends[result.partition] = result.end_offset if result.end_offset >= 0 else None
    return ends


async def _partitions_by_leader(
    client: BrokerClient, topic: Topic, partitions: Mapping[int, int]
) -> dict[int, dict[int, int]]:
    from kafka.errors import LeaderNotAvailableError, UnknownTopicOrPartitionError

    name, topic_id = topic
    metadata = (await client.topics([name])).get(name)
    if metadata is None or id_text(metadata["topic_id"]) != topic_id:
        raise UnknownTopicOrPartitionError(name)
    leaders = {found["partition_index"]: found["leader_id"] for found in metadata["partitions"]}
    by_leader: dict[int, dict[int, int]] = defaultdict(dict)
    for number, value in partitions.items():
        if leaders.get(number, -1) < 0:
            raise LeaderNotAvailableError(f"{name} partition {number}")
        by_leader[leaders[number]][number] = value
    return by_leader


def _fetch_request(topic: str, ends: Mapping[int, int], bytes_: int) -> Any:
    """A fetch outside of any session. Version 11 is the last one with topic names and without compact encoding."""
    from kafka.protocol.consumer.fetch import FetchRequest

    fetch = FetchRequest.FetchTopic
    wanted = [
        fetch.FetchPartition(partition=number, fetch_offset=end - 1, partition_max_bytes=bytes_)
        for number, end in ends.items()
    ]
    return FetchRequest(
        version=11,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=MAX_FETCH_BYTES,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[fetch(topic=topic, partitions=wanted)],
    )


def _batch_with(records: bytes, offset: int) -> Batch | None:
    """The batch that holds the offset; None if there is none, or one without a leader epoch's place."""
    start = 0
    while start + HEADER.size <= len(records):
        base, length, epoch, magic, crc, attributes, delta, *_, count = HEADER.unpack_from(records, start)
        if magic != MAGIC or base > offset:
            return None
        if base + delta >= offset:
            return Batch(epoch, base, crc, count != delta + 1 or bool(attributes & DELETE_HORIZON))
        start += 12 + length
    return None
