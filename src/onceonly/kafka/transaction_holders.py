"""Whose open transaction holds up the readers of a partition, and whether anything of others lies behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.errors import NotCommitted
from onceonly.kafka import batches
from onceonly.kafka.admin import check
from onceonly.kafka.cluster import keys
from onceonly.kafka.log_ends import Topic, partitions_by_leader
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


def find_holders(known: Transactions, topic: Topic, stable: Mapping[int, int]) -> dict[int, Holder]:
    """Find the holders in these partitions; a partition without an open transaction is left out.

    Args:
        stable: the last stable offset, by partition.
    Raises:
        NotCommitted: the brokers do not answer, or refuse the request.
    """
    client = known._client
    wanted = keys((topic[0], number) for number in stable)
    answers = client.call(lambda: client.admin._async_describe_producers(wanted))
    holders: dict[int, Holder] = {}
    for key, answer in answers.items():
        open_now = [each for each in answer.active_producers if each.current_transaction_start_offset >= 0]
        if open_now:
            first = min(open_now, key=lambda producer: producer.current_transaction_start_offset)
            ids = {producer.producer_id for producer in open_now}
            hides = _has_batch_of_others(known, topic, key.partition, stable[key.partition], ids)
            offset = first.current_transaction_start_offset
            id, transaction = _describe(known, first.producer_id)
            holders[key.partition] = Holder(first.producer_id, first.producer_epoch, offset, hides, id, transaction)
    return holders


def _has_batch_of_others(known: Transactions, topic: Topic, number: int, offset: int, ids: set[int]) -> bool:
    """Whether a batch above the offset is of no open transaction; in doubt, so where it is too much to read, it is."""
    for _ in range(MAX_PAGES):
        records = known._client.call(lambda at=offset: _fetch(known, topic, number, at))  # type: ignore[misc]
        before = offset
        for header in batches.headers(records):
            is_of_open = header.attributes & batches.TRANSACTIONAL and header.producer_id in ids
            if not header.is_control and not is_of_open:
                return True
            offset = header.last_offset + 1
        if offset == before:
            return False
    return True


async def _fetch(known: Transactions, topic: Topic, number: int, offset: int) -> bytes:
    ((node, _),) = (await partitions_by_leader(known._client, topic, {number: 0})).items()
    request = batches.fetch_request(topic[0], {number: offset}, PAGE_BYTES, PAGE_BYTES)
    response = await known._client.send(request, node)
    check(response.error_code)
    result = response.responses[0].partitions[0]
    check(0 if result.error_code == batches.OUT_OF_RANGE else result.error_code)
    return bytes(result.records or b"")


def _describe(known: Transactions, producer_id: int) -> tuple[str | None, Described | None]:
    """Its transactional id and transaction, where this client may know them. It is an explanation, and no evidence."""
    try:
        id = known._client.call(lambda: _transactional_id(known, producer_id))
        return id, known.describe([id]).get(id) if id else None
    except NotCommitted:
        return None, None


async def _transactional_id(known: Transactions, producer_id: int) -> str | None:
    from kafka.protocol.admin.transactions import ListTransactionsRequest

    for node in await known._client.brokers():
        request: Any = ListTransactionsRequest(state_filters=[], producer_id_filters=[producer_id])
        response = await known._client.send(request, node)
        check(response.error_code)
        for listed in response.transaction_states:
            return str(listed.transactional_id)
    return None
