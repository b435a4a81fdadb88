"""Marks of topics, by which plan and stage notice that a broker has lost the end of a log, and that it grew again.

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
from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline, SourceLost
from onceonly.kafka import client_settings, log_ends
from onceonly.kafka.admin import BrokerClient
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.log_ends import Batch, Replacement

MAX_PARTITIONS_SHOWN = 5


class TopicMarks:
    """The marks of one topic's ranges: it adds them, and compares them with the log."""

    def __init__(self, kafka: KafkaConnection) -> None:
        self._kafka = kafka

    def mark(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """Add the mark of the range's ends. Where `previous` ends at the same offset, its mark stays the same.

        Raises:
            NotCommitted: the brokers do not answer.
        """
        return self._mark(range_, previous, compare=False)

    def mark_next(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """Add a mark as `mark`, and then compare `previous` with the log: if it is cut meanwhile, one mark is wrong.

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
            with self._open_client() as client:
                if client:
                    _compare(client, range_)

    def _mark(self, range_: TopicRange, previous: TopicRange | None, compare: bool) -> TopicRange:
        batches = _select_same_ends(range_, previous)
        unmarked_ends = {}
        for partition, end in range_.ends.items():
            if end > 0 and partition not in batches:
                unmarked_ends[partition] = end
        range_with_mark = replace(range_, mark=_to_text(batches))
        range_to_compare = None
        if compare and _parse(previous):
            range_to_compare = previous
        if not unmarked_ends and not range_to_compare:
            return range_with_mark
        with self._open_client(f"{range_.label}: it is not noticed should a broker lose its end") as client:
            if client:
                end_batches = log_ends.read_end_batches(client, _topic_of(range_), unmarked_ends)
                for partition, batch in end_batches.items():
                    if batch:
                        batches[partition] = batch
                range_with_mark = replace(range_, mark=_to_text(batches))
                if range_to_compare:
                    _compare_or_warn(client, range_to_compare)
        return range_with_mark

    @contextmanager
    def _open_client(self, note: str | None = None) -> Iterator[BrokerClient | None]:
        """Yield a client; None where this connection, or its user's grants, do not allow to fetch batches.

        A missing mark never stops a pipeline. A silent broker does: whether the log was replaced is not known then.

        Args:
            note: the text of a warning in that case; None: no warning.
        """
        client = None
        try:
            client = BrokerClient(client_settings.kafka_python_arguments(self._kafka))
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
    batches = _parse(range_)
    comparison = log_ends.compare(client, _topic_of(range_), range_.ends, batches)
    if comparison.replaced:
        partition = min(comparison.replaced)
        raise _replaced_log_error(range_, partition, batches[partition], comparison.replaced[partition])
    return comparison.unknown


def _compare_or_warn(client: BrokerClient, range_: TopicRange) -> None:
    """Compare as `_compare`, and warn of the partitions that cannot be compared."""
    unknown_partitions = _compare(client, range_)
    if unknown_partitions:
        _warn_of_unknown(range_, unknown_partitions)


def _select_same_ends(range_: TopicRange, previous: TopicRange | None) -> dict[int, Batch]:
    """Return the marks of `previous` in partitions where the range ends at the same offset."""
    if previous is None or previous.topic_id != range_.topic_id:
        return {}
    batches = {}
    for partition, batch in _parse(previous).items():
        if range_.ends.get(partition) == previous.ends[partition]:
            batches[partition] = batch
    return batches


def _parse(range_: TopicRange | None) -> dict[int, Batch]:
    """Return the batches that the range's mark names, by partition; none without a mark."""
    if range_ is None or range_.mark is None:
        return {}
    batches: Mapping[str, tuple[int, int, int]] = json.loads(range_.mark)
    return {int(partition): Batch(*batch) for partition, batch in batches.items()}


def _to_text(batches: Mapping[int, Batch]) -> str | None:
    if not batches:
        return None
    fields = {str(p): batch.to_json() for p, batch in sorted(batches.items())}
    return json.dumps(fields, separators=(",", ":"))


def _topic_of(range_: TopicRange) -> log_ends.Topic:
    return range_.topic, range_.topic_id


def _replaced_log_error(range_: TopicRange, partition: int, mark: Batch, replacement: Replacement) -> SourceLost:
    end, batch, cut = range_.ends[partition], replacement.batch, replacement.cut
    evidence = ""
    if batch is not None:
        evidence = f" Now it is in the batch that begins at {batch.base_offset}, of leader epoch {batch.epoch}."
    if cut is not None and cut < end:
        evidence += f" The log was cut off at offset {cut}, and has grown again: what was written since was never read."
    return SourceLost(
        f"{range_.label} partition {partition}: a broker has lost records before offset {end}, and others took "
        "their place.",
        f"A checkpoint was pinned up to offset {end}, where a record batch ended that began at {mark.base_offset}, of "
        f"leader epoch {mark.epoch}.{evidence}",
        f"Restore the topic, or decide how to continue ({name_page('kafka', 'a-log-that-lost-its-end')}). "
        "Nothing was written.",
        LOG_REPLACED,
    )


def _warn_of_unknown(range_: TopicRange, partitions: Sequence[int]) -> None:
    numbers = ", ".join(map(str, sorted(partitions)[:MAX_PARTITIONS_SHOWN]))
    ellipsis = ", …" if len(partitions) > MAX_PARTITIONS_SHOWN else ""
    _warn(
        f"{range_.label}: whether its log is still the one that was read is not known",
        f"Of partition {numbers}{ellipsis}, the records that were read last no longer exist (retention or "
        "compaction), nor does their leader epoch. The pipeline continues.",
    )


def _warn(what: str, why: str) -> None:
    warnings.warn(f"{what}. {why}", RuntimeWarning, stacklevel=2)
