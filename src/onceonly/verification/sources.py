"""What a source still shows of the ranges that were read: that it is the same one, and on request its records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.interfaces import Parts, Source
from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import KAFKA, LOG_REPLACED, TopicRange, empty_spans, find_range
from onceonly.checkpoint.verification import CountableLog, Depth, Finding, Judgement, ReadRange
from onceonly.errors import SourceLost, first_sentence
from onceonly.verification.coverage import TopicFinding, list_covering
from onceonly.verification.records import Records

EXPIRED_CODES = {  # of SourceLost: what was read is not there any more, which is no sign that it is another source
    *("records-expired", "source-log-expired", "source-files-missing", "source-time-expired", "topic-deleted"),
}


def ask_sources(records: Records, parts: Parts, depth: Depth) -> Iterator[TopicFinding]:
    """Yield what the sources show, by topic. Nothing is read unless `depth` says so."""
    for topic, last in _find_last_ranges(records).items():
        if not _is_wanted(records, last, depth) and not depth.reads_rows:
            continue
        try:
            source = parts.sources(last.definition.pipeline)[topic]
        except Exception as error:  # a connection that is not there any more, a package
            yield topic, _silence(last.epoch, error)
            continue
        yield topic, _compare_mark(source, last, topic)
        if depth.reads_rows:
            for finding in _read(source, records, topic, depth):
                yield topic, finding


def _find_last_ranges(records: Records) -> dict[str, Checkpoint]:
    """Return by topic the last committed checkpoint that has read it: its mark stands for all before."""
    last: dict[str, Checkpoint] = {}
    committed = set(map(id, records.commits))
    for checkpoint in list_covering(records):
        if id(checkpoint) not in committed or checkpoint.forwarded is not None:
            continue
        for range_ in checkpoint.ranges:
            before = find_range(last[range_.topic].ranges, range_.topic) if range_.topic in last else None
            if before is None or _reaches_further(range_, before):
                last[range_.topic] = checkpoint
    return last


def _reaches_further(range_: TopicRange, before: TopicRange) -> bool:
    """Return whether a range ends behind another one: intervals may have been read in any order."""
    return sum(range_.ends.values()) >= sum(before.ends.values())


def _compare_mark(source: Source, checkpoint: Checkpoint, topic: str) -> Finding:
    """Compare the source with what is recorded of it: its identity, and the mark of the range."""
    range_ = find_range(checkpoint.ranges, topic)
    assert range_ is not None
    if range_.kind == KAFKA:  # where it ends, so that it does not matter whether its records have expired since
        range_ = replace(range_, partitions=empty_spans(range_.ends))
    loss = _find_loss(source, range_, checkpoint.epoch)
    if loss:
        return loss
    why = f"{range_.label} is the one that was read, by its id; the range has no mark."
    if range_.mark:
        why = f"{range_.label} is the one that was read, by its id and by the mark of this range."
    return Finding(Judgement.RIGHT, FindingCode.SOURCE_SAME, why, checkpoint.epoch)


def _find_loss(source: Source, range_: TopicRange, epoch: int) -> Finding | None:
    """Return what the source says that it lacks of a range, or that it does not answer; None: it has all of it."""
    try:
        source.verify((range_,))
    except SourceLost as error:
        if error.code in EXPIRED_CODES:
            return Finding(Judgement.UNKNOWN, FindingCode.SOURCE_EXPIRED, first_sentence(error), epoch)
        code = FindingCode.SOURCE_REPLACED
        if error.code == LOG_REPLACED:
            code = FindingCode.SOURCE_LOG_REPLACED
        return Finding(Judgement.WRONG, code, first_sentence(error), epoch, error.todo)
    except Exception as error:
        return _silence(epoch, error)
    return None


def _silence(epoch: int, error: Exception) -> Finding:
    return Finding(
        Judgement.UNKNOWN, FindingCode.SOURCE_SILENT, f"The source could not be asked. {first_sentence(error)}", epoch
    )


# ---- reading


def _read(source: Source, records: Records, topic: str, depth: Depth) -> Iterator[Finding]:
    """Yield what the source itself holds of each range that was read, as far as it is wanted."""
    ranges = []
    for checkpoint in list_covering(records):
        range_ = find_range(checkpoint.ranges, topic)
        is_read = checkpoint.skipped is None and checkpoint.forwarded is None and checkpoint.state.is_settled
        if range_ and is_read and checkpoint.rewinds_to is None and _is_wanted(records, checkpoint, depth):
            ranges.append(ReadRange(checkpoint.epoch, range_, read_counts(checkpoint.read, topic)))
    if isinstance(source, CountableLog):
        yield from _count(source, ranges, depth)
        return
    for number, read in enumerate(ranges):
        yield _look_for(source, read)
        depth.show_progress(number + 1, len(ranges))


def _count(source: CountableLog, ranges: list[ReadRange], depth: Depth) -> Iterator[Finding]:
    try:
        yield from source.count_ranges(ranges, depth)
    except Exception as error:
        for read in ranges:  # also of those that were counted before: an error may concern any of them
            yield _silence(read.epoch, error)


def _look_for(source: Source, read: ReadRange) -> Finding:
    """Look for what a range of a table or folder has read, by names and sizes."""
    if read.range_.kind == KAFKA:
        return Finding(
            Judgement.UNKNOWN, FindingCode.SOURCE_NOT_COUNTED, "This source does not count its records.", read.epoch
        )
    loss = _find_loss(source, read.range_, read.epoch)
    if loss:
        return loss
    why = f"Every file of its {read.range_.unit}s is there, with its size."
    return Finding(Judgement.RIGHT, FindingCode.SOURCE_STILL_THERE, why, read.epoch)


def read_counts(read: Mapping[str, Mapping[str, list[int | None]]], topic: str) -> dict[int, int]:
    """Return by partition how many records a stage has read, where that is recorded.

    Args:
        read: of the row STAGED: by topic and partition, the numbers of records read, good, bad, and dropped.
    """
    counts: dict[int, int] = defaultdict(int)
    for partition, numbers in read.get(topic, {}).items():
        if numbers and numbers[0] is not None:
            counts[int(partition)] = numbers[0]
    return dict(counts)


def _is_wanted(records: Records, checkpoint: Checkpoint, depth: Depth) -> bool:
    """Return whether it is among what is looked at: published since then, or without a publication settled since."""
    if depth.since is None:
        return True
    return records.published_at.get(checkpoint.epoch, checkpoint.updated_at) >= depth.since
