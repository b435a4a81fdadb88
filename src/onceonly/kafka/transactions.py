"""Describing transactions, and ending them from any process, not only from the one that wrote them.

librdkafka cannot resume a transaction that another process left open. kafka-python can, through private parts: see
`admin`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any

from onceonly.errors import NotCommitted, OutcomeUnknown
from onceonly.kafka import markers
from onceonly.kafka.admin import OUT_OF_RANGE, BrokerClient, ResponseLost, check
from onceonly.kafka.cluster import Cluster, to_topic_partitions
from onceonly.kafka.connection import DENIED
from onceonly.kafka.log_ends import TRANSACTIONAL, Topic, fetch_request, partitions_by_leader, read_headers
from onceonly.kafka.markers import MarkerScan, MarkerState, Page, Partition, PartitionLog, Producer
from onceonly.unix_time import MILLISECOND, UNIX_EPOCH

__all__ = ["Described", "EndRefused", "Holder", "MarkerState", "Partition", "Transactions"]

FENCE_TIMEOUT_SECONDS = 30.0  # the abort markers of a large transaction have to be written first
HOLDER_PAGE_BYTES, MAX_HOLDER_PAGES = 4 << 20, 16  # read of one partition at most: 64 MiB
OLD_END_VERSION = 4  # of EndTxn: the newest that every transaction.version takes
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
COMMITTED_STATES = ("CompleteCommit",)


@dataclass(frozen=True)
class Described:
    """What the coordinator reports about one transactional id."""

    state: str  # Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, …
    producer_id: int
    epoch: int
    timeout: float  # seconds
    started_at: datetime | None  # aware; None: no transaction has begun
    partitions: frozenset[Partition]  # of the transaction that has not ended


@dataclass(frozen=True)
class Holder:
    """The producer whose open transaction begins first in a partition, and so holds up its readers.

    Args:
        hides_others: a batch of somebody who has no open transaction lies behind it.
        id: the transactional id; None: no coordinator shows it to this client.
        transaction: what its coordinator reports.
    """

    producer_id: int
    epoch: int
    offset: int
    hides_others: bool
    id: str | None = None
    transaction: Described | None = None


class EndRefused(OutcomeUnknown):
    """The coordinator returned an error for EndTxn. No error code alone proves the outcome."""


Start = tuple[PartitionLog, int]  # a log, and an offset above a transaction's rows and below its marker
Starts = Mapping[Partition, int]  # such offsets, by partition


class Transactions(Cluster):
    """The transactions of one cluster. Producer id and epoch identify one.

    Kept between calls: routes (`_leaders`, `_coordinators`), of which a wrong one is refused by the broker and looked
    up again; what was read of a log (`_scans`, by its topic id and first offset), which only grows; and one page per
    log and transaction (`_pages`) for the next `read_marker_states` of that transaction, and for no later one.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._leaders: dict[PartitionLog, int] = {}
        self._scans: dict[Start, MarkerScan] = {}  # by `share_scans`
        self._pages: dict[Producer, dict[PartitionLog, Page]] = {}  # by `prefetch_pages`
        self._coordinators: dict[str, int] = {}  # by `prefetch_coordinators`, each for one request

    def share_scans(self, starts_by_producer: Mapping[Producer, Starts], topic_ids: Mapping[str, str]) -> None:
        """Read the log once for all of these transactions from now on, instead of once for each.

        Args:
            starts_by_producer: as for `read_marker_states`. Those with the same start in a partition share a scan.
        """
        producers_by_start: dict[Start, set[int]] = defaultdict(set)
        for (producer_id, _), starts in starts_by_producer.items():
            for start in _with_logs(starts, topic_ids):
                producers_by_start[start].add(producer_id)
        absences: markers.Absences = {}
        self._scans = {start: MarkerScan(*start, ids, absences) for start, ids in producers_by_start.items()}
        self._pages = {}

    def prefetch_pages(self, starts_by_producer: Mapping[Producer, Starts], topic_ids: Mapping[str, str]) -> None:
        """Fetch at once what the next `read_marker_states` of each of these transactions reads first.

        Args:
            starts_by_producer: as for `share_scans`.
        """
        logs_by_producer: dict[Producer, list[PartitionLog]] = {}
        positions: dict[PartitionLog, int] = {}
        for producer, starts in starts_by_producer.items():
            starts_in_logs = _with_logs(starts, topic_ids)
            logs_by_producer[producer] = [log for log, _ in starts_in_logs]
            for start in starts_in_logs:
                positions.setdefault(start[0], self._scan(start, [producer[0]]).position)
        pages = markers.fetch_first_pages(self._client, positions, self._leaders)
        self._pages = {}
        for producer, logs in logs_by_producer.items():
            self._pages[producer] = {log: pages[log] for log in logs if log in pages}

    def prefetch_coordinators(self, ids: Iterable[str]) -> None:
        """Find at once what `end` needs for each of these ids."""
        self.read_transaction_version()
        id_list = list(ids)  # the request may be repeated
        self._coordinators |= self._client.call(lambda: self._client.coordinators(id_list))

    def describe(self, ids: Iterable[str]) -> dict[str, Described]:
        """Return what the coordinators report about these ids; an unknown id is left out."""
        sorted_ids = sorted(set(ids))
        if not sorted_ids:
            return {}
        return self._client.call(lambda: self._describe(sorted_ids))

    def list_open(self, pattern: str) -> list[str]:
        """Return the transactional ids with a transaction that has not ended.

        Args:
            pattern: RE2, which must match the whole id.
        """
        return self._client.call(lambda: self._list_in(OPEN_STATES, pattern))

    def list_committed(self, pattern: str) -> list[str]:
        """Return the transactional ids whose last transaction was committed, as long as the coordinators know them.

        Args:
            pattern: as for `list_open`.
        """
        return self._client.call(lambda: self._list_in(COMMITTED_STATES, pattern))

    def end(self, id: str, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Commit or abort the transaction that the producer left open. Repeating the same request is no error.

        The response comes before the markers are in the log. The request is retried only after a response that means
        "not now", and never after a lost response: the caller has to look for the marker first.

        Raises:
            NotCommitted: nothing was sent within 10 s.
            EndRefused: the coordinator refused.
            OutcomeUnknown: no response.
        """
        version, node = self.read_transaction_version(), self._coordinators.pop(id, None)
        request = _EndRequest(self._client, id, producer_id, epoch, commit, version, node)
        try:
            self._client.call(request.attempt)
        except (NotCommitted, ResponseLost) as error:
            if not request.is_sent:
                raise
            reason = error.why if isinstance(error, NotCommitted) else error
            raise OutcomeUnknown(
                f"transaction '{id}': whether it was {request.action} is not known.",
                f"The Kafka broker at {self._client.address} did not confirm it: {reason}",
                "Look for its marker in the log before sending anything again.",
                code="transaction-end-unconfirmed",
            ) from error

    def fence(self, id: str) -> None:
        """Fence all producers of that id: afterwards it has no open transaction, and none of them can write or commit.

        An open transaction is aborted. If its commit has begun, it is committed. Takes up to 30 s.
        """
        self._client.call(lambda: self._fence(id), FENCE_TIMEOUT_SECONDS)

    def has_write_grant(self, id: str) -> bool:
        """Return whether this client may write in transactions of that id.

        It asks to end one of a producer that does not exist: brokers look at the grant first, and then end nothing.
        """
        return self._client.call(lambda: self._has_write_grant(id))

    def withdraw(self, id: str, producer_id: int, epoch: int) -> None:
        """Abort the transaction that the producer left open, unless it has ended or another producer has the id now.

        `fence` cannot be used here: it ends the open transaction of any producer. Raises as `end`.
        """
        with suppress(EndRefused):
            self.end(id, producer_id, epoch, commit=False)

    def read_marker_states(
        self, starts: Starts, producer: Producer, topic_ids: Mapping[str, str], has_one_transaction: bool
    ) -> dict[Partition, MarkerState]:
        """Return how one transaction ended in each of its partitions, from the logs alone: see `markers.read_state`."""
        scans = [self._scan(start, [producer[0]]) for start in _with_logs(starts, topic_ids)]
        pages = self._pages.pop(producer, None)  # for this call alone: the next one has to see the log's end as of then
        if pages is None:
            pages = self._fetch_missing_pages(scans, producer, has_one_transaction)
        states: dict[Partition, MarkerState] = {}
        for scan in scans:
            page = pages.get(scan.log)
            states[scan.log.partition] = markers.read_state(self._client, scan, producer, has_one_transaction, page)
        return states

    def _fetch_missing_pages(
        self, scans: Iterable[MarkerScan], producer: Producer, has_one_transaction: bool
    ) -> dict[PartitionLog, Page]:
        """Fetch the next page of each log whose scan has not passed the producer's marker, by a request per leader."""
        positions: dict[PartitionLog, int] = {}
        for scan in scans:
            if scan.find_state(producer, has_one_transaction) is None:
                positions[scan.log] = scan.position
        if not positions:
            return {}
        return markers.fetch_first_pages(self._client, positions, self._leaders)

    def _scan(self, start: Start, producer_ids: Sequence[int]) -> MarkerScan:
        """Return the shared scan from there, or a new one if the shared one does not look for all of these."""
        shared_scan = self._scans.get(start)
        if shared_scan and shared_scan.is_looking_for(producer_ids):
            return shared_scan
        return MarkerScan(*start, producer_ids)

    def read_starts(self, producer_id: int, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the first offset of the producer's open transaction, by partition; left out where it has none."""
        return self.read_all_starts(partitions).get(producer_id, {})

    def read_all_starts(self, partitions: Iterable[Partition]) -> dict[int, dict[Partition, int]]:
        """Return, by producer id, the first offset of its open transaction, by partition."""
        starts: dict[int, dict[Partition, int]] = defaultdict(dict)
        partition_keys = to_topic_partitions(partitions)
        if not partition_keys:
            return starts
        states = self._client.call(lambda: self._client.admin._async_describe_producers(partition_keys))
        for key, state in states.items():
            for producer in state.active_producers:
                if _has_open_transaction(producer):
                    starts[producer.producer_id][key.topic, key.partition] = producer.current_transaction_start_offset
        return starts

    def find_holders(self, topic: Topic, stable: Mapping[int, int]) -> dict[int, Holder]:
        """Find the holders in these partitions; a partition without an open transaction is left out.

        Args:
            stable: the last stable offset, by partition.
        Raises:
            NotCommitted: the brokers do not answer, or refuse the request.
        """
        client = self._client
        partition_keys = to_topic_partitions((topic[0], number) for number in stable)
        answers = client.call(lambda: client.admin._async_describe_producers(partition_keys))
        holders: dict[int, Holder] = {}
        for key, answer in answers.items():
            producers = [producer for producer in answer.active_producers if _has_open_transaction(producer)]
            if producers:
                first = min(producers, key=lambda producer: producer.current_transaction_start_offset)
                producer_ids = {producer.producer_id for producer in producers}
                hides = self._has_batch_of_others(topic, key.partition, stable[key.partition], producer_ids)
                offset = first.current_transaction_start_offset
                id, transaction = self._describe_producer(first.producer_id)
                holders[key.partition] = Holder(first.producer_id, first.producer_epoch, offset, hides, id, transaction)
        return holders

    # --- helpers

    async def _describe(self, ids: list[str]) -> dict[str, Described]:
        from kafka.errors import TransactionalIdNotFoundError
        from kafka.protocol.admin.transactions import DescribeTransactionsRequest

        ids_by_node: dict[int, list[str]] = defaultdict(list)
        for id, node in (await self._client.coordinators(ids)).items():
            ids_by_node[node].append(id)
        descriptions = {}
        for node, node_ids in ids_by_node.items():
            response = await self._client.send(DescribeTransactionsRequest(transactional_ids=node_ids), node)
            for state in response.transaction_states:
                if state.error_code != TransactionalIdNotFoundError.errno:
                    check(state.error_code)
                    descriptions[state.transactional_id] = _to_described(state)
        return descriptions

    async def _list_in(self, states: Sequence[str], pattern: str) -> list[str]:
        from kafka.protocol.admin.transactions import ListTransactionsRequest

        api_version = self._client.admin._manager.broker_version_data.api_version
        whole_id = re.compile(pattern)
        ids: set[str] = set()
        for node in await self._client.brokers():
            fields = {}
            if api_version(ListTransactionsRequest) >= 2:
                fields["transactional_id_pattern"] = pattern
            response = await self._client.send(ListTransactionsRequest(state_filters=list(states), **fields), node)
            check(response.error_code)
            ids.update(state.transactional_id for state in response.transaction_states)
        return sorted(id for id in ids if whole_id.fullmatch(id))  # an older broker does not filter by the pattern

    async def _has_write_grant(self, id: str) -> bool:
        from kafka.protocol.producer.transaction import EndTxnRequest

        request = EndTxnRequest(
            transactional_id=id, producer_id=-1, producer_epoch=0, committed=False, max_version=OLD_END_VERSION
        )
        response = await self._client.send(request, (await self._client.coordinators([id]))[id])
        return response.error_code not in DENIED

    async def _fence(self, id: str) -> None:
        from kafka.protocol.producer.transaction import InitProducerIdRequest

        request = InitProducerIdRequest(
            transactional_id=id,
            transaction_timeout_ms=1000,  # never used: no transaction follows
            producer_id=-1,
            producer_epoch=-1,
        )
        response = await self._client.send(request, (await self._client.coordinators([id]))[id])
        check(response.error_code)

    def _has_batch_of_others(self, topic: Topic, number: int, offset: int, producer_ids: set[int]) -> bool:
        """Return whether a batch from the offset on is of none of these producers' open transactions.

        True in doubt, so where it is too much to read.
        """
        client = self._client
        for _ in range(MAX_HOLDER_PAGES):
            records = client.call(lambda at=offset: self._fetch_records(topic, number, at))  # type: ignore[misc]
            page_start = offset
            for header in read_headers(records):
                is_of_open = header.attributes & TRANSACTIONAL and header.producer_id in producer_ids
                if not header.is_control and not is_of_open:
                    return True
                offset = header.last_offset + 1
            if offset == page_start:
                return False
        return True

    async def _fetch_records(self, topic: Topic, number: int, offset: int) -> bytes:
        ((node, _),) = (await partitions_by_leader(self._client, topic, {number: 0})).items()
        request = fetch_request(topic[0], {number: offset}, HOLDER_PAGE_BYTES, HOLDER_PAGE_BYTES)
        response = await self._client.send(request, node)
        check(response.error_code)
        result = response.responses[0].partitions[0]
        if result.error_code != OUT_OF_RANGE:
            check(result.error_code)
        return bytes(result.records or b"")

    def _describe_producer(self, producer_id: int) -> tuple[str | None, Described | None]:
        """Return the producer's transactional id and transaction, where this client may know them.

        They explain, and are no evidence.
        """
        try:
            id = self._client.call(lambda: self._find_transactional_id(producer_id))
            if not id:
                return id, None
            return id, self.describe([id]).get(id)
        except NotCommitted:
            return None, None

    async def _find_transactional_id(self, producer_id: int) -> str | None:
        from kafka.protocol.admin.transactions import ListTransactionsRequest

        for node in await self._client.brokers():
            request: Any = ListTransactionsRequest(state_filters=[], producer_id_filters=[producer_id])
            response = await self._client.send(request, node)
            check(response.error_code)
            for state in response.transaction_states:
                return str(state.transactional_id)
        return None


class _EndRequest:
    """One EndTxn request with its retries."""

    def __init__(
        self,
        client: BrokerClient,
        id: str,
        producer_id: int,
        epoch: int,
        commit: bool,
        version: int,
        node: int | None = None,
    ) -> None:
        self._client, self._id, self._producer_id, self._epoch, self._commit = client, id, producer_id, epoch, commit
        # As Kafka's own client does: 5 requires transaction.version 2.
        self._max_version = 5 if version >= 2 else OLD_END_VERSION
        self._deadline = monotonic() + client.timeout
        self.is_sent, self._node = False, node
        self.action = "committed" if commit else "aborted"  # for messages

    async def attempt(self) -> None:
        """Send the request once. Raises EndRefused, or the KafkaError of a response that means "not now"."""
        from kafka.protocol.producer.transaction import EndTxnRequest

        node, self._node = self._node, None  # a retry asks again
        if node is None:
            node = (await self._client.coordinators([self._id]))[self._id]
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=self._commit,
            max_version=self._max_version,
        )
        response = await self._client.send_once(request, node, self._before_sending)
        self._check(response.error_code)

    def _before_sending(self) -> None:
        from kafka.errors import KafkaTimeoutError

        if monotonic() > self._deadline:
            raise KafkaTimeoutError  # `end` has reported already that nothing was sent
        self.is_sent = True

    def _check(self, code: int) -> None:
        from kafka import errors

        not_now = (
            errors.ConcurrentTransactionsError,
            errors.CoordinatorLoadInProgressError,
            errors.CoordinatorNotAvailableError,
            errors.NotCoordinatorError,
        )
        error = errors.for_code(code)
        if code and issubclass(error, not_now):
            raise error()
        if code:
            raise EndRefused(
                f"transaction '{self._id}' could not be {self.action}.",
                f"{error.message if error.errno != -1 else code}: {error.description}",
                "Look for its marker in the log: an error code alone does not prove how it ended.",
                code="transaction-end-refused",
            )


def _has_open_transaction(producer: Any) -> bool:
    return int(producer.current_transaction_start_offset) >= 0


def _with_logs(starts: Starts, topic_ids: Mapping[str, str]) -> list[Start]:
    """Return the starts with the logs of these topics, in the order of their partitions."""
    starts_in_logs = []
    for partition, offset in sorted(starts.items()):
        topic, _ = partition
        starts_in_logs.append((PartitionLog(*partition, topic_ids[topic]), offset))
    return starts_in_logs


def _to_described(state: Any) -> Described:
    """Return a coordinator's description of a transaction as ours."""
    started_at = None
    if state.transaction_start_time_ms >= 0:
        started_at = UNIX_EPOCH + state.transaction_start_time_ms * MILLISECOND
    partitions: set[Partition] = set()
    for topic in state.topics:
        partitions |= {(topic.topic, number) for number in topic.partitions}
    return Described(
        state=state.transaction_state,
        producer_id=state.producer_id,
        epoch=state.producer_epoch,
        timeout=state.transaction_timeout_ms / 1000,
        started_at=started_at,
        partitions=frozenset(partitions),
    )
