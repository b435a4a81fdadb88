"""Manual resolution of what is left out on purpose: an interval, or offsets of a chained pipeline.

An interval is a gap, or cannot be staged. Skipping it pins nothing that was not pinned. It is settled in one row, as an
interval without records is. Its offsets are those of the aborted checkpoint, or run from one neighbour to the other, so
that it can still be processed if it is wanted after all.

Offsets are what a chain cannot, or shall not, read. They are a checkpoint of their own, settled in one row: its range
is what is left out, and the next one begins at its end. So the ranges still join without a gap, and the record of what
nobody has read is one of them. What an aborted checkpoint pinned is free again: of the other partitions and topics, the
next checkpoint reads it from the same start.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from onceonly.checkpoint.commands import PIPELINE_FILE, interval_times
from onceonly.checkpoint.interfaces import Parts, Source
from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.checkpoint.offsets import (
    KAFKA,
    SOURCE_WORDS,
    Boundary,
    Interval,
    TopicLog,
    TopicRange,
    empty_spans,
    find_range,
    range_between,
    require_same_topic,
)
from onceonly.coordinator import upstream
from onceonly.coordinator.manual import Action, Seen, intervals_of
from onceonly.coordinator.messages import how_to_settle
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.table import Transitions
from onceonly.statetable.view import View

# ---- an interval


def skip_interval(
    transitions: Transitions, parts: Parts, name: str, interval: Interval, who: str, reason: str, seen: Seen | None
) -> Checkpoint:
    """Record that the interval is left out, and return the checkpoint that says so. Repeated, it changes nothing."""
    latest = transitions.state_table.view(name).latest
    upstream_topics: Collection[str] = ()
    if latest:
        upstream_topics = upstream.make_closed_barrier(
            transitions.state_table, parts, latest.definition.pipeline
        ).tables
    action = _make_interval_action(interval, who, reason, seen)
    decide = action.guard(lambda view: _interval_row(view, interval, action, upstream_topics))
    return transitions.change(name, decide).planned_for(interval)[-1]


def _make_interval_action(interval: Interval, who: str, reason: str, seen: Seen | None) -> Action:
    """Return what the person records. Intervals that run meanwhile do not change it, unless they begin."""
    return Action.on_pipeline(Event.EMPTY, who, seen, {"skipped": reason}, intervals_of, interval)


def _interval_row(view: View, interval: Interval, action: Action, upstream_topics: Collection[str]) -> Row | None:
    """Return the row that settles `interval` as skipped; None when it is skipped already.

    Args:
        upstream_topics: topics that are read as other pipelines have published them: these have no boundaries.
    Raises:
        InvalidPipeline: it is neither aborted nor a whole gap between two pinned intervals; or the pipeline has no
            gaps.
    """
    latest = _require_intervals(view, interval)
    covered = view.planned_for(interval)
    for other in covered:
        if other.interval != interval or not (other.skipped is not None or other.state is State.ABORTED):
            raise _interval_error(
                view,
                interval,
                f"Epoch {other.epoch} covers {other.interval} and is {other.state.value}.",
                code="interval-overlaps",
            )
    if any(other.skipped is not None for other in covered):
        return None
    ranges: list[TopicRange] = []
    if covered:
        ranges = list(covered[-1].ranges)
    if not ranges:
        ranges = [_range_of_gap(view, interval, range_) for range_ in latest.ranges]
    ranges = _empty_upstream_ranges(ranges, upstream_topics)
    body = {
        "definition": latest.definition.json,
        "ranges": [range_.to_json() for range_ in ranges],
        **action.body,
    }
    return view.row(view.head.epoch + 1, Event.EMPTY, 0, body=body, **action.columns)


def _require_intervals(view: View, interval: Interval) -> Checkpoint:
    """Return the pipeline's last checkpoint, which says what kind of pipeline it is.

    Raises:
        InvalidPipeline: it does not run by intervals, or keeps state.
    """
    latest = view.latest
    if latest is None or latest.interval is None:
        raise _interval_error(
            view, interval, "It does not run by intervals, or it has not run yet.", code="mode-mismatch"
        )
    state = latest.definition.pipeline.state
    if state:
        raise _interval_error(
            view,
            interval,
            f"It keeps state ('{state.name}'), and the next interval would miss it.",
            code="pipeline-keeps-state",
        )
    return latest


def _range_of_gap(view: View, interval: Interval, last: TopicRange) -> TopicRange:
    """Return the range from the end of the interval before to the start of the one after.

    It is empty for a topic that appeared later.
    """
    before, _ = view.boundaries(interval.start, last.topic)
    _, after = view.boundaries(interval.end, last.topic)
    if before is None or after is None:
        todo = "What comes before the first interval, or after the last one, is left out by not being run."
        raise _interval_error(
            view, interval, "It does not lie between two intervals that are pinned.", todo, code="not-a-gap"
        )
    if (before.time, after.time) != (interval.start, interval.end):
        raise _interval_error(view, interval, *_explain_gap(before, after), code="not-a-gap")
    if after.topic_id:
        return range_between(last, before.topic_id, before.offsets, after.offsets)
    return range_between(last, before.topic_id, before.offsets, before.offsets)


def _empty_upstream_ranges(ranges: list[TopicRange], upstream_topics: Collection[str]) -> list[TopicRange]:
    """Return the ranges, those of `upstream_topics` topics without offsets."""
    emptied: list[TopicRange] = []
    for range_ in ranges:
        if range_.topic in upstream_topics:
            emptied.append(replace(range_, partitions={0: (0, 0)}))
        else:
            emptied.append(range_)
    return emptied


def _explain_gap(before: Boundary, after: Boundary) -> tuple[str, str]:
    gap = Interval(before.time, after.time)
    return (
        f"The gap it lies in is {gap}.",
        f"Skip all of it: --interval {' '.join(interval_times(gap))}. Or first run the intervals that you need: "
        f"onceonly run {PIPELINE_FILE} --interval START END.",
    )


def _interval_error(view: View, interval: Interval, why: str, todo: str = "", *, code: str) -> InvalidPipeline:
    todo = todo or f"See what is left out: onceonly status {view.pipeline}."
    what = f"{view.pipeline}: {interval} cannot be skipped."
    return InvalidPipeline(what, why, f"{todo} Nothing was written.", code=code)


# ---- offsets


@dataclass(frozen=True)
class Skip:
    """A person's request to leave out: of one partition, everything that comes before the offset `to`."""

    topic: str
    partition: int
    to: int
    who: str
    reason: str
    seen: Seen | None = None  # what that person was shown of the pipeline


