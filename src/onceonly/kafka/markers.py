"""How a transaction ended, from its marker: the control record in the log that closes it.

Error codes, read_committed positions and aborted-transaction lists can each mislead (compaction, retention, another
producer's open transaction). The marker cannot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from time import monotonic, sleep
from typing import Any

from onceonly.errors import NotCommitted
from onceonly.kafka.admin import BrokerClient, check

PAGE = 8 << 20  # bytes per fetch request
MISSING = 2.0  # seconds for which a topic must stay unknown before it counts as deleted
OUT_OF_RANGE = 1  # the error code
Partition = tuple[str, int]
Producer = tuple[int, int]  # its id and epoch


class MarkerState(Enum):
    """What the log shows about one transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    NONE = "no marker"  # every offset was read and none is its marker: in this partition it has not ended
    UNKNOWN = "unknown"  # a marker may have existed and been deleted or compacted away, or the topic was deleted


@dataclass(frozen=True)
class Page:
    """The result of one fetch from a partition."""

    high_watermark: int
    in_range: bool  # whether the log still holds the requested offset
    records: bytes  # whole record batches; the last one may be cut short


@dataclass(frozen=True)
class Marker:
    """One that a scan has passed."""

    epoch: int
    behind_gap: bool  # whether offsets were missing before it: part of the log was compacted
    state: MarkerState


class MarkerScan:
    """Scans the record batches of one partition, from an offset on, for the markers of some producers.

    Each batch is read once, however many transactions are looked for. Threads share a scan.
    """

    def __init__(self, producer_ids: Iterable[int], since: int) -> None:
        self.position, self.gap = since, False
        self._found: dict[int, list[Marker]] = {id: [] for id in producer_ids}
        self._lock = Lock()

    def looks_for(self, producer_ids: Iterable[int]) -> bool:
        return self._found.keys() >= set(producer_ids)

    def read(self, records: bytes) -> None:
        """Continue with batches that begin at the position, or before it: those are skipped."""
        from kafka.record.memory_records import MemoryRecords

        with self._lock:
            for batch in MemoryRecords(records):
                if batch.next_offset <= self.position:
                    continue  # a fetch starts with the whole batch that contains the offset
                gap = self.gap or batch.base_offset > self.position
                ours = batch.is_control_batch and batch.producer_id in self._found
                if ours and (state := _marker_state(batch)):
                    self._found[batch.producer_id].append(Marker(batch.producer_epoch, gap, state))
                self.gap, self.position = gap, batch.next_offset  # last: a damaged marker is never passed

    def of(self, producer_id: int, epoch: int, alone: bool) -> MarkerState | None:
        """The first marker of a producer, as `look` explains it; None if none was passed.

        Epochs only grow: a commit on a current broker, a fence or a timeout adds one.
        """
        first = next((marker for marker in self._found[producer_id] if marker.epoch >= epoch), None)
        if first is None:
            return None
        return first.state if alone or not first.behind_gap else MarkerState.UNKNOWN


def look(
    client: BrokerClient,
    partition: Partition,
    scan: MarkerScan,
    producer: Producer,
    topic_id: str | None = None,
    alone: bool = True,
    first: Page | None = None,
) -> MarkerState:
    """Find the first marker of that producer, with that epoch or a later one, from the scan's start to the current end.

    Offsets that are missing between batches were compacted, and compaction removes nothing above the last stable
    offset. So a gap without a marker means that the transaction has ended, and how can no longer be determined.

    Args:
        producer: its id and epoch.
        topic_id: return UNKNOWN if the topic of that name has another id; None: any id.
        alone: the producer never had another transaction. Otherwise a marker behind a gap may be that of the next.
        first: the page at the scan's position, if it was fetched already.
    Raises:
        NotCommitted: a fetch got no response within 10 s.
    """
    end = None
    while (state := scan.of(*producer, alone)) is None and (end is None or scan.position < end):
        before = scan.position
        page, first = first or _page(client, partition, before, topic_id), None
        if page is None or not page.in_range:
            return MarkerState.UNKNOWN
        end = page.high_watermark if end is None else end  # a busy topic's current end would never be reached
        _read(scan, page, f"'{partition[0]}' partition {partition[1]}")
        if scan.position == before < end:
            return MarkerState.UNKNOWN  # no records are left between here and the end
    return state or (MarkerState.UNKNOWN if scan.gap else MarkerState.NONE)


