"""What the next checkpoint of a pipeline covers of all its topics: one consistent cut, pinned once and never moved.

Offsets are looked up at the sources outside the compare-and-set; whatever depends on what is already pinned is worked
out from the same view that the PLANNED row is written from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from onceonly.checkpoint import offsets
from onceonly.checkpoint.commands import PLAN_AGAIN, how_to_run_interval, interval_times
from onceonly.checkpoint.interfaces import Source
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import Interval, Ranges
from onceonly.checkpoint.sink import RowLocation
from onceonly.coordinator.boundaries import MAX_CLOCK_SKEW, TopicPlanner
from onceonly.coordinator.messages import hidden_records_error, how_to_settle
from onceonly.coordinator.upstream import Barrier
from onceonly.errors import Busy, InvalidPipeline, NotCommitted
from onceonly.pipeline.definition import Pipeline, find_source
from onceonly.pipeline.sources import EARLIEST, SourceConfig
from onceonly.statetable.view import View

NO_BARRIER = Barrier({}, {})


class RangePlanner:
    """Plans the ranges of the next checkpoint, of every topic of its pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        sources: Mapping[str, Source],
        interval: Interval | None = None,
        barrier: Callable[[], Barrier] | None = None,
    ) -> None:
        now = datetime.now(UTC)
        _check_mode(pipeline, interval, now)
        self._pipeline, self.interval, self._now, self._sources = pipeline, interval, now, sources
        self._find_barrier = barrier
        self._topic_planners: dict[str, TopicPlanner] = {}

    @cached_property
    def barrier(self) -> Barrier:
        """What the upstream pipelines let this one read.

        It is found once, before anything is asked of the tables.
        """
        if self._find_barrier is None:
            return NO_BARRIER
        return self._find_barrier()

    def ranges(self, view: View) -> Ranges:
        """Return the ranges to pin, given what `view` shows as pinned; they may be empty.

        Raises:
            SourceLost: a source no longer holds what would have to be read.
            Busy: records of the interval may still come: its grace is not over, or a transaction is open.
            InvalidPipeline: this is another pipeline, or a boundary cannot be pinned.
        """
        self.check_same_pipeline(view.latest)
        if self.interval:
            _check_follows(self._pipeline, view.latest, self.interval)
            _check_grace(self._pipeline, self.interval, self._now)
        tables, rewrites = self.barrier.tables, self.barrier.rewrites
        uncapped = []
        for topic in self._topics(view.latest):
            range_ = self._planner_of(topic).range(view, tables.get(topic))
            uncapped.append(offsets.add_rewrites(range_, rewrites.get(topic, ())))
        ranges = tuple(uncapped)
        for source in self._pipeline.sources:
            ranges = self._cap(ranges, source)
        marked = []
        for range_ in ranges:
            marked.append(self._planner_of(range_.topic).add_mark(range_, view))
        return tuple(marked)

    def has_records(self, ranges: Ranges) -> bool:
        """Whether there is something to read in one of the ranges.

        Only a gate needs to know, so only for a gate it is looked for. Without one, offsets without a record are a
        checkpoint like any other. A gate that wants rows would fail it, and the same offsets again, forever.
        """
        if not self._pipeline.gate:
            return offsets.has_data(ranges)
        return any(self._planner_of(range_.topic).has_records(range_) for range_ in ranges)

    def _cap(self, ranges: Ranges, source: SourceConfig) -> Ranges:
        """Cut the ranges to as many offsets as the source allows.

        With a gate, at least one record stays in them, if there is one: what comes before it is not counted.
        """
        capped = _cap_source(ranges, source)
        if capped == ranges or self.interval or not self._pipeline.gate or self.has_records(capped):
            return capped
        from_records = []
        for range_ in ranges:
            from_records.append(self._planner_of(range_.topic).from_first_record(range_))
        extended = []
        for range_, capped_range in zip(ranges, _cap_source(tuple(from_records), source), strict=True):
            partitions = {p: (range_.starts[p], end) for p, end in capped_range.ends.items()}
            extended.append(replace(capped_range, partitions=partitions))
        return tuple(extended)

    @property
    def hides_records(self) -> bool:
        """Whether records lie behind open transactions, as far as `ranges` has looked."""
        return any(planner.log.hidden_offsets for planner in self._topic_planners.values())

    def await_transactions(self) -> int:
        """Wait for a moment where records lie behind open transactions; `ranges` may find some of them afterwards.

        Returns:
            How many offsets lie behind open transactions.
        Raises:
            Busy: committed records do, or a transaction is open for longer than its brokers allow.
        """
        open_transactions = []
        for planner in self._topic_planners.values():
            for transaction in planner.await_transactions():
                open_transactions.append((planner, transaction))
        hidden_offsets = 0
        for planner, transaction in open_transactions:
            if transaction.hides_others or transaction.is_overdue:
                raise hidden_records_error(self._pipeline.name, planner.log, transaction)
            hidden_offsets += transaction.hidden_offsets
        return hidden_offsets

    def _topics(self, latest: Checkpoint | None) -> list[str]:
        """List the topics that exist, and those that were read: reading the log of a deleted one raises."""
        topics = list(self._sources)
        if latest:
            for range_ in latest.ranges:
                topics.append(range_.topic)
        return list(dict.fromkeys(topics))

    def _planner_of(self, topic: str) -> TopicPlanner:
        if topic not in self._topic_planners:
            config = find_source(self._pipeline, topic)
            assert config is not None  # see `check_same_pipeline`
            self._topic_planners[topic] = TopicPlanner(
                self._pipeline, self._sources[topic], config.for_topic(topic), self.interval, self._now
            )
        return self._topic_planners[topic]

    def to_json(self, ranges: Ranges, repeated: Checkpoint | None = None) -> dict[str, Any]:
        """Return what the row records: the ranges, and on which checkpoints of other pipelines they stand.

        Args:
            repeated: whose ranges they are; None: they are new.
        """
        body: dict[str, Any] = {"ranges": [range_.to_json() for range_ in ranges]}
        epochs_by_pipeline = self.barrier.epochs
        if repeated and not self.interval:
            epochs_by_pipeline = repeated.after
        if epochs_by_pipeline:
            after: dict[str, list[int]] = {}
            for name, epochs in epochs_by_pipeline.items():
                after[name] = list(epochs)
            body["after"] = after
        return body

    def has_changed_upstream(self, checkpoint: Checkpoint) -> bool:
        """Whether the interval, as the upstream pipelines show it now, is not the one that was pinned.

        Raises as `ranges`.
        """
        return self.interval is not None and dict(checkpoint.after) != dict(self.barrier.epochs)

    def repeat_ranges(self, view: View, checkpoint: Checkpoint) -> Ranges:
        """Return the ranges of another checkpoint for the same interval: what this one read.

        Where other pipelines wrote it, it is read as it is now. Nobody shares boundaries with those.
        """
        tables: Mapping[str, tuple[RowLocation, ...]] = {}
        if self.interval:
            tables = self.barrier.tables
        ranges = []
        for range_ in checkpoint.ranges:
            if range_.topic in tables:
                planner = self._planner_of(range_.topic)
                range_ = planner.add_mark(planner.range(view, tables[range_.topic]), view)
            ranges.append(range_)
        return tuple(ranges)

    def renew_rewritten(self, view: View, checkpoint: Checkpoint) -> Ranges | None:
        """Return the ranges of a checkpoint of a chain, with what repairs have rewritten of them since; None: nothing.

        The files that a repair replaces in a folder are removed: what was pinned is read from the repair.
        """
        if self.interval or not any(range_.kind == offsets.FILES for range_ in checkpoint.ranges):
            return None
        ranges = []
        for range_ in checkpoint.ranges:
            rewrites = self.barrier.rewrites.get(range_.topic, ())
            renewed = offsets.add_rewrites(range_, {*range_.rewrites, *rewrites})
            if range_.kind == offsets.FILES and renewed != range_:
                range_ = self._planner_of(range_.topic).add_mark(renewed, view)
            ranges.append(range_)
        return None if tuple(ranges) == checkpoint.ranges else tuple(ranges)

    def verify(self, ranges: Ranges) -> None:
        """Raise SourceLost if a source no longer has all of the ranges."""
        for range_ in ranges:
            self._sources[range_.topic].verify((range_,))

    def chooses_start(self, view: View) -> bool:
        """Whether the ranges say where the pipeline begins: this has to be pinned, even with nothing to read."""
        return view.latest is None and any(source.begins != EARLIEST for source in self._pipeline.sources)

    def finds_end(self, view: View) -> bool:
        """Whether the time at which a source ends was found: its offsets have to be pinned, with nothing to read, too.

        The record that has shown it may expire, and a later one would show a later end.
        """
        if self.interval:
            return False
        return any(self._planner_of(topic).finds_end(view) for topic in self._topics(view.latest))

    def is_at_end(self, ranges: Ranges, view: View) -> bool:
        """Whether nothing is to be read behind these ranges, whatever the sources get."""
        if self.interval or not ranges:
            return False
        return all(self._planner_of(range_.topic).is_at_end(range_, view) for range_ in ranges)

    def check_same_pipeline(self, latest: Checkpoint | None) -> None:
        """Refuse to continue from a checkpoint of other topics, or of the other mode."""
        if latest is None:
            return
        refuse_other_pipeline(self._pipeline, latest)
        if self.interval:
            self._check_after(latest)

    def _check_after(self, latest: Checkpoint) -> None:
        """Refuse a change between intervals of `after=` and intervals of commit times.

        They have no common boundaries: where the one kind follows the other, rows would be read twice, or never.
        """
        so_far = list(latest.definition.upstreams)
        if bool(so_far) != bool(self._pipeline.after):
            raise _other_pipeline_error(
                latest.pipeline, f"ran with after={so_far} so far and now has {list(self._pipeline.after)}"
            )
        for range_ in latest.ranges:
            follows_pipeline = range_.topic in self.barrier.tables
            was_read = range_.offset_count and latest.skipped is None and latest.forwarded is None
            if was_read and follows_pipeline != bool(range_.folders):
                by = "the times of its commits" if follows_pipeline else f"the intervals of {so_far}"
                raise _other_pipeline_error(latest.pipeline, f"read {range_.label} by {by} so far")


