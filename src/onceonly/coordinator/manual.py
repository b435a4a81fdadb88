"""Manual actions: what a person records, and whether that person was looking at what is there now.

Every manual action names the last row that had changed what the person was shown. The compare-and-set that records the
action compares it, so an approval never lands on an attempt that nobody has looked at. A heartbeat changes nothing.
An action that is recorded already is a repetition: it gets the same answer again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onceonly.checkpoint.model import Checkpoint, Event, Row
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.messages import event_in_words
from onceonly.counts import count
from onceonly.errors import InvalidPipeline
from onceonly.statetable.view import View

MAX_EVENTS_NAMED = 6  # in a refusal, the newest ones
Decide = Callable[[View], Row | None]
RowTest = Callable[[Row], bool]


@dataclass(frozen=True)
class Seen:
    """The number (`seq`) of the last row that had changed what a person was shown."""

    seq: int


@dataclass(frozen=True)
class Shown:
    """The subject of a manual action, as a view has it.

    Args:
        name: of the checkpoint or pipeline, for people.
        seq: the last row that changed it.
        until: the highest number that still names it as it is.
        is_changed_by: whether a row changes it.
        look: the command that shows it, and its number.
    """

    name: str
    seq: int
    until: int
    is_changed_by: RowTest
    look: str


def checkpoint_of(view: View, epoch: int) -> Shown:
    """Show one checkpoint: every row of it counts, except heartbeats."""
    changed = view.require(epoch).changed_seq
    return Shown(
        f"{view.pipeline} epoch {epoch}",
        changed,
        changed,
        lambda row: row.epoch == epoch and row.event is not Event.RENEWED,
        f"onceonly describe {view.pipeline} {epoch}",
    )


def pipeline_of(view: View) -> Shown:
    """Show the whole pipeline: every row counts, except heartbeats. Without any row its number is 0."""
    look = f"onceonly status {view.pipeline}"
    return Shown(view.pipeline, view.head.changed, view.head.seq, lambda row: row.event is not Event.RENEWED, look)


def intervals_of(view: View) -> Shown:
    """Show the pinned intervals: only rows that begin a checkpoint count, so running ones are no hindrance."""
    look = f"onceonly status {view.pipeline}"
    return Shown(view.pipeline, view.head.latest, view.head.seq, lambda row: row.head["latest"] == row.seq, look)


@dataclass(frozen=True)
class Action:
    """One manual action.

    Args:
        event: of the row that records it.
        seen: what the person was shown before; None is refused.
        show: what has to be unchanged since.
        body: what the row's body says of the action, with `seen` in it.
        columns: what other columns of the row say of it.
        also: whether the rest of a row agrees, such as the offsets that it names.
    """

    event: Event
    seen: Seen | None
    show: Callable[[View], Shown]
    body: Mapping[str, Any]
    columns: Mapping[str, Any] = field(default_factory=dict)
    also: RowTest = field(default=lambda row: True)

    @classmethod
    def on_checkpoint(
        cls, event: Event, epoch: int, who: str, reason: str, seen: Seen | None, sink: str | None = None, **body: Any
    ) -> Action:
        """Return an action that is recorded as a row of that checkpoint, or of one of its sinks."""
        row_body = {"who": who, "reason": reason, **body, **_seen_in_body(seen)}
        return cls(event, seen, lambda view: checkpoint_of(view, epoch), row_body, {"epoch": epoch, "sink": sink})

    @classmethod
    def on_pipeline(
        cls,
        event: Event,
        who: str,
        seen: Seen | None,
        body: Mapping[str, Any],
        show: Callable[[View], Shown] = pipeline_of,
        interval: Interval | None = None,
    ) -> Action:
        """Return an action that is recorded as a checkpoint of its own, whose owner is the person."""
        return cls(event, seen, show, {**body, **_seen_in_body(seen)}, {"owner": who, "interval": interval})

    def is_recorded_by(self, row: Row) -> bool:
        """Whether that row records this very action, by the same person, after looking at the same."""
        for name, value in self.columns.items():
            if getattr(row, name) != value:
                return False
        for key, value in self.body.items():
            if row.body.get(key) != value:
                return False
        return row.event is self.event and self.also(row)

    def record(self, view: View) -> Row | None:
        """Return the row that records the action; None: there is none since the person looked."""
        if self.seen is None:
            return None
        for row in view.rows_since(self.seen.seq):
            if self.is_recorded_by(row):
                return row
        return None

    def checkpoint_in(self, view: View) -> Checkpoint:
        """Return the checkpoint that records the action; the last one, where another has done the same before."""
        row = self.record(view)
        return view.require(row.epoch if row else view.head.epoch)

    def require_unchanged(self, view: View, is_own: RowTest | None = None) -> None:
        """Refuse the action if what the person looked at has changed since.

        Args:
            is_own: whether a row was written by an earlier step of this very action.
        Raises:
            InvalidPipeline: "seen-missing", "seen-unknown" or "seen-outdated"; nothing was recorded.
        """
        subject = self.show(view)
        if self.seen is None:
            raise not_seen_error(subject.name, subject.look)
        if self.seen.seq > subject.until:
            raise _unknown_number_error(self.seen, subject)
        if self.seen.seq < subject.seq:
            changes = [row for row in view.rows_since(self.seen.seq) if subject.is_changed_by(row)]
            if is_own is None or not all(is_own(row) for row in changes):
                raise _outdated_error(self.seen, subject, changes)

    def guard(self, decide: Decide, is_own: RowTest | None = None) -> Decide:
        """Return the same decision, refused if what was seen has changed; none, if the action is recorded already."""

        def decide_guarded(view: View) -> Row | None:
            if self.record(view):
                return None
            self.require_unchanged(view, is_own)
            return decide(view)

        return decide_guarded


def not_seen_error(name: str, look: str) -> InvalidPipeline:
    """Return the error of an action that does not say what its author was looking at."""
    return InvalidPipeline(
        f"{name}: the action does not name what you have looked at.",
        "It may have changed since, and the action would land on what nobody has looked at.",
        f"Look first: {look}. It shows the number to pass (--seen NUMBER). Nothing was recorded.",
        "seen-missing",
    )


def _seen_in_body(seen: Seen | None) -> dict[str, int]:
    if seen:
        return {"seen": seen.seq}
    return {}


def _outdated_error(seen: Seen, subject: Shown, changes: list[Row]) -> InvalidPipeline:
    newest = changes[-MAX_EVENTS_NAMED:]
    earlier = len(changes) - len(newest)
    more = ""
    if earlier:
        more = f"{count(earlier, 'earlier event')}; "
    return InvalidPipeline(
        f"{subject.name} has changed since you looked at it.",
        f"You have seen row {seen.seq}. Since then: {more}{'; '.join(map(event_in_words, newest))}.",
        f"Look again, then decide: {subject.look}. Nothing was recorded.",
        "seen-outdated",
    )


def _unknown_number_error(seen: Seen, subject: Shown) -> InvalidPipeline:
    return InvalidPipeline(
        f"{subject.name} was never shown with the number {seen.seq}.",
        f"The last row that changed it is number {subject.seq}.",
        f"Look at it, and pass the number that is shown: {subject.look}. Nothing was recorded.",
        "seen-unknown",
    )
