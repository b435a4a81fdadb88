"""Whether the rows of open transactions are still in the log.

A broker that has lost the end of a log has lost the rows there, and its coordinator still reports their transaction as
open: it would commit what is left. So a handle names the batch that ended each log after the rows were acknowledged.
A transaction without its rows is aborted at the commit, and they are written again from the spool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from time import monotonic, sleep
from typing import Any

from onceonly.checkpoint.model import Handle
from onceonly.errors import InvalidPipeline
from onceonly.kafka import markers
from onceonly.kafka.cluster import Cluster
from onceonly.kafka.log_ends import Batch
from onceonly.sinks.kafka.handle import Partition, Tx

PAUSE_SECONDS = 0.2  # between looks at a log that seems to be shorter
End = tuple[Partition, int]


@dataclass(frozen=True)
class LogEnd:
    """The end of one log, and the batch that held the last offset below it."""

    partition: Partition
    end: int
    batch: Batch

    def to_json(self) -> list[Any]:
        return [*self.partition, self.end, *self.batch.to_json()]

    @classmethod
    def from_json(cls, data: list[Any]) -> LogEnd:
        topic, number, end, *batch = data
        return cls((topic, number), end, Batch(*batch))


def read_log_ends(known: Cluster, topic_ids: Mapping[str, str], transactions: Iterable[Tx]) -> list[list[Any]]:
    """The ends that these transactions name, as part of a handle. Without those that this client may not read."""
    ends = {partition: end for tx in transactions for partition, (_, end) in tx.partitions.items()}
    log_ends: list[list[Any]] = []
    for name, topic_id in sorted(topic_ids.items()):
        wanted = {number: end for (topic, number), end in ends.items() if topic == name}
        with suppress(InvalidPipeline):  # or exchanged meanwhile, which is noticed before it is recorded
            batches = known.end_batches((name, topic_id), wanted)
            log_ends += [LogEnd((name, n), wanted[n], batch).to_json() for n, batch in sorted(batches.items())]
    return log_ends


def find_cut_logs(known: Cluster, handle: Handle) -> frozenset[End]:
    """Those of the handle's log ends that are not there any more: the log is shorter, or holds other records there.

    What retention and compaction have removed does not count, nor does a topic that was deleted.

    Raises:
        NotCommitted: the brokers do not answer.
    """
    log_ends = [LogEnd.from_json(each) for each in handle.get("log_ends", ())]
    if not log_ends:
        return frozenset()
    topic_ids = known.topic_ids({each.partition[0] for each in log_ends})
    log_ends = [each for each in log_ends if topic_ids.get(each.partition[0]) == handle["topics"][each.partition[0]]]
    short = _shorter(known, log_ends)
    cut = {(each.partition, each.end) for each in short}
    for topic, of_round in _rounds([each for each in log_ends if each not in short]):
        ends = {each.partition[1]: each.end for each in of_round}
        marks = {each.partition[1]: each.batch for each in of_round}
        replaced = known.compare_ends((topic, topic_ids[topic]), ends, marks).replaced
        cut |= {((topic, number), ends[number]) for number in replaced}
    return frozenset(cut)


def _shorter(known: Cluster, log_ends: list[LogEnd]) -> list[LogEnd]:
    """Those above the present end of their log, also when it is read again: a new leader may be behind."""
    deadline = monotonic() + markers.MISSING
    while True:
        now = known.ends({each.partition for each in log_ends})
        short = [each for each in log_ends if now[each.partition] < each.end]
        if not short or monotonic() > deadline:
            return short
        sleep(PAUSE_SECONDS)


def _rounds(log_ends: list[LogEnd]) -> Iterable[tuple[str, list[LogEnd]]]:
    """By topic, with each partition once: what was written again later has other ends."""
    for topic, of_topic in groupby(sorted(log_ends, key=lambda each: (each.partition, each.end)), _topic):
        waiting = list(of_topic)
        while waiting:
            first = {each.partition: each for each in reversed(waiting)}
            yield topic, list(first.values())
            waiting = [each for each in waiting if each not in first.values()]


def _topic(log_end: LogEnd) -> str:
    return log_end.partition[0]
