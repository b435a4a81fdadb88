"""Provenance: which offsets the rows of a checkpoint come from, through chained pipelines, and who took them out.

A later checkpoint may have replaced published rows, or retracted them: these are superseded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import TopicRange
from onceonly.views import queries

if TYPE_CHECKING:
    from onceonly.statetable.table import StateTable
    from onceonly.statetable.view import View


def trace_checkpoint(state_table: StateTable, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the checkpoint, what it has read down to the topics, and which checkpoints of other pipelines read it."""
    readers = [_name(reader) for reader in list_readers(state_table, checkpoint)]
    return {**_node(state_table, checkpoint), "read_by": readers}


def list_readers(state_table: StateTable, checkpoint: Checkpoint) -> list[Checkpoint]:
    """Return the checkpoints of other pipelines that have read what this one has published."""
    readers = []
    for name in state_table.pipelines():
        view = state_table.view(name)
        if view.latest is None or checkpoint.pipeline not in view.latest.definition.upstreams:
            continue
        for candidate in state_table.after_others(name):
            if _has_read(state_table, view, candidate, checkpoint):
                readers.append(candidate)
    return readers


def _has_read(state_table: StateTable, view: View, reader: Checkpoint, upstream: Checkpoint) -> bool:
    """Whether `reader`, a checkpoint in `view`, has read the rows of `upstream`, or of a repair in its place."""
    if not reader.after.get(upstream.pipeline):
        return False
    for table in reader.definition.pipeline.tables.values():
        for read in _list_read(state_table, view, reader, upstream.pipeline, table):
            if upstream.epoch in (read.epoch, read.origin):
                return True
    return False


