"""Source offsets: what a checkpoint pins, and the arithmetic of boundaries.

Offsets have gaps (control records, compaction), so nothing here counts rows; a range is half open,
`start` included, `end` not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from onceonly.errors import SourceLost

Offsets = Mapping[int, int]  # partition -> offset
NO_OFFSETS: Offsets = MappingProxyType({})
LOG_REPLACED = "source-log-replaced"  # code of SourceLost: what was read was replaced by other records
KAFKA, DELTA, FILES = "kafka", "delta", "files"  # kinds of sources
# What a source of each kind is called, and its offsets. A table or folder has one partition, 0: its offsets are the
# table's versions, or the decisions of the pipeline that writes the folder.
SOURCE_WORDS = {KAFKA: ("topic", "offset"), DELTA: ("table", "version"), FILES: ("folder", "decision")}


@dataclass(frozen=True)
class TopicRange:
    """The pinned part of one topic: partition -> (start, end).

    Args:
        kind: of the source: KAFKA, DELTA or FILES.
        mark: by it the source recognises later what was pinned (`ChecksRanges.add_mark`); None: it could not be marked.
        folders: what the range reads of a pipeline that this one follows (`after=`). Each partition is then one of its
            checkpoints, in the order of this list. Of a table: the folder in which the checkpoint's files were staged,
            and how many they are. Of a folder of files: the path of the manifest, and how many files it lists.
        ahead: how many records are dated so far in the future that the search for the range's end passed over them.
            For display.
        rewrites: of a table or folder that a pipeline before this one writes: which offsets a repair has published in
            place of an earlier one, each with that one. One of the two is in the range. The earlier one is 0 if it is
            not known any more.
        limits: where the source's `end` is a time: its offset in each partition in which it was found. It stays there,
            also when the record that has shown it expires.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, tuple[int, int]]
    kind: str = KAFKA
    mark: str | None = None
    folders: tuple[tuple[str, int], ...] = ()
    ahead: int = field(default=0, compare=False)
    rewrites: tuple[tuple[int, int], ...] = ()
    limits: Offsets = field(default_factory=dict)

    @property
    def passed_over(self) -> frozenset[int]:
        """The offsets whose rows are no news: a repair has only rewritten what an earlier range had already."""
        first = min(self.starts.values(), default=0)
        passed: set[int] = set()
        for offset, replaced in sorted(self.rewrites):
            if replaced < first or replaced in passed:
                passed.add(offset)
        return frozenset(passed)

    @property
    def standing_in(self) -> frozenset[int]:
        """The offsets behind the range by which a repair has replaced some of it since: it is read from there."""
        standing_in = set()
        for offset, _ in self.rewrites:
            if not self.covers(offset):
                standing_in.add(offset)
        return frozenset(standing_in) - self.passed_over

    def covers(self, offset: int) -> bool:
        """Whether one of its partitions has the offset."""
        return any(start <= offset < end for start, end in self.partitions.values())

    @property
    def label(self) -> str:
        """The source with its kind: topic 'flights'."""
        return _name_source(self)

    @property
    def word(self) -> str:
        """The word for the kind of source: topic, table or folder."""
        return SOURCE_WORDS[self.kind][0]

    @property
    def unit(self) -> str:
        """What `offset_count` counts."""
        return SOURCE_WORDS[self.kind][1]

    @property
    def starts(self) -> dict[int, int]:
        return {p: start for p, (start, _) in self.partitions.items()}

    @property
    def ends(self) -> dict[int, int]:
        return {p: end for p, (_, end) in self.partitions.items()}

    @property
    def offset_count(self) -> int:
        """Offsets covered: an upper bound of the records, never their count."""
        return sum(end - start for start, end in self.partitions.values())

    def to_json(self) -> dict[str, Any]:
        """Return the range as JSON; a plain topic needs neither kind nor mark."""
        data: dict[str, Any] = {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partitions": {str(p): [start, end] for p, (start, end) in sorted(self.partitions.items())},
        }
        if self.kind != KAFKA:
            data["kind"] = self.kind
        if self.mark is not None:
            data["mark"] = self.mark
        if self.folders:
            data["folders"] = [list(folder_and_files) for folder_and_files in self.folders]
        if self.ahead:
            data["ahead"] = self.ahead
        if self.rewrites:
            data["rewrites"] = list(map(list, self.rewrites))
        if self.limits:
            data["limits"] = {str(partition): offset for partition, offset in sorted(self.limits.items())}
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TopicRange:
        partitions = {int(p): (int(start), int(end)) for p, (start, end) in data["partitions"].items()}
        folders = tuple((folder, files) for folder, files in data.get("folders", ()))
        kind, mark, ahead = data.get("kind", KAFKA), data.get("mark"), data.get("ahead", 0)
        rewrites = []
        for offset, replaced in data.get("rewrites", ()):
            rewrites.append((offset, replaced))
        limits = by_partition(data.get("limits", {}))
        return cls(data["topic"], data["topic_id"], partitions, kind, mark, folders, ahead, tuple(rewrites), limits)


Ranges = tuple[TopicRange, ...]


