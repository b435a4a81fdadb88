"""Forgetting what a pipeline's state was: the next checkpoint keeps the state itself, and no earlier part of it."""

from __future__ import annotations

from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.sink import StateBackend
from onceonly.errors import InvalidPipeline
from onceonly.statetable.view import View


def forget(view: View, parts: Parts) -> Checkpoint:
    """Let the next checkpoint remove what the state was before it. Returns the last one that published the state.

    Repeated, it changes nothing. Nothing is recorded in the state table: what is published stays as it is.

    Raises:
        InvalidPipeline: the pipeline keeps no state, or has published none.
        OutcomeUnknown: the storage of the state does not answer. The command may be repeated.
    """
    latest = view.latest
    state = latest.definition.pipeline.state if latest else None
    if latest is None or state is None:
        raise _nothing_error(view.pipeline, "It keeps no state.")
    last = _find_last_state(view, latest, state.name)
    if last is None:
        raise _nothing_error(view.pipeline, f"Its state '{state.name}' was not published yet.")
    backend = parts.sink(last.definition.pipeline, state.name)
    assert isinstance(backend, StateBackend)
    backend.forget(last.handles[state.name])
    return last


def _find_last_state(view: View, latest: Checkpoint, sink: str) -> Checkpoint | None:
    """Find the last checkpoint whose state is published, from the latest one on; None: there is none."""
    checkpoint: Checkpoint | None = latest
    while checkpoint and not (sink in checkpoint.handles and checkpoint.is_shown_by(sink)):
        checkpoint = view.continued_from(checkpoint)
    return checkpoint


def _nothing_error(pipeline: str, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{pipeline}: there is no state to forget.", why, "Nothing was changed.", code="nothing-to-forget"
    )
