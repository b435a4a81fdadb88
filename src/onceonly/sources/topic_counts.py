"""The records of ranges that were read, counted in the topic's log as long as it has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from operator import itemgetter

from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.offsets import TopicLog
from onceonly.checkpoint.verification import Depth, Finding, Judgement, ReadRange
from onceonly.counts import count
from onceonly.kafka import client_settings
from onceonly.kafka.admin import BrokerClient
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.log_counts import LogCount, Span, SpanCount
from onceonly.kafka.markers import PartitionLog


@dataclass
class _Sums:
    """What was counted of one checkpoint.

    Args:
        reasons: by code, why its records cannot all be counted.
    """

    committed: int = 0
    aborted: int = 0
    markers: int = 0
    differences: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)


def count_ranges(kafka: KafkaConnection, log: TopicLog, ranges: Sequence[ReadRange], depth: Depth) -> Iterator[Finding]:
    """Count the committed records of each range, and compare them with what was recorded: see `CountableLog`.

    Raises:
        NotCommitted: the brokers do not answer.
    """
    progress = _Progress(depth, sum(read.range_.offset_count for read in ranges))
    sums: dict[int, _Sums] = defaultdict(_Sums)
    by_partition: dict[int, list[tuple[Span, ReadRange]]] = defaultdict(list)
    for read in ranges:
        for partition, span in read.range_.partitions.items():
            if span[0] < span[1]:
                by_partition[partition].append((span, read))
    with closing(BrokerClient(client_settings.kafka_python_arguments(kafka))) as client:
        for partition, parts in sorted(by_partition.items()):
            log_start = log.partitions.get(partition, (0, 0))[0]
            present = []
            for span, read in sorted(parts, key=itemgetter(0)):
                if partition not in log.partitions or span[0] < log_start:
                    why = f"Partition {partition} starts at offset {log_start} now, and its records began at {span[0]}."
                    sums[read.epoch].reasons[FindingCode.RECORDS_EXPIRED] = why
                    progress.advance(span[1] - span[0])
                else:
                    present.append((span, read))
            if present:
                partition_log = PartitionLog(log.topic, partition, log.topic_id)
                counter = LogCount(partition_log, list(map(itemgetter(0), present)), progress.advance)
                for (_, read), counted in zip(present, counter.read(client), strict=True):
                    _add(sums[read.epoch], partition, read, counted)
    for read in ranges:
        yield _judge(read, sums[read.epoch])


class _Progress:
    def __init__(self, depth: Depth, total: int) -> None:
        self._depth, self._total, self._done = depth, total, 0

    def advance(self, offsets: int) -> None:
        """Show that so many more offsets are done."""
        self._done = min(self._total, self._done + offsets)
        self._depth.show_progress(self._done, self._total)


def _add(sums: _Sums, partition: int, read: ReadRange, counted: SpanCount) -> None:
    """Add what was counted in one partition."""
    sums.committed += counted.committed
    sums.aborted += counted.aborted
    sums.markers += counted.markers
    recorded = read.records.get(partition)
    if not counted.is_complete:
        sums.reasons[FindingCode.LOG_CUT_OFF] = f"The log of partition {partition} ends before its records do."
    elif counted.unresolved:
        records = count(counted.unresolved, "record")
        sums.reasons[FindingCode.TRANSACTIONS_UNENDED] = (
            f"{records} in partition {partition} are of transactions whose end is not in the log."
        )
    elif recorded is not None and counted.committed > recorded:
        sums.differences.append(_describe_difference(partition, counted.committed, recorded))
    elif recorded is not None and counted.committed < recorded:
        if counted.has_gap:
            text = (
                f"{counted.committed:,} of {count(recorded, 'record')} are left in partition {partition}: compaction."
            )
            sums.reasons[FindingCode.RECORDS_COMPACTED] = text
        else:
            sums.differences.append(_describe_difference(partition, counted.committed, recorded))
    elif recorded is None and counted.has_gap:
        sums.reasons.setdefault(
            FindingCode.RECORDS_COMPACTED, f"Compaction has removed records of partition {partition}."
        )


def _describe_difference(partition: int, committed: int, recorded: int) -> str:
    return f"Partition {partition} has {count(committed, 'committed record')}, and {recorded:,} were read."


def _judge(read: ReadRange, sums: _Sums) -> Finding:
    figures = f"{count(sums.committed, 'committed record')} in the log"
    beside = []
    if sums.aborted:
        beside.append(f"{sums.aborted:,} aborted")
    if sums.markers:
        beside.append(count(sums.markers, "marker"))
    if beside:
        figures += f" (beside {', '.join(beside)})"
    if sums.differences:
        return Finding(Judgement.WRONG, FindingCode.RECORDS_DIFFER, " ".join(sums.differences), read.epoch)
    for code, why in sums.reasons.items():
        return Finding(Judgement.UNKNOWN, code, f"{why} {figures}.", read.epoch)
    recorded = "as many as were read" if read.records else "how many were read was not recorded"
    return Finding(Judgement.RIGHT, FindingCode.RECORDS_COUNTED, f"{figures}: {recorded}.", read.epoch)