def by_partition(offsets: Mapping[str, int]) -> dict[int, int]:
    """Return offsets by the numbers of their partitions, which are text in JSON and in definitions."""
    numbered = {}
    for partition, offset in offsets.items():
        numbered[int(partition)] = offset
    return numbered


def empty_spans(positions: Offsets) -> dict[int, tuple[int, int]]:
    """Return the partitions of a range that is empty at these offsets."""
    return {partition: (offset, offset) for partition, offset in positions.items()}


@dataclass(frozen=True)
class TopicLog:
    """The present extent of a topic: partition -> (log start, last stable offset).

    Args:
        high_watermarks: by partition, the offset up to which a read_uncommitted reader sees records. Where a producer's
            transaction is open, it lies above the last stable offset.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, tuple[int, int]]
    kind: str = KAFKA
    high_watermarks: Offsets = field(default_factory=dict, compare=False)

    @property
    def label(self) -> str:
        """The source with its kind: topic 'flights'."""
        return _name_source(self)

    @property
    def hidden_offsets(self) -> dict[int, int]:
        """How many offsets lie behind an open transaction, by partition, where there are any."""
        counts = {}
        for partition, (_, stable) in self.partitions.items():
            count = self.high_watermarks.get(partition, stable) - stable
            if count > 0:
                counts[partition] = count
        return counts


def _name_source(source: TopicRange | TopicLog) -> str:
    return f"{SOURCE_WORDS[source.kind][0]} '{source.topic}'"


@dataclass(frozen=True)
class Interval:
    """A data interval, half open; plain datetimes in UTC (Arrow refuses those that Airflow passes)."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            time = datetime.fromisoformat(getattr(self, name).isoformat())
            object.__setattr__(self, name, time.astimezone(UTC))

    def overlaps(self, other: Interval) -> bool:
        return self.start < other.end and other.start < self.end

    def split(self, width: timedelta | None) -> list[Interval]:
        """Return the intervals of that width that fill this one; this one alone if none do."""
        if not width or self.end <= self.start or (self.end - self.start) % width:
            return [self]
        intervals = []
        start = self.start
        while start < self.end:
            intervals.append(Interval(start, start + width))
            start += width
        return intervals

    def __str__(self) -> str:
        return f"[{self.start:%Y-%m-%dT%H:%M:%SZ}, {self.end:%Y-%m-%dT%H:%M:%SZ})"


@dataclass(frozen=True)
class Boundary:
    """A time, and the offsets that were pinned for it.

    Args:
        pinned: the range that begins or ends there.
    """

    time: datetime
    topic_id: str
    offsets: Offsets
    pinned: TopicRange | None = field(default=None, compare=False)


def require_same_topic(pinned_id: str, log: TopicLog, since: str) -> None:
    """Refuse a topic that was deleted and created again: its offsets are those of other records."""
    if pinned_id != log.topic_id:
        raise SourceLost(
            f"{log.label} is not the one for which {since} was pinned.",
            f"Its id was {pinned_id} and is now {log.topic_id}: it was deleted and created again.",
            suggest_restore(log),
            code="source-recreated",
        )


def require_in_log(range_: TopicRange, log: TopicLog) -> None:
    """Refuse a range of which retention or a deletion has removed a part.

    Raises:
        SourceLost: another topic id, a vanished partition, or a start below the log's start.
    """
    require_same_topic(range_.topic_id, log, "this range")
    for partition, (start, end) in sorted(range_.partitions.items()):
        if end == start:
            continue
        if partition not in log.partitions:  # its end counts as 0, so the end may be below the start
            raise _vanished_partition_error(log, partition)
        log_start, _ = log.partitions[partition]
        if start < log_start:
            raise SourceLost(
                f"{log.label} partition {partition}: offsets {start} to {min(end, log_start) - 1} no longer exist.",
                f"The range [{start}, {end}) has to be read, but the log now starts at {log_start}: records expired "
                "or were deleted.",
                f"Restore the records. {_suggest_skip(log, partition, log_start)} Nothing was written.",
                code="records-expired",
            )


def first_range(log: TopicLog, starts: Offsets, limits: Offsets = NO_OFFSETS) -> TopicRange:
    """Return the first range of a pipeline: from these offsets to the last stable offset, or the limit before it.

    A partition without a start begins at the log's start.
    """
    partitions = {}
    for partition, (log_start, end) in log.partitions.items():
        start = max(log_start, starts.get(partition, log_start))
        partitions[partition] = (start, max(start, min(end, limits.get(partition, end))))
    return TopicRange(log.topic, log.topic_id, partitions, log.kind)


def next_range(previous: TopicRange, log: TopicLog, limits: Offsets = NO_OFFSETS) -> TopicRange:
    """Return the range from the end of the last checkpoint to the last stable offset, or the limit before it.

    A partition that was added since then starts at 0.
    """
    require_same_topic(previous.topic_id, log, "the last checkpoint")
    for partition in previous.partitions:
        if partition not in log.partitions:
            raise _vanished_partition_error(log, partition)
    partitions = {}
    for partition, (_, end) in log.partitions.items():
        start = previous.ends.get(partition, 0)
        partitions[partition] = (start, max(start, min(end, limits.get(partition, end))))
    range_ = TopicRange(log.topic, log.topic_id, partitions, log.kind)
    _refuse_shrunk(previous, log)
    require_in_log(range_, log)
    return range_


