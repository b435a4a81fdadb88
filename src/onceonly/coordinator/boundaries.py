"""What the next checkpoint covers of one topic: from the chain's end, between times, or what upstream published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from onceonly.checkpoint import offsets
from onceonly.checkpoint.boundary_search import TOO_FAR
from onceonly.checkpoint.commands import PLAN_AGAIN
from onceonly.checkpoint.interfaces import (
    FirstRecord,
    GroupOffsets,
    OpenTransaction,
    Source,
    TransactionalLog,
)
from onceonly.checkpoint.offsets import Boundary, Interval, Offsets, TopicLog, TopicRange
from onceonly.checkpoint.sink import RowLocation
from onceonly.errors import Busy, InvalidPipeline, SourceLost
from onceonly.pipeline.definition import Pipeline, find_source
from onceonly.pipeline.sources import EARLIEST, LATEST, OF_GROUP, SourceConfig
from onceonly.statetable.view import View

Question = tuple[datetime, tuple[tuple[int, int], ...]]  # a time, and the offsets before which no boundary lies
MAX_CLOCK_SKEW = timedelta(hours=1)  # a record dated further in the future shows a clock gone wrong


@dataclass
class TopicPlanner:
    """Plans the range of one topic for one checkpoint.

    It asks the source each thing once, however often the compare-and-set is lost.
    """

    pipeline: Pipeline
    source: Source
    config: SourceConfig
    interval: Interval | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    _log: TopicLog | None = None
    _answers: dict[Question, Mapping[int, FirstRecord]] = field(default_factory=dict)
    _searched_partitions: Mapping[int, tuple[int, int]] | None = None  # where `has_records` has looked last
    _has_records: bool = False  # its answer
    _ends: Mapping[int, FirstRecord] | None = None  # the first records at or after the source's end
    _neighbours: list[TopicRange] = field(default_factory=list)  # of intervals: those at whose boundaries it lies

    @property
    def log(self) -> TopicLog:
        """The present extent of the topic, as of the last look at it."""
        if self._log is None:
            self._log = self.source.log()
        return self._log

    def await_transactions(self) -> list[OpenTransaction]:
        """Wait for a moment for open transactions that hide records, and return those that still do."""
        if not isinstance(self.source, TransactionalLog) or not self.log.hidden_offsets:
            return []
        log, transactions = self.source.await_transactions(self.log)
        self._look_again(log)
        return transactions

    def _look_again(self, log: TopicLog | None = None) -> None:
        """Take a newer extent of the log, or have it read again. Where its end lies is then looked up again, too.

        An end that was found before may be too late for a newer extent: a record that is dated later has arrived since.
        """
        self._log, self._ends = log, None

    def has_records(self, range_: TopicRange) -> bool:
        """Whether there is something to read in the range."""
        if not range_.offset_count or not isinstance(self.source, TransactionalLog):
            return range_.offset_count > 0
        if self._searched_partitions != range_.partitions:
            self._searched_partitions, self._has_records = range_.partitions, self.source.has_records(range_)
        return self._has_records

    def from_first_record(self, range_: TopicRange) -> TopicRange:
        """Return the range without the offsets before its first record, in each partition."""
        if not range_.offset_count or not isinstance(self.source, TransactionalLog):
            return range_
        first = self.source.first_offsets(range_)
        return replace(range_, partitions={p: (first[p], end) for p, end in range_.ends.items()})

    def range(self, view: View, upstream_rows: tuple[RowLocation, ...] | None = None) -> TopicRange:
        """Return the range to pin, given what `view` shows as pinned; it may be empty.

        Args:
            upstream_rows: where the rows are that may be read; None: all may be.
        """
        if upstream_rows is not None:
            return self._range_of_upstream(view, upstream_rows)
        if self.interval:
            return self._range_of_interval(view, self.interval)
        return self._range_of_chain(view)

    def add_mark(self, range_: TopicRange, view: View) -> TopicRange:
        """Return the range that is pinned with what the source adds to it."""
        return self.source.add_mark(range_, self._find_reference(view))

    def _find_reference(self, view: View) -> TopicRange | None:
        """Find the pinned range by which the source is recognised; None: there is none.

        That is the newest one with a mark. A restored copy is the same up to some offset and differs from there on, so
        one mark is enough.
        """
        if not self.interval:
            return self._find_previous(view)
        marked = []
        for range_ in self._neighbours:
            if range_.mark is not None:
                marked.append(range_)
        return max(marked, key=lambda range_: sum(range_.ends.values()), default=None)

    def _find_previous(self, view: View) -> TopicRange | None:
        """Find the range at whose end a chain continues; None: it begins, or there are intervals."""
        if self.interval:
            return None
        return self._find_latest(view)

    def _find_latest(self, view: View) -> TopicRange | None:
        """Find what the last checkpoint has pinned of this topic; None: nothing."""
        if view.latest is None:
            return None
        return offsets.find_range(view.latest.ranges, self.config.topic)

    def _range_of_upstream(self, view: View, upstream_rows: tuple[RowLocation, ...]) -> TopicRange:
        end = max(end for _, end in self.log.partitions.values())
        for rows in upstream_rows:
            offsets.require_same_topic(rows.table_id, self.log, "what it reads")
            if rows.version is not None and rows.version >= end:
                raise _shrunk_table_error(self.log, rows.version)
        if self.interval:
            return self._range_of_versions(upstream_rows, end)
        return self._range_up_to(view, upstream_rows)

    def _range_of_versions(self, upstream_rows: tuple[RowLocation, ...], end: int) -> TopicRange:
        """Return the versions that have published the interval, one in each partition.

        Where a version is not known, all up to the newest are pinned, for the files of its folder. They were found by
        what they say, not by their numbers: nothing that was pinned before has to be recognised.
        """
        self._neighbours = []
        partitions: dict[int, tuple[int, int]] = {}
        folders: list[tuple[str, int]] = []
        for rows in upstream_rows:
            if not rows.files:
                continue
            versions = (0, end)
            if rows.version is not None:
                versions = (rows.version, rows.version + 1)
            partitions[len(folders)] = versions
            folders.append((rows.folder, rows.files))
        partitions = partitions or {0: (end, end)}
        return TopicRange(self.log.topic, self.log.topic_id, partitions, self.log.kind, folders=tuple(folders))

    def _range_up_to(self, view: View, upstream_rows: tuple[RowLocation, ...]) -> TopicRange:
        """Return the range of a chain, up to the version that has published the last checkpoint."""
        if not upstream_rows:
            return offsets.truncate(self._range_of_chain(view), 0)
        (last,) = upstream_rows
        if last.version is None:
            raise InvalidPipeline(
                f"{self.pipeline.name}: it is not known how far {self.log.label} may be read.",
                f"Its log does not have the entry of the last checkpoint that was published to it ({last.folder}): "
                "entries expire (delta.logRetentionDuration), or the table was restored from an older copy.",
                "Publish another checkpoint to it, or read it without after. Nothing was written.",
                code="upstream-entries-expired",
            )
        return offsets.truncate(self._range_of_chain(view), last.version + 1)

    def _range_of_chain(self, view: View) -> TopicRange:
        previous = self._find_previous(view)
        if previous is None:
            starts: Offsets = {}
            if view.latest is None:  # else the topic appeared later: it is read from its earliest record on
                starts = self._starts()
            limits = self.limits(view)
            range_ = offsets.first_range(self.log, starts, limits)
        else:
            if self._log_ends_before(previous.ends):
                self._look_again()  # the checkpoint may be younger than our look at the log
            limits = self.limits(view)
            range_ = offsets.next_range(previous, self.log, limits)
        if isinstance(self.config.ends, str):
            return replace(range_, limits=limits)  # what has shown it may expire; offsets are in the definition
        return range_

    def limits(self, view: View) -> Offsets:
        """Return the offsets at which reading ends for good, by partition, as far as they are known.

        Raises:
            InvalidPipeline: the source's `end` gives offsets, and not one for each partition.
        """
        end = self.config.ends
        if end is None:
            return {}
        if isinstance(end, Mapping):
            return require_end_of_each(end, self.log, self.pipeline.name)
        previous, pinned = self._find_latest(view), self._pinned_limits(view)
        if set(self.log.partitions) <= set(pinned):  # the log is asked first: what arrives later lies behind its extent
            return pinned
        if self._ends is None:
            time = datetime.fromisoformat(end).astimezone(UTC)
            floor = (
                previous.ends if previous else {}
            )  # a search behind what is dated ahead need not repeat what was read
            self._ends = self.source.offsets_at(time, self.now + MAX_CLOCK_SKEW, floor)
        limits = {}
        for partition, record in self._ends.items():
            if record.at is not None:
                limits[partition] = record.offset
        return {**limits, **pinned}

    def _pinned_limits(self, view: View) -> Offsets:
        """Return the limits that the last checkpoint has pinned, if its source had the same end."""
        previous = self._find_latest(view)
        if view.latest is None or previous is None:
            return {}
        source = find_source(view.latest.definition.pipeline, self.config.topic)
        if source is None or source.ends != self.config.ends:
            return {}
        return previous.limits

    def finds_end(self, view: View) -> bool:
        """Whether the source's end lies at an offset that no checkpoint has pinned yet."""
        return isinstance(self.config.ends, str) and dict(self.limits(view)) != dict(self._pinned_limits(view))

    def is_at_end(self, range_: TopicRange, view: View) -> bool:
        """Whether nothing is to be read behind the range, in any partition, whatever the log gets."""
        if self.config.ends is None:
            return False
        limits = self.limits(view)
        return all(partition in limits and end >= limits[partition] for partition, end in range_.ends.items())

    def _log_ends_before(self, ends: Offsets) -> bool:
        """Whether the log ends before one of these offsets, as of the last look at it."""
        for partition, end in ends.items():
            _, log_end = self.log.partitions.get(partition, (0, 0))
            if log_end < end:
                return True
        return False

    def _starts(self) -> Offsets:
        """Return where the first checkpoint begins, by partition; one that is not named begins at the log's start."""
        start = self.config.begins
        if isinstance(start, Mapping):
            return self.require_starts_in_log(offsets.by_partition(start))
        if start == LATEST:
            return {partition: end for partition, (_, end) in self.log.partitions.items()}
        if start == EARLIEST:
            return {}
        if start.startswith(OF_GROUP):
            return self.read_group(start.removeprefix(OF_GROUP))
        time = datetime.fromisoformat(start).astimezone(UTC)
        records = self._look_up(time, {})
        self._refuse_hidden(time, records, None)
        return _offsets_of_records(records)

    def read_group(self, group: str) -> Offsets:
        """Return the offsets of a consumer group.

        Raises:
            InvalidPipeline: it has none of some partition: whether all of that was read, or nothing, cannot be told.
        """
        assert isinstance(self.source, GroupOffsets)
        committed = self.source.read_group(group)
        missing = sorted(set(self.log.partitions) - set(committed))
        if missing:
            raise InvalidPipeline(
                f"{self.pipeline.name}: consumer group '{group}' does not say where {self.log.label} is to be read.",
                f"It has committed no offset of partition {', '.join(map(str, missing))}: {dict(committed)} is all.",
                "Name each partition: start={partition: offset}. Nothing was written.",
                code="group-without-offsets",
            )
        return self.require_starts_in_log(committed, f"Consumer group '{group}' has committed")

    def require_starts_in_log(self, chosen: Offsets, who: str = "Its start=… names") -> Offsets:
        """Return these offsets, if the log holds each of them, or ends there.

        Args:
            who: the beginning of the sentence that tells people who has named an offset; "it" follows.
        Raises:
            InvalidPipeline: it does not.
        """
        unit = offsets.SOURCE_WORDS[self.log.kind][1]
        for partition, offset in sorted(chosen.items()):
            if partition not in self.log.partitions:
                why = f"it has the partitions {sorted(self.log.partitions)}"
            elif not self.log.partitions[partition][0] <= offset <= self.log.partitions[partition][1]:
                first, end = self.log.partitions[partition]
                why = f"it holds the {unit}s {first} to {end - 1}" if end > first else f"it is empty at {end}"
            else:
                continue
            raise InvalidPipeline(
                f"{self.pipeline.name}: {self.log.label} cannot be read from partition {partition} {unit} {offset} on.",
                f"{who} it, and {why}.",
                "Name an offset that the log holds: start={partition: offset}. Nothing was written.",
                code="start-not-in-log",
            )
        return chosen

    def _range_of_interval(self, view: View, interval: Interval) -> TopicRange:
        latest = self._find_latest(view)
        self._neighbours = []
        if latest:
            self._neighbours.append(latest)
        start = self._find_boundary(view, interval.start, None)
        end = self._find_boundary(view, interval.end, start)
        ahead = self._count_ahead(interval.end, start, end)
        range_ = replace(offsets.range_between(self.log, self.log.topic_id, start, end), ahead=ahead)
        if not set(range_.partitions) <= set(self.log.partitions):
            self._log = None  # a partition may be younger than our look at the log
        offsets.require_in_log(range_, self.log)
        return range_

    def _find_boundary(self, view: View, time: datetime, floor: Offsets | None) -> Offsets:
        """Find the offsets of `time`: as pinned, else looked up and put between the pinned neighbours."""
        pinned_before, pinned_after = view.boundaries(time, self.config.topic)
        before, after = self._complete_boundary(pinned_before), self._complete_boundary(pinned_after)
        neighbours = []
        for boundary in (before, after):
            if boundary:
                neighbours.append(boundary)
            if boundary and boundary.pinned:
                self._neighbours.append(boundary.pinned)
        for neighbour in sorted(neighbours, key=_is_of_new_topic):
            if not _is_of_new_topic(neighbour):
                offsets.require_same_topic(neighbour.topic_id, self.log, "an earlier interval")
                self._refuse_shorter(neighbour)
            if neighbour.time == time:
                return neighbour.offsets
        low = floor
        if low is None:
            low = _offsets_of(before)
        records = self._look_up(time, low or {})
        self._refuse_lost(time, records, low or {})
        self._refuse_hidden(time, records, _offsets_of(after))
        return offsets.clamp(_offsets_of_records(records), low, _offsets_of(after))

    def _complete_boundary(self, pinned: Boundary | None) -> Boundary | None:
        """Return a pinned boundary with the offsets of a topic that appeared after it was pinned.

        Such a topic began there: no record of it is before.
        """
        if pinned is None or pinned.topic_id:
            return pinned
        starts = {partition: start for partition, (start, _) in self.log.partitions.items()}
        return Boundary(pinned.time, "", starts)

    def _look_up(self, time: datetime, floor: Offsets) -> Mapping[int, FirstRecord]:
        """Return the source's first record at or after `time` in each partition. For `floor` see `Source.offsets_at`.

        What is dated ahead is passed over, as seen by the clock at the start of the plan.

        Two plans may pass over different records that are dated ahead. Their ranges still do not overlap: the
        second one is clamped to the boundary that the first has pinned.
        """
        question = time, tuple(sorted(floor.items()))
        if question not in self._answers:
            self._answers[question] = self.source.offsets_at(time, self.now + MAX_CLOCK_SKEW, floor)
        return self._answers[question]

    def _count_ahead(self, time: datetime, start: Offsets, end: Offsets) -> int:
        """Count the records of the range that its end passed over; 0 where a neighbour has pinned the end before."""
        answer = self._answers.get((time, tuple(sorted(start.items()))), {})
        ahead = 0
        for partition, record in answer.items():
            if end.get(partition) == record.offset:
                ahead += record.ahead
        return ahead

    def _refuse_shorter(self, pinned: Boundary) -> None:
        """Refuse a log that ends before a pinned boundary: it has lost records of this interval or of others."""
        if self._find_short_partitions(pinned) or not set(pinned.offsets) <= set(self.log.partitions):
            self._log = None  # the boundary may be younger than our look at the log
        for partition, (offset, stable) in self._find_short_partitions(pinned).items():
            raise SourceLost(
                f"{self.log.label} partition {partition} is shorter than what was already pinned.",
                f"The boundary {pinned.time:%Y-%m-%dT%H:%M:%SZ} was pinned at {offset} and the log now ends at "
                f"{stable}: records were lost or replaced.",
                offsets.suggest_restore(self.log),
                code="source-shrank",
            )

    def _find_short_partitions(self, pinned: Boundary) -> dict[int, tuple[int, int]]:
        """Return partition -> (pinned offset, last stable offset), where the log ends before what was pinned."""
        short = {}
        for partition, offset in pinned.offsets.items():
            _, stable = self.log.partitions.get(partition, (0, offset))
            if stable < offset:
                short[partition] = (offset, stable)
        return short

    def _refuse_hidden(self, time: datetime, records: Mapping[int, FirstRecord], after: Offsets | None) -> None:
        """Refuse a boundary behind an open transaction, unless a pinned neighbour says enough.

        There may be committed records of either side of it. Waiting has an end: the brokers end transactions by
        themselves (transaction.max.timeout.ms, 15 minutes).
        """
        for partition, record in sorted(records.items()):
            if record.is_hidden and (after is None or after.get(partition, 0) > record.offset):
                topic, where = self.log.topic, f"--topic {self.log.topic} --partition {partition}"
                raise Busy(
                    f"{self.pipeline.name}: the boundary {time:%Y-%m-%dT%H:%M:%SZ} is not decided yet.",
                    f"topic '{topic}' partition {partition}: a producer's transaction is open since offset "
                    f"{record.offset}, and nothing after it can be read before it ends.",
                    f"To go on, {PLAN_AGAIN}. It ends within its time-out (15 minutes by default). Whose it is: "
                    f"kafka-transactions --bootstrap-server … describe-producers {where}. Nothing was written.",
                    code="open-transaction",
                )

    def _refuse_lost(self, time: datetime, records: Mapping[int, FirstRecord], low: Offsets) -> None:
        """Refuse a boundary at the log's start, unless an earlier one covers it.

        Retention may have taken records of it.
        """
        for partition, record in sorted(records.items()):
            log_start = self.log.partitions.get(partition, (0, 0))[0]
            if record.lowest <= log_start and log_start > low.get(partition, 0):
                raise SourceLost(
                    f"{self.pipeline.name}: the boundary {time:%Y-%m-%dT%H:%M:%SZ} cannot be pinned.",
                    f"topic '{self.log.topic}' partition {partition} starts at offset {log_start}: retention has "
                    "removed what came before, perhaps including records of this interval.",
                    "Restore the records, or run a later interval. What is left of this one stays unread and is shown "
                    "as a gap. To leave it out: onceonly skip PIPELINE --interval START END --reason …. Nothing was "
                    "written.",
                    code="records-expired",
                )


