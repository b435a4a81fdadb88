"""The record batch that ends a part of a log: by it, a log is recognised whose end a broker has lost and written again.

A batch never changes while it is in the log: the broker that appends it adds its leader epoch, and its CRC covers all
that the producer wrote. Only compaction rewrites it, which shows. See KIP-101 and KIP-320 for leader epochs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from onceonly.kafka import batches
from onceonly.kafka.admin import BrokerClient, check, id_text

FIRST_FETCH_BYTES, MAX_FETCH_BYTES = 32 << 10, 1 << 30  # for one partition
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

    def to_json(self) -> list[int]:
        return [self.epoch, self.base_offset, self.crc]

    def is_replaced_by(self, now: Batch) -> bool:
        """Whether `now`, found at the same offset, is another one; compaction keeps epoch and first offset."""
        if (self.epoch, self.base_offset) != (now.epoch, now.base_offset):
            return True
        return self.crc != now.crc and not now.is_compacted


@dataclass(frozen=True)
class Replacement:
    """What is known of a log that holds other records now than those that it once ended with.

    Args:
        batch: the one at that offset; None: there is none any more.
        cut: the offset at which the log was cut off; None: no broker knows it.
    """

    batch: Batch | None
    cut: int | None


@dataclass(frozen=True)
class Comparison:
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
    return client.call(lambda: _read_end_batches(client, topic, ends)) if ends else {}


def read_epoch_ends(client: BrokerClient, topic: Topic, epochs: Mapping[int, int]) -> dict[int, int | None]:
    """Read the offset at which the records of a leader epoch end, by partition; None: the broker does not know it.

    An epoch that is older than the log's first one ends, for the broker, where that one begins.

    Raises:
        NotCommitted: the brokers did not answer, or refuse the request.
    """
    return client.call(lambda: _read_epoch_ends(client, topic, epochs)) if epochs else {}


def compare(client: BrokerClient, topic: Topic, ends: Mapping[int, int], marks: Mapping[int, Batch]) -> Comparison:
    """Compare the logs with the batches that ended them once. If one no longer exists, its leader epoch's end decides.

    Args:
        ends: the offset that each log had reached then, by partition.
        marks: the batch that held the last offset below it, by partition.
    Raises:
        NotCommitted: the brokers did not answer, or refuse the request.
    """
    batches = read_end_batches(client, topic, {partition: ends[partition] for partition in marks})
    others = {p for p, batch in batches.items() if batch and marks[p].is_replaced_by(batch)}
    gone = {p for p, batch in batches.items() if batch is None}
    epochs = {p: marks[p].epoch for p in marks if p in others | gone and marks[p].epoch != NO_EPOCH}
    epoch_ends = read_epoch_ends(client, topic, epochs)
    cut = {p for p in gone if (end := epoch_ends.get(p)) is not None and end < ends[p]}
    replaced = {p: Replacement(batches[p], epoch_ends.get(p)) for p in sorted(others | cut)}
    return Comparison(replaced, tuple(p for p in sorted(gone) if epoch_ends.get(p) is None))


# ---- coroutines


async def _read_end_batches(client: BrokerClient, topic: Topic, ends: Mapping[int, int]) -> dict[int, Batch | None]:
    found: dict[int, Batch | None] = {}
    for node, numbers in (await partitions_by_leader(client, topic, ends)).items():
        bytes_, waiting = FIRST_FETCH_BYTES, dict(numbers)
        while waiting:
            answers = await _fetch_ends(client, topic, waiting, node, bytes_)
            found |= answers
            waiting = {number: end for number, end in waiting.items() if number not in answers}
            if bytes_ == MAX_FETCH_BYTES and not answers:  # nothing is left there, although the log continues
                found |= dict.fromkeys(waiting)
                break
            bytes_ = min(8 * bytes_, MAX_FETCH_BYTES)
    return found


async def _fetch_ends(
    client: BrokerClient, topic: Topic, ends: Mapping[int, int], node: int, bytes_: int
) -> dict[int, Batch | None]:
    """Without the partitions whose batch did not fit. The broker gives the first one whole, however large it is."""
    from kafka.errors import OffsetNotAvailableError, ThrottlingQuotaExceededError

    before = {number: end - 1 for number, end in ends.items()}
    response = await client.send(batches.fetch_request(topic[0], before, bytes_, MAX_FETCH_BYTES), node)
    check(response.error_code)
    found: dict[int, Batch | None] = {}
    for result in (partition for each in response.responses for partition in each.partitions):
        end, records = ends[result.partition_index], bytes(result.records or b"")
        if result.error_code == batches.OUT_OF_RANGE:
            found[result.partition_index] = None
            continue
        check(result.error_code)
        if result.high_watermark < end:
            raise OffsetNotAvailableError  # a new leader does not know yet how far the log is replicated
        if len(records) >= batches.HEADER.size:
            found[result.partition_index] = _batch_with(records, end - 1)
    if not found and response.throttle_time_ms:
        raise ThrottlingQuotaExceededError
    return found


async def _read_epoch_ends(client: BrokerClient, topic: Topic, epochs: Mapping[int, int]) -> dict[int, int | None]:
    from kafka.protocol.consumer.offsets import OffsetForLeaderEpochRequest

    of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    ends: dict[int, int | None] = {}
    for node, numbers in (await partitions_by_leader(client, topic, epochs)).items():
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


async def partitions_by_leader(
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


def _batch_with(records: bytes, offset: int) -> Batch | None:
    """The batch that holds the offset; None if there is none, or one without a leader epoch's place."""
    for header in batches.headers(records):
        if header.magic != batches.MAGIC or header.base_offset > offset:
            return None
        if header.last_offset >= offset:
            return Batch(header.epoch, header.base_offset, header.crc, header.is_compacted)
    return None