def find_range(ranges: Iterable[TopicRange], topic: str) -> TopicRange | None:
    """Return the range of that topic; None: there is none."""
    return next((range_ for range_ in ranges if range_.topic == topic), None)


def cap(ranges: Ranges, most: int) -> Ranges:
    """Cut the ranges to at most `most` offsets, divided among the partitions in proportion to what each has to read."""
    spans: dict[tuple[int, int], tuple[int, int]] = {}  # by number of the range, and partition
    for number, range_ in enumerate(ranges):
        for partition, span in range_.partitions.items():
            spans[number, partition] = span
    waiting = sum(range_.offset_count for range_ in ranges)
    if waiting <= most:
        return ranges
    remaining, capped = most, {}
    for key, (start, end) in sorted(spans.items()):
        take = (end - start) * most // waiting
        capped[key] = (start, start + take)
        remaining -= take
    for key, (start, end) in sorted(capped.items()):  # the remainder of the rounding
        extra = min(remaining, spans[key][1] - end)
        capped[key] = (start, end + extra)
        remaining -= extra
    capped_ranges = []
    for number, range_ in enumerate(ranges):
        partitions = {partition: capped[number, partition] for partition in range_.partitions}
        capped_ranges.append(replace(range_, partitions=partitions))
    return tuple(capped_ranges)


def truncate(range_: TopicRange, end: int) -> TopicRange:
    """Return the range without what comes after that offset, in each partition."""
    partitions = {p: (start, max(start, min(last, end))) for p, (start, last) in range_.partitions.items()}
    return replace(range_, partitions=partitions)


def add_rewrites(range_: TopicRange, rewrites: Iterable[tuple[int, int]]) -> TopicRange:
    """Return the range with those rewritten offsets that have to do with it, see `TopicRange.rewrites`."""
    concerned: dict[int, int] = {}
    for offset, replaced in sorted(rewrites):
        if range_.covers(offset) or range_.covers(replaced) or replaced in concerned:
            concerned[offset] = replaced
    return replace(range_, rewrites=tuple(concerned.items()))


def clamp(raw: Offsets, before: Offsets | None, after: Offsets | None) -> dict[int, int]:
    """Move a boundary that was looked up by timestamp between its pinned neighbours.

    Timestamps are not monotone in a log. Without this, two intervals could share an offset. A partition that is missing
    from a pinned boundary counts as 0 there.
    """
    clamped = {}
    for partition, offset in raw.items():
        low = before.get(partition, 0) if before is not None else 0
        high = after.get(partition, 0) if after is not None else None
        clamped[partition] = max(low, offset if high is None else min(offset, high))
    return clamped


def range_between(of: TopicRange | TopicLog, topic_id: str, start: Offsets, end: Offsets) -> TopicRange:
    """Return the range from one boundary to the next; a partition missing from a boundary counts as 0."""
    partitions = {p: (start.get(p, 0), end.get(p, 0)) for p in sorted({*start, *end})}
    return TopicRange(of.topic, topic_id, partitions, of.kind)


START_OVER = "give the pipeline a new name and new targets to start over"  # under a new name it reads all again


def suggest_restore(log: TopicLog) -> str:
    """Return the advice of an error: what was read before is not there any more."""
    return f"Restore the {SOURCE_WORDS[log.kind][0]}, or {START_OVER}. Nothing was written."


def _suggest_skip(log: TopicLog, partition: int, to: int) -> str:
    """Return the advice of an error: expired records cannot be restored, and have to be left out.

    By intervals, this also leaves out records that can still be read.
    """
    return (
        "If no copy exists, abort the checkpoint, if there is one, and leave them out: onceonly skip PIPELINE "
        f"--topic {log.topic} --partition {partition} --to {to} --reason …. By intervals: onceonly skip PIPELINE "
        "--interval START END --reason … (if it was not planned yet, once a later one has run), which leaves out all "
        f"of the interval. To read what is left of it, {START_OVER}."
    )


def has_data(ranges: Iterable[TopicRange]) -> bool:
    """Whether the ranges cover any offset; it need not be that of a record."""
    return any(range_.offset_count > 0 for range_ in ranges)


def _refuse_shrunk(previous: TopicRange, log: TopicLog) -> None:
    for partition, end in sorted(previous.ends.items()):
        stable = log.partitions[partition][1]
        if stable < end:
            raise SourceLost(
                f"{log.label} partition {partition} ends before what was already read.",
                f"The last checkpoint ended at {end} and the log now ends at {stable}: records were lost or replaced.",
                suggest_restore(log),
                code="source-shrank",
            )


def _vanished_partition_error(log: TopicLog, partition: int) -> SourceLost:
    return SourceLost(
        f"{log.label} no longer has partition {partition}.",
        f"It was pinned by an earlier checkpoint; the topic now has partitions {sorted(log.partitions)}.",
        suggest_restore(log),
        code="partition-missing",
    )
