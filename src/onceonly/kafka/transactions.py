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
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from onceonly.errors import NotCommitted, OutcomeUnknown
from onceonly.kafka import markers
from onceonly.kafka.admin import BrokerClient, ResponseLost, check
from onceonly.kafka.cluster import Cluster, keys
from onceonly.kafka.markers import MarkerScan, MarkerState, Page, Partition, PartitionLog, Producer

__all__ = ["Described", "EndRefused", "MarkerState", "Partition", "Transactions"]

FENCE_TIMEOUT = 30.0  # seconds: the abort markers of a large transaction have to be written first
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Described:
    """What the coordinator reports about one transactional id."""

    state: str  # Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, …
    producer_id: int
    epoch: int
    timeout: float  # seconds
    started_at: datetime | None  # aware; None: no transaction has begun
    partitions: frozenset[Partition]  # of the transaction that has not ended


class EndRefused(OutcomeUnknown):
    """The coordinator returned an error for EndTxn. No error code alone proves the outcome."""

    @property
    def kafka_error(self) -> str:
        """Kafka's name of the error, such as INVALID_TXN_STATE."""
        return self.why.split(":")[0]


Start = tuple[PartitionLog, int]  # a log, and an offset above a transaction's rows and below its marker
Starts = Mapping[Partition, int]


