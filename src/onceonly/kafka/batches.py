"""Record batches as they lie in a log, by their headers: what plan needs to know of them without decoding a record."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and last timestamp, producer id,
# producer epoch, base sequence, number of records
HEADER = struct.Struct(">qiibIhiqqqhii")
LENGTH_END = 12  # the length counts what follows it
MAGIC = 2  # older batches have neither leader epoch nor producer
TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x10, 0x20, 0x40  # attributes; compaction sets the last one
OUT_OF_RANGE = 1  # the error code of a fetch


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


def headers(records: bytes) -> Iterator[Header]:
    """Yield the headers of all batches of which the whole header is there; the last batch may be cut short."""
    start = 0
    while start + HEADER.size <= len(records):
        fields = HEADER.unpack_from(records, start)
        base, length, epoch, magic, crc, attributes, delta, _, _, producer_id, _, _, count = fields
        yield Header(base, base + delta, epoch, magic, crc, attributes, producer_id, count)
        start += LENGTH_END + length


def fetch_request(topic: str, offsets: Mapping[int, int], partition_bytes: int, bytes_: int) -> Any:
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
        max_bytes=bytes_,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[fetch(topic=topic, partitions=partitions)],
    )
