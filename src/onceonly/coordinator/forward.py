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
from onceonly.checkpoint.offsets import Interval, Offsets, Ranges, TopicRange, range_of, same_topic
from onceonly.coordinator import barrier, lineage
from onceonly.coordinator.cut import Cut
from onceonly.coordinator.manual import Action, Seen
from onceonly.coordinator.messages import how_to_settle
from onceonly.coordinator.pins import recognised
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.transitions import Transitions
from onceonly.statetable.view import View


@dataclass(frozen=True)
class Forward:
    """What a person has found in the targets.

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


def forward(transitions: Transitions, parts: Parts, pipeline: Pipeline, said: Forward) -> Checkpoint:
    """Record it; given again, it changes nothing.

    Raises:
        InvalidPipeline: something is unsettled, it would go back, the pipeline keeps state, or it has changed since the
            person looked.
    """
    _check_kind(pipeline, said)
    sources = parts.sources(pipeline)
    traces = lineage.traces(parts, pipeline, sources)
    shown = max((trace.decision for trace in traces), default=0)
    if said.decision < shown:
        raise _refused(pipeline, f"Its targets show decision {shown}, and --decision is {said.decision}.")
    used = max((trace.epoch for trace in traces if trace.state_id == transitions.state.id), default=0)
    for number, interval in enumerate(said.intervals or [None], 1):
        last = number >= len(said.intervals)
        cut = Cut(pipeline, sources, interval, partial(barrier.closed, transitions.state, parts, pipeline))
        action = _action(said, interval)
        decide = partial(_decide, pipeline, cut, sources, said, last, used)
        view = transitions.change(pipeline.name, action.guard(decide, partial(_is_of_same_command, said)))
    row = action.record(view)
    return view.require(row.epoch if row else view.head.epoch)


def _is_of_same_command(said: Forward, row: Row) -> bool:
    """Whether the row records another interval of the same command."""
    return row.interval in said.intervals and _action(said, row.interval).is_recorded_by(row)


def _action(said: Forward, interval: Interval | None) -> Action:
    """What the person records of one interval, or of the chain; the row of a chain ends at the offsets."""

    def has_same_ends(row: Row) -> bool:
        ends = {range_.topic: range_.ends for range_ in map(TopicRange.from_json, row.body["ranges"])}
        return interval is not None or ends == {topic: dict(offsets) for topic, offsets in said.ends.items()}

    body = {"forwarded": said.decision, "reason": said.reason}
    action = Action.on_pipeline(Event.EMPTY, said.who, said.seen, body, interval=interval)
    return replace(action, also=has_same_ends)


def _check_kind(pipeline: Pipeline, said: Forward) -> None:
    if pipeline.state:
        why = (
            f"It continues from its state '{pipeline.state.name}', and it is not known which state belongs to those "
            "offsets."
        )
        raise _refused(pipeline, why, "Restore the newest state table, or give it a new name and new targets.")
    if pipeline.mode == "interval" and (said.ends or not said.intervals):
        raise _refused(pipeline, "It runs by intervals.", "Name those that are published: --interval START END …")
    topics = {source.called for source in pipeline.sources}
    named = {source.called if (source := pipeline.source_of(topic)) else topic for topic in said.ends}
    if pipeline.mode == "chained" and (said.intervals or named != topics):
        why = f"It reads {', '.join(sorted(topics))} from where the last checkpoint ended."
        raise _refused(pipeline, why, "Give the end of each partition: --ends TOPIC:PARTITION=OFFSET …")


def _decide(
    pipeline: Pipeline,
    cut: Cut,
    sources: Mapping[str, Source],
    said: Forward,
    last: bool,
    used: int,
    view: View,
) -> Row | None:
    """`used`: the last epoch that a target shows, by which it would take a new checkpoint for that one."""
    _check_view(pipeline, said, view)
    interval = cut.interval
    known = _known(pipeline, view, interval) if interval else view.latest
    ranges = _span(cut, view, known) if interval else _ends(pipeline, cut, sources, view, said)
    decision = said.decision if last else None
    if (
        known
        and known.forwarded == said.decision
        and known.ranges == ranges
        and known.decision in (decision, said.decision)
    ):
        return None
    body = {
        "definition": pipeline.to_json(),
        "ranges": [range_.to_json() for range_ in ranges],
        **_action(said, interval).body,
    }
    columns: dict[str, Any] = {"owner": said.who, "interval": interval, "decision": decision, "body": body}
    return view.row(max(view.head.epoch, used) + 1, Event.EMPTY, 0, **columns)


def _check_view(pipeline: Pipeline, said: Forward, view: View) -> None:
    if view.open:
        epoch, state = view.open[0].epoch, view.open[0].state.value
        give_up = f"onceonly resolve {pipeline.name} {epoch} --give-up SINK --reason …"
        why = f"Epoch {epoch} is {state}."
        todo = f"{how_to_settle(view.open[0])}. A sink that refuses, because it is ahead, is given up: {give_up}."
        raise _refused(pipeline, why, todo)
    if said.decision < view.head.decision:
        raise _refused(pipeline, f"The state table is at decision {view.head.decision} already.")


# ---- an interval


def _known(pipeline: Pipeline, view: View, interval: Interval) -> Checkpoint | None:
    """The last checkpoint of that interval, whose boundaries are pinned."""
    planned = view.planned_for(interval)
    for other in planned:
        if other.interval != interval:
            raise _refused(pipeline, f"{interval} overlaps epoch {other.epoch}, which covers {other.interval}.")
    return planned[-1] if planned else None


def _span(cut: Cut, view: View, known: Checkpoint | None) -> Ranges:
    return known.ranges if known else cut.ranges(view)


# ---- a chain


def _ends(pipeline: Pipeline, cut: Cut, sources: Mapping[str, Source], view: View, said: Forward) -> Ranges:
    cut.check_lineage(view.latest)
    read = {range_.topic for range_ in view.latest.ranges} if view.latest else set()
    if missing := sorted((read | set(sources)) - set(said.ends)):  # one that is not named would be read from its start
        why = f"It reads {', '.join(missing)}, too."
        todo = "Give the end of each partition of it; what was not published from it yet ends where its log starts."
        raise _refused(pipeline, why, todo)
    return tuple(
        _end(pipeline, sources[topic], _read(view.latest, topic), ends)
        for topic, ends in sorted(said.ends.items(), key=lambda each: list(sources).index(each[0]))
    )


def _read(latest: Checkpoint | None, topic: str) -> TopicRange | None:
    """What ends where the next checkpoint would begin now: an aborted one's offsets come first again."""
    range_ = range_of(latest.ranges, topic) if latest else None
    if latest is None or range_ is None or latest.state is State.COMMITTED:
        return range_
    return replace(range_, partitions={p: (start, start) for p, start in range_.starts.items()}, mark=None)


def _end(pipeline: Pipeline, source: Source, before: TopicRange | None, ends: Offsets) -> TopicRange:
    """Nothing, at the place where the next one begins."""
    log = source.log()
    if before:
        same_topic(before.topic_id, log, "the last checkpoint")
    if set(ends) != set(log.partitions):
        why = f"{log.called.capitalize()} has partitions {sorted(log.partitions)}, and you name {sorted(ends)}."
        raise _refused(pipeline, why, "Name each one; one that was not read yet ends at 0.")
    for partition, end in sorted(ends.items()):
        low, high = before.ends.get(partition, 0) if before else 0, log.partitions[partition][1]
        if not low <= end <= high:
            raise _refused(
                pipeline, f"{log.topic}:{partition} was read up to {low} and holds {high}: {end} is not in between."
            )
    nothing = TopicRange(log.topic, log.topic_id, {partition: (end, end) for partition, end in ends.items()}, log.kind)
    return recognised(source, nothing, before)


def _refused(
    pipeline: Pipeline, why: str, todo: str = "Look at the targets, and give what they show."
) -> InvalidPipeline:
    return InvalidPipeline(f"{pipeline.name}: it cannot continue from there.", why, f"{todo} Nothing was changed.")
