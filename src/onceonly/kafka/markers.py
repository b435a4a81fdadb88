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
from onceonly.waits import wait_for

PAGE_BYTES = 8 << 20  # per fetch request
MISSING_SECONDS = 2.0  # for which a topic, or the records at an offset, must stay away before they count as removed
RETRY_SECONDS = 0.2  # between two fetches of what is missing
Partition = tuple[str, int]
Producer = tuple[int, int]  # its id and epoch
Absences = dict[str, float]  # by topic id: since when it is not there, by the monotonic clock


class MarkerState(Enum):
    """What one log shows about the end of one transaction."""

    COMMITTED = "committed"  # its marker says so: a marker never changes
    ABORTED = "aborted"  # likewise
    NONE = "no marker"  # every offset was read and none is its marker: here it had not ended when the log was read
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
    """A marker that a scan has passed.

    Args:
        is_behind_gap: whether offsets were missing before it: part of the log was compacted.
    """

    epoch: int
    is_behind_gap: bool
    state: MarkerState


class MarkerScan:
    """A scan of the record batches of one log, from an offset on, for the markers of some producers.

    Each batch is read once, however many transactions are looked for. Threads may share a scan: whoever holds `turn`
    may move it on, by the page at its position alone.

    Args:
        start: the offset of the first batch. A transaction can be found if this is above its rows and below its marker.
        producer_ids: markers of other producers are not noted.
        absences: see `fetch_page`; shared with the scans of other logs.
    """

    def __init__(
        self, log: PartitionLog, start: int, producer_ids: Iterable[int], absences: Absences | None = None
    ) -> None:
        self.log, self.position, self.has_gap = log, start, False
        self.absences = absences
        self.turn = Lock()
        self._markers: dict[int, list[Marker]] = {id: [] for id in producer_ids}

    def is_looking_for(self, producer_ids: Iterable[int]) -> bool:
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
            raise damaged_log_error(self.log, self.position, error) from error

    def find_state(self, producer: Producer, has_one_transaction: bool) -> MarkerState | None:
        """Return how the producer's transaction ended, if the scan has passed its marker; None if not.

        Its marker is the first one with its epoch or a later one. Epochs only grow: a commit on a current broker, a
        fence or a timeout adds one.

        Args:
            has_one_transaction: the producer never had another transaction. Otherwise a marker behind a gap may be that
                of the next one, and is no evidence.
        """
        producer_id, epoch = producer
        for marker in self._markers[producer_id]:
            if marker.epoch < epoch:
                continue  # of an earlier transaction
            if marker.is_behind_gap and not has_one_transaction:
                return MarkerState.UNKNOWN
            return marker.state
        return None

    def _pass_batch(self, batch: Any) -> None:
        """Note the batch's marker, if it is one that is looked for, and move behind the batch."""
        if batch.next_offset <= self.position:
            return  # a fetch starts with the whole batch that contains the offset
        has_gap = self.has_gap or batch.base_offset > self.position
        if batch.is_control_batch and batch.producer_id in self._markers:
            state = read_marker(batch)
            if state:
                self._markers[batch.producer_id].append(Marker(batch.producer_epoch, has_gap, state))
        self.has_gap, self.position = has_gap, batch.next_offset  # last: a damaged marker is never passed


def read_state(
    client: BrokerClient,
    scan: MarkerScan,
    producer: Producer,
    has_one_transaction: bool = True,
    first_page: Page | None = None,
) -> MarkerState:
    """Return how the producer's transaction ended, according to the log from the scan's start to its present end.

    COMMITTED and ABORTED are valid forever. NONE is valid for the moment at which the log's end was read: the
    transaction had not ended in this partition then, and may have ended since. UNKNOWN means that the log cannot tell,
    now or later: it no longer has the offsets at which a marker may have been. Offsets that are missing between batches
    were compacted. Compaction removes nothing above the last stable offset, so a gap without a marker means that the
    transaction has ended, and how can no longer be determined.

    Args:
        has_one_transaction: see `MarkerScan.find_state`.
        first_page: a page of this log that was fetched for this call. Its end counts as the present one. Its records
            count only if no other thread has moved the scan on since.
    Raises:
        NotCommitted: a fetch got no response within 10 s, or a batch is damaged.
    """
    end = first_page.high_watermark if first_page else None
    with scan.turn:
        while True:
            state = scan.find_state(producer, has_one_transaction)
            if state:
                return state
            if end is not None and scan.position >= end:
                return MarkerState.UNKNOWN if scan.has_gap else MarkerState.NONE
            page: Page | None = first_page
            if page is None or not scan.is_next(page):
                page = fetch_page(client, scan.log, scan.position, scan.absences)
            if page is None or not page.in_range:
                return MarkerState.UNKNOWN  # the log, or what it had from here on, was removed
            if end is None:
                end = page.high_watermark  # kept: a busy topic's current end would never be reached
            scan.read(page)
            if scan.position == page.offset < end:
                return MarkerState.UNKNOWN  # no records are left between here and the end


