"""Whether the rows of open transactions are still in the log.

A broker that has lost the end of a log has lost the rows there, and its coordinator still reports their transaction as
open: it would commit what is left. So a handle names the batch that ended each log after the rows were acknowledged.
A transaction without its rows is aborted at the commit, and they are written again from the spool.
"""

from __future__ import annotations

from collections import defaultdict
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

    @property
    def topic(self) -> str:
        return self.partition[0]

    @property
    def number(self) -> int:
        return self.partition[1]

    def to_json(self) -> list[Any]:
        return [*self.partition, self.end, *self.batch.to_json()]

    @classmethod
    def from_json(cls, data: list[Any]) -> LogEnd:
        topic, number, end, *batch = data
        return cls((topic, number), end, Batch(*batch))


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


def find_cut_logs(cluster: Cluster, handle: Handle) -> frozenset[End]:
    """Find the handle's log ends that are not there any more: the log is shorter, or holds other records there.

    What retention and compaction have removed does not count, nor does a topic that was deleted.

    Raises:
        NotCommitted: the brokers do not answer.
    """
    log_ends = [LogEnd.from_json(data) for data in handle.get("log_ends", ())]
    if not log_ends:
        return frozenset()
    topic_ids = cluster.read_topic_ids({log_end.topic for log_end in log_ends})
    log_ends = [log_end for log_end in log_ends if topic_ids.get(log_end.topic) == handle["topics"][log_end.topic]]
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
