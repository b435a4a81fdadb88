"""What the next checkpoint covers of one topic: from the chain's end, between boundaries of time, or what landed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from onceonly.checkpoint import offsets
from onceonly.checkpoint.boundary_search import TOO_FAR
from onceonly.checkpoint.interfaces import (
    ChecksRanges,
    FindsRecords,
    FirstRecord,
    OpenTransaction,
    Recognises,
    ShowsTransactions,
    Source,
)
from onceonly.checkpoint.offsets import Boundary, Interval, Offsets, TopicLog, TopicRange
from onceonly.checkpoint.sink import Landed
from onceonly.errors import Busy, InvalidPipeline, SourceLost
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.source_config import EARLIEST, LATEST, SourceConfig
from onceonly.statetable.view import View

Question = tuple[datetime, tuple[tuple[int, int], ...]]  # a time, and the offsets before which no boundary lies
SKEW = timedelta(hours=1)  # a record dated further in the future shows a clock gone wrong


@dataclass
class Pins:
    """One planning of one topic: asks it each thing once, however often the compare-and-set is lost."""

    pipeline: Pipeline
    source: Source
    config: SourceConfig
    interval: Interval | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    _log: TopicLog | None = None
    _answers: dict[Question, Mapping[int, FirstRecord]] = field(default_factory=dict)
    _looked_at: Mapping[int, tuple[int, int]] | None = None  # by `has_records`, and what it has found there
    _has_records: bool = False
    _beside: list[TopicRange] = field(default_factory=list)  # of intervals: those at whose boundaries it lies

    @property
    def log(self) -> TopicLog:
        if self._log is None:
            self._log = self.source.log()
        return self._log

    def await_transactions(self) -> list[OpenTransaction]:
        """Wait for a moment for open transactions that hide records, and return those that still do."""
        if not isinstance(self.source, ShowsTransactions) or not self.log.held:
            return []
        self._log, transactions = self.source.await_transactions(self.log)
        return transactions

    def has_records(self, range_: TopicRange) -> bool:
        """Whether there is something to read in the range."""
        if not range_.span or not isinstance(self.source, FindsRecords):
            return range_.span > 0
        if self._looked_at != range_.partitions:
            self._looked_at, self._has_records = range_.partitions, self.source.has_records(range_)
        return self._has_records

    def from_first_record(self, range_: TopicRange) -> TopicRange:
        """The range without the offsets before its first record, in each partition."""
        if not range_.span or not isinstance(self.source, FindsRecords):
            return range_
        first = self.source.first_offsets(range_)
        return replace(range_, partitions={p: (first[p], end) for p, end in range_.ends.items()})

    def range(self, view: View, landed: tuple[Landed, ...] | None = None) -> TopicRange:
        """The range to pin, given what `view` shows as pinned; it may be empty.

        Args:
            landed: where the rows are that may be read; None: all may be.
        """
        if landed is not None:
            return self._of_landed(view, landed)
        return self._span(view, self.interval) if self.interval else self._chain(view)

    def marked(self, range_: TopicRange, view: View) -> TopicRange:
        """With what the source adds to the range that is pinned."""
        return self.source.marked(range_, self._known_by(view)) if isinstance(self.source, ChecksRanges) else range_

    def _known_by(self, view: View) -> TopicRange | None:
        """By which the source is recognised. A copy is the same up to some offset, so the last mark says it of all."""
        if not self.interval:
            return self._previous(view)
        marked = (range_ for range_ in self._beside if range_.mark is not None)
        return max(marked, key=lambda range_: sum(range_.ends.values()), default=None)

    def _previous(self, view: View) -> TopicRange | None:
        return offsets.range_of(view.latest.ranges, self.config.topic) if view.latest and not self.interval else None

    def _of_landed(self, view: View, landed: tuple[Landed, ...]) -> TopicRange:
        end = max(end for _, end in self.log.partitions.values())
        for each in landed:
            offsets.same_topic(each.table_id, self.log, "what it reads")
            if each.version is not None and each.version >= end:
                raise _went_back(self.log, each.version)
        return self._published(landed, end) if self.interval else self._up_to(view, landed)

    def _published(self, landed: tuple[Landed, ...], end: int) -> TopicRange:
        """The versions that have published it, one in each partition; else all up to the newest, for its files.

        They were found by what they say, not by their numbers: nothing that was pinned before has to be recognised.
        """
        self._beside = []
        filled = [each for each in landed if each.files]
        at = [(0, end) if each.version is None else (each.version, each.version + 1) for each in filled]
        folders = tuple((each.folder, each.files) for each in filled)
        partitions = dict(enumerate(at)) or {0: (end, end)}
        return TopicRange(self.log.topic, self.log.topic_id, partitions, self.log.kind, folders=folders)

    def _up_to(self, view: View, landed: tuple[Landed, ...]) -> TopicRange:
        """The chain, up to the version that has published the last one."""
        if not landed:
            return offsets.until(self._chain(view), 0)
        (last,) = landed
        if last.version is None:
            raise InvalidPipeline(
                f"{self.pipeline.name}: it is not known how far {self.log.called} may be read.",
                f"Its log does not have the entry of the last checkpoint that was published to it ({last.folder}): "
                "entries expire (delta.logRetentionDuration), or the table was restored from an older copy.",
                "Publish another checkpoint to it, or read it without after. Nothing was written.",
            )
        return offsets.until(self._chain(view), last.version + 1)

    def _chain(self, view: View) -> TopicRange:
        previous = self._previous(view)
        if previous and any(self.log.partitions.get(p, (0, 0))[1] < end for p, end in previous.ends.items()):
            self._log = None  # the checkpoint may be younger than our look at the log
        if previous:
            return offsets.chain(previous, self.log)
        # A topic that appears later is read from its earliest record on, wherever the pipeline began.
        return offsets.beginning(self.log, {} if view.latest else self._starts())

    def _starts(self) -> Offsets:
        """Where the first checkpoint begins, by partition; without one, at the log's start."""
        start = self.config.begins
        if isinstance(start, Mapping):
            return self._held({int(partition): offset for partition, offset in start.items()})
        if start == LATEST:
            return {partition: end for partition, (_, end) in self.log.partitions.items()}
        if start == EARLIEST:
            return {}
        time = datetime.fromisoformat(start).astimezone(UTC)
        found = self._look_up(time, {})
        self._refuse_held(time, found, None)
        return {partition: record.offset for partition, record in found.items()}

    def _held(self, chosen: Offsets) -> Offsets:
        """These offsets, if the log holds each of them, or ends there."""
        unit = offsets.WORDS[self.log.kind][1]
        for partition, offset in sorted(chosen.items()):
            if partition not in self.log.partitions:
                why = f"it has the partitions {sorted(self.log.partitions)}"
            elif not self.log.partitions[partition][0] <= offset <= self.log.partitions[partition][1]:
                first, end = self.log.partitions[partition]
                why = f"it holds the {unit}s {first} to {end - 1}" if end > first else f"it is empty at {end}"
            else:
                continue
            raise InvalidPipeline(
                f"{self.pipeline.name}: {self.log.called} cannot be read from partition {partition} {unit} "
                f"{offset} on.",
                f"Its start=… names it, and {why}.",
                "Correct start. Nothing was written.",
            )
        return chosen

    def _span(self, view: View, interval: Interval) -> TopicRange:
        latest = offsets.range_of(view.latest.ranges, self.config.topic) if view.latest else None
        self._beside = [latest] if latest else []
        start = self._boundary(view, interval.start, None)
        end = self._boundary(view, interval.end, start)
        ahead = self._count_ahead(interval.end, start, end)
        range_ = replace(offsets.between(self.log, self.log.topic_id, start, end), ahead=ahead)
        if not set(range_.partitions) <= set(self.log.partitions):
            self._log = None  # a partition may be younger than our look at the log
        offsets.check_held(range_, self.log)
        return range_

    def _boundary(self, view: View, time: datetime, floor: Offsets | None) -> Offsets:
        """The offsets of `time`: as pinned, else looked up and put between the pinned neighbours."""
        before, after = (self._known(neighbour) for neighbour in view.boundaries(time, self.config.topic))
        self._beside += [each.pinned for each in (before, after) if each and each.pinned]
        for neighbour in sorted((each for each in (before, after) if each), key=_is_of_new_topic):
            if not _is_of_new_topic(neighbour):
                offsets.same_topic(neighbour.topic_id, self.log, "an earlier interval")
                self._refuse_shorter(neighbour)
            if neighbour.time == time:
                return neighbour.offsets
        low = floor if floor is not None else _offsets(before)
        found = self._look_up(time, low or {})
        self._refuse_lost(time, found, low or {})
        self._refuse_held(time, found, _offsets(after))
        return offsets.clamp({p: f.offset for p, f in found.items()}, low, _offsets(after))

    def _known(self, pinned: Boundary | None) -> Boundary | None:
        """A topic that appeared after a boundary was pinned began there: no record of it is before."""
        if pinned is None or pinned.topic_id:
            return pinned
        return Boundary(pinned.time, "", {partition: start for partition, (start, _) in self.log.partitions.items()})

    def _look_up(self, time: datetime, floor: Offsets) -> Mapping[int, FirstRecord]:
        """The source's answer; what is dated ahead is passed over, as seen by the clock at the start of the plan.

        Another plan may see it otherwise. Ranges never overlap for that, because each boundary that one of them pins
        is a neighbour for the other, and the later one looks again.
        """
        asked = time, tuple(sorted(floor.items()))
        if asked not in self._answers:
            self._answers[asked] = self.source.offsets_at(time, self.now + SKEW, floor)
        return self._answers[asked]

    def _count_ahead(self, time: datetime, start: Offsets, end: Offsets) -> int:
        """The records of the range that its end passed over; 0 where the end was pinned before, by its neighbour."""
        answer = self._answers.get((time, tuple(sorted(start.items()))), {})
        return sum(record.ahead for p, record in answer.items() if end.get(p) == record.offset)

    def _refuse_shorter(self, pinned: Boundary) -> None:
        """A log that ends before a pinned boundary has lost records of this interval or of others."""
        if self._short(pinned) or not set(pinned.offsets) <= set(self.log.partitions):
            self._log = None  # the boundary may be younger than our look at the log
        for partition, (offset, stable) in self._short(pinned).items():
            raise SourceLost(
                f"{self.log.called} partition {partition} is shorter than what was already pinned.",
                f"The boundary {pinned.time:%Y-%m-%dT%H:%M:%SZ} was pinned at {offset} and the log now ends at "
                f"{stable}: records were lost or replaced.",
                offsets.restore(self.log),
            )

    def _short(self, pinned: Boundary) -> dict[int, tuple[int, int]]:
        """Partition -> (pinned offset, last stable offset), where the log ends before what was pinned."""
        stable = {partition: end for partition, (_, end) in self.log.partitions.items()}
        return {p: (at, stable[p]) for p, at in pinned.offsets.items() if stable.get(p, at) < at}

    def _refuse_held(self, time: datetime, found: Mapping[int, FirstRecord], after: Offsets | None) -> None:
        """Behind an open transaction there may be committed records of either side; a pinned neighbour may say enough.

        Waiting has an end: the brokers end transactions by themselves (transaction.max.timeout.ms, 15 minutes).
        """
        for partition, record in sorted(found.items()):
            if record.held and (after is None or after.get(partition, 0) > record.offset):
                topic, where = self.log.topic, f"--topic {self.log.topic} --partition {partition}"
                raise Busy(
                    f"{self.pipeline.name}: the boundary {time:%Y-%m-%dT%H:%M:%SZ} is not decided yet.",
                    f"topic '{topic}' partition {partition}: a producer's transaction is open since offset "
                    f"{record.offset}, and nothing after it can be read before it ends.",
                    "Plan again: it ends within its time-out (15 minutes by default). Whose it is: "
                    f"kafka-transactions --bootstrap-server … describe-producers {where}. Nothing was written.",
                )

    def _refuse_lost(self, time: datetime, found: Mapping[int, FirstRecord], low: Offsets) -> None:
        """At the log's start, retention may have taken records of this boundary, unless an earlier one covers it."""
        for partition, record in sorted(found.items()):
            log_start = self.log.partitions.get(partition, (0, 0))[0]
            if record.lowest <= log_start and log_start > low.get(partition, 0):
                raise SourceLost(
                    f"{self.pipeline.name}: the boundary {time:%Y-%m-%dT%H:%M:%SZ} cannot be pinned.",
                    f"topic '{self.log.topic}' partition {partition} starts at offset {log_start}: retention has "
                    "removed what came before, perhaps including records of this interval.",
                    "Restore the records, or run a later interval. What is left of this one stays unread and is shown "
                    "as a gap. To leave it out: onceonly skip PIPELINE --interval START END --reason …. Nothing was "
                    "written.",
                )


def count_ahead(source: Source, floor: Offsets, now: datetime) -> int | None:
    """How many of the source's records from `floor` on are dated ahead; None: more than can be counted."""
    latest = now + SKEW
    try:
        return sum(record.ahead for record in source.offsets_at(latest, latest, floor).values())
    except InvalidPipeline as error:
        if error.code == TOO_FAR:
            return None
        raise


def recognised(source: Source, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
    """The range with what the source adds to it, where nothing of it is going to be read."""
    return source.recognised(range_, previous) if isinstance(source, Recognises) else range_


def _is_of_new_topic(boundary: Boundary) -> bool:
    return not boundary.topic_id


def _went_back(log: TopicLog, version: int) -> SourceLost:
    return SourceLost(
        f"{log.called} ends before what was published to it.",
        f"A checkpoint was published by its version {version}: the table was restored from a copy.",
        offsets.restore(log),
    )


def _offsets(boundary: Boundary | None) -> Offsets | None:
    return boundary.offsets if boundary else None