def first_pages(
    client: BrokerClient, since: Mapping[Partition, int], topic_ids: Mapping[str, str], leaders: dict[Partition, int]
) -> dict[Partition, Page]:
    """One fetch per leader instead of one per partition. A partition with an unclear response is left out.

    Args:
        since: the offset to begin at, by partition.
        leaders: those known already, of topics with these ids; looked up and added here. One that fails is removed.
    """
    return client.call(lambda: _first_pages(client, since, topic_ids, leaders))


def _read(scan: MarkerScan, page: Page, name: str) -> None:
    from kafka.errors import CorruptRecordError

    try:
        scan.read(page.records)
    except CorruptRecordError as error:
        raise NotCommitted(
            f"topic {name} cannot be read at offset {scan.position}.",
            f"{error}.",
            "Another replica may be intact: move the leader to it. Nothing was published.",
        ) from error


def _marker_state(marker: Any) -> MarkerState | None:
    from kafka.errors import CorruptRecordError

    if not marker.validate_crc():
        raise CorruptRecordError(f"control batch at offset {marker.base_offset}")
    record = next(iter(marker), None)
    if record is None:
        return MarkerState.UNKNOWN  # compaction keeps the last batch of a producer without its records
    return {0: MarkerState.ABORTED, 1: MarkerState.COMMITTED}.get(record.type)


def _page(client: BrokerClient, partition: Partition, offset: int, topic_id: str | None) -> Page | None:
    """One page; None if the partition does not exist or the topic has another id. Retried: a broker may be behind."""
    limit = monotonic() + MISSING
    while True:
        page = client.call(lambda: _fetch(client, partition, offset, topic_id))
        if page is not None or monotonic() > limit:
            return page
        sleep(0.2)


async def _fetch(client: BrokerClient, partition: Partition, offset: int, topic_id: str | None) -> Page | None:
    from kafka.errors import OffsetNotAvailableError, ThrottlingQuotaExceededError, UnknownTopicOrPartitionError

    try:
        node = await client.leader(partition, topic_id)
        response = await client.send(_request({partition: offset}), node)
        check(response.error_code)
        result = response.responses[0].partitions[0]
        check(0 if result.error_code == OUT_OF_RANGE else result.error_code)
    except UnknownTopicOrPartitionError:
        return None
    page = _to_page(result)
    if page.in_range and page.high_watermark < offset:
        raise OffsetNotAvailableError  # a new leader does not know yet how far the log is replicated
    if not page.records and response.throttle_time_ms:
        raise ThrottlingQuotaExceededError
    return page


async def _first_pages(
    client: BrokerClient, since: Mapping[Partition, int], topic_ids: Mapping[str, str], leaders: dict[Partition, int]
) -> dict[Partition, Page]:
    from kafka.errors import KafkaError

    if not since.keys() <= leaders.keys():
        leaders |= await client.leaders(topic_ids)
    try:
        found = await _fetch_first(client, since, leaders)
    except KafkaError:
        leaders.clear()
        raise
    for partition in since.keys() - found.keys():
        leaders.pop(partition, None)
    return found


async def _fetch_first(
    client: BrokerClient, since: Mapping[Partition, int], leaders: Mapping[Partition, int]
) -> dict[Partition, Page]:
    at: dict[int, dict[Partition, int]] = defaultdict(dict)
    for partition in since.keys() & leaders.keys():
        at[leaders[partition]][partition] = since[partition]
    found = {}
    for node, offsets in at.items():
        response = await client.send(_request(offsets), node)
        for topic in [] if response.error_code else response.responses:
            for result in topic.partitions:
                partition, page = (topic.topic, result.partition_index), _to_page(result)
                at_end = page.high_watermark == offsets[partition] and not response.throttle_time_ms
                if page.in_range and (page.records or at_end):  # empty: other partitions may have filled the response
                    found[partition] = page
    return found


def _to_page(result: Any) -> Page:
    return Page(result.high_watermark, not result.error_code, bytes(result.records or b""))


def _request(offsets: Mapping[Partition, int]) -> Any:
    """A fetch outside of any session. Version 11 is the last one with topic names and without compact encoding."""
    from kafka.protocol.consumer.fetch import FetchRequest

    topics = defaultdict(list)
    for (topic, number), offset in offsets.items():
        wanted = FetchRequest.FetchTopic.FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=PAGE)
        topics[topic].append(wanted)
    return FetchRequest(
        version=11,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=PAGE,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=wanted) for topic, wanted in topics.items()],
    )
