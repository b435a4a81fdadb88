"""Whose open transaction holds up the readers of a partition, and whether anything of others lies behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.errors import NotCommitted
from onceonly.kafka.admin import OUT_OF_RANGE, check
from onceonly.kafka.cluster import to_topic_partitions
from onceonly.kafka.log_ends import TRANSACTIONAL, Topic, fetch_request, partitions_by_leader, read_headers
from onceonly.kafka.transactions import Described, Transactions

PAGE_BYTES, MAX_PAGES = 4 << 20, 16  # read of one partition at most: 64 MiB


@dataclass(frozen=True)
class Holder:
    """The producer whose open transaction begins first in a partition.

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


def find_holders(transactions: Transactions, topic: Topic, stable: Mapping[int, int]) -> dict[int, Holder]:
    """Find the holders in these partitions; a partition without an open transaction is left out.

    Args:
        stable: the last stable offset, by partition.
    Raises:
        NotCommitted: the brokers do not answer, or refuse the request.
    """
    client = transactions._client
    partition_keys = to_topic_partitions((topic[0], number) for number in stable)
    answers = client.call(lambda: client.admin._async_describe_producers(partition_keys))
    holders: dict[int, Holder] = {}
    for key, answer in answers.items():
        producers = [producer for producer in answer.active_producers if _has_open_transaction(producer)]
        if producers:
            first = min(producers, key=lambda producer: producer.current_transaction_start_offset)
            producer_ids = {producer.producer_id for producer in producers}
            hides = _has_batch_of_others(transactions, topic, key.partition, stable[key.partition], producer_ids)
            offset = first.current_transaction_start_offset
            id, transaction = _describe(transactions, first.producer_id)
            holders[key.partition] = Holder(first.producer_id, first.producer_epoch, offset, hides, id, transaction)
    return holders


def _has_open_transaction(producer: Any) -> bool:
    return int(producer.current_transaction_start_offset) >= 0


def _has_batch_of_others(
    transactions: Transactions, topic: Topic, number: int, offset: int, producer_ids: set[int]
) -> bool:
    """Return whether a batch from the offset on is of none of these producers' open transactions.

    True in doubt, so where it is too much to read.
    """
    client = transactions._client
    for _ in range(MAX_PAGES):
        records = client.call(lambda at=offset: _fetch_records(transactions, topic, number, at))  # type: ignore[misc]
        page_start = offset
        for header in read_headers(records):
            is_of_open = header.attributes & TRANSACTIONAL and header.producer_id in producer_ids
            if not header.is_control and not is_of_open:
                return True
            offset = header.last_offset + 1
        if offset == page_start:
            return False
    return True


async def _fetch_records(transactions: Transactions, topic: Topic, number: int, offset: int) -> bytes:
    ((node, _),) = (await partitions_by_leader(transactions._client, topic, {number: 0})).items()
    request = fetch_request(topic[0], {number: offset}, PAGE_BYTES, PAGE_BYTES)
    response = await transactions._client.send(request, node)
    check(response.error_code)
    result = response.responses[0].partitions[0]
    if result.error_code != OUT_OF_RANGE:
        check(result.error_code)
    return bytes(result.records or b"")


def _describe(transactions: Transactions, producer_id: int) -> tuple[str | None, Described | None]:
    """Return the producer's transactional id and transaction, where this client may know them.

    They explain, and are no evidence.
    """
    try:
        id = transactions._client.call(lambda: _find_transactional_id(transactions, producer_id))
        if not id:
            return id, None
        return id, transactions.describe([id]).get(id)
    except NotCommitted:
        return None, None


async def _find_transactional_id(transactions: Transactions, producer_id: int) -> str | None:
    from kafka.protocol.admin.transactions import ListTransactionsRequest

    for node in await transactions._client.brokers():
        request: Any = ListTransactionsRequest(state_filters=[], producer_id_filters=[producer_id])
        response = await transactions._client.send(request, node)
        check(response.error_code)
        for state in response.transaction_states:
            return str(state.transactional_id)
    return None
