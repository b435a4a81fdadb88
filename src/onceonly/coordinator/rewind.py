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
from onceonly.checkpoint.offsets import TopicRange
from onceonly.checkpoint.sink import replaceable
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
    found, at = [], view.require(view.head.epoch)
    while at.epoch > epoch:
        if at.forwarded is not None:
            raise _refused(view, epoch, f"What was published before epoch {at.epoch} ({at.reason}) is not known here.")
        if at.state is State.COMMITTED and at.rewinds_to is None:
            found.append(at)
        at = view.require(at.epoch - 1 if at.rewinds_to is None else at.rewinds_to)
    if at.epoch != epoch or at.state is not State.COMMITTED:
        raise _refused(view, epoch, f"Epoch {epoch} was taken back itself, or never committed.")
    if not found:
        raise _refused(view, epoch, f"Nothing was committed after epoch {epoch}.")
    return found


def retractions(view: View, epoch: int, parts: Parts, state_id: str) -> dict[str, Handle]:
    """By sink: what its target has to take out, as the target looks now. Nothing is changed there.

    Raises:
        InvalidPipeline: as `undone`; or a sink cannot take back what it has published.
    """
    target, later = view.require(epoch), undone(view, epoch)
    pipeline, new = Pipeline.from_json(later[0].definition), view.head.epoch + 1
    handles: dict[str, Handle] = {}
    for name in sorted({sink for cp in later for sink in cp.published}):
        if name not in {sink.name for sink in pipeline.sinks}:
            raise _refused(view, epoch, f"Sink '{name}', which has rows of it, is no longer in the pipeline.")
        olds = [cp.handles[name] for cp in later if name in cp.published]
        txn = Transaction(state_id, view.pipeline, name, new, 0, uuid.uuid4().hex[:12])
        handles[name] = dict(replaceable(parts.sink(pipeline, name)).retraction(txn, olds, target.handles.get(name)))
    return handles


def row(view: View, epoch: int, handles: Mapping[str, Handle], who: str, reason: str) -> Row:
    """The decision to go back; `handles` are the `retractions` of this same view."""
    body = {
        "definition": undone(view, epoch)[0].definition,
        "ranges": [_ends(range_).to_json() for range_ in view.require(epoch).ranges],
        "handles": handles,
        "to": epoch,
        "reason": reason,
    }
    decision = view.head.decision + 1
    return view.row(view.head.epoch + 1, Event.REWOUND, 0, owner=who, decision=decision, body=body)


def _ends(range_: TopicRange) -> TopicRange:
    """Nothing, at the place where the next one begins."""
    return replace(range_, partitions={p: (end, end) for p, end in range_.ends.items()})


def _refused(view: View, epoch: int, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{view.pipeline} cannot go back to epoch {epoch}.",
        why,
        f"See what there is: onceonly status {view.pipeline}. Nothing was changed.",
    )