def refuse_other_pipeline(pipeline: Pipeline, latest: Checkpoint) -> None:
    """Refuse a pipeline of other topics than its latest checkpoint, or of the other mode."""
    read = sorted(range_.topic for range_ in latest.ranges)
    if not _names_topics(pipeline, read):
        names = sorted(source.input_name for source in pipeline.sources)
        raise _other_pipeline_error(pipeline.name, f"read topic {_names(read)} so far and now names {_names(names)}")
    mode = "chained" if latest.interval is None else "interval"
    if mode != pipeline.mode:
        raise _other_pipeline_error(pipeline.name, f"ran in {mode} mode so far")


def _names_topics(pipeline: Pipeline, read: list[str]) -> bool:
    """Whether its sources cover every topic that was read so far, and each topic that they name was read."""
    for source in pipeline.sources:
        if source.topic_pattern is None and source.topic not in read:
            return False
    return all(find_source(pipeline, topic) is not None for topic in read)


def _cap_source(ranges: Ranges, source: SourceConfig) -> Ranges:
    """Cut the ranges of the source's topics, so that they have at most as many offsets as it allows."""
    own = []
    for range_ in ranges:
        if source.reads(range_.topic):
            own.append(range_)
    if source.most is None or not own:
        return ranges
    capped_by_topic = {range_.topic: range_ for range_ in offsets.cap(tuple(own), source.most)}
    return tuple(capped_by_topic.get(range_.topic, range_) for range_ in ranges)


