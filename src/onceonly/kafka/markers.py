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
from onceonly.kafka.admin import OUT_OF_RANGE, BrokerClient, check, id_uuid

PAGE = 8 << 20  # bytes per fetch request
MISSING = 2.0  # seconds for which a topic, or the records at an offset, must stay away before they count as removed
Partition = tuple[str, int]
Producer = tuple[int, int]  # its id and epoch


class MarkerState(Enum):
    """What the log shows about one transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    NONE = "no marker"  # every offset was read and none is its marker: in this partition it has not ended
    UNKNOWN = "unknown"  # a marker may have existed and been deleted or compacted away, or the topic was deleted


@dataclass(frozen=True, order=True)
class PartitionLog:
    """One partition of one topic. A topic that was deleted and created again has another id, and so other logs."""

    topic: str
    number: int
    topic_id: str

    @property
    def partition(self) -> Partition:
        return self.topic, self.number

    def __str__(self) -> str:
        return f"'{self.topic}' partition {self.number}"


@dataclass(frozen=True)
class Page:
    """What one fetch returned: the content of one log from one offset on, at that moment.

    It says nothing about any other offset, except that the log ended at `high_watermark` then.
    """

    log: PartitionLog
    offset: int  # the requested one
    high_watermark: int
    in_range: bool  # whether the log still holds the requested offset
    records: bytes  # whole record batches; the last one may be cut short


@dataclass(frozen=True)
class Marker:
    """A marker that a scan has passed."""

    epoch: int
    behind_gap: bool  # whether offsets were missing before it: part of the log was compacted
    state: MarkerState


class MarkerScan:
    """A scan of the record batches of one log, from an offset on, for the markers of some producers.

    Each batch is read once, however many transactions are looked for. Threads may share a scan: whoever holds `turn`
    may move it on, by the page at its position alone.
    """

    def __init__(self, log: PartitionLog, since: int, producer_ids: Iterable[int]) -> None:
        self.log, self.position, self.has_gap = log, since, False
        self.turn = Lock()
        self._markers: dict[int, list[Marker]] = {id: [] for id in producer_ids}

    def looks_for(self, producer_ids: Iterable[int]) -> bool:
        """Return whether the scan notes the markers of all these producers."""
        return self._markers.keys() >= set(producer_ids)

    def is_next(self, page: Page) -> bool:
        """Return whether the page was fetched at the position that this scan has now."""
        return (page.log, page.offset) == (self.log, self.position)

    def read(self, page: Page) -> None:
        """Move past the batches of a page that `is_next`.

        Raises:
            NotCommitted: a batch is damaged. The scan stays before it.
        """
        from kafka.errors import CorruptRecordError
        from kafka.record.memory_records import MemoryRecords

        if not self.is_next(page):
            raise ValueError(f"a page of {page.log} at {page.offset} is not the next one of {self.log}")
        try:
            for batch in MemoryRecords(page.records):
                self._pass_batch(batch)
        except CorruptRecordError as error:
            raise NotCommitted(
                f"topic {self.log} cannot be read at offset {self.position}.",
                f"{error}.",
                "Another replica may be intact: move the leader to it. Nothing was published.",
            ) from error

    def find(self, producer: Producer, alone: bool) -> MarkerState | None:
        """Return the state of a producer's first marker, as `look` explains it; None if none was passed.

        Epochs only grow: a commit on a current broker, a fence or a timeout adds one.
        """
        producer_id, epoch = producer
        for marker in self._markers[producer_id]:
            if marker.epoch >= epoch:
                return marker.state if alone or not marker.behind_gap else MarkerState.UNKNOWN
        return None

    def _pass_batch(self, batch: Any) -> None:
        if batch.next_offset <= self.position:
            return  # a fetch starts with the whole batch that contains the offset
        has_gap = self.has_gap or batch.base_offset > self.position
        if batch.is_control_batch and batch.producer_id in self._markers:
            state = _marker_state(batch)
            if state:
                self._markers[batch.producer_id].append(Marker(batch.producer_epoch, has_gap, state))
        self.has_gap, self.position = has_gap, batch.next_offset  # last: a damaged marker is never passed


def look(
    client: BrokerClient, scan: MarkerScan, producer: Producer, alone: bool = True, first: Page | None = None
) -> MarkerState:
    """Find the first marker of that producer, with that epoch or a later one, from the scan's start to the current end.

    Offsets that are missing between batches were compacted, and compaction removes nothing above the last stable
    offset. So a gap without a marker means that the transaction has ended, and how can no longer be determined.

    Args:
        alone: the producer never had another transaction. Otherwise a marker behind a gap may be that of the next.
        first: a page of this log that was fetched for this look. Its end counts as the current one. Its records count
            only if no other thread has moved the scan on since.
    Raises:
        NotCommitted: a fetch got no response within 10 s.
    """
    end = first.high_watermark if first else None
    with scan.turn:
        while True:
            state = scan.find(producer, alone)
            if state:
                return state
            if end is not None and scan.position >= end:
                return MarkerState.UNKNOWN if scan.has_gap else MarkerState.NONE
            page = first if first and scan.is_next(first) else _page(client, scan.log, scan.position)
            if page is None or not page.in_range:
                return MarkerState.UNKNOWN
            if end is None:
                end = page.high_watermark  # kept: a busy topic's current end would never be reached
            scan.read(page)
            if scan.position == page.offset < end:
                return MarkerState.UNKNOWN  # no records are left between here and the end


def first_pages(
    client: BrokerClient, positions: Mapping[PartitionLog, int], leaders: dict[PartitionLog, int]
) -> dict[PartitionLog, Page]:
    """Fetch a page of each log, by one request per leader. A partition with an unclear response is left out.

    Args:
        positions: the offset to fetch at, by log.
        leaders: those known already; looked up and added here. One that fails is removed.
    """
    return client.call(lambda: _first_pages(client, positions, leaders))


def _marker_state(marker: Any) -> MarkerState | None:
    """Return how the control batch ends a transaction; None if it is of another kind.

    Raises:
        CorruptRecordError: its checksum is wrong.
    """
    from kafka.errors import CorruptRecordError

    if not marker.validate_crc():
        raise CorruptRecordError(f"control batch at offset {marker.base_offset}")
    record = next(iter(marker), None)
    if record is None:
        return MarkerState.UNKNOWN  # compaction keeps the last batch of a producer without its records
    return {0: MarkerState.ABORTED, 1: MarkerState.COMMITTED}.get(record.type)


def _page(client: BrokerClient, log: PartitionLog, offset: int) -> Page | None:
    """Fetch one page; None if there is no such log.

    What does not show at once is asked for again: a broker may be behind, and records may come from remote storage.
    """
    deadline = monotonic() + MISSING
    while True:
        page = client.call(lambda: _fetch(client, log, offset))
        is_clear = page and (page.records or not page.in_range or page.high_watermark <= offset)
        if is_clear or monotonic() > deadline:
            return page
        sleep(0.2)


async def _fetch(client: BrokerClient, log: PartitionLog, offset: int) -> Page | None:
    """Fetch one page; None if there is no such log. Raises KafkaError: the response is unclear, or an error."""
    from kafka.errors import (
        InconsistentTopicIdError,
        OffsetNotAvailableError,
        ThrottlingQuotaExceededError,
        UnknownTopicIdError,
        UnknownTopicOrPartitionError,
    )

    try:
        node = await client.leader(log.partition, log.topic_id)
        response = await client.send(_request({log: offset}), node)
        check(response.error_code)
        result = response.responses[0].partitions[0]
        if result.error_code != OUT_OF_RANGE:
            check(result.error_code)
    except (UnknownTopicOrPartitionError, UnknownTopicIdError, InconsistentTopicIdError):
        return None
    page = _to_page(log, offset, result)
    if page.in_range and page.high_watermark < offset:
        raise OffsetNotAvailableError  # a new leader does not know yet how far the log is replicated
    if not page.records and response.throttle_time_ms:
        raise ThrottlingQuotaExceededError
    return page


async def _first_pages(
    client: BrokerClient, positions: Mapping[PartitionLog, int], leaders: dict[PartitionLog, int]
) -> dict[PartitionLog, Page]:
    from kafka.errors import KafkaError

    if not positions.keys() <= leaders.keys():
        leaders_by_partition = await client.leaders({log.topic: log.topic_id for log in positions})
        for log in positions:
            if log.partition in leaders_by_partition:
                leaders[log] = leaders_by_partition[log.partition]
    try:
        pages = await _fetch_first(client, positions, leaders)
    except KafkaError:
        leaders.clear()
        raise
    for log in positions.keys() - pages.keys():
        leaders.pop(log, None)
    return pages


async def _fetch_first(
    client: BrokerClient, positions: Mapping[PartitionLog, int], leaders: Mapping[PartitionLog, int]
) -> dict[PartitionLog, Page]:
    """Fetch by one request per leader, and return the pages that are clear."""
    logs_by_leader: dict[int, list[PartitionLog]] = defaultdict(list)
    for log in sorted(positions.keys() & leaders.keys()):
        logs_by_leader[leaders[log]].append(log)
    pages = {}
    for node, logs in logs_by_leader.items():
        response = await client.send(_request({log: positions[log] for log in logs}), node)
        if response.error_code:
            continue
        logs_by_id = {(id_uuid(log.topic_id), log.number): log for log in logs}
        for topic in response.responses:
            for result in topic.partitions:
                log = logs_by_id[topic.topic_id, result.partition_index]
                page = _to_page(log, positions[log], result)
                is_at_end = page.high_watermark == page.offset and not response.throttle_time_ms
                # An empty page shows the end only at the end: else other partitions may have filled the response
                if page.in_range and (page.records or is_at_end):
                    pages[log] = page
    return pages


def _to_page(log: PartitionLog, offset: int, result: Any) -> Page:
    return Page(log, offset, result.high_watermark, not result.error_code, bytes(result.records or b""))


def _request(offsets: Mapping[PartitionLog, int]) -> Any:
    """Return a fetch request outside of any session.

    From version 13 on it names topics by their ids: no other topic can answer.
    """
    from kafka.protocol.consumer.fetch import FetchRequest

    partitions_by_id = defaultdict(list)
    for log, offset in offsets.items():
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=log.number, fetch_offset=offset, partition_max_bytes=PAGE
        )
        partitions_by_id[log.topic_id].append(partition)
    topics = []
    for topic_id, partitions in partitions_by_id.items():
        topics.append(FetchRequest.FetchTopic(topic_id=id_uuid(topic_id), partitions=partitions))
    return FetchRequest(
        version=13,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=PAGE,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=topics,
    )