def skip_offsets(transitions: Transitions, parts: Parts, name: str, skip: Skip) -> Checkpoint:
    """Record that the offsets are left out, and return the checkpoint that says so. Repeated, it changes nothing."""
    pipeline = _require_skippable(transitions.state_table.view(name), skip)
    source, action = parts.sources(pipeline)[skip.topic], _make_offsets_action(skip)
    view = transitions.change(name, action.guard(lambda view: _offsets_row(view, source, skip)))
    return action.checkpoint_in(view)


def _make_offsets_action(skip: Skip) -> Action:
    """Return what the person records; the row names the offset as the end of a range."""

    def has_same_end(row: Row) -> bool:
        range_ = find_range(map(TopicRange.from_json, row.body["ranges"]), skip.topic)
        return range_ is not None and range_.ends.get(skip.partition) == skip.to

    without_offset = Action.on_pipeline(Event.EMPTY, skip.who, skip.seen, {"skipped": skip.reason})
    return replace(without_offset, also=has_same_end)


def _require_skippable(view: View, skip: Skip) -> Pipeline:
    """Return the pipeline as it ran last.

    Raises:
        InvalidPipeline: it has no such topic, has not run yet, runs by intervals, keeps state, or comes after others.
    """
    latest = view.latest
    if latest is None:
        raise _offsets_error(
            view, skip, "It has not run yet.", "Say where it begins: start=… of its source.", code="pipeline-not-run"
        )
    if latest.interval is not None:
        raise _offsets_error(
            view,
            skip,
            "It runs by intervals.",
            f"Leave out a whole interval: onceonly skip {view.pipeline} --interval START END --reason …",
            code="mode-mismatch",
        )
    last_pipeline = latest.definition.pipeline
    if last_pipeline.state:
        raise _offsets_error(
            view,
            skip,
            f"It keeps state ('{last_pipeline.state.name}'), which would miss those records.",
            code="pipeline-keeps-state",
        )
    if last_pipeline.after:
        names = ", ".join(last_pipeline.after)
        raise _offsets_error(
            view, skip, f"It comes after {names}, and reads what that has published.", code="offsets-of-upstream"
        )
    if find_range(latest.ranges, skip.topic) is None:
        topics = ", ".join(range_.label for range_ in latest.ranges)
        raise _offsets_error(view, skip, f"It reads {topics}, and nothing called '{skip.topic}'.", code="no-such-topic")
    return last_pipeline