def _names(topics: Iterable[str]) -> str:
    return ", ".join(f"'{topic}'" for topic in topics)


def _other_pipeline_error(name: str, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{name}: this is not the pipeline that the state table has under that name.",
        f"It {why}.",
        "Change that back, or give the changed pipeline a new name and new targets. Nothing was written.",
        code="pipeline-changed",
    )


def _check_mode(pipeline: Pipeline, interval: Interval | None, now: datetime) -> None:
    if pipeline.mode == "interval" and interval is None:
        raise InvalidPipeline(
            f"{pipeline.name}: a pipeline in interval mode needs an interval.",
            todo="Pass --interval START END, such as --interval 2026-03-01 2026-03-02; in Airflow use a timetable with "
            "a data interval. Nothing was written.",
            code="mode-mismatch",
        )
    if pipeline.mode != "interval" and interval is not None:
        raise InvalidPipeline(
            f"{pipeline.name}: a pipeline in {pipeline.mode} mode takes no interval.",
            todo="Leave --interval out: it reads what is new. Intervals need mode='interval'. Nothing was written.",
            code="mode-mismatch",
        )
    if interval and interval.end <= interval.start:
        raise InvalidPipeline(
            f"{pipeline.name}: the interval {interval} is empty or backwards.",
            "Its end must come after its start (a cron string means a zero-width interval in Airflow 3).",
            "Use CronDataIntervalTimetable, or give START before END. Nothing was written.",
            code="interval-empty",
        )
    if interval and interval.end > now:
        raise _unfinished_interval_error(pipeline, interval, now)


