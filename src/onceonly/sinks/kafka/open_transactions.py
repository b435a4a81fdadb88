"""The transactions that a handle names: they were open after all rows were written, and their rows are in the log.

Only those that their coordinators report as open join a handle. A broker that has lost the end of a log has lost the
rows there, and its coordinator still reports their transaction as open: it would commit what is left. So a handle names
the batch that ended each log after the rows were acknowledged. A transaction without its rows is aborted at the commit,
and they are written again from the spool.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from time import monotonic, sleep
from typing import Any

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.kafka import markers
from onceonly.kafka.cluster import Cluster
from onceonly.kafka.log_ends import Batch
from onceonly.kafka.transactions import Described, Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka.handle import LogEnd, Partition, Tx
from onceonly.waits import wait_for


def confirm_open(
    config: KafkaSink, transactions: Transactions, written: Mapping[str, tuple[int, int] | None]
) -> dict[str, Tx]:
    """Return the transactions by id, if the coordinator reports each of them as open. Only those join a handle.

    The ends of the log are read first. So the marker of a transaction that is open after that has a higher offset.

    Args:
        written: id -> the producer that wrote the rows; None if no other producer can have used the id.
    """
    ends = transactions.read_ends(_partitions_of(transactions.describe(written)))
    descriptions = transactions.describe(written)
    starts = transactions.read_all_starts(_partitions_of(descriptions))
    confirmed: dict[str, Tx] = {}
    for id, producer in written.items():
        description = _require_open(config, id, producer, descriptions.get(id))
        producer_starts = starts.get(description.producer_id, {})
        spans = {}
        for partition in description.partitions:
            spans[partition] = producer_starts.get(partition), ends[partition]
        confirmed[id] = Tx(id, description.producer_id, description.epoch, spans)
    return confirmed


def _partitions_of(descriptions: Mapping[str, Described]) -> set[Partition]:
    """Return the partitions to which any of these transactions has written."""
    partitions: set[Partition] = set()
    for description in descriptions.values():
        partitions |= description.partitions
    return partitions


def _require_open(
    config: KafkaSink, id: str, producer: tuple[int, int] | None, description: Described | None
) -> Described:
    """Return the description of a transaction that is open, and of that producer if one is given."""
    if description is None:
        state = "unknown"
    elif producer and tuple(producer) != (description.producer_id, description.epoch):
        state = "used by another producer"
    elif description.state == "Ongoing" and description.partitions:
        return description
    else:
        state = description.state
    raise NotCommitted(
        f"sink '{config.name}': transaction '{id}' is {state} right after it was written.",
        f"It has to be open until the commit (transaction_timeout={config.transaction_timeout:g} s).",
        "Nothing of it is published. Retry, with a longer transaction_timeout if writing took that long.",
        code="transaction-not-open",
    )


PAUSE_SECONDS = 0.2  # between looks at a log that seems to be shorter
LogPosition = tuple[Partition, int]  # an offset in one log


def read_log_ends(cluster: Cluster, topic_ids: Mapping[str, str], transactions: Iterable[Tx]) -> list[list[Any]]:
    """Return the log ends that these transactions name, as part of a handle.

    Those that this client may not read are left out.
    """
    ends_by_topic: dict[str, dict[int, int]] = defaultdict(dict)
    for tx in transactions:
        for (topic, number), (_, end) in tx.partitions.items():
            ends_by_topic[topic][number] = end
    log_ends: list[list[Any]] = []
    for topic, topic_id in sorted(topic_ids.items()):
        ends = ends_by_topic[topic]
        with suppress(InvalidPipeline):  # or exchanged meanwhile, which is noticed before it is recorded
            batches = cluster.read_end_batches((topic, topic_id), ends)
            for number, batch in sorted(batches.items()):
                log_ends.append(LogEnd((topic, number), ends[number], batch).to_json())
    return log_ends


def find_cut_logs(
    cluster: Cluster, staged_topic_ids: Mapping[str, str], log_ends: Sequence[LogEnd]
) -> frozenset[LogPosition]:
    """Find the log ends that are not there any more: the log is shorter, or holds other records there.

    What retention and compaction have removed does not count, nor does a topic that was deleted.

    Args:
        staged_topic_ids: ids of the topics for which the rows were staged, by name.

    Raises:
        NotCommitted: the brokers do not answer.
    """
    if not log_ends:
        return frozenset()
    topic_ids = cluster.read_topic_ids({log_end.topic for log_end in log_ends})
    log_ends = [log_end for log_end in log_ends if topic_ids.get(log_end.topic) == staged_topic_ids[log_end.topic]]
    short = _ends_of_short_logs(cluster, log_ends)
    cut = {(log_end.partition, log_end.end) for log_end in short}
    for topic, round_ends in _rounds([log_end for log_end in log_ends if log_end not in short]):
        ends: dict[int, int] = {}
        marks: dict[int, Batch] = {}
        for log_end in round_ends:
            ends[log_end.number], marks[log_end.number] = log_end.end, log_end.batch
        comparison = cluster.compare_ends((topic, topic_ids[topic]), ends, marks)
        for number in comparison.replaced:
            cut.add(((topic, number), ends[number]))
    return frozenset(cut)


def _ends_of_short_logs(cluster: Cluster, log_ends: list[LogEnd]) -> list[LogEnd]:
    """Return those above the present end of their log, also when it is read again: a new leader may be behind."""
    deadline = monotonic() + markers.MISSING_SECONDS
    with wait_for("the brokers to know how long the logs of the topics are"):
        while True:
            present_ends = cluster.read_ends({log_end.partition for log_end in log_ends})
            short = [log_end for log_end in log_ends if present_ends[log_end.partition] < log_end.end]
            if not short or monotonic() > deadline:
                return short
            sleep(PAUSE_SECONDS)


def _rounds(log_ends: list[LogEnd]) -> Iterable[tuple[str, list[LogEnd]]]:
    """Yield the ends by topic, with each partition once: what was written again later has other ends."""
    in_order = sorted(log_ends, key=lambda log_end: (log_end.partition, log_end.end))
    for topic, topic_ends in groupby(in_order, lambda log_end: log_end.topic):
        waiting = list(topic_ends)
        while waiting:
            lowest_ends = {log_end.partition: log_end for log_end in reversed(waiting)}
            yield topic, list(lowest_ends.values())
            waiting = [log_end for log_end in waiting if log_end not in lowest_ends.values()]
