"""How a transaction ended, as the log itself shows it: the control record that closes it.

Error codes, read_committed positions and aborted-transaction lists can each mislead (compaction, retention, another
producer's open transaction); the marker cannot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from time import monotonic, sleep
from typing import Any

from onceonly.errors import NotCommitted
from onceonly.kafka.admin import Wire, check

PAGE = 8 << 20  # bytes asked for in one request
MISSING = 2.0  # seconds for which a topic must stay unknown before it counts as deleted
OUT_OF_RANGE = 1  # the error code
Partition = tuple[str, int]


class Sighting(Enum):
    """What the log says of one transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    NONE = "none"  # every offset was read, none is its marker: it has not ended, so far as this partition knows
    GONE = "gone"  # the marker may have been there and was deleted, or compacted away; or the topic was


@dataclass(frozen=True)
class Page:
    """What one fetch of a partition brought."""

    high_watermark: int
    in_range: bool  # whether the log still holds the offset asked for
    records: bytes  # whole record batches, the last one perhaps cut short


class Walk:
    """Over record batches, from an offset on, looking for the first marker of one transaction."""

    def __init__(self, producer_id: int, epoch: int, since: int) -> None:
        self._producer_id, self._epoch, self.position = producer_id, epoch, since
        self.gap = False  # whether offsets were missing: compaction has been here

    def through(self, records: bytes) -> Sighting | None:
        """What these batches say; None: nothing."""
        from kafka.record.memory_records import MemoryRecords

        for batch in MemoryRecords(records):
            if batch.next_offset <= self.position:
                continue  # a fetch begins with the whole batch that holds the offset
            self.gap |= batch.base_offset > self.position
            self.position = batch.next_offset
            if self._is_ours(batch) and (sighting := _sighting(batch)):
                return sighting
        return None

    def _is_ours(self, batch: Any) -> bool:
        """Epochs only grow: a commit by a current broker, a fence or a time-out adds one."""
        return bool(
            batch.is_control_batch and batch.producer_id == self._producer_id and batch.producer_epoch >= self._epoch
        )


def look(
    wire: Wire,
    partition: Partition,
    producer_id: int,
    epoch: int,
    since: int,
    topic_id: str | None = None,
    alone: bool = True,
    first: Page | None = None,
) -> Sighting:
    """The first marker of that producer, of that epoch or a later one, from `since` to the present end of the log.

    Offsets that are missing between batches are compaction's work, and compaction touches nothing that an open
    transaction holds back. So a gap and no marker means: it has ended, how is not known any more.

    Args:
        topic_id: GONE if the topic of that name is another one; None does not compare.
        alone: the producer has never had another transaction; else a marker behind a gap may be the next one's.
        first: what was fetched from `since` just now; None: it is fetched here.
    Raises:
        NotCommitted: one fetch was not answered within 10 s.
    """
    walk, end = Walk(producer_id, epoch, since), None
    while end is None or walk.position < end:
        before = walk.position
        page, first = first or _page(wire, partition, before, topic_id), None
        if page is None or not page.in_range:
            return Sighting.GONE
        end = page.high_watermark if end is None else end  # a busy topic's own end would never be reached
        if sighting := _through(walk, page, f"'{partition[0]}' partition {partition[1]}"):
            return sighting if alone or not walk.gap else Sighting.GONE
        if walk.position == before < end:
            return Sighting.GONE  # nothing is left between here and the end
    return Sighting.GONE if walk.gap else Sighting.NONE


def first_pages(wire: Wire, since: Mapping[Partition, int], topic_ids: Mapping[str, str]) -> dict[Partition, Page]:
    """One fetch from each leader instead of one per partition; a partition that did not answer plainly is left out."""
    return wire.ask(lambda: _first_pages(wire, since, topic_ids))


def _through(walk: Walk, page: Page, name: str) -> Sighting | None:
    from kafka.errors import CorruptRecordError

    try:
        return walk.through(page.records)
    except CorruptRecordError as error:
        raise NotCommitted(
            f"topic {name} cannot be read at offset {walk.position}.",
            f"{error}.",
            "Another replica may be sound: move the leader. Nothing was published.",
        ) from error


def _sighting(marker: Any) -> Sighting | None:
    from kafka.errors import CorruptRecordError

    if not marker.validate_crc():
        raise CorruptRecordError(f"control batch at offset {marker.base_offset}")
    record = next(iter(marker), None)
    if record is None:
        return Sighting.GONE  # compaction keeps the last batch of a producer, emptied
    return {0: Sighting.ABORTED, 1: Sighting.COMMITTED}.get(record.type)


def _page(wire: Wire, partition: Partition, offset: int, topic_id: str | None) -> Page | None:
    """None: no such topic or partition, or another topic of that name; asked again first, a broker may be behind."""
    limit = monotonic() + MISSING
    while True:
        page = wire.ask(lambda: _fetch(wire, partition, offset, topic_id))
        if page is not None or monotonic() > limit:
            return page
        sleep(0.2)


async def _fetch(wire: Wire, partition: Partition, offset: int, topic_id: str | None) -> Page | None:
    from kafka.errors import OffsetNotAvailableError, ThrottlingQuotaExceededError, UnknownTopicOrPartitionError

    try:
        node = await wire.leader(partition, topic_id)
        response = await wire.send(_request({partition: offset}), node)
        check(response.error_code)
        answer = response.responses[0].partitions[0]
        check(0 if answer.error_code == OUT_OF_RANGE else answer.error_code)
    except UnknownTopicOrPartitionError:
        return None
    page = Page(answer.high_watermark, not answer.error_code, bytes(answer.records or b""))
    if page.in_range and page.high_watermark < offset:
        raise OffsetNotAvailableError  # a new leader that does not know yet how far the log is replicated
    if not page.records and response.throttle_time_ms:
        raise ThrottlingQuotaExceededError
    return page


async def _first_pages(
    wire: Wire, since: Mapping[Partition, int], topic_ids: Mapping[str, str]
) -> dict[Partition, Page]:
    at: dict[int, dict[Partition, int]] = defaultdict(dict)
    for partition, node in (await wire.leaders(topic_ids)).items():
        if partition in since:
            at[node][partition] = since[partition]
    found = {}
    for node, offsets in at.items():
        response = await wire.send(_request(offsets), node)
        for topic in [] if response.error_code else response.responses:
            for answer in topic.partitions:
                partition = (topic.topic, answer.partition_index)
                page = Page(answer.high_watermark, not answer.error_code, bytes(answer.records or b""))
                at_end = page.high_watermark == offsets[partition] and not response.throttle_time_ms
                if page.in_range and (page.records or at_end):  # else the other partitions may have taken all the room
                    found[partition] = page
    return found


def _request(offsets: Mapping[Partition, int]) -> Any:
    """Version 11: the last one with topic names and without compact encoding; outside of any fetch session."""
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