def _offsets_row(view: View, source: Source, skip: Skip) -> Row | None:
    """Return the row that leaves the offsets out; None when the last checkpoint has done so.

    Raises:
        InvalidPipeline: something is not settled yet; or it goes back, or ahead of the log.
        SourceLost: the topic is another one.
    """
    _require_skippable(view, skip)
    _check_settled(view, skip)
    log, latest = source.log(), view.latest
    assert latest is not None
    starts = [_range_at_start(latest, range_) for range_ in latest.ranges]
    position = find_range(starts, skip.topic)
    assert position is not None
    require_same_topic(position.topic_id, log, "the last checkpoint")
    start = position.starts.get(skip.partition, 0)
    if latest.skipped is not None and start == skip.to:
        return None
    _check_offset(view, log, skip, start)
    partitions = {**position.partitions, skip.partition: (start, skip.to)}
    left_out = source.mark_left_out(replace(position, partitions=partitions, mark=None), position)
    ranges_json: list[dict[str, Any]] = []
    for range_ in starts:
        if range_.topic == skip.topic:
            ranges_json.append(left_out.to_json())
        else:
            ranges_json.append(range_.to_json())
    body = {
        "definition": latest.definition.json,
        "ranges": ranges_json,
        **_make_offsets_action(skip).body,
    }
    return view.row(view.head.epoch + 1, Event.EMPTY, 0, owner=skip.who, body=body)


def _check_settled(view: View, skip: Skip) -> None:
    if view.open:
        first = view.open[0]
        why = f"Epoch {first.epoch} is {first.state.value}, and may still publish what it has read."
        raise _offsets_error(view, skip, why, f"{how_to_settle(first)}.", code="checkpoint-open")


def _check_offset(view: View, log: TopicLog, skip: Skip, start: int) -> None:
    word, unit = SOURCE_WORDS[log.kind]
    if skip.partition not in log.partitions:
        raise _offsets_error(
            view, skip, f"The {word} has the partitions {sorted(log.partitions)}.", code="no-such-partition"
        )
    end = log.partitions[skip.partition][1]
    if not start < skip.to <= end:
        raise _offsets_error(
            view,
            skip,
            f"It continues at {unit} {start}, and the log ends at {end}: --to lies in between.",
            code="offset-outside-log",
        )


def _range_at_start(latest: Checkpoint, range_: TopicRange) -> TopicRange:
    """Return an empty range at the place where the next checkpoint would begin.

    What an aborted checkpoint pinned comes first again.
    """
    committed = latest.state is State.COMMITTED
    positions = range_.starts
    mark: str | None = None
    if committed:
        positions, mark = range_.ends, range_.mark  # the mark is that of an end
    return replace(range_, partitions=empty_spans(positions), mark=mark)


def _offsets_error(view: View, skip: Skip, why: str, todo: str = "", *, code: str) -> InvalidPipeline:
    what = f"{view.pipeline}: {_describe_skip(view, skip)} {skip.to}."
    todo = todo or f"See where it is: onceonly status {view.pipeline}."
    return InvalidPipeline(what, why, f"{todo} Nothing was written.", code=code)


def _describe_skip(view: View, skip: Skip) -> str:
    """Write what cannot be skipped, in the words of its source. Only topics have partitions that are named."""
    range_ = find_range(view.latest.ranges, skip.topic) if view.latest else None
    word, unit = SOURCE_WORDS[range_.kind if range_ else KAFKA]
    partition = ""
    if word == SOURCE_WORDS[KAFKA][0]:
        partition = f" partition {skip.partition}"
    return f"{word} '{skip.topic}'{partition} cannot be skipped to {unit}"