def fetch_first_pages(
    client: BrokerClient, positions: Mapping[PartitionLog, int], leaders: dict[PartitionLog, int]
) -> dict[PartitionLog, Page]:
    """Fetch a page of each log, by one request per leader. A log with an unclear response is left out.

    Args:
        positions: the offset to fetch at, by log.
        leaders: those known already; looked up and added here. One that fails is removed.
    """
    return client.call(lambda: _fetch_first_pages(client, positions, leaders))


def fetch_page(client: BrokerClient, log: PartitionLog, offset: int, absences: Absences | None = None) -> Page | None:
    """Fetch one page; None if there is no such log.

    What is missing is fetched again for MISSING_SECONDS: a broker may be behind, and records may come from remote
    storage. So a page without records, below the log's end, shows that no records are left there.

    Args:
        absences: topics that were missing when others of their logs were fetched; this fetch notes its own. The time
            counts from the first of them, so that the logs of a deleted topic are waited for together.
    """
    absences = {} if absences is None else absences
    started = monotonic()
    with wait_for(f"records of topic '{log.topic}' that its broker does not show yet"):
        while True:
            page = client.call(lambda: _fetch(client, log, offset))
            if page is None:
                missing_since = absences.setdefault(log.topic_id, started)
            else:
                missing_since = started
                absences.pop(log.topic_id, None)
                if page.records or not page.in_range or page.high_watermark <= offset:
                    return page
            if monotonic() > missing_since + MISSING_SECONDS:
                return page
            sleep(RETRY_SECONDS)


def damaged_log_error(log: PartitionLog, offset: int, error: Exception) -> NotCommitted:
    """Return the error that a record batch is not as it was written."""
    return NotCommitted(
        f"topic {log} cannot be read at offset {offset}.",
        f"{error}.",
        "Another replica may be intact: move the leader to it. Nothing was published.",
        code="log-damaged",
    )


def read_marker(batch: Any) -> MarkerState | None:
    """Return how the control batch ends its transaction; None if it is of another kind.

    Raises:
        CorruptRecordError: its checksum is wrong.
    """
    from kafka.errors import CorruptRecordError

    if not batch.validate_crc():
        raise CorruptRecordError(f"control batch at offset {batch.base_offset}")
    record = next(iter(batch), None)
    if record is None:
        return MarkerState.UNKNOWN  # compaction keeps the last batch of a producer without its records
    return {0: MarkerState.ABORTED, 1: MarkerState.COMMITTED}.get(record.type)


async def _fetch(client: BrokerClient, log: PartitionLog, offset: int) -> Page | None:
    """Fetch one page once; None if there is no such log.

    Raises:
        KafkaError: the response is unclear, or an error.
    """
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


async def _fetch_first_pages(
    client: BrokerClient, positions: Mapping[PartitionLog, int], leaders: dict[PartitionLog, int]
) -> dict[PartitionLog, Page]:
    """See `fetch_first_pages`."""
    from kafka.errors import KafkaError

    if not positions.keys() <= leaders.keys():
        leaders_by_partition = await client.leaders({log.topic: log.topic_id for log in positions})
        for log in positions:
            if log.partition in leaders_by_partition:
                leaders[log] = leaders_by_partition[log.partition]
    try:
        pages = await _fetch_by_leader(client, positions, leaders)
    except KafkaError:
        leaders.clear()
        raise
    for log in positions.keys() - pages.keys():
        leaders.pop(log, None)
    return pages


async def _fetch_by_leader(
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
                # An empty page elsewhere shows nothing: other partitions may have filled the response
                is_at_end = page.high_watermark == page.offset and not response.throttle_time_ms
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
            partition=log.number, fetch_offset=offset, partition_max_bytes=PAGE_BYTES
        )
        partitions_by_id[log.topic_id].append(partition)
    topics = []
    for topic_id, partitions in partitions_by_id.items():
        topics.append(FetchRequest.FetchTopic(topic_id=id_uuid(topic_id), partitions=partitions))
    return FetchRequest(
        version=13,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=PAGE_BYTES,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=topics,
    )
