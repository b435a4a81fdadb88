"""An interval that is left out on purpose: manual resolution of a gap, or of an interval that cannot be staged.

It pins nothing that was not pinned. It is settled in one row, as an interval without records is. Its offsets are those
of the aborted checkpoint, or run from one neighbour to the other, so that it can still be processed if it is wanted
after all.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from onceonly.checkpoint import offsets
from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.checkpoint.offsets import Boundary, Interval, TopicRange
from onceonly.coordinator.manual import Action, Seen, intervals_of
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.view import View


def action(interval: Interval, who: str, reason: str, seen: Seen | None) -> Action:
    """Return what the person records. Intervals that run meanwhile do not change it, unless they begin."""
    return Action.on_pipeline(Event.EMPTY, who, seen, {"skipped": reason}, intervals_of, interval)


def row(view: View, interval: Interval, action: Action, landed: Collection[str] = ()) -> Row | None:
    """Return the row that settles `interval` as skipped; None when it is skipped already.

    Args:
        landed: topics that are read as other pipelines have published them: these have no boundaries.
    Raises:
        InvalidPipeline: it is neither aborted nor a whole gap between two pinned intervals; or the pipeline has no
            gaps.
    """
    latest = _require_intervals(view, interval)
    covered = view.planned_for(interval)
    for other in covered:
        if other.interval != interval or not (other.skipped is not None or other.state is State.ABORTED):
            raise _refuse(view, interval, f"Epoch {other.epoch} covers {other.interval} and is {other.state.value}.")
    if any(other.skipped is not None for other in covered):
        return None
    ranges = list(covered[-1].ranges) if covered else []
    if not ranges:
        ranges = [_range_of_gap(view, interval, range_) for range_ in latest.ranges]
    ranges = [_make_empty(range_) if range_.topic in landed else range_ for range_ in ranges]
    body = {
        "definition": latest.definition,
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
        raise _refuse(view, interval, "It does not run by intervals, or it has not run yet.")
    state = Pipeline.from_json(latest.definition).state
    if state:
        raise _refuse(view, interval, f"It keeps state ('{state.name}'), and the next interval would miss it.")
    return latest


def _range_of_gap(view: View, interval: Interval, last: TopicRange) -> TopicRange:
    """Return the range from the end of the interval before to the start of the one after.

    It is empty for a topic that appeared later.
    """
    before, _ = view.boundaries(interval.start, last.topic)
    _, after = view.boundaries(interval.end, last.topic)
    if before is None or after is None:
        todo = "What comes before the first interval, or after the last one, is left out by not being run."
        raise _refuse(view, interval, "It does not lie between two intervals that are pinned.", todo)
    if (before.time, after.time) != (interval.start, interval.end):
        raise _refuse(view, interval, *_explain_gap(before, after))
    end = after.offsets if after.topic_id else before.offsets
    return offsets.range_between(last, before.topic_id, before.offsets, end)


def _make_empty(range_: TopicRange) -> TopicRange:
    return replace(range_, partitions={0: (0, 0)})


def _explain_gap(before: Boundary, after: Boundary) -> tuple[str, str]:
    return (
        f"The gap it lies in is {Interval(before.time, after.time)}.",
        "Skip all of it, or first run the intervals that you need.",
    )


def _refuse(view: View, interval: Interval, why: str, todo: str = "") -> InvalidPipeline:
    todo = todo or f"See what is left out: onceonly status {view.pipeline}."
    return InvalidPipeline(f"{view.pipeline}: {interval} cannot be skipped.", why, f"{todo} Nothing was written.")
