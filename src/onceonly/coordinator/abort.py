"""Aborting: nothing of the checkpoint will be published, and what its attempts have staged is discarded.

The row ABORTING comes first, so that no process can decide to publish meanwhile. ABORTED follows when all is discarded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.coordinator.manual import Action, Seen
from onceonly.coordinator.messages import classify_settle_error, fenced_error
from onceonly.coordinator.publish import Publisher
from onceonly.statetable.table import Transitions
from onceonly.statetable.view import View


class Aborter:
    """Aborts checkpoints that are not decided, and finishes aborts that others have begun."""

    def __init__(self, transitions: Transitions, publisher: Publisher) -> None:
        self._transitions, self._publisher = transitions, publisher

    def abort(
        self,
        name: str,
        epoch: int,
        reason: str,
        owner: str | None,
        who: str | None,
        gone: Collection[str],
        seen: Seen | None,
    ) -> Checkpoint:
        """Record that the checkpoint is being aborted, and finish it. Repeated, it finishes what is not finished."""
        action: Action | None = None
        if who is not None:
            action = Action.on_checkpoint(Event.ABORTING, epoch, who, reason, seen)

        def decide(view: View) -> Row | None:
            checkpoint = view.require(epoch)
            if owner is not None and checkpoint.owner != owner:
                raise fenced_error(checkpoint, f"'{checkpoint.owner}' has taken it over")
            if checkpoint.state in (State.COMMITTING, State.COMMITTED):
                raise fenced_error(checkpoint, "the decision to publish it is made", "it can no longer be aborted")
            if checkpoint.state in (State.ABORTING, State.ABORTED):
                return None
            if checkpoint.has_been_held and who is None:
                raise fenced_error(checkpoint, "its gate failed it and holds it", "only a person may abort it")
            body: Mapping[str, Any] = {"reason": reason}
            if action:
                body = action.body
            return view.row(epoch, Event.ABORTING, checkpoint.attempt, body=body)

        guarded = action.guard(decide) if action else decide
        checkpoint = self._transitions.change(name, guarded).require(epoch)
        if checkpoint.state is not State.ABORTING:
            return checkpoint
        return self.finish(checkpoint, gone)

    def finish(self, aborting: Checkpoint, gone: Collection[str] = ()) -> Checkpoint:
        """Discard every attempt that was claimed before this abort began, whatever has happened since."""
        try:
            # Before the row: if this process dies in between, it is still aborting, and all is discarded again.
            errors_by_sink = self._publisher.discard(aborting, list(aborting.claims), gone)
        except Exception as error:
            now = self._transitions.state_table.view(aborting.pipeline).require(aborting.epoch)
            if now.last_seq != aborting.last_seq:
                return now  # another process has ended this abort meanwhile, which may be why it failed here
            raise classify_settle_error(error, aborting) from error
        body: dict[str, Any] = {}
        if errors_by_sink:
            body["gone"] = errors_by_sink
        return self._record_aborted(aborting, body)

    def _record_aborted(self, mine: Checkpoint, body: Mapping[str, Any]) -> Checkpoint:
        def decide(view: View, now: Checkpoint) -> Row | None:
            current = now.last_seq == mine.last_seq  # the very abort that was carried out, and no later one
            if not current:
                return None
            return view.row(mine.epoch, Event.ABORTED, now.attempt, body=body)

        return self._transitions.advance(mine.pipeline, mine.epoch, decide)