def _unfinished_interval_error(pipeline: Pipeline, interval: Interval, now: datetime) -> NotCommitted:
    """Return the error of an interval that ends in the future.

    The scheduler's clock may be ahead of this machine's: what is over for it will soon be over here.
    """
    what = f"{pipeline.name}: the interval {interval} ends in the future."
    times = interval_times(interval)
    why = f"By this machine's clock it is {now:%Y-%m-%dT%H:%M:%SZ}; records of the interval may still come."
    if interval.end - now <= MAX_CLOCK_SKEW:
        todo = (
            f"To go on, {PLAN_AGAIN} --interval {' '.join(times)}, after its end. If a scheduler has started it, the "
            "clocks "
            "of the two machines differ."
        )
        return Busy(what, why, f"{todo} Nothing was written.", code="interval-not-over")
    return InvalidPipeline(
        what, why, f"After its end: {how_to_run_interval(interval)}. Nothing was written.", code="interval-in-future"
    )


def _check_follows(pipeline: Pipeline, latest: Checkpoint | None, interval: Interval) -> None:
    """Refuse an interval that does not follow the last one, where there is state to hand over.

    Raises:
        InvalidPipeline: an interval is missing before it, or it comes before what is covered already.
        Busy: the one before it is not committed yet.
    """
    if pipeline.state is None or latest is None or latest.interval is None or pipeline.state.name not in latest.sinks:
        return
    if latest.state is not State.COMMITTED:
        raise Busy(
            f"{pipeline.name}: epoch {latest.epoch} comes before {interval}.",
            f"It covers {latest.interval}, is {latest.state.value}, and this interval continues from its state.",
            f"That interval comes first. {how_to_settle(latest)}. Nothing was written.",
            code="checkpoint-open",
        )
    if interval.start > latest.interval.end:
        missing = Interval(latest.interval.end, interval.start)
        raise InvalidPipeline(
            f"{pipeline.name}: the interval {missing} is missing.",
            f"The pipeline keeps state ('{pipeline.state.name}'), and {interval} would continue without it.",
            "Intervals of such a pipeline follow each other. Run the missing one first: "
            f"{how_to_run_interval(missing)}. Nothing was written.",
            code="interval-missing",
        )
    if interval.start < latest.interval.end:
        raise InvalidPipeline(
            f"{pipeline.name}: the interval {interval} comes before what the state covers.",
            f"It is kept up to {latest.interval.end:%Y-%m-%dT%H:%M:%SZ} (epoch {latest.epoch}).",
            "Give a pipeline that starts earlier a new name and new targets. Nothing was written.",
            code="interval-before-state",
        )


def _check_grace(pipeline: Pipeline, interval: Interval, now: datetime) -> None:
    """Refuse an interval while its records may still be late, by the grace of their source.

    What comes later still belongs to a later interval.
    """
    grace = max(source.grace for source in pipeline.sources)
    over = interval.end + timedelta(seconds=grace)
    if over > now:
        raise Busy(
            f"{pipeline.name}: late records of the interval {interval} may still come.",
            f"The grace of {grace:g} s ends at {over:%Y-%m-%dT%H:%M:%SZ}, and it is {now:%Y-%m-%dT%H:%M:%SZ}.",
            f"To go on, {PLAN_AGAIN} --interval {' '.join(interval_times(interval))}, then. Nothing was written.",
            code="grace-not-over",
        )
