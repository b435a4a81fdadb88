"""Lineage: which offsets the rows of a checkpoint stand for, through the pipelines whose tables were read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import TopicRange
from onceonly.pipeline.definition import Pipeline
from onceonly.views import queries, superseded

if TYPE_CHECKING:
    from onceonly.statetable.table import StateTable
    from onceonly.statetable.view import View


def lineage(state: StateTable, checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint, what it has read down to the topics, and which checkpoints of other pipelines stand on it."""
    return {**_node(state, checkpoint), "read_by": [_name(known) for known in standing_on(state, checkpoint)]}


def standing_on(state: StateTable, checkpoint: Checkpoint) -> list[Checkpoint]:
    """The checkpoints of other pipelines that have read what this one has published."""
    found = []
    for name in state.pipelines():
        view = state.view(name)
        if view.latest and checkpoint.pipeline in view.latest.definition.get("after", ()):
            found += [known for known in state.after_others(name) if _stands_on(state, view, known, checkpoint)]
    return found


def _stands_on(state: StateTable, view: View, known: Checkpoint, on: Checkpoint) -> bool:
    if not known.after.get(on.pipeline):
        return False
    return on.epoch in {each.epoch for each in _stood_on(state, view, known, on.pipeline)}


def _node(state: StateTable, checkpoint: Checkpoint) -> dict[str, Any]:
    interval = checkpoint.interval
    return {
        **_name(checkpoint),
        "state": checkpoint.state.value,
        "interval": queries.span(interval) if interval else None,
        "rows_by_sink": queries.rows_by_sink(checkpoint),
        **superseded.to_json(superseded.superseded(state, [checkpoint]), checkpoint.epoch),
        "reads": [_read(state, checkpoint, range_) for range_ in checkpoint.ranges],
    }


def _name(checkpoint: Checkpoint) -> dict[str, Any]:
    return {"pipeline": checkpoint.pipeline, "epoch": checkpoint.epoch}


def _read(state: StateTable, checkpoint: Checkpoint, range_: TopicRange) -> dict[str, Any]:
    told = range_.to_json()
    writer = _writer(state, checkpoint, range_.topic)
    if writer is None:
        return told
    name, sink, table = writer
    stood_on = _stood_on(state, state.view(checkpoint.pipeline), checkpoint, name)
    checkpoints = [_node(state, known) for known in stood_on if checkpoint.interval or _published(known, table)]
    return {**told, "published_by": name, "sink": sink, "checkpoints": checkpoints}


def _writer(state: StateTable, checkpoint: Checkpoint, topic: str) -> tuple[str, str, str] | None:
    """The pipeline and the sink that have written a table which was read up to a checkpoint of theirs; the table."""
    table = Pipeline.from_json(checkpoint.definition).tables.get(topic)
    for name, epochs in checkpoint.after.items() if table else ():
        view = state.view(name)
        last = view.require(epochs[-1]) if epochs else view.latest  # as it was then: a sink may be renamed
        if table and last and (sink := _sink_of(last, table)):
            return name, sink, table
    return None


def _sink_of(checkpoint: Checkpoint, table: str) -> str | None:
    sinks = Pipeline.from_json(checkpoint.definition).sinks
    return next((sink.name for sink in sinks if table in sink.asset_uris()), None)


def _published(checkpoint: Checkpoint, table: str) -> bool:
    return _sink_of(checkpoint, table) in checkpoint.published


def _stood_on(state: StateTable, view: View, checkpoint: Checkpoint, name: str) -> list[Checkpoint]:
    """The checkpoints of that pipeline whose rows this one has read, in the order of their decisions."""
    before, epochs = state.view(name), checkpoint.after.get(name, ())
    if checkpoint.interval or not epochs:
        return [before.require(epoch) for epoch in epochs]
    last, first = before.require(epochs[-1]).decision or 0, _read_before(view, before, checkpoint)
    found = []
    for known in before.committed():
        if (known.decision or 0) <= first:
            break
        if (known.decision or 0) <= last and known.rewinds_to is None:
            found.append(known)
    return found[::-1]


def _read_before(view: View, before: View, checkpoint: Checkpoint) -> int:
    """The decision up to which the chain had read before this checkpoint; 0: nothing."""
    epoch = checkpoint.epoch - 1
    while known := view.checkpoint(epoch):
        if known.rewinds_to is None and (epochs := known.after.get(before.pipeline)):
            return before.require(epochs[-1]).decision or 0
        epoch = epoch - 1 if known.rewinds_to is None else known.rewinds_to
    return 0