def _node(state_table: StateTable, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return one checkpoint of the lineage, with the nodes that it has read below "reads"."""
    return {
        **_name(checkpoint),
        "state": checkpoint.state.value,
        "interval": queries.interval_json(checkpoint.interval),
        "rows_by_sink": queries.rows_by_sink(checkpoint),
        **superseded_json(find_superseded(state_table, [checkpoint]), checkpoint.epoch),
        "reads": [_range_node(state_table, checkpoint, range_) for range_ in checkpoint.ranges],
    }


def _name(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the checkpoint's name; a repair also says which one it repairs."""
    name = {"pipeline": checkpoint.pipeline, "epoch": checkpoint.epoch}
    return {**name, "repairs": checkpoint.repairs} if checkpoint.repairs else name


def _range_node(state_table: StateTable, checkpoint: Checkpoint, range_: TopicRange) -> dict[str, Any]:
    """Return a range that the checkpoint has read, with the checkpoints that published it, if pipelines did."""
    range_json = range_.to_json()
    writer = _find_writer(state_table, checkpoint, range_.topic)
    if writer is None:
        return range_json
    name, sink, table = writer
    read = _list_read(state_table, state_table.view(checkpoint.pipeline), checkpoint, name, table)
    nodes = []
    for upstream in read:
        nodes.append(_node(state_table, upstream))
    return {**range_json, "published_by": name, "sink": sink, "checkpoints": nodes}


def _find_writer(state_table: StateTable, checkpoint: Checkpoint, topic: str) -> tuple[str, str, str] | None:
    """Return the pipeline and the sink that have written a table which the checkpoint has read, and the table.

    None if `topic` names no table, or one that no pipeline has written which this one comes after.
    """
    table = checkpoint.definition.pipeline.tables.get(topic)
    if not table:
        return None
    for name, epochs in checkpoint.after.items():
        view = state_table.view(name)
        last = view.require(epochs[-1]) if epochs else view.latest  # as it was then: a sink may be renamed
        if last is None:
            continue
        sink = _find_sink(last, table)
        if sink:
            return name, sink, table
    return None


def _find_sink(checkpoint: Checkpoint, table: str) -> str | None:
    """Return the name of the sink whose target is that table."""
    for sink in checkpoint.definition.pipeline.sinks:
        if table in sink.asset_uris():
            return sink.name
    return None


def _list_read(state_table: StateTable, view: View, checkpoint: Checkpoint, name: str, table: str) -> list[Checkpoint]:
    """Return the checkpoints of pipeline `name` whose rows in that table this one has read, by their decisions.

    Where a repair has only rewritten rows that were read before, it is none of them.
    """
    upstreams = _list_upstream(state_table, view, checkpoint, name)
    if checkpoint.interval:
        return upstreams
    upstream_view, read = state_table.view(name), []
    for upstream in upstreams:
        sink = _find_sink(upstream, table)
        if sink is None or sink not in upstream.published:
            continue
        replaced = upstream_view.find_replaced(upstream, sink)
        if replaced is None:
            read.append(upstream)
        elif replaced in read:
            read.remove(replaced)
            read.append(upstream)
    return read


def _list_upstream(state_table: StateTable, view: View, checkpoint: Checkpoint, name: str) -> list[Checkpoint]:
    """Return the checkpoints of pipeline `name` whose rows this one has read, in the order of their decisions.

    Args:
        view: that of the checkpoint's own pipeline.
    """
    upstream_view, epochs = state_table.view(name), checkpoint.after.get(name, ())
    if checkpoint.interval or not epochs:
        return [upstream_view.require(epoch) for epoch in epochs]
    last_decision = upstream_view.require(epochs[-1]).decision or 0
    read_decision = _decision_read_before(view, upstream_view, checkpoint)
    newest_first = []  # as the view has them: those that were read before come last
    for upstream in upstream_view.iterate_committed():
        decision = upstream.decision or 0
        if decision <= read_decision:
            break
        if decision <= last_decision and upstream.rewinds_to is None:
            newest_first.append(upstream)
    return newest_first[::-1]


def _decision_read_before(view: View, upstream_view: View, checkpoint: Checkpoint) -> int:
    """Return the decision up to which the chain had read before this checkpoint; 0: nothing."""
    earlier = view.continued_from(checkpoint)
    while earlier:
        epochs = earlier.after.get(upstream_view.pipeline)
        if epochs and earlier.rewinds_to is None:
            return upstream_view.require(epochs[-1]).decision or 0
        earlier = view.continued_from(earlier)
    return 0


@dataclass(frozen=True)
class Superseded:
    """A checkpoint whose rows are not what is published any more, or soon will not be.

    Args:
        by: the epoch that replaces it, or the rewind that retracts it.
        rewound: it is retracted, and not replaced.
        done: it has happened in every sink; else it is decided, or some sink was given up.
    """

    by: int
    rewound: bool
    done: bool

    @property
    def word(self) -> str:
        """Return what happened to the rows: 'rewound' or 'replaced'."""
        if self.rewound:
            return "rewound"
        return "replaced"

    def __str__(self) -> str:
        """Return 'replaced by epoch 9', or 'replaced, not in every sink, by epoch 9'."""
        if self.done:
            return f"{self.word} by epoch {self.by}"
        return f"{self.word}, not in every sink, by epoch {self.by}"


def find_superseded(state_table: StateTable, checkpoints: Collection[Checkpoint]) -> dict[int, Superseded]:
    """Return by epoch those whose rows were replaced or retracted, of some checkpoints of one pipeline."""
    published, epochs = [], []
    for checkpoint in checkpoints:
        if checkpoint.state is State.COMMITTED and checkpoint.published:
            published.append(checkpoint)
            epochs.append(checkpoint.epoch)
    if not published:
        return {}
    later = state_table.superseding(published[0].pipeline, epochs)
    return match_successors(published, later)


def match_successors(published: Iterable[Checkpoint], later: Collection[Checkpoint]) -> dict[int, Superseded]:
    """Return by epoch which published checkpoints a later one replaces or retracts.

    Args:
        later: those that replace or retract, in order; the last one that has taken out rows of an epoch counts.
    """
    superseded_by_epoch = {}
    for checkpoint in published:
        if checkpoint.rewinds_to is not None:  # a rewind only retracts rows
            continue
        fate = _find_fate(checkpoint, later)
        if fate:
            superseded_by_epoch[checkpoint.epoch] = fate
    return superseded_by_epoch


def _find_fate(checkpoint: Checkpoint, later: Collection[Checkpoint]) -> Superseded | None:
    fate: Superseded | None = None
    remaining_sinks, chain = _list_shown(checkpoint), {checkpoint.epoch}
    for successor in later:
        if successor.decision is None or not remaining_sinks:
            continue
        is_committed = successor.state is State.COMMITTED
        comes_after = successor.epoch > checkpoint.epoch
        if comes_after and successor.rewinds_to is not None and successor.rewinds_to < checkpoint.origin:
            return Superseded(successor.epoch, True, is_committed and not successor.given_up)
        if successor.replaces in chain:
            chain.add(successor.epoch)
            unreplaced = {*successor.again, *successor.given_up, *successor.missing}
            replaced_sinks = remaining_sinks & set(successor.sinks) - unreplaced
            if replaced_sinks:
                remaining_sinks -= replaced_sinks
                fate = Superseded(successor.epoch, False, is_committed and not remaining_sinks)
    return fate


def _list_shown(checkpoint: Checkpoint) -> set[str]:
    """Return the sinks that show what this checkpoint has published to them, unless a later one has taken it out."""
    return {sink for sink in checkpoint.published if checkpoint.is_shown_by(sink)}


def superseded_json(superseded_by_epoch: Mapping[int, Superseded], epoch: int) -> dict[str, int | None]:
    """Return the keys "replaced_by" and "rewound_by" of a checkpoint's JSON: epochs, or null."""
    fate = superseded_by_epoch.get(epoch)
    if fate is None:
        return {"replaced_by": None, "rewound_by": None}
    if fate.rewound:
        return {"replaced_by": None, "rewound_by": fate.by}
    return {"replaced_by": fate.by, "rewound_by": None}
