"""Compare-and-set on the state table: read a view, decide from it, write from it, and when another was first, again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from onceonly.checkpoint.model import Checkpoint, Event, Handle, Row
from onceonly.errors import Fenced, InvalidPipeline
from onceonly.statetable.table import Lost, StateTable, View

Notify = Callable[[Checkpoint, Row], None]


class Ledger:
    """The state table, and who is told of each recorded transition."""

    def __init__(self, state: StateTable, notify: Notify | None = None) -> None:
        self.state = state
        self._notify = notify or (lambda checkpoint, row: None)

    def change(self, name: str, decide: Callable[[View], Row | None], view: View | None = None) -> View:
        """Write what `decide` makes of the current view (None: nothing to do) and return the view that results."""
        while True:
            view = view or self.state.view(name)
            row = decide(view)
            if row is None:
                return view
            try:
                view = self.state.append(view, row)
            except Lost:
                view = None
                continue
            self._tell(get(view, row.epoch), row)
            return view

    def _tell(self, checkpoint: Checkpoint, row: Row) -> None:
        """Nothing depends on who listens: a listener that fails is shown, and stops nobody."""
        try:
            self._notify(checkpoint, row)
        except Exception as error:
            what = f"{checkpoint.pipeline} epoch {checkpoint.epoch}: '{row.event.value}' is recorded"
            warnings.warn(f"{what}, but the notify function failed: {error!r}", RuntimeWarning, stacklevel=3)


def next_row(view: View, epoch: int, event: Event, attempt: int, **columns: Any) -> Row:
    return Row(view.pipeline, view.head.seq + 1, epoch, event, attempt, **columns)


def get(view: View, epoch: int) -> Checkpoint:
    checkpoint = view.checkpoint(epoch)
    if checkpoint is None:
        raise InvalidPipeline(
            f"{view.pipeline} has no epoch {epoch}.",
            f"The last one planned is {view.head.epoch or 'none'}.",
            "See what there is: onceonly status",
        )
    return checkpoint


def in_force(view: View, checkpoint: Checkpoint) -> dict[str, Handle]:
    """By sink: the handle whose rows it shows; where it was given up, those that were to be replaced."""
    own = {name: handle for name, handle in checkpoint.handles.items() if name in checkpoint.published}
    if checkpoint.replaces is None or not checkpoint.given_up:
        return own
    return {**in_force(view, get(view, checkpoint.replaces)), **own}


def how_to_settle(checkpoint: Checkpoint) -> str:
    """The command that ends an unsettled checkpoint whose owner has ended."""
    of = f"{checkpoint.pipeline} {checkpoint.epoch} --reason …"
    return (
        f"Decide: onceonly approve {of}, or: onceonly abort {of}"
        if checkpoint.held
        else (f"Settle it: onceonly recover {checkpoint.pipeline}")
    )


def fenced(checkpoint: Checkpoint, why: str) -> Fenced:
    return Fenced(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: ownership lost.",
        f"It is {checkpoint.state.value}, and {why}.",
        "The current attempt was not touched. This process stops.",
    )
