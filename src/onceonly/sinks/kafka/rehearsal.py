"""What keeps staged rows from being published to Kafka, found before the decision.

A transaction that is open, or that the log shows as committed, needs nothing more. What has to be written at the commit
is read from its spool to the end, and each row is compared with what the topics accept now. Nothing is written to
Kafka, and no transaction is opened, ended or fenced. So these are not tested: the grant to write to a topic, and
brokers that have too few replicas at the moment.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from onceonly.counts import count
from onceonly.errors import ActionNeeded, StageAgain
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka import check, limits, spool
from onceonly.sinks.kafka.handle import KafkaHandle, Part, transaction_names
from onceonly.sinks.kafka.limits import CheckedRows, Topics
from onceonly.sinks.kafka.outcome import PUBLISHED, TransactionFinisher, TxOutcome

NOTHING_DECIDED = "Nothing was decided or published."


def require_same_topics(config: KafkaSink, transactions: Transactions, handle: KafkaHandle) -> None:
    """Raise ActionNeeded or StageAgain unless the topics are those that the rows were staged for."""
    cluster_id = transactions.read_cluster_id()
    if cluster_id != handle.cluster:
        raise _other_cluster_error(config.name, handle, cluster_id)
    topic_ids = transactions.read_topic_ids(handle.topics)
    missing = sorted(handle.topics.keys() - topic_ids.keys())
    if missing:
        raise _missing_topics_error(config.name, handle, missing)
    recreated = sorted(name for name, id in handle.topics.items() if topic_ids[name] != id)
    if recreated:
        raise _recreated_topics_error(config.name, handle, recreated)


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
        raise _doubt_error(config.name, handle, doubtful)
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
        check.check_transactions(config, transactions)
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
                raise _unusable_spool_error(sink, handle, part, "has other columns than those that were written")
            limits.check(topics, CheckedRows(sink, batch, row_count, part.spool))
            row_count += batch.num_rows
    except FileNotFoundError as error:
        raise _unusable_spool_error(sink, handle, part, "does not exist") from error
    except (pa.ArrowException, OSError) as error:
        spool.read_bytes(folder, part.spool)  # raises OSError, if it is the storage that does not answer
        raise _unusable_spool_error(sink, handle, part, f"is damaged ({type(error).__name__}: {error})") from error
    if row_count != part.rows:
        raise _unusable_spool_error(sink, handle, part, f"has {row_count:,} rows")


def _other_cluster_error(sink: str, handle: KafkaHandle, cluster: str) -> ActionNeeded:
    return ActionNeeded(
        f"sink '{sink}': its connection leads to another cluster.",
        f"The rows were staged for the cluster {handle.cluster}, and this is {cluster}.",
        f"Correct the connection, then: onceonly recover {handle.txn.pipeline}. If the pipeline has moved: "
        f"onceonly abort {_command_arguments(handle)} --reason …, and run it again. {NOTHING_DECIDED}",
        "another-cluster",
    )


def _missing_topics_error(sink: str, handle: KafkaHandle, names: Sequence[str]) -> ActionNeeded:
    return ActionNeeded(
        f"sink '{sink}': there is no topic {', '.join(map(repr, names))}.",
        "The rows were staged for it, so it was deleted since, or the cluster has lost it.",
        "Create it again (kafka-topics --create); the rows are then staged again. If it shall not exist any more: "
        f"onceonly abort {_command_arguments(handle)} --reason …. {NOTHING_DECIDED}",
        "target-missing",
    )


def _recreated_topics_error(sink: str, handle: KafkaHandle, names: Sequence[str]) -> StageAgain:
    return StageAgain(
        f"sink '{sink}': topic {', '.join(map(repr, names))} was deleted and created again.",
        f"The rows were staged for another topic of that name, in {handle.txn.name}.",
        "They are staged again, if this attempt is aborted.",
        "target-recreated",
    )


def _doubt_error(sink: str, handle: KafkaHandle, parts: Sequence[Part]) -> ActionNeeded:
    names = transaction_names(parts)
    return ActionNeeded(
        f"sink '{sink}': it is not known how {count(len(parts), 'transaction')} of it ended.",
        f"{names}: not open any more, and the part of the log with the marker no longer exists. No decision is "
        "recorded, so it can only have been committed if the state table was restored from an older copy.",
        "Look for the rows in the topic. If they are there, onceonly state forward FILE.py:NAME --decision N "
        "--reason …. If not: onceonly abort "
        f"{_command_arguments(handle)} --reason …, and run it again. {NOTHING_DECIDED}",
        "doubt-before-decision",
    )


def _unusable_spool_error(sink: str, handle: KafkaHandle, part: Part, why: str) -> StageAgain:
    return StageAgain(
        f"sink '{sink}': {count(part.rows, 'spooled row')} cannot be written to Kafka any more.",
        f"{handle.folder}/{part.spool} {why}, and no open transaction holds these rows.",
        "They are staged again, if this attempt is aborted.",
        "spool-missing",
    )


def _command_arguments(handle: KafkaHandle) -> str:
    """Return the pipeline and epoch, as commands take them."""
    return f"{handle.txn.pipeline} {handle.txn.epoch}"
