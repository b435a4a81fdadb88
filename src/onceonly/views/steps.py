"""A transition in the words of a log: one line for each step, and one for each sink that was staged."""

from __future__ import annotations

from collections.abc import Iterator

from onceonly.checkpoint.model import Checkpoint, Event, Row
from onceonly.counts import count
from onceonly.views import formatting

MARK = "ONCEONLY: "  # of a line of the stage job that is meant for people; anything else is Spark's


def lines(checkpoint: Checkpoint, row: Row) -> Iterator[str]:
    """What to log once `row` is recorded and has made `checkpoint` what it is."""
    step = f"{checkpoint.pipeline} epoch {checkpoint.epoch}: {row.event.value}"
    match row.event:
        case Event.EMPTY if checkpoint.skipped is not None:
            yield f"{checkpoint.pipeline} epoch {checkpoint.epoch}: skipped, {checkpoint.skipped}"
        case Event.PLANNED | Event.EMPTY:
            spans = [
                f"{count(range_.span, range_.unit)} of {range_.word} {range_.topic}" for range_ in checkpoint.ranges
            ]
            yield f"{step}, {', '.join(spans)}"
        case Event.CLAIMED:
            yield f"{step}, attempt {row.attempt} by {checkpoint.claims[row.attempt].worker}"
        case Event.STAGED:
            yield f"{step}, attempt {row.attempt}"
            yield from (f"  sink {name}: {formatting.staged(handle)}" for name, handle in checkpoint.handles.items())
            yield from [f"  bad: {formatting.bad(checkpoint)}"] if checkpoint.bad else []
        case Event.VERDICT:
            yield f"{step}, {row.body['outcome']}, attempt {row.attempt}"
            yield from [formatting.held(checkpoint)] if checkpoint.held else []
        case Event.APPROVED:
            yield f"{step} by {row.body['who']}, {row.body['reason']}"
        case Event.COMMITTING | Event.REWOUND:
            yield f"{step}, decision {row.decision}"
        case Event.ABORTING:
            yield f"{step}, {checkpoint.reason or 'no reason given'}"
        case Event.MISSING | Event.FOUND:
            yield f"{step} in {row.sink}, recorded by {row.body['who']}: {row.body['reason']}"
        case _:
            yield f"{step} {row.sink}" if row.sink else step
