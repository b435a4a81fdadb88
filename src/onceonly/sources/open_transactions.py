"""Producers' open transactions that hide records of a topic from plan: whose they are, and since when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from onceonly.checkpoint.interfaces import OpenTransaction
from onceonly.checkpoint.offsets import TopicLog
from onceonly.errors import InvalidPipeline
from onceonly.kafka import kafkapython
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.transaction_holders import Holder, find_holders
from onceonly.kafka.transactions import OPEN, Transactions

CLEANUP = timedelta(minutes=1)  # brokers look for transactions past their time-out every ten seconds


def find(kafka: KafkaConnection, log: TopicLog) -> list[OpenTransaction]:
    """Find the transactions behind which records lie in `log`, one for each such partition.

    Where the brokers do not say whose it is, others' records count as hidden.

    Raises:
        NotCommitted: the brokers do not answer.
    """
    stable = {partition: log.partitions[partition][1] for partition in log.held}
    try:
        with Transactions(kafkapython.arguments(kafka)) as transactions:
            holders = find_holders(transactions, (log.topic, log.topic_id), stable)
    except InvalidPipeline:  # this connection, or its user, cannot ask
        return [OpenTransaction(partition, stable[partition], count, True) for partition, count in log.held.items()]
    now = datetime.now(UTC)
    return [_to_transaction(log, partition, holder, now) for partition, holder in sorted(holders.items())]


def _to_transaction(log: TopicLog, partition: int, holder: Holder, now: datetime) -> OpenTransaction:
    transactional_id = f" (transactional id '{holder.id}')" if holder.id else ""
    return OpenTransaction(
        partition,
        holder.offset,
        log.held[partition],
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
    if transaction.state not in OPEN:
        return True
    limit = timedelta(seconds=transaction.timeout) + CLEANUP
    return transaction.started_at is not None and transaction.started_at + limit < now
