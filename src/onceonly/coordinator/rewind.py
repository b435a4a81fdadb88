"""Going back: what later checkpoints published is retracted in every sink, and offsets and state are as they were.

A rewind is a separate checkpoint that begins with the decision: its ranges end where the pipeline continues, and each
sink's handle says what is to be retracted. So it is published, recovered and recorded like any other.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

from onceonly.checkpoint.commands import how_to_run_interval
from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, Event, Handle, Row, State, Transaction
from onceonly.checkpoint.offsets import TopicRange, empty_spans
from onceonly.checkpoint.sink import require_replaceable
from onceonly.coordinator.manual import Action, Seen
from onceonly.coordinator.reprocess import find_unclear, unclear_error
from onceonly.errors import InvalidPipeline
from onceonly.statetable.view import View


def list_undone(view: View, epoch: int) -> list[Checkpoint]:
    """List the checkpoints that a rewind to `epoch` retracts, the last one first.

    Raises:
        InvalidPipeline: something is unsettled; or that epoch is not in force, or not of this kind of pipeline.
    """
    target = view.require(epoch)
    if target.interval is not None:
        raise _rewind_error(
            view,
            epoch,
            f"It runs by intervals. {how_to_run_interval(target.interval)} --reprocess replaces that one.",
            code="mode-mismatch",
        )
    if view.open:
        waiting = ", ".join(f"epoch {cp.epoch} is {cp.state.value}" for cp in view.open)
        raise _rewind_error(
            view,
            epoch,
            f"Not everything is settled: {waiting}. Settle it: onceonly recover {view.pipeline}.",
            code="checkpoint-open",
        )
    later = _chain_after(view, epoch)
    for checkpoint in later:
        if checkpoint.forwarded is not None:
            why = f"What was published before epoch {checkpoint.epoch} ({checkpoint.reason}) is not known here."
            raise _rewind_error(view, epoch, why, code="publication-not-recorded")
    if target.state is not State.COMMITTED or not _leads_to(view, later, epoch):
        raise _rewind_error(
            view, epoch, f"Epoch {epoch} was taken back itself, or never committed.", code="epoch-not-in-force"
        )
    published = list(filter(_has_published, _with_repairs(view, later)))
    if not published:
        raise _rewind_error(view, epoch, f"Nothing was committed after epoch {epoch}.", code="nothing-to-rewind")
    return published


def _chain_after(view: View, epoch: int) -> list[Checkpoint]:
    """List the checkpoints from the last one back to `epoch`, which is not included, without what rewinds took back."""
    chain = []
    checkpoint = view.latest
    while checkpoint and checkpoint.epoch > epoch:
        chain.append(checkpoint)
        checkpoint = view.continued_from(checkpoint)
    return chain


def _leads_to(view: View, chain: list[Checkpoint], epoch: int) -> bool:
    """Whether the chain ends at that epoch: a rewind may have passed it."""
    if chain:
        before = view.continued_from(chain[-1])
        return before is not None and before.epoch == epoch
    return view.head.chain == epoch


def _with_repairs(view: View, chain: list[Checkpoint]) -> list[Checkpoint]:
    """Add the repairs of these checkpoints, whose rows are taken back with theirs; the last one first."""
    checkpoints = list(chain)
    for checkpoint in chain:
        checkpoints += view.repairs_of(checkpoint.epoch)
    return sorted(checkpoints, key=lambda checkpoint: -checkpoint.epoch)


def _has_published(checkpoint: Checkpoint) -> bool:
    return checkpoint.state is State.COMMITTED and checkpoint.rewinds_to is None


def plan_retractions(view: View, epoch: int, parts: Parts, state_id: str) -> dict[str, Handle]:
    """Return by sink the handle of what its target has to retract, as the target looks now. Nothing is changed there.

    Raises:
        InvalidPipeline: as `list_undone`; or a sink cannot retract what it has published.
    """
    target, later = view.require(epoch), list_undone(view, epoch)
    pipeline, new_epoch = later[0].definition.pipeline, view.head.epoch + 1
    current_sinks = {sink.name for sink in pipeline.sinks}
    handles: dict[str, Handle] = {}
    newest = _newest_by_origin(later)
    _refuse_unclear(view, epoch, later, newest)
    for name in _sinks_with_rows(later):
        if name not in current_sinks:
            raise _rewind_error(
                view, epoch, f"Sink '{name}', which has rows of it, is no longer in the pipeline.", code="sink-removed"
            )
        old_handles: list[Handle] = []
        for checkpoint in newest.values():
            in_force = view.handles_in_force(checkpoint)  # without what a repair has replaced
            if name in in_force:
                old_handles.append(in_force[name])
        txn = Transaction(state_id, view.pipeline, name, new_epoch, 0, uuid.uuid4().hex[:12])
        live = require_replaceable(parts.sink(pipeline, name))
        handles[name] = dict(live.retraction(txn, old_handles, target.handles.get(name)))
    return handles


def _newest_by_origin(later: list[Checkpoint]) -> dict[int, Checkpoint]:
    """Return by the epoch of all sinks the last one that has written these records; of `later` the last comes first."""
    newest: dict[int, Checkpoint] = {}
    for checkpoint in later:
        newest.setdefault(checkpoint.origin, checkpoint)
    return newest


def _refuse_unclear(view: View, epoch: int, later: list[Checkpoint], newest: Mapping[int, Checkpoint]) -> None:
    """Refuse to go back over rows of which nobody knows whether they are there: read again, they would be twice."""
    for checkpoint in later:
        for name in checkpoint.given_up:
            unclear = find_unclear(view, newest[checkpoint.origin], name)
            if unclear:
                error = unclear_error(unclear, name)
                raise _rewind_error(view, epoch, f"{error.what} {error.why}", code=error.code, todo=error.todo)


def _sinks_with_rows(checkpoints: list[Checkpoint]) -> list[str]:
    """List the sinks that show rows of these checkpoints, sorted by name."""
    sinks: set[str] = set()
    for checkpoint in checkpoints:
        for sink in checkpoint.published:
            if checkpoint.is_shown_by(sink):
                sinks.add(sink)
    return sorted(sinks)


def action(epoch: int, who: str, reason: str, seen: Seen | None) -> Action:
    """Return what the person records."""
    return Action.on_pipeline(Event.REWOUND, who, seen, {"to": epoch, "reason": reason})


def row(view: View, epoch: int, handles: Mapping[str, Handle], action: Action) -> Row:
    """Return the row of the decision to go back.

    Args:
        handles: the result of `plan_retractions` for this same view, rehearsed.
    """
    body = {
        "definition": list_undone(view, epoch)[0].definition.json,
        "ranges": [range_.to_json() for range_ in _positions(view, epoch)],
        "handles": handles,
        **action.body,
    }
    decision = view.head.decision + 1
    return view.row(view.head.epoch + 1, Event.REWOUND, 0, decision=decision, body=body, **action.columns)


def _positions(view: View, epoch: int) -> list[TopicRange]:
    """Return empty ranges at the places where the next checkpoint begins.

    Topics and partitions that were first read after `epoch` begin where they began then. Without them they would count
    as new, and what has expired since would be passed over without an error.
    """
    positions: dict[str, TopicRange] = {}
    for range_ in view.require(epoch).ranges:
        positions[range_.topic] = replace(range_, partitions=empty_spans(range_.ends), ahead=0)
    for checkpoint in reversed(_chain_after(view, epoch)):  # the first one that has read a partition says where
        for range_ in checkpoint.ranges:
            position = positions.get(range_.topic) or replace(range_, partitions={}, mark=None)
            starts = empty_spans(range_.starts)
            positions[range_.topic] = replace(position, partitions={**starts, **position.partitions})
    return list(positions.values())


def _rewind_error(view: View, epoch: int, why: str, code: str, todo: str = "") -> InvalidPipeline:
    return InvalidPipeline(
        f"{view.pipeline} cannot go back to epoch {epoch}.",
        why,
        todo or f"See what there is: onceonly status {view.pipeline}. Nothing was changed.",
        code=code,
    )