class Transactions(Cluster):
    """The transactions of one cluster. Producer id and epoch identify one.

    Kept between calls: routes (`_leaders`, `_nodes`), of which a wrong one is refused by the broker and looked up
    again; what was read of a log (`_scans`, by its topic id and first offset), which only grows; and one page per log
    and transaction for its next look alone (`_pages`), which counts for the offset that it was fetched at.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._leaders: dict[PartitionLog, int] = {}
        self._scans: dict[Start, MarkerScan] = {}  # by `watch`: what several transactions share
        self._pages: dict[Producer, dict[PartitionLog, Page]] = {}  # by `prepare`
        self._nodes: dict[str, int] = {}  # coordinators by `prepare_ends`, each for one request

    def watch(self, since: Mapping[Producer, Starts], topic_ids: Mapping[str, str]) -> None:
        """Read the log once for all of these transactions from now on, instead of once for each.

        Args:
            since: by producer id and epoch, as for `look_at_all`. Those with the same start in a partition share it.
        """
        producers_by_start: dict[Start, set[int]] = defaultdict(set)
        for (producer_id, _), starts in since.items():
            for start in _starts(starts, topic_ids):
                producers_by_start[start].add(producer_id)
        self._scans = {start: MarkerScan(*start, ids) for start, ids in producers_by_start.items()}
        self._pages = {}

    def prepare(self, since: Mapping[Producer, Starts], topic_ids: Mapping[str, str]) -> None:
        """Fetch at once what the next `look_at_all` of each of these transactions reads first.

        Args:
            since: as for `watch`.
        """
        starts_by_producer = {producer: _starts(starts, topic_ids) for producer, starts in since.items()}
        positions: dict[PartitionLog, int] = {}
        for (producer_id, _), starts in starts_by_producer.items():
            for start in starts:
                positions.setdefault(start[0], self._scan(start, [producer_id]).position)
        pages = markers.first_pages(self._client, positions, self._leaders)
        self._pages = {}
        for producer, starts in starts_by_producer.items():
            self._pages[producer] = {log: pages[log] for log, _ in starts if log in pages}

    def prepare_ends(self, ids: Iterable[str]) -> None:
        """Find at once what `end` needs for each of these ids."""
        self.transaction_version()
        id_list = list(ids)  # the request may be repeated
        self._nodes |= self._client.call(lambda: self._client.coordinators(id_list))

    def describe(self, ids: Iterable[str]) -> dict[str, Described]:
        """Return what the coordinators report about these ids; an unknown id is left out."""
        sorted_ids = sorted(set(ids))
        if not sorted_ids:
            return {}
        return self._client.call(lambda: self._describe(sorted_ids))

    def open(self, pattern: str) -> list[str]:
        """Return the transactional ids with a transaction that has not ended.

        Args:
            pattern: RE2, which must match the whole id.
        """
        return self._client.call(lambda: self._open(pattern))

    def end(self, id: str, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Commit or abort the transaction that the producer left open. Repeating the same request is no error.

        The response comes before the markers are in the log. The request is retried only after a response that means
        "not now", and never after a lost response: the caller has to look for the marker first.

        Raises:
            NotCommitted: nothing was sent within 10 s.
            EndRefused: the coordinator refused.
            OutcomeUnknown: no response.
        """
        version, node = self.transaction_version(), self._nodes.pop(id, None)
        request = _EndRequest(self._client, id, producer_id, epoch, commit, version, node)
        try:
            self._client.call(request.attempt)
        except (NotCommitted, ResponseLost) as error:
            if not request.is_sent:
                raise
            raise OutcomeUnknown(
                f"transaction '{id}': whether it was {'committed' if commit else 'aborted'} is not known.",
                f"The Kafka broker at {self._client.address} did not confirm it: "
                f"{error.why if isinstance(error, NotCommitted) else error}",
                "Look for its marker in the log before sending anything again.",
            ) from error

    def fence(self, id: str) -> None:
        """Fence all producers of that id: afterwards it has no open transaction, and none of them can write or commit.

        An open transaction is aborted. If its commit has begun, it is committed. Takes up to 30 s.
        """
        self._client.call(lambda: self._fence(id), FENCE_TIMEOUT)

    def withdraw(self, id: str, producer_id: int, epoch: int) -> None:
        """Abort the transaction that the producer left open, unless it has ended or another producer has the id now.

        `fence` cannot be used here: it ends the open transaction of any producer. Raises as `end`.
        """
        with suppress(EndRefused):
            self.end(id, producer_id, epoch, commit=False)

    def look(
        self,
        partition: Partition,
        producer_id: int,
        epoch: int,
        since: int,
        topic_id: str | None = None,
        alone: bool = True,
    ) -> MarkerState:
        """Return how the producer's transaction ended, from the log alone.

        The whole log is read from `since`, if necessary.

        Args:
            since: an offset above the transaction's rows and below its marker.
            topic_id: return UNKNOWN if the topic of that name has another id; None: that of the present topic.
            alone: whether the producer never had another transaction.
        """
        if topic_id is None:
            topic_id = self.topic_ids([partition[0]]).get(partition[0])
        if topic_id is None:
            return MarkerState.UNKNOWN
        scan = MarkerScan(PartitionLog(*partition, topic_id), since, [producer_id])
        return markers.look(self._client, scan, (producer_id, epoch), alone)

    def look_at_all(
        self, since: Starts, producer_id: int, epoch: int, topic_ids: Mapping[str, str], alone: bool
    ) -> dict[Partition, MarkerState]:
        """Look for the markers of one transaction, as `look` does, in each of its partitions."""
        producer = (producer_id, epoch)
        scans = [self._scan(start, [producer_id]) for start in _starts(since, topic_ids)]
        pages = self._pages.pop(producer, None)
        if pages is None:
            positions = {scan.log: scan.position for scan in scans if scan.find(producer, alone) is None}
            pages = markers.first_pages(self._client, positions, self._leaders) if positions else {}
        states: dict[Partition, MarkerState] = {}
        for scan in scans:
            states[scan.log.partition] = markers.look(self._client, scan, producer, alone, pages.get(scan.log))
        return states

    def _scan(self, start: Start, producer_ids: Sequence[int]) -> MarkerScan:
        """Return the shared scan from there, or a new one if the shared one does not look for all of these."""
        shared_scan = self._scans.get(start)
        if shared_scan and shared_scan.looks_for(producer_ids):
            return shared_scan
        return MarkerScan(*start, producer_ids)

    def starts(self, producer_id: int, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the first offset of the producer's open transaction, by partition; left out where it has none."""
        return self.all_starts(partitions).get(producer_id, {})

    def all_starts(self, partitions: Iterable[Partition]) -> dict[int, dict[Partition, int]]:
        """Return, by producer id, the first offset of its open transaction, by partition."""
        starts: dict[int, dict[Partition, int]] = defaultdict(dict)
        partition_keys = keys(partitions)
        if not partition_keys:
            return starts
        states = self._client.call(lambda: self._client.admin._async_describe_producers(partition_keys))
        for key, state in states.items():
            for producer in state.active_producers:
                if producer.current_transaction_start_offset >= 0:
                    starts[producer.producer_id][key.topic, key.partition] = producer.current_transaction_start_offset
        return starts

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

    async def _open(self, pattern: str) -> list[str]:
        from kafka.protocol.admin.transactions import ListTransactionsRequest

        api_version = self._client.admin._manager.broker_version_data.api_version
        whole_id = re.compile(pattern)
        ids: set[str] = set()
        for node in await self._client.brokers():
            fields = {}
            if api_version(ListTransactionsRequest) >= 2:
                fields["transactional_id_pattern"] = pattern
            response = await self._client.send(ListTransactionsRequest(state_filters=list(OPEN), **fields), node)
            check(response.error_code)
            ids.update(state.transactional_id for state in response.transaction_states)
        return sorted(id for id in ids if whole_id.fullmatch(id))  # an older broker does not filter by the pattern

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
        self._max_version = 5 if version >= 2 else 4  # as Kafka's own client: 5 requires transaction.version 2
        self._limit = monotonic() + client.timeout
        self.is_sent, self._node = False, node

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

        if monotonic() > self._limit:
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
                f"transaction '{self._id}' could not be {'committed' if self._commit else 'aborted'}.",
                f"{error.message if error.errno != -1 else code}: {error.description}",
                "Look for its marker in the log: an error code alone does not prove how it ended.",
            )


def _starts(since: Starts, topic_ids: Mapping[str, str]) -> list[Start]:
    """Return the starts with the logs of these topics, in the order of their partitions."""
    starts = []
    for partition, offset in sorted(since.items()):
        topic, _ = partition
        starts.append((PartitionLog(*partition, topic_ids[topic]), offset))
    return starts


def _to_described(state: Any) -> Described:
    """Return a coordinator's description of a transaction as ours."""
    start_millis = state.transaction_start_time_ms
    partitions: set[Partition] = set()
    for topic in state.topics:
        partitions |= {(topic.topic, number) for number in topic.partitions}
    return Described(
        state=state.transaction_state,
        producer_id=state.producer_id,
        epoch=state.producer_epoch,
        timeout=state.transaction_timeout_ms / 1000,
        started_at=EPOCH + timedelta(milliseconds=start_millis) if start_millis >= 0 else None,
        partitions=frozenset(partitions),
    )
