"""Going back: what later checkpoints published is taken out of every sink, and offsets and state are as they were.

A rewind is a separate checkpoint that begins with the decision: its ranges end where the pipeline continues, and each
sink's handle says what is to be taken out. So it is published, recovered and recorded like any other.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, Event, Handle, Row, State, Transaction
from onceonly.checkpoint.offsets import Offsets, TopicRange
from onceonly.checkpoint.sink import replaceable
from onceonly.coordinator.manual import Action, Seen
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.view import View


def undone(view: View, epoch: int) -> list[Checkpoint]:
    """The checkpoints that a rewind to `epoch` takes back, the last one first.

    Raises:
        InvalidPipeline: something is unsettled; or that epoch is not in force, or not of this kind of pipeline.
    """
    target = view.require(epoch)
    if target.interval is not None:
        raise _refused(
            view, epoch, "It runs by intervals: onceonly run … --interval … --reprocess replaces one of them."
        )
    if view.open:
        waiting = ", ".join(f"epoch {cp.epoch} is {cp.state.value}" for cp in view.open)
        raise _refused(
            view, epoch, f"Not everything is settled: {waiting}. Settle it: onceonly recover {view.pipeline}."
        )
    later = _chain_after(view, epoch)
    for checkpoint in later:
        if checkpoint.forwarded is not None:
            why = f"What was published before epoch {checkpoint.epoch} ({checkpoint.reason}) is not known here."
            raise _refused(view, epoch, why)
    if target.state is not State.COMMITTED or not _leads_to(view, later, epoch):
        raise _refused(view, epoch, f"Epoch {epoch} was taken back itself, or never committed.")
    undone = [checkpoint for checkpoint in later if _has_published(checkpoint)]
    if not undone:
        raise _refused(view, epoch, f"Nothing was committed after epoch {epoch}.")
    return undone


def _chain_after(view: View, epoch: int) -> list[Checkpoint]:
    """The checkpoints from the last one back to `epoch`, which is not included, without what rewinds took back."""
    chain = []
    at = view.require(view.head.epoch)
    while at.epoch > epoch:
        chain.append(at)
        at = view.require(_epoch_before(at))
    return chain


def _epoch_before(checkpoint: Checkpoint) -> int:
    return checkpoint.epoch - 1 if checkpoint.rewinds_to is None else checkpoint.rewinds_to


def _leads_to(view: View, chain: list[Checkpoint], epoch: int) -> bool:
    """Whether the chain ends at that epoch: a rewind may have passed it."""
    return (_epoch_before(chain[-1]) if chain else view.head.epoch) == epoch


def _has_published(checkpoint: Checkpoint) -> bool:
    return checkpoint.state is State.COMMITTED and checkpoint.rewinds_to is None


def retractions(view: View, epoch: int, parts: Parts, state_id: str) -> dict[str, Handle]:
    """By sink: what its target has to take out, as the target looks now. Nothing is changed there.

    Raises:
        InvalidPipeline: as `undone`; or a sink cannot take back what it has published.
    """
    target, later = view.require(epoch), undone(view, epoch)
    pipeline, new = Pipeline.from_json(later[0].definition), view.head.epoch + 1
    handles: dict[str, Handle] = {}
    for name in sorted({sink for cp in later for sink in cp.published if cp.is_shown_by(sink)}):
        if name not in {sink.name for sink in pipeline.sinks}:
            raise _refused(view, epoch, f"Sink '{name}', which has rows of it, is no longer in the pipeline.")
        olds = [cp.handles[name] for cp in later if cp.is_shown_by(name)]
        txn = Transaction(state_id, view.pipeline, name, new, 0, uuid.uuid4().hex[:12])
        handles[name] = dict(replaceable(parts.sink(pipeline, name)).retraction(txn, olds, target.handles.get(name)))
    return handles


def action(epoch: int, who: str, reason: str, seen: Seen | None) -> Action:
    """What the person records."""
    return Action.on_pipeline(Event.REWOUND, who, seen, {"to": epoch, "reason": reason})


def row(view: View, epoch: int, handles: Mapping[str, Handle], action: Action) -> Row:
    """The decision to go back; `handles` are the `retractions` of this same view."""
    body = {
        "definition": undone(view, epoch)[0].definition,
        "ranges": [range_.to_json() for range_ in _positions(view, epoch)],
        "handles": handles,
        **action.body,
    }
    decision = view.head.decision + 1
    return view.row(view.head.epoch + 1, Event.REWOUND, 0, decision=decision, body=body, **action.columns)


def _positions(view: View, epoch: int) -> list[TopicRange]:
    """Empty ranges at the places where the next checkpoint begins.

    Topics and partitions that were first read after `epoch` begin where they began then. Without them they would count
    as new, and what has expired since would be passed over without an error.
    """
    positions = {range_.topic: _at(range_, range_.ends) for range_ in view.require(epoch).ranges}
    for checkpoint in reversed(_chain_after(view, epoch)):  # the first one that has read a partition says where
        for range_ in checkpoint.ranges:
            known = positions.get(range_.topic) or replace(range_, partitions={}, mark=None)
            starts = {p: (start, start) for p, start in range_.starts.items()}
            positions[range_.topic] = replace(known, partitions={**starts, **known.partitions})
    return list(positions.values())


def _at(range_: TopicRange, places: Offsets) -> TopicRange:
    return replace(range_, partitions={p: (place, place) for p, place in places.items()}, ahead=0)


def _refused(view: View, epoch: int, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{view.pipeline} cannot go back to epoch {epoch}.",
        why,
        f"See what there is: onceonly status {view.pipeline}. Nothing was changed.",
    )
