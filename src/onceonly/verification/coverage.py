"""The ranges of all checkpoints side by side: each offset is in exactly one, or was left out on purpose.

Offsets have gaps, so this counts no record: it shows that none was read twice, and that none was passed over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import KAFKA, TopicRange, find_range
from onceonly.checkpoint.verification import Finding, Judgement
from onceonly.counts import count
from onceonly.verification.records import Records

TopicFinding = tuple[str, Finding]


@dataclass(frozen=True)
class Span:
    """The offsets of one partition that one checkpoint covers, `start` included, `end` not."""

    start: int
    end: int
    checkpoint: Checkpoint


def compare_ranges(records: Records) -> Iterator[TopicFinding]:
    """Yield what the ranges show, by topic: of every committed checkpoint one finding for each of its sources."""
    covering = list_covering(records)
    wrong: dict[tuple[str, int], Finding] = {}
    for topic in _list_topics(covering):
        for finding in _compare_topic(records, covering, topic):
            wrong.setdefault((topic, finding.epoch or 0), finding)
    for checkpoint in records.commits:
        for range_ in checkpoint.ranges:
            accusation = wrong.get((range_.topic, checkpoint.epoch))
            described = accusation or _describe(records, checkpoint, range_)
            if described:
                yield range_.topic, described


def list_covering(records: Records) -> list[Checkpoint]:
    """Return the checkpoints whose ranges count, oldest first: not taken back, not replaced, no repair, not aborted."""
    candidates = []
    for checkpoint in records.commits:
        if not checkpoint.is_repair and checkpoint.epoch not in records.replacements:
            candidates.append(checkpoint)
    for checkpoint in records.open:
        if checkpoint.replaces is None:  # until it is committed, the range of the one that it replaces counts
            candidates.append(checkpoint)
    covering = filter(lambda checkpoint: records.find_rewind_of(checkpoint) is None, candidates)
    return sorted(covering, key=lambda checkpoint: checkpoint.epoch)


def _list_topics(checkpoints: list[Checkpoint]) -> list[str]:
    topics: dict[str, None] = {}
    for checkpoint in checkpoints:
        for range_ in checkpoint.ranges:
            topics[range_.topic] = None
    return list(topics)


def _compare_topic(records: Records, covering: list[Checkpoint], topic: str) -> Iterator[Finding]:
    """Yield what is wrong with the ranges of one source."""
    spans: dict[int, list[Span]] = defaultdict(list)
    before: tuple[Checkpoint, TopicRange] | None = None
    for checkpoint in covering:
        range_ = find_range(checkpoint.ranges, topic)
        if range_ is None or not range_.topic_id:  # a skipped interval from before the topic appeared has no id
            continue
        if before and before[1].topic_id != range_.topic_id and checkpoint.forwarded is None:
            ids = f"{range_.topic_id}, and epoch {before[0].epoch} one with the id {before[1].topic_id}"
            why = f"It read {range_.label} with the id {ids}."
            yield Finding(Judgement.WRONG, FindingCode.SOURCE_DIFFERS, why, checkpoint.epoch)
        before = checkpoint, range_
        if range_.folders:  # of another pipeline's intervals: these ranges have no boundaries in common
            continue
        for partition, (start, end) in range_.partitions.items():
            if start < end or checkpoint.adopted is not None:  # the place at which the next one has to begin
                spans[partition].append(Span(start, end, checkpoint))
    for partition, of_partition in sorted(spans.items()):
        yield from _compare_spans(records, topic, partition, of_partition)


def _compare_spans(records: Records, topic: str, partition: int, spans: list[Span]) -> Iterator[Finding]:
    in_order = sorted(spans, key=lambda span: (span.start, span.end))
    furthest = in_order[0]
    for span in in_order[1:]:
        if span.start < furthest.end:
            last = min(span.end, furthest.end) - 1
            later, earlier = _by_epoch(span.checkpoint, furthest.checkpoint)
            why = f"Offsets {span.start} to {last} of '{topic}' partition {partition} are in epoch {earlier} as well."
            yield Finding(Judgement.WRONG, FindingCode.OFFSETS_TWICE, why, later)
        elif span.start > furthest.end and not _is_left_out(records, furthest, span):
            why = (
                f"Offsets {furthest.end} to {span.start - 1} of '{topic}' partition {partition}, between this "
                f"checkpoint and epoch {furthest.checkpoint.epoch}, are in none, and nobody has left them out."
            )
            yield Finding(Judgement.WRONG, FindingCode.OFFSETS_PASSED_OVER, why, span.checkpoint.epoch)
        if span.end > furthest.end:
            furthest = span


def _by_epoch(one: Checkpoint, other: Checkpoint) -> tuple[int, int]:
    """Return the later of the two epochs, and the earlier one."""
    return max(one.epoch, other.epoch), min(one.epoch, other.epoch)


def _is_left_out(records: Records, before: Span, after: Span) -> bool:
    """Return whether what lies between two spans is a gap of intervals, or was passed over by `state forward`."""
    if before.checkpoint.interval and after.checkpoint.interval:
        return before.checkpoint.interval.end < after.checkpoint.interval.start
    first, last = sorted((before.checkpoint.epoch, after.checkpoint.epoch))
    for epoch in range(first, last + 1):
        checkpoint = records.checkpoints.get(epoch)
        if checkpoint and checkpoint.forwarded is not None:
            return True
    return False


def _describe(records: Records, checkpoint: Checkpoint, range_: TopicRange) -> Finding | None:
    """Return the finding of a range with which nothing is wrong; None: it is only a position."""
    if checkpoint.rewinds_to is not None or checkpoint.forwarded is not None or checkpoint.adopted is not None:
        return None
    offsets = f"{count(range_.offset_count, range_.unit)} in {count(len(range_.partitions), 'partition')}"
    rewind = records.find_rewind_of(checkpoint)
    successor = records.replacements.get(checkpoint.epoch)
    if checkpoint.is_repair:
        return _compare_repair(records, checkpoint, range_)
    code, why = (
        FindingCode.OFFSETS_ONCE,
        f"{offsets}, which no other checkpoint has, and no offset before them is left out.",
    )
    if range_.folders:
        why = f"{offsets}: of what another pipeline has published of this interval."
    if checkpoint.skipped is not None:
        code, why = FindingCode.OFFSETS_SKIPPED, f"{offsets}, left out by {checkpoint.owner}: {checkpoint.skipped}"
    elif rewind is not None:
        code, why = FindingCode.OFFSETS_TAKEN_BACK, f"{offsets}, taken back by epoch {rewind}."
    elif successor is not None:
        code, why = FindingCode.OFFSETS_TAKEN_BACK, f"{offsets}, processed again by epoch {successor}."
    return Finding(Judgement.RIGHT, code, why, checkpoint.epoch)


def _compare_repair(records: Records, repair: Checkpoint, range_: TopicRange) -> Finding:
    """Compare what a repair has read with what the checkpoint had that it repairs."""
    origin = records.checkpoints.get(repair.origin)
    of_origin = find_range(origin.ranges, range_.topic) if origin else None
    is_same = of_origin is not None and dict(of_origin.partitions) == dict(range_.partitions)
    if range_.kind == KAFKA and not is_same:
        why = f"It repairs epoch {repair.origin}, and has not read the same offsets."
        return Finding(Judgement.WRONG, FindingCode.REPAIR_DIFFERS, why, repair.epoch)
    return Finding(
        Judgement.RIGHT, FindingCode.OFFSETS_REPEATED, f"The records of epoch {repair.origin}, once more.", repair.epoch
    )
