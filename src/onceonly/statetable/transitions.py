"""The compare-and-set loop: read a view, decide from it, write from it; where another writer was first, begin again."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from onceonly.checkpoint.model import Checkpoint, Row
from onceonly.statetable.table import Lost, StateTable
from onceonly.statetable.view import View

Notify = Callable[[Checkpoint, Row], None]


class Transitions:
    """Writes transitions to the state table, and notifies of each one that is recorded."""

    def __init__(self, state: StateTable, notify: Notify | None = None) -> None:
        self.state = state
        self._notify = notify or (lambda checkpoint, row: None)

    def change(self, name: str, decide: Callable[[View], Row | None], view: View | None = None) -> View:
        """Write what `decide` makes of the current view (None: nothing to do) and return the view that results.

        Args:
            view: the view to begin with, if the caller has just read one. Where another writer was first, the pipeline
                is read again.
        """
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
            self._notify_or_warn(view.require(row.epoch), row)
            return view

    def advance(self, name: str, epoch: int, decide: Callable[[View, Checkpoint], Row | None]) -> Checkpoint:
        """Do the same for one checkpoint, which `decide` gets as well; returns it as it is then."""
        return self.change(name, lambda view: decide(view, view.require(epoch))).require(epoch)

    def _notify_or_warn(self, checkpoint: Checkpoint, row: Row) -> None:
        """Call the notify function. Nothing depends on it: where it fails, that is a warning and stops nothing."""
        try:
            self._notify(checkpoint, row)
        except Exception as error:
            what = f"{checkpoint.pipeline} epoch {checkpoint.epoch}: '{row.event.value}' is recorded"
            warnings.warn(f"{what}, but the notify function failed: {error!r}", RuntimeWarning, stacklevel=3)
