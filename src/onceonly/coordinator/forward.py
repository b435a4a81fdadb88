"""Manual resolution where the state table is behind its targets: a person says from where the pipeline continues.

One row that is settled from its beginning (event `empty`) takes the number of the last decision that the targets
show, so that the next is one above it, and ends where the pipeline continues. In interval mode each interval that was
published gets such a row, and the last one takes the number: what dies half way is still refused, and is given again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from onceonly.checkpoint.interfaces import Parts, Source
from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.checkpoint.offsets import (
    Interval,
    Offsets,
    Ranges,
    TopicRange,
    empty_spans,
    find_range,
    require_same_topic,
)
from onceonly.coordinator import restore_check, upstream
from onceonly.coordinator.manual import Action, Seen
from onceonly.coordinator.messages import how_to_settle
from onceonly.coordinator.ranges import RangePlanner
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline, find_source
from onceonly.statetable.table import Transitions
from onceonly.statetable.view import View


@dataclass(frozen=True)
class Forward:
    """A person's statement of what the targets show.

    Args:
        decision: the last one that they show.
        ends: of a chained pipeline: by topic and partition, the offset after the last one that is published.
        intervals: of a pipeline in interval mode: those that are published and that the state table does not know.
        seen: what the person was shown of the pipeline in the state table.
    """

    decision: int
    who: str
    reason: str
    ends: Mapping[str, Offsets] = field(default_factory=dict)
    intervals: Sequence[Interval] = ()
    seen: Seen | None = None


def forward(transitions: Transitions, parts: Parts, pipeline: Pipeline, statement: Forward) -> Checkpoint:
    """Record from where the pipeline continues. Repeated, it changes nothing."""
    _check_kind(pipeline, statement)
    sources = parts.sources(pipeline)
    traces = restore_check.list_traces(parts, pipeline, sources)
    shown_decision = max((trace.decision for trace in traces), default=0)
    if statement.decision < shown_decision:
        raise _forward_error(
            pipeline,
            f"Its targets show decision {shown_decision}, and --decision is {statement.decision}.",
            code="decision-too-low",
        )
    own_traces = [trace for trace in traces if trace.state_id == transitions.state_table.id]
    used = max((trace.epoch for trace in own_traces), default=0)
    for number, interval in enumerate(statement.intervals or [None], 1):
        last = number >= len(statement.intervals)
        planner = RangePlanner(
            pipeline, sources, interval, partial(upstream.make_closed_barrier, transitions.state_table, parts, pipeline)
        )
        action = _action(statement, interval)
        decide = partial(_decide, pipeline, planner, sources, statement, last, used)
        view = transitions.change(pipeline.name, action.guard(decide, partial(_is_of_same_command, statement)))
    return action.checkpoint_in(view)


def _is_of_same_command(statement: Forward, row: Row) -> bool:
    """Whether the row records another interval of the same command."""
    return row.interval in statement.intervals and _action(statement, row.interval).is_recorded_by(row)


def _action(statement: Forward, interval: Interval | None) -> Action:
    """Return what the person records of one interval, or of the chain; the row of a chain ends at the offsets."""

    def has_same_ends(row: Row) -> bool:
        ends: dict[str, Offsets] = {}
        for range_ in map(TopicRange.from_json, row.body["ranges"]):
            ends[range_.topic] = range_.ends
        if interval is not None:
            return True
        return ends == {topic: dict(offsets) for topic, offsets in statement.ends.items()}

    body = {"forwarded": statement.decision, "reason": statement.reason}
    action = Action.on_pipeline(Event.EMPTY, statement.who, statement.seen, body, interval=interval)
    return replace(action, also=has_same_ends)


def _check_kind(pipeline: Pipeline, statement: Forward) -> None:
    if pipeline.state:
        why = (
            f"It continues from its state '{pipeline.state.name}', and it is not known which state belongs to those "
            "offsets."
        )
        raise _forward_error(
            pipeline,
            why,
            "Restore the newest state table, or give it a new name and new targets.",
            code="pipeline-keeps-state",
        )
    if pipeline.mode == "interval" and (statement.ends or not statement.intervals):
        raise _forward_error(
            pipeline,
            "It runs by intervals.",
            "Name those that are published: --interval START END …",
            code="mode-mismatch",
        )
    topics = {source.input_name for source in pipeline.sources}
    topics_with_ends = set()
    for topic in statement.ends:
        source = find_source(pipeline, topic)
        topics_with_ends.add(source.input_name if source else topic)
    if pipeline.mode == "chained" and (statement.intervals or topics_with_ends != topics):
        why = f"It reads {', '.join(sorted(topics))} from where the last checkpoint ended."
        raise _forward_error(
            pipeline, why, "Give the end of each partition: --ends TOPIC:PARTITION=OFFSET …", code="ends-incomplete"
        )


def _decide(
    pipeline: Pipeline,
    planner: RangePlanner,
    sources: Mapping[str, Source],
    statement: Forward,
    last: bool,
    used: int,
    view: View,
) -> Row | None:
    """Return the row of one interval, or of the chain; None: the last checkpoint says the same.

    Args:
        last: whether it is the last row, which takes the number of the decision.
        used: the last epoch that a target shows, by which it would take a new checkpoint for that one.
    """
    _check_view(pipeline, statement, view)
    interval = planner.interval
    checkpoint = _find_pinned(pipeline, view, interval) if interval else view.latest
    if not interval:
        ranges = _ranges_of_chain(pipeline, planner, sources, view, statement)
    elif checkpoint:
        ranges = checkpoint.ranges
    else:
        ranges = planner.ranges(view)
    decision: int | None = None
    if last:
        decision = statement.decision
    if checkpoint and _says_the_same(checkpoint, statement, ranges, decision):
        return None
    body = {
        "definition": pipeline.to_json(),
        "ranges": [range_.to_json() for range_ in ranges],
        **_action(statement, interval).body,
    }
    columns: dict[str, Any] = {"owner": statement.who, "interval": interval, "decision": decision, "body": body}
    return view.row(max(view.head.epoch, used) + 1, Event.EMPTY, 0, **columns)


def _says_the_same(checkpoint: Checkpoint, statement: Forward, ranges: Ranges, decision: int | None) -> bool:
    """Whether the checkpoint records the statement already, with these ranges and this decision."""
    if checkpoint.forwarded != statement.decision or checkpoint.ranges != ranges:
        return False
    return checkpoint.decision in (decision, statement.decision)


def _check_view(pipeline: Pipeline, statement: Forward, view: View) -> None:
    if view.open:
        epoch, state = view.open[0].epoch, view.open[0].state.value
        give_up = f"onceonly resolve {pipeline.name} {epoch} --give-up SINK --reason …"
        why = f"Epoch {epoch} is {state}."
        todo = f"{how_to_settle(view.open[0])}. A sink that refuses, because it is ahead, is given up: {give_up}."
        raise _forward_error(pipeline, why, todo, code="checkpoint-open")
    if statement.decision < view.head.decision:
        raise _forward_error(
            pipeline, f"The state table is at decision {view.head.decision} already.", code="decision-too-low"
        )


# ---- an interval


def _find_pinned(pipeline: Pipeline, view: View, interval: Interval) -> Checkpoint | None:
    """Find the last checkpoint of that interval, whose boundaries are pinned."""
    planned = view.planned_for(interval)
    for other in planned:
        if other.interval != interval:
            raise _forward_error(
                pipeline,
                f"{interval} overlaps epoch {other.epoch}, which covers {other.interval}.",
                code="interval-overlaps",
            )
    if not planned:
        return None
    return planned[-1]


# ---- a chain


def _ranges_of_chain(
    pipeline: Pipeline, planner: RangePlanner, sources: Mapping[str, Source], view: View, statement: Forward
) -> Ranges:
    """Return empty ranges at the ends that the person gives, in the order of the sources."""
    planner.check_same_pipeline(view.latest)
    topics = set(sources)
    if view.latest:
        topics.update(range_.topic for range_ in view.latest.ranges)
    missing = sorted(topics - set(statement.ends))
    if missing:  # one that is not named would be read from its start
        why = f"It reads {', '.join(missing)}, too."
        todo = "Give the end of each partition of it; what was not published from it yet ends where its log starts."
        raise _forward_error(pipeline, why, todo, code="ends-incomplete")
    order = list(sources)
    ranges: list[TopicRange] = []
    for topic in sorted(statement.ends, key=order.index):
        before = _position_before(view.latest, topic)
        ranges.append(_range_at(pipeline, sources[topic], before, statement.ends[topic]))
    return tuple(ranges)


def _position_before(latest: Checkpoint | None, topic: str) -> TopicRange | None:
    """Return a range that ends where the next checkpoint would begin now; None: nothing was read of that topic.

    An aborted checkpoint's offsets come first again.
    """
    if latest is None:
        return None
    range_ = find_range(latest.ranges, topic)
    if range_ is None or latest.state is State.COMMITTED:
        return range_
    return replace(range_, partitions=empty_spans(range_.starts), mark=None)


def _range_at(pipeline: Pipeline, source: Source, before: TopicRange | None, ends: Offsets) -> TopicRange:
    """Return an empty range at the place where the next checkpoint begins."""
    log = source.log()
    ends_before: Offsets = {}
    if before:
        require_same_topic(before.topic_id, log, "the last checkpoint")
        ends_before = before.ends
    if set(ends) != set(log.partitions):
        why = f"{log.label.capitalize()} has partitions {sorted(log.partitions)}, and you name {sorted(ends)}."
        raise _forward_error(
            pipeline, why, "Name each one; one that was not read yet ends at 0.", code="ends-incomplete"
        )
    for partition, end in sorted(ends.items()):
        low, high = ends_before.get(partition, 0), log.partitions[partition][1]
        if not low <= end <= high:
            raise _forward_error(
                pipeline,
                f"{log.topic}:{partition} was read up to {low} and holds {high}: {end} is not in between.",
                code="offset-outside-log",
            )
    empty = TopicRange(log.topic, log.topic_id, empty_spans(ends), log.kind)
    return source.mark_left_out(empty, before)


def _forward_error(
    pipeline: Pipeline, why: str, todo: str = "Look at the targets, and give what they show.", *, code: str
) -> InvalidPipeline:
    what = f"{pipeline.name}: it cannot continue from there."
    return InvalidPipeline(what, why, f"{todo} Nothing was changed.", code=code)
