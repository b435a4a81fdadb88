"""Pipelines with state run one checkpoint after the other: each reads what the one before has left."""

from __future__ import annotations

from onceonly.checkpoint.model import Checkpoint, Handle, State
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.messages import how_to_settle
from onceonly.errors import Busy, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.view import View


def check_next(pipeline: Pipeline, latest: Checkpoint | None, interval: Interval) -> None:
    """Refuse an interval that does not follow the last one, where there is state to hand over.

    Raises:
        InvalidPipeline: an interval is missing before it, or it comes before what is covered already.
        Busy: the one before it is not committed yet.
    """
    if pipeline.state is None or latest is None or latest.interval is None or pipeline.state.name not in latest.sinks:
        return
    if latest.state is not State.COMMITTED:
        raise Busy(
            f"{pipeline.name}: epoch {latest.epoch} comes before {interval}.",
            f"It covers {latest.interval}, is {latest.state.value}, and its state is what this interval goes on from.",
            f"Run that interval first. {how_to_settle(latest)}. Nothing was written.",
        )
    if interval.start > latest.interval.end:
        raise InvalidPipeline(
            f"{pipeline.name}: the interval {Interval(latest.interval.end, interval.start)} is missing.",
            f"The pipeline keeps state ('{pipeline.state.name}'), and {interval} would go on without it.",
            "Run the missing one first: intervals of such a pipeline follow each other. Nothing was written.",
        )
    if interval.start < latest.interval.end:
        raise InvalidPipeline(
            f"{pipeline.name}: the interval {interval} comes before what the state covers.",
            f"It is kept up to {latest.interval.end:%Y-%m-%dT%H:%M:%SZ} (epoch {latest.epoch}).",
            "Give a pipeline that starts earlier a new name. Nothing was written.",
        )


def held_before(view: View, checkpoint: Checkpoint) -> Handle | None:
    """The handle of the state as the checkpoint before left it; None: there was none, or the pipeline keeps none.

    Raises:
        InvalidPipeline: what is before is not committed, or its state was given up.
    """
    state = Pipeline.from_json(checkpoint.definition).state
    if state is None:
        return None
    sink = state.name
    epoch = checkpoint.epoch - 1
    while epoch:
        before = view.checkpoint(epoch)
        if before is None or sink not in before.sinks:
            return None
        if before.state is not State.COMMITTED or sink in before.given_up:
            why = "was given up" if sink in before.given_up else f"is {before.state.value}"
            raise InvalidPipeline(
                f"{checkpoint.pipeline} epoch {checkpoint.epoch} has no state to go on from.",
                f"That of epoch {epoch} {why}.",
                f"Settle it first: onceonly describe {checkpoint.pipeline} {epoch}. Nothing was staged.",
            )
        if sink in before.handles:
            return before.handles[sink]
        epoch = before.rewinds_to or epoch - 1
    return None
