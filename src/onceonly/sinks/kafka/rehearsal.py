"""What keeps staged rows from being published to Kafka, found before the decision.

A transaction that is open, or that the log shows as committed, needs nothing more. What has to be written at the commit
is read from its spool to the end, and each row is compared with what the topics accept now. Nothing is written to
Kafka, and no transaction is opened, ended or fenced. So these are not tested: the grant to write to a topic, and
brokers that have too few replicas at the moment.
"""

from __future__ import annotations

import pyarrow as pa

from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka import check, errors, limits, spool
from onceonly.sinks.kafka.handle import KafkaHandle, Part
from onceonly.sinks.kafka.limits import CheckedRows, Topics
from onceonly.sinks.kafka.outcome import PUBLISHED, TransactionFinisher, TxOutcome


def require_same_topics(config: KafkaSink, transactions: Transactions, handle: KafkaHandle) -> None:
    """Raise ActionNeeded or StageAgain unless the topics are those that the rows were staged for."""
    cluster_id = transactions.read_cluster_id()
    if cluster_id != handle.cluster:
        raise errors.another_cluster(config.name, handle, cluster_id)
    topic_ids = transactions.read_topic_ids(handle.topics)
    missing = sorted(handle.topics.keys() - topic_ids.keys())
    if missing:
        raise errors.topics_missing(config.name, handle, missing)
    recreated = sorted(name for name, id in handle.topics.items() if topic_ids[name] != id)
    if recreated:
        raise errors.topics_recreated(config.name, handle, recreated)


def is_published(transactions: Transactions, handle: KafkaHandle) -> bool:
    """Return whether the log shows every transaction of the handle as committed."""
    parts = handle.parts
    if handle.guarantee != "exactly-once" or not all(part.tx for part in parts):
        return False
    outcomes = TransactionFinisher(transactions, handle.topics, handle.log_ends).observe_all(parts)
    return bool(parts) and all(outcome in PUBLISHED for outcome in outcomes)


def parts_to_write(config: KafkaSink, transactions: Transactions, handle: KafkaHandle) -> list[Part]:
    """Return the parts that the commit will have to write.

    Raises:
        ActionNeeded: how a transaction ended can no longer be told.
        OutcomeUnknown, NotCommitted: no answer, or not yet.
    """
    parts = handle.parts
    if handle.guarantee != "exactly-once":
        return [part for part in parts if part.spool]
    doubtful, lost = [], []
    outcomes = TransactionFinisher(transactions, handle.topics, handle.log_ends).observe_all(parts)
    for part, outcome in zip(parts, outcomes, strict=True):
        if outcome is TxOutcome.DOUBT:
            doubtful.append(part)
        elif outcome is TxOutcome.LOST:
            lost.append(part)
    if doubtful:
        raise errors.doubt_before_decision(config.name, handle, doubtful)
    return lost


def require_writable(
    config: KafkaSink, transactions: Transactions, handle: KafkaHandle, parts: list[Part], folder: str
) -> None:
    """Go through the writing of these parts, up to the first request that writes.

    Args:
        folder: with their spool files.

    Raises:
        StageAgain: the spool does not have the rows any more.
        InvalidPipeline: the brokers would refuse the transaction, or a row.
    """
    if not parts:
        return
    if handle.guarantee == "exactly-once":
        check.refuse_transactions(config, transactions)
    topics = check.topics(config, transactions).without_margin()
    for part in parts:
        _read_spool(topics, handle, part, config.name, folder)


def _read_spool(topics: Topics, handle: KafkaHandle, part: Part, sink: str, folder: str) -> None:
    """Read the part's spool file to its end, and check each row against the limits of the topics.

    Raises:
        StageAgain: the file is missing or damaged, or does not hold the part's rows.
        InvalidPipeline: a topic does not accept a row.
        OSError: the storage does not answer.
    """
    row_count = 0
    try:
        for batch in spool.read(folder, part.spool):
            if batch.schema != spool.SPOOL_SCHEMA:
                raise errors.spool_unusable(sink, handle, part, "has other columns than those that were written")
            limits.check(topics, CheckedRows(sink, batch, row_count, part.spool))
            row_count += batch.num_rows
    except FileNotFoundError as error:
        raise errors.spool_unusable(sink, handle, part, "does not exist") from error
    except (pa.ArrowException, OSError) as error:
        spool.read_bytes(folder, part.spool)  # raises OSError, if it is the storage that does not answer
        raise errors.spool_unusable(sink, handle, part, f"is damaged ({type(error).__name__}: {error})") from error
    if row_count != part.rows:
        raise errors.spool_unusable(sink, handle, part, f"has {row_count:,} rows")
