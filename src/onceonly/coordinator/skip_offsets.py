"""Offsets of a chained pipeline that are left out on purpose: manual resolution of what it cannot, or shall not, read.

It is a checkpoint of its own, settled in one row: its range is what is left out, and the next one begins at its end. So
the ranges still join without a gap, and the record of what nobody has read is one of them. What an aborted checkpoint
pinned is free again: of the other partitions and topics, the next checkpoint reads it from the same start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onceonly.checkpoint.interfaces import Source
from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.checkpoint.offsets import KAFKA, WORDS, TopicLog, TopicRange, range_of, same_topic
from onceonly.coordinator.manual import Action, Seen
from onceonly.coordinator.messages import how_to_settle
from onceonly.coordinator.pins import recognised
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.view import View


@dataclass(frozen=True)
class Skip:
    """What a person leaves out: of one partition, everything that comes before the offset `to`."""

    topic: str
    partition: int
    to: int
    who: str
    reason: str
    seen: Seen | None = None  # what that person was shown of the pipeline


def action(skip: Skip) -> Action:
    """What the person records; the row names the offset as the end of a range."""

    def has_same_end(row: Row) -> bool:
        range_ = range_of(tuple(map(TopicRange.from_json, row.body["ranges"])), skip.topic)
        return range_ is not None and range_.ends.get(skip.partition) == skip.to

    plain = Action.on_pipeline(Event.EMPTY, skip.who, skip.seen, {"skipped": skip.reason})
    return replace(plain, also=has_same_end)


def pipeline(view: View, skip: Skip) -> Pipeline:
    """The pipeline as it ran last.

    Raises:
        InvalidPipeline: it has no such topic, has not run yet, runs by intervals, keeps state, or comes after others.
    """
    latest = view.latest
    if latest is None:
        raise _refused(view, skip, "It has not run yet.", "Say where it begins: start=… of its source.")
    if latest.interval is not None:
        raise _refused(view, skip, "It runs by intervals.", "Leave out a whole interval: onceonly skip … --interval.")
    found = Pipeline.from_json(latest.definition)
    if found.state:
        raise _refused(view, skip, f"It keeps state ('{found.state.name}'), which would miss those records.")
    if found.after:
        raise _refused(view, skip, f"It comes after {', '.join(found.after)}, and reads what that has published.")
    if range_of(latest.ranges, skip.topic) is None:
        known = ", ".join(range_.called for range_ in latest.ranges)
        raise _refused(view, skip, f"It reads {known}, and nothing called '{skip.topic}'.")
    return found


def row(view: View, source: Source, skip: Skip) -> Row | None:
    """The row that leaves them out; None when the last checkpoint has done so.

    Raises:
        InvalidPipeline: something is not settled yet; or it goes back, or ahead of the log.
        SourceLost: the topic is another one.
    """
    pipeline(view, skip)
    _check_settled(view, skip)
    log, latest = source.log(), view.latest
    assert latest is not None
    starts = [_next(latest, range_) for range_ in latest.ranges]
    mine = range_of(starts, skip.topic)
    assert mine is not None
    same_topic(mine.topic_id, log, "the last checkpoint")
    start = mine.starts.get(skip.partition, 0)
    if latest.skipped is not None and start == skip.to:
        return None
    _check_offset(view, log, skip, start)
    left_out = replace(mine, partitions={**mine.partitions, skip.partition: (start, skip.to)}, mark=None)
    left_out = recognised(source, left_out, mine)
    ranges = [left_out if range_.topic == skip.topic else range_ for range_ in starts]
    body = {
        "definition": latest.definition,
        "ranges": [range_.to_json() for range_ in ranges],
        **action(skip).body,
    }
    return view.row(view.head.epoch + 1, Event.EMPTY, 0, owner=skip.who, body=body)


def _check_settled(view: View, skip: Skip) -> None:
    if view.open:
        first = view.open[0]
        why = f"Epoch {first.epoch} is {first.state.value}, and may still publish what it has read."
        raise _refused(view, skip, why, f"{how_to_settle(first)}.")


def _check_offset(view: View, log: TopicLog, skip: Skip, start: int) -> None:
    word, unit = WORDS[log.kind]
    if skip.partition not in log.partitions:
        raise _refused(view, skip, f"The {word} has the partitions {sorted(log.partitions)}.")
    end = log.partitions[skip.partition][1]
    if not start < skip.to <= end:
        raise _refused(view, skip, f"It continues at {unit} {start}, and the log ends at {end}: --to lies in between.")


def _next(latest: Checkpoint, range_: TopicRange) -> TopicRange:
    """Nothing, at the place where the next checkpoint would begin: what an aborted one pinned comes first again."""
    committed = latest.state is State.COMMITTED
    partitions = {p: (at, at) for p, at in (range_.ends if committed else range_.starts).items()}
    return replace(range_, partitions=partitions, mark=range_.mark if committed else None)  # it is that of an end


def _refused(view: View, skip: Skip, why: str, todo: str = "") -> InvalidPipeline:
    what = f"{view.pipeline}: {_named(view, skip)} {skip.to}."
    todo = todo or f"See where it is: onceonly status {view.pipeline}."
    return InvalidPipeline(what, why, f"{todo} Nothing was written.")


def _named(view: View, skip: Skip) -> str:
    """What cannot be skipped, in the words of its source. Only topics have partitions that are named."""
    read = range_of(view.latest.ranges, skip.topic) if view.latest else None
    word, unit = WORDS[read.kind if read else KAFKA]
    partition = f" partition {skip.partition}" if word == WORDS[KAFKA][0] else ""
    return f"{word} '{skip.topic}'{partition} cannot be skipped to {unit}"
