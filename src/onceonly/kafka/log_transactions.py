"""The transactions in the log of one partition, by producer id and epoch: how many records, their digest, and the end.

A plain read of the log, without a consumer: it shows aborted records and markers as well. The digest of records is the
sum of their hashes (see `onceonly.sinks.kafka.digest`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from onceonly.kafka import markers
from onceonly.kafka.admin import BrokerClient
from onceonly.kafka.markers import MarkerState, PartitionLog

FIRST_SEED = 42  # Spark's


@dataclass
class LoggedTransaction:
    """The records of one transaction in one partition; or all that a producer has written there without one.

    Args:
        first, last: offsets.
        records: how many.
        total: of the hashes of the records, modulo 2**64; None: a batch is compressed so that it cannot be read here.
        state: NONE: it has not ended.
    """

    log: PartitionLog
    producer_id: int
    epoch: int
    first: int
    last: int
    is_transactional: bool = True
    records: int = 0
    total: int | None = 0
    state: MarkerState = MarkerState.NONE


@dataclass
class LogContent:
    """What was read of one log.

    Args:
        start, end: the offsets from which and up to which it was read.
        gaps: (from, to) of offsets that were missing: compaction has removed them.
    """

    log: PartitionLog
    start: int
    end: int
    transactions: list[LoggedTransaction] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def has_lost(self, first: int, end: int) -> bool:
        """Return whether any of these offsets was removed: by retention, by a person, or by compaction."""
        if first < self.start:
            return True
        return any(start < end and stop > first for start, stop in self.gaps)


def read_content(client: BrokerClient, log: PartitionLog, start: int, end: int) -> LogContent:
    """Read a log between two offsets.

    Raises:
        NotCommitted: a fetch got no response, or a batch is damaged.
    """
    from kafka.errors import CorruptRecordError

    content = LogContent(log, start, end)
    position = start
    last: dict[tuple[int, int | None], LoggedTransaction] = {}  # by producer; an epoch: without transactions
    try:
        for batch in _read_batches(client, log, start, end):
            if batch.base_offset > position:
                content.gaps.append((position, batch.base_offset))
            position = batch.next_offset
            if batch.is_control_batch:
                ended = last.pop((batch.producer_id, None), None)
                if ended is not None:
                    ended.state = markers.read_marker(batch) or MarkerState.UNKNOWN
                continue
            if batch.records_count != batch.next_offset - batch.base_offset:
                content.gaps.append((batch.base_offset, batch.next_offset))
            key = batch.producer_id, None if batch.is_transactional else batch.producer_epoch
            if key not in last:
                last[key] = _begin(log, batch)
                content.transactions.append(last[key])
            _add_batch(last[key], batch)
    except CorruptRecordError as error:
        raise markers.damaged_log_error(log, position, error) from error
    if position < end:
        content.gaps.append((position, end))
    return content


def _begin(log: PartitionLog, batch: Any) -> LoggedTransaction:
    producer_id, epoch, is_transactional = batch.producer_id, batch.producer_epoch, batch.is_transactional
    transaction = LoggedTransaction(log, producer_id, epoch, batch.base_offset, 0, is_transactional)
    if not is_transactional:
        transaction.state = MarkerState.COMMITTED
    return transaction


def _read_batches(client: BrokerClient, log: PartitionLog, start: int, end: int) -> Iterator[Any]:
    """Yield the record batches in order, each once."""
    from kafka.record.memory_records import MemoryRecords

    position = start
    while position < end:
        page = markers.fetch_page(client, log, position)
        if page is None or not page.in_range:
            return
        before = position
        for batch in MemoryRecords(page.records):
            if batch.next_offset <= position:
                continue
            if batch.base_offset >= end:
                return
            yield batch
            position = batch.next_offset
        if position == before:
            return


def _add_batch(transaction: LoggedTransaction, batch: Any) -> None:
    transaction.last = batch.next_offset - 1
    transaction.records += batch.records_count
    total = _sum_hashes(batch)
    if total is None or transaction.total is None:
        transaction.total = None
    else:
        transaction.total = (transaction.total + total) % 2**64


def _sum_hashes(batch: Any) -> int | None:
    """Return the sum of the hashes of a batch's records; None: its compression is not earlier here."""
    import xxhash
    from kafka.errors import UnsupportedCodecError

    total = 0
    try:
        for record in batch:
            hash = FIRST_SEED
            for part in (record.key, record.value):
                if part is not None:
                    hash = xxhash.xxh64_intdigest(part, hash)
            total += hash
    except UnsupportedCodecError:
        return None
    return total