def count_ahead(source: Source, floor: Offsets, now: datetime) -> int | None:
    """Count the source's records from `floor` on that are dated ahead; None: more than can be counted."""
    latest = now + MAX_CLOCK_SKEW
    try:
        return sum(record.ahead for record in source.offsets_at(latest, latest, floor).values())
    except InvalidPipeline as error:
        if error.code == TOO_FAR:
            return None
        raise


def require_end_of_each(ends: Mapping[str, int], log: TopicLog, name: str) -> Offsets:
    """Return the offsets at which a source ends, if they are of the topic's partitions.

    Args:
        ends: the source's `end`.
        name: of the pipeline, for messages.
    Raises:
        InvalidPipeline: a partition has none, or there is no such partition.
    """
    offsets_by_partition = offsets.by_partition(ends)
    if set(offsets_by_partition) == set(log.partitions):
        return offsets_by_partition
    raise InvalidPipeline(
        f"{name}: it is not known where each partition of {log.label} ends.",
        f"Its end=… names the partitions {sorted(offsets_by_partition)}, and the topic has {sorted(log.partitions)}.",
        "Give an offset for each of them, 0 for one that is not read; or a time. Nothing was written.",
        code="end-partitions-differ",
    )


def _is_of_new_topic(boundary: Boundary) -> bool:
    return not boundary.topic_id


def _shrunk_table_error(log: TopicLog, version: int) -> SourceLost:
    return SourceLost(
        f"{log.label} ends before what was published to it.",
        f"A checkpoint was published by its version {version}: the table was restored from a copy.",
        offsets.suggest_restore(log),
        code="source-shrank",
    )


def _offsets_of_records(records: Mapping[int, FirstRecord]) -> Offsets:
    return {partition: record.offset for partition, record in records.items()}


def _offsets_of(boundary: Boundary | None) -> Offsets | None:
    return boundary.offsets if boundary else None
