"""The log of one topic, as a read_committed reader sees it: its extent, offsets by time, and open transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep
from typing import Any

from onceonly.checkpoint.boundary_search import TOO_FAR, BoundarySearch, FirstRecord
from onceonly.checkpoint.interfaces import OpenTransaction
from onceonly.checkpoint.offsets import NO_OFFSETS, Offsets, TopicLog, TopicRange
from onceonly.errors import InvalidPipeline
from onceonly.kafka import client_settings
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.topic import EARLIEST, LATEST, RecordSearch, SearchTooLong, TopicClient
from onceonly.kafka.transactions import OPEN_STATES, Holder, Transactions
from onceonly.unix_time import MILLISECOND, UNIX_EPOCH
from onceonly.waits import wait_for

LAST_TIME = datetime.max.replace(tzinfo=UTC)
LAST_MILLIS = (LAST_TIME - UNIX_EPOCH) // MILLISECOND
MAX_SEARCH_SECONDS = 600.0  # for a boundary behind records that are dated ahead: some 10^8 records
MARKER_SECONDS = 1.0  # within which the markers of a transaction usually follow its end
TRANSACTION_CLEANUP = timedelta(minutes=1)  # brokers look for transactions past their time-out every ten seconds


class KafkaLog:
    """The log of one topic.

    Args:
        topic: its name in ranges, or the pattern of all topics that are read as one.
        client: of that topic.
        kafka: how to reach the brokers.
    """

    def __init__(self, topic: str, client: TopicClient, kafka: KafkaConnection) -> None:
        self._topic, self._client, self._kafka = topic, client, kafka

    def read_extent(self) -> TopicLog:
        """Return the log start, last stable offset and high watermark of every partition, by four requests."""
        topic_id, partitions = self._client.describe()
        starts = self._client.list_offsets(partitions, EARLIEST)
        written, stable = self._read_ends(partitions)  # in this order: what arrives in between seems to wait for nobody
        extent = {partition: (starts[partition].offset, stable[partition]) for partition in partitions}
        return TopicLog(self._topic, topic_id, extent, high_watermarks=written)

    def has_records(self, range_: TopicRange) -> bool:
        """Return whether the range has a committed record."""
        with closing(self._client.read_records(dict(range_.partitions))) as records:
            return next(records, None) is not None

    def find_first_offsets(self, range_: TopicRange) -> Offsets:
        """Return the offset of the range's first committed record, by partition; its end, where there is none."""
        starts = {p: start for p, (start, end) in range_.partitions.items() if start < end}
        first_offsets = self._client.find_records(starts, dict.fromkeys(starts, _take_offset))
        offsets = dict(range_.ends)
        for partition, offset in first_offsets.items():
            offsets[partition] = min(offset, offsets[partition])
        return offsets

    def await_transactions(self, log: TopicLog) -> tuple[TopicLog, list[OpenTransaction]]:
        """Wait a moment for the markers of ended transactions; return the log then, and what is open in it.

        See `TransactionalLog`.
        """
        limit = monotonic() + MARKER_SECONDS
        with wait_for(f"transactions of producers that are open in topic '{log.topic}'"):
            while log.hidden_offsets and monotonic() < limit:
                sleep(MARKER_SECONDS / 10)
                previous_log, log = log, self.read_extent()
                if log.partitions != previous_log.partitions:
                    return log, []
        if not log.hidden_offsets:
            return log, []
        return log, find_open_transactions(self._kafka, log)

    def find_offsets(
        self, time: datetime, latest: datetime | None = None, floor: Offsets = NO_OFFSETS
    ) -> Mapping[int, FirstRecord]:
        """Find, per partition, the first record at or after `time` that a read_committed reader sees, else the LSO.

        A broker can only name the first record at or after a time. Where that one is dated after `latest`, what follows
        it is read, from `floor` on if that comes later: the boundary will not lie before.

        Args:
            time: aware.
        Raises:
            InvalidPipeline: what follows is more than can be read in a reasonable time.
        """
        first = _ask_until_decided(lambda: self._offsets_at(_millis(time)))
        if latest is None:
            return first
        starts = {}
        for partition, record in first.items():
            if _is_ahead(record, latest):
                starts[partition] = max(record.offset, floor.get(partition, 0))
        if not starts:
            return first
        return {**first, **_ask_until_decided(lambda: self._pass_over(starts, time, latest))}

    def _offsets_at(self, millis: int) -> dict[int, FirstRecord]:
        """Find records as `find_offsets`, without retries.

        The broker's result may be an aborted record, or a commit marker (with the broker's time, so found for any time
        up to now): the search only starts there. The LSO is read before, so that a record which arrives meanwhile is
        never below a boundary that it belongs above. The end of the log is read before the LSO, so that such a record
        is not taken for one that an open transaction hides.
        """
        _, partitions = self._client.describe()
        ends, stable = self._read_ends(partitions)
        hints = self._client.list_offsets(partitions, millis)
        starts: dict[int, int] = {}
        for partition, offset in _take_offsets(hints).items():
            if offset >= 0:
                starts[partition] = offset
        records = self._client.find_records(starts, dict.fromkeys(starts, _first_from(millis)))
        first: dict[int, FirstRecord] = {}
        for partition in partitions:
            end = FirstRecord(stable[partition], None, is_hidden=stable[partition] < ends[partition])
            first[partition] = records.get(partition) or end
        return first

    def _pass_over(self, starts: Offsets, time: datetime, latest: datetime) -> dict[int, FirstRecord]:
        """Find, from `starts` on, the first record in [time, latest], else the LSO. The ends are read first."""
        ends, stable = self._read_ends(list(starts))
        searches: dict[int, BoundarySearch] = {}
        record_searches = {}
        for partition in starts:
            searches[partition] = BoundarySearch(time, latest, stable[partition])
            record_searches[partition] = _search_of(searches[partition])
        try:
            records = self._client.find_records(starts, record_searches, MAX_SEARCH_SECONDS)
        except SearchTooLong as error:
            raise self._long_search_error(error, starts[error.partition]) from None
        first: dict[int, FirstRecord] = {}
        for partition, search in searches.items():
            is_hidden = stable[partition] < ends[partition]
            first[partition] = records.get(partition) or search.nothing(is_hidden=is_hidden)
        return first

    def _long_search_error(self, error: SearchTooLong, start: int) -> InvalidPipeline:
        return InvalidPipeline(
            f"topic '{self._client.topic}' partition {error.partition}: where an interval ends was not found within "
            f"{MAX_SEARCH_SECONDS:.0f} s.",
            "A record is dated so far in the future that the broker cannot tell. So the records behind it are read, "
            f"and those at {start} to {error.offset} are all dated before the interval's end, or in the future too.",
            "Run shorter intervals until the pipeline has caught up: each search begins where its interval begins. "
            "Nothing was written.",
            code=TOO_FAR,
        )

    def _read_ends(self, partitions: list[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Read the ends of the log, and then the last stable offsets."""
        ends = self._client.list_offsets(partitions, LATEST, committed=False)
        stable = self._client.list_offsets(partitions, LATEST)
        return _take_offsets(ends), _take_offsets(stable)


def _take_offset(offset: int, millis: int) -> int:
    """Return the offset of whichever record comes first."""
    return offset


def _first_from(time_millis: int) -> RecordSearch[FirstRecord]:
    """Return a search for the first record at or after a time."""

    def look_at(offset: int, millis: int) -> FirstRecord | None:
        return FirstRecord(offset, _to_time(millis)) if millis >= time_millis else None

    return look_at


def _search_of(search: BoundarySearch) -> RecordSearch[FirstRecord]:
    """Return the search as the client takes it, with times in milliseconds."""
    return lambda offset, millis: search.look_at(offset, _to_time(millis))


def _to_time(millis: int) -> datetime:
    """Return a record's time, at most the last one that Python knows.

    A producer that counts in microseconds dates records after the last year that Python knows.
    """
    return UNIX_EPOCH + millis * MILLISECOND if millis <= LAST_MILLIS else LAST_TIME


def _ask_until_decided(ask: Callable[[], dict[int, FirstRecord]]) -> dict[int, FirstRecord]:
    """Ask again for a moment if an open transaction hides records: its markers may be about to be written."""
    limit = monotonic() + MARKER_SECONDS
    with wait_for("transactions of producers that are open at the end of the interval"):
        while True:
            records = ask()
            if monotonic() > limit or not any(record.is_hidden for record in records.values()):
                return records
            sleep(MARKER_SECONDS / 10)


def _take_offsets(listed: Mapping[int, Any]) -> dict[int, int]:
    """Return the offsets of an answer of the brokers, by partition."""
    return {partition: result.offset for partition, result in listed.items()}


def _is_ahead(record: FirstRecord, latest: datetime) -> bool:
    return record.at is not None and record.at > latest


def _millis(time: datetime) -> int:
    """Return the milliseconds since 1970, rounded up: Kafka's first millisecond at or after `time`."""
    return max(0, -((UNIX_EPOCH - time) // MILLISECOND))


def find_open_transactions(kafka: KafkaConnection, log: TopicLog) -> list[OpenTransaction]:
    """Find the transactions behind which records lie in `log`, one for each such partition.

    Where the brokers do not say whose it is, others' records count as hidden.

    Raises:
        NotCommitted: the brokers do not answer.
    """
    stable = {partition: log.partitions[partition][1] for partition in log.hidden_offsets}
    try:
        with Transactions(client_settings.kafka_python_arguments(kafka)) as transactions:
            holders = transactions.find_holders((log.topic, log.topic_id), stable)
    except InvalidPipeline:  # this connection, or its user, cannot ask
        return _list_hidden(log)
    now = datetime.now(UTC)
    return [_to_transaction(log, partition, holder, now) for partition, holder in sorted(holders.items())]


def _list_hidden(log: TopicLog) -> list[OpenTransaction]:
    """Return an open transaction of unknown owner for each partition that has one."""
    transactions = []
    for partition, count in log.hidden_offsets.items():
        transactions.append(OpenTransaction(partition, log.partitions[partition][1], count, True))
    return transactions


def _to_transaction(log: TopicLog, partition: int, holder: Holder, now: datetime) -> OpenTransaction:
    transactional_id = f" (transactional id '{holder.id}')" if holder.id else ""
    return OpenTransaction(
        partition,
        holder.offset,
        log.hidden_offsets[partition],
        holder.hides_others,
        _is_overdue(holder, now),
        holder.transaction.started_at if holder.transaction else None,
        f"producer {holder.producer_id}, epoch {holder.epoch}{transactional_id}",
    )


def _is_overdue(holder: Holder, now: datetime) -> bool:
    """Return whether its coordinator has ended it, without this partition, or should have done so."""
    transaction = holder.transaction
    if transaction is None:
        return False  # not known: as long as it hides nothing of others, nobody misses anything
    if transaction.state not in OPEN_STATES:
        return True
    limit = timedelta(seconds=transaction.timeout) + TRANSACTION_CLEANUP
    return transaction.started_at is not None and transaction.started_at + limit < now
