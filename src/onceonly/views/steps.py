"""A transition in the words of a log: one line for each step, and one for each sink that was staged."""

from __future__ import annotations

from collections.abc import Iterator

from onceonly.checkpoint.model import Checkpoint, Event, Row
from onceonly.counts import count
from onceonly.views import formatting

MARK = "ONCEONLY: "  # begins a line of the stage job that is meant for people; anything else is Spark's


def lines(checkpoint: Checkpoint, row: Row) -> Iterator[str]:
    """Yield what to log once `row` is recorded and has made `checkpoint` what it is."""
    step = f"{checkpoint.pipeline} epoch {checkpoint.epoch}: {row.event.value}"
    match row.event:
        case Event.EMPTY if checkpoint.skipped is not None:
            yield f"{checkpoint.pipeline} epoch {checkpoint.epoch}: skipped, {checkpoint.skipped}"
        case Event.PLANNED | Event.EMPTY:
            yield f"{step}, {_list_ranges(checkpoint)}"
        case Event.CLAIMED:
            yield f"{step}, attempt {row.attempt} by {checkpoint.claims[row.attempt].worker}"
        case Event.STAGED:
            yield f"{step}, attempt {row.attempt}"
            yield from _describe_staged(checkpoint)
        case Event.VERDICT:
            yield f"{step}, {row.body['outcome']}, attempt {row.attempt}"
            yield from _describe_held(checkpoint)
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


def _describe_held(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield what a verdict makes it wait for, if it does."""
    if checkpoint.held:
        yield formatting.held(checkpoint)


def _list_ranges(checkpoint: Checkpoint) -> str:
    """Return '5 offsets of topic flights, 2 versions of table rates'."""
    texts = []
    for range_ in checkpoint.ranges:
        texts.append(f"{count(range_.span, range_.unit)} of {range_.word} {range_.topic}")
    return ", ".join(texts)


def _describe_staged(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield a line for each sink, and one for bad records if the checkpoint counts them."""
    for name, handle in checkpoint.handles.items():
        yield f"  sink {name}: {formatting.staged(handle)}"
    if checkpoint.bad:
        yield f"  bad: {formatting.bad(checkpoint)}"
