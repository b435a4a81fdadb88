"""Which checkpoint a plan is about: one that is there, one to take over, a new one, or one in the place of another.

Read `Planning.decide` first; what it calls follows in the order of the calls. Offsets: `cut` and `pins`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, Event, Handle, Row, State
from onceonly.checkpoint.offsets import Interval, has_data
from onceonly.checkpoint.sink import replaceable
from onceonly.coordinator.cut import Cut
from onceonly.coordinator.messages import how_to_settle
from onceonly.errors import Busy, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.view import View


@dataclass(frozen=True)
class Planned:
    """What plan decided: `fresh` is False for a checkpoint that was there before; None means no new data.

    Args:
        gap: what no interval covers yet, between the one before and this one.
        notes: for people, of the targets.
        held: with no new data: how many offsets lie behind open transactions of producers.
    """

    checkpoint: Checkpoint | None
    fresh: bool
    gap: Interval | None = None
    notes: tuple[str, ...] = ()
    held: int = 0


@dataclass
class Planning:
    """One plan. `decide` may be asked again with a newer view; the last answer is the one that was written.

    Args:
        reprocess: names the request to replace a committed interval; None: there is none.
        instance: which of the runs that had the owner's name; None: they are not told apart.
        existing: the checkpoint that the plan is about, where it was there before.
        row: what the plan writes; None: nothing has to change.
    """

    pipeline: Pipeline
    parts: Parts
    cut: Cut
    owner: str
    reprocess: str | None
    instance: str | None = None
    existing: Checkpoint | None = None
    row: Row | None = None
    held: int = 0

    def decide(self, view: View) -> Row | None:
        if self.reprocess:
            _check_kind(self.pipeline)
        self.existing = self._find(view)
        self.row = self._continue(view, self.existing) if self.existing else self._pin(view)
        return self.row

    def result(self, view: View) -> Planned:
        """What `decide` came to, in the view that has followed from it."""
        about = self.row or self.existing
        fresh = self.row is not None and (self.existing is None or self.existing.epoch != self.row.epoch)
        gap = view.gap_before(self.cut.interval) if self.cut.interval else None
        return Planned(view.require(about.epoch) if about else None, fresh, gap, held=0 if about else self.held)

    # ---- the checkpoint that is there already

    def _find(self, view: View) -> Checkpoint | None:
        if self.cut.interval:
            return _of_interval(view, self.pipeline.name, self.cut.interval, self.reprocess)
        mine = view.planned_by(self.owner)
        if mine and mine[-1].state is not State.ABORTED and not self._is_past(view, mine[-1]):
            return mine[-1]
        latest = view.latest  # in chained mode nothing follows an aborted checkpoint: its offsets come first
        return latest if latest and latest.state is not State.COMMITTED else None

    def _is_past(self, view: View, done: Checkpoint) -> bool:
        """Whether this run has work left although a checkpoint under its name is committed.

        That was taken back, or was of another run, which was deleted. An open one continues, whichever run planned it.
        """
        if done.state is not State.COMMITTED:
            return False
        return not done.was_of(self.owner, self.instance) or view.taken_back(done.epoch)

    # ---- a new one

    def _pin(self, view: View) -> Row | None:
        """The row that pins the next checkpoint; None when there is nothing new."""
        ranges, interval = self.cut.ranges(view), self.cut.interval
        if interval is None and not self.cut.chooses_start(view) and not self.cut.has_records(ranges):
            if self.cut.hides_records:
                self.held = self.cut.await_transactions()
                ranges = self.cut.ranges(view)
            if not self.cut.has_records(ranges):
                return None
        body = {**self._origin, **self.cut.pinned(ranges)}
        gated = interval is not None and self.pipeline.gates_empty_intervals()
        event = Event.PLANNED if has_data(ranges) or gated else Event.EMPTY
        return view.row(view.head.epoch + 1, event, 0, owner=self.owner, interval=interval, body=body)

    @property
    def _origin(self) -> dict[str, Any]:
        """What a row of this plan says in any case: the definition, and which run it is."""
        told = {} if self.instance is None else {"instance": self.instance}
        return {"definition": self.pipeline.to_json(), **told}

    # ---- one that continues, or is replaced

    def _continue(self, view: View, existing: Checkpoint) -> Row | None:
        self._refuse_outdated(existing)
        again = self._is_to_be_replaced(view, existing)
        row = self._replace(view, existing) if again else self._take_over(view, existing)
        if row:
            old = existing if again else view.require(existing.replaces) if existing.replaces else None
            if old:
                _check_replaceable(self.pipeline, old, view.in_force(old), self.parts)
        return row

    def _is_to_be_replaced(self, view: View, known: Checkpoint) -> bool:
        """A request does it once, and once more if another pipeline has replaced since what was read."""
        if not self.reprocess or known.state is not State.COMMITTED:
            return False
        return self.cut.moved(known) or (_replaceable(known) and not self._has_replaced(view, known))

    def _refuse_outdated(self, known: Checkpoint) -> None:
        """What is staged continues, but it is not what was requested: the interval as it is published now."""
        if self.reprocess and known.state in (State.STAGED, State.COMMITTING) and self.cut.moved(known):
            raise Busy(
                f"{self.pipeline.name}: blocked by unsettled epoch {known.epoch}.",
                f"It is {known.state.value}, from an interval of {list(known.after)} that was replaced since.",
                f"{how_to_settle(known)}, then plan again. Nothing was written.",
            )

    def _has_replaced(self, view: View, known: Checkpoint) -> bool:
        """A task that runs twice asks twice, the second time perhaps after others."""
        while known.replaces is not None:
            if known.request == self.reprocess:
                return True
            known = view.require(known.replaces)
        return False

    def _replace(self, view: View, old: Checkpoint) -> Row:
        self.cut.check_lineage(old)
        pinned = self.cut.pinned(self.cut.again(view, old))
        body = {**self._origin, **pinned, "replaces": old.epoch, "request": self.reprocess}
        columns = {"owner": self.owner, "interval": old.interval, "body": body}
        return view.row(view.head.epoch + 1, Event.PLANNED, 0, **columns)

    def _take_over(self, view: View, known: Checkpoint) -> Row | None:
        """The row that makes the owner that of a checkpoint which is there; None when nothing has to change."""
        if known.state is State.COMMITTED:
            return None
        if known.owner != self.owner and known.state is not State.ABORTED:
            raise Busy(
                f"{self.pipeline.name}: blocked by unsettled epoch {known.epoch}.",
                f"It is {known.state.value} and belongs to '{known.owner}', {_why_open(known)}.",
                f"{'' if known.held else 'Retry when it has ended. '}{how_to_settle(known)}",
            )
        moved = known.state in (State.ABORTED, State.PLANNED) and self.cut.moved(known)
        if known.state is State.ABORTED or (known.state is State.PLANNED and (moved or self._differs(known))):
            self.cut.check_lineage(known)
            request = {"request": self.reprocess} if self.reprocess and known.replaces else {}
            pinned = self.cut.pinned(self.cut.again(view, known)) if moved else {}
            columns = {"owner": self.owner, "interval": known.interval, "body": {**self._origin, **request, **pinned}}
            return view.row(known.epoch, Event.PLANNED, known.attempt, **columns)
        return None

    def _differs(self, known: Checkpoint) -> bool:
        return known.definition != self.pipeline.to_json() or not known.was_of(self.owner, self.instance)


def _of_interval(view: View, name: str, interval: Interval, reprocess: str | None) -> Checkpoint | None:
    """The last one of that interval; an attempt to replace it that was aborted has left the one before in force."""
    for known in reversed(view.planned_for(interval)):
        if known.interval != interval:
            raise InvalidPipeline(
                f"{name}: the interval {interval} overlaps one that is pinned.",
                f"Epoch {known.epoch} covers {known.interval} and is {_state(known)}.",
                f"Run exactly that interval{_skipped_too(known)}, or start at its end. Was the schedule changed? "
                "Nothing was written.",
            )
        if reprocess or known.replaces is None or known.state is not State.ABORTED:
            return known
    return None


def _state(known: Checkpoint) -> str:
    return known.state.value if known.skipped is None else f"skipped by {known.owner} ({known.skipped})"


def _skipped_too(known: Checkpoint) -> str:
    return "" if known.skipped is None else ", to be processed again although it is skipped (reprocess)"


def _why_open(known: Checkpoint) -> str:
    return "and its gate failed it" if known.held else "which has not ended or waits to be published"


def _replaceable(known: Checkpoint) -> bool:
    """Not an interval that held no records."""
    published = bool(known.handles) and has_data(known.ranges)
    skipped = known.skipped is not None and has_data(known.ranges)
    return known.state is State.COMMITTED and (published or skipped or known.forwarded is not None)


def _check_kind(pipeline: Pipeline) -> None:
    if pipeline.mode == "chained" or pipeline.state:
        why = "continues from its state" if pipeline.state else "starts where the last one ended"
        raise InvalidPipeline(
            f"{pipeline.name}: its checkpoints cannot be processed again.",
            f"Each checkpoint of this pipeline {why}.",
            "Give it a new name and new targets, and run it from the start. Nothing was written.",
        )


def _check_replaceable(pipeline: Pipeline, old: Checkpoint, shown: Mapping[str, Handle], parts: Parts) -> None:
    """Refuse where a sink cannot take back what it has published, or where that is not known."""
    if old.forwarded is not None:
        raise InvalidPipeline(
            f"{pipeline.name}: {old.interval} cannot be processed again.",
            f"Epoch {old.epoch} says that it is published ({old.reason}); what was published is not known here.",
            "Process it by a pipeline with a new name and new targets. Nothing was written.",
        )
    names = {sink.name for sink in pipeline.sinks}
    if gone := sorted(set(shown) - names):
        raise InvalidPipeline(
            f"{pipeline.name}: epoch {old.epoch} was published to {gone}, which are no longer sinks of the pipeline.",
            "Its rows there would stay beside those of the new one.",
            "Keep the sink until the interval is processed again. Nothing was written.",
        )
    for name, handle in shown.items():
        replaceable(parts.sink(pipeline, name)).check_replace(handle)
