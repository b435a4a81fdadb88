"""Marks of topics: by them plan and stage notice that a broker has lost the end of a log, and that it grew again.

A mark names, of each partition, the record batch that holds the last offset of a range: the epoch of the leader that
appended it, its first offset, and its CRC, as compact JSON: {"0":[4,195,3735928559]}.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from onceonly.checkpoint.offsets import LOG_REPLACED, TopicRange
from onceonly.errors import InvalidPipeline, SourceLost
from onceonly.kafka import kafkapython, log_ends
from onceonly.kafka.admin import BrokerClient
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.log_ends import Batch, Replacement

MAX_PARTITIONS_SHOWN = 5


class TopicMarks:
    """Marks ranges of one topic, and compares their marks with its log."""

    def __init__(self, kafka: KafkaConnection) -> None:
        self._kafka = kafka

    def mark(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """Add the mark of the range's ends. Where `previous` ends at the same offset, its mark stays the same.

        Raises:
            NotCommitted: the brokers do not answer.
        """
        return self._mark(range_, previous, compare=False)

    def mark_next(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """As `mark`, after which `previous` is compared with the log: a log that is cut meanwhile has one wrong mark.

        Raises as `check`.
        """
        return self._mark(range_, previous, compare=True)

    def check(self, range_: TopicRange) -> None:
        """Compare the log with the mark of a range that was pinned.

        Raises:
            SourceLost: the log holds other records now than those that the range ended with.
            NotCommitted: the brokers do not answer.
        """
        if _parse(range_):
            with self._answering() as client:
                if client:
                    _compare(client, range_)

    def _mark(self, range_: TopicRange, previous: TopicRange | None, compare: bool) -> TopicRange:
        kept = _same_ends(range_, previous)
        wanted = {partition: end for partition, end in range_.ends.items() if end > 0 and partition not in kept}
        marked = replace(range_, mark=_to_text(kept))
        compared = previous if compare and _parse(previous) else None
        if not wanted and not compared:
            return marked
        with self._answering(f"{range_.called}: it is not noticed should a broker lose its end") as client:
            if client:
                batches = log_ends.read_end_batches(client, _name(range_), wanted)
                present = {partition: batch for partition, batch in batches.items() if batch}
                marked = replace(range_, mark=_to_text({**kept, **present}))
                unknown = _compare(client, compared) if compared else ()
                if compared and unknown:
                    _warn_of_unknown(compared, unknown)
        return marked

    @contextmanager
    def _answering(self, note: str | None = None) -> Iterator[BrokerClient | None]:
        """Yield a client; None where this connection, or its user's grants, do not allow to fetch batches.

        A missing mark never stops a pipeline. A silent broker does: whether the log was replaced is not known then.

        Args:
            note: what to warn of in that case.
        """
        client = None
        try:
            client = BrokerClient(kafkapython.arguments(self._kafka))
            yield client
        except InvalidPipeline as error:
            if note:
                _warn(note, error.why)
            if client is None:
                yield None
        finally:
            if client:
                client.close()


def _compare(client: BrokerClient, range_: TopicRange) -> tuple[int, ...]:
    """Return the partitions that cannot be compared. Raises as `TopicMarks.check`."""
    marked = _parse(range_)
    comparison = log_ends.compare(client, _name(range_), range_.ends, marked)
    if comparison.replaced:
        first = min(comparison.replaced)
        raise _replaced(range_, first, marked[first], comparison.replaced[first])
    return comparison.unknown


def _same_ends(range_: TopicRange, previous: TopicRange | None) -> dict[int, Batch]:
    """The marks of `previous` in partitions where the range ends at the same offset."""
    if previous is None or previous.topic_id != range_.topic_id:
        return {}
    ends = range_.ends
    return {p: batch for p, batch in _parse(previous).items() if ends.get(p) == previous.ends[p]}


def _parse(range_: TopicRange | None) -> dict[int, Batch]:
    if range_ is None or range_.mark is None:
        return {}
    batches: Mapping[str, tuple[int, int, int]] = json.loads(range_.mark)
    return {int(partition): Batch(*batch) for partition, batch in batches.items()}


def _to_text(batches: Mapping[int, Batch]) -> str | None:
    if not batches:
        return None
    fields = {str(p): batch.to_json() for p, batch in sorted(batches.items())}
    return json.dumps(fields, separators=(",", ":"))


def _name(range_: TopicRange) -> log_ends.Topic:
    return range_.topic, range_.topic_id


def _replaced(range_: TopicRange, partition: int, mark: Batch, found: Replacement) -> SourceLost:
    end, now, batch, cut = range_.ends[partition], "", found.batch, found.cut
    if batch is not None:
        now = f" Now it is in the batch that begins at {batch.base_offset}, of leader epoch {batch.epoch}."
    if cut is not None and cut < end:
        now += f" The log was cut off at offset {cut}, and has grown again: what was written since was never read."
    return SourceLost(
        f"{range_.called} partition {partition}: a broker has lost records before offset {end}, and others took "
        "their place.",
        f"A checkpoint was pinned up to offset {end}, where a record batch ended that began at {mark.base_offset}, of "
        f"leader epoch {mark.epoch}.{now}",
        "Restore the topic, or decide how to continue (docs/kafka.md, A log that lost its end). Nothing was written.",
        LOG_REPLACED,
    )


def _warn_of_unknown(range_: TopicRange, partitions: Sequence[int]) -> None:
    shown = ", ".join(map(str, sorted(partitions)[:MAX_PARTITIONS_SHOWN]))
    more = ", …" if len(partitions) > MAX_PARTITIONS_SHOWN else ""
    _warn(
        f"{range_.called}: whether its log is still the one that was read is not known",
        f"Of partition {shown}{more}, the records that were read last no longer exist (retention or compaction), nor "
        "does their leader epoch. The pipeline continues.",
    )


def _warn(what: str, why: str) -> None:
    warnings.warn(f"{what}. {why}", RuntimeWarning, stacklevel=2)
