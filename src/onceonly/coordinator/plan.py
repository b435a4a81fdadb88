"""Which checkpoint a plan is about: one that is there, one to take over, a new one, or one in place of another.

Read `Planning.decide` first; what it calls follows in the order of the calls. Offsets: `ranges` and `boundaries`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, Event, Handle, Row, State
from onceonly.checkpoint.offsets import Interval, has_data
from onceonly.checkpoint.sink import require_replaceable
from onceonly.coordinator.messages import how_to_settle
from onceonly.coordinator.ranges import RangePlanner
from onceonly.errors import Busy, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.view import View


@dataclass(frozen=True)
class Planned:
    """The result of a plan. `fresh` is False for a checkpoint that was there before; None means no new data.

    Args:
        gap: what no interval covers yet, between the one before and this one.
        notes: for people, of the targets.
        hidden_offsets: with no new data: how many offsets lie behind open transactions of producers.
    """

    checkpoint: Checkpoint | None
    fresh: bool
    gap: Interval | None = None
    notes: tuple[str, ...] = ()
    hidden_offsets: int = 0


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
    planner: RangePlanner
    owner: str
    reprocess: str | None
    instance: str | None = None
    existing: Checkpoint | None = None
    row: Row | None = None
    hidden_offsets: int = 0

    def decide(self, view: View) -> Row | None:
        """Return the row that the plan writes after `view`; None: nothing has to change."""
        if self.reprocess:
            _check_kind(self.pipeline)
        self.existing = self._find(view)
        if self.existing:
            self.row = self._continue(view, self.existing)
        else:
            self.row = self._pin(view)
        return self.row

    def result(self, view: View) -> Planned:
        """Return what `decide` came to, in the view that has followed from it."""
        fresh = self.row is not None and (self.existing is None or self.existing.epoch != self.row.epoch)
        gap: Interval | None = None
        if self.planner.interval:
            gap = view.gap_before(self.planner.interval)
        row_or_checkpoint = self.row or self.existing
        if row_or_checkpoint is None:
            return Planned(None, fresh, gap, hidden_offsets=self.hidden_offsets)
        return Planned(view.require(row_or_checkpoint.epoch), fresh, gap)

    # ---- the checkpoint that is there already

    def _find(self, view: View) -> Checkpoint | None:
        if self.planner.interval:
            return _find_of_interval(view, self.pipeline.name, self.planner.interval, self.reprocess)
        own = view.planned_by(self.owner)
        if own and own[-1].state is not State.ABORTED and not self._is_no_longer_own(view, own[-1]):
            return own[-1]
        latest = view.latest  # in chained mode nothing follows an aborted checkpoint: its offsets come first
        if latest and latest.state is not State.COMMITTED:
            return latest
        return None

    def _is_no_longer_own(self, view: View, done: Checkpoint) -> bool:
        """Whether the committed checkpoint was rewound, or belongs to an earlier run of the same name.

        Then this run plans a new one. An open checkpoint continues, whichever run planned it.
        """
        if done.state is not State.COMMITTED:
            return False
        return not done.was_of(self.owner, self.instance) or view.is_rewound(done.epoch)

    # ---- a new one

    def _pin(self, view: View) -> Row | None:
        """Return the row that pins the next checkpoint; None when there is nothing new."""
        ranges, interval = self.planner.ranges(view), self.planner.interval
        if interval is None and not self.planner.chooses_start(view) and not self.planner.has_records(ranges):
            if self.planner.hides_records:
                self.hidden_offsets = self.planner.await_transactions()
                ranges = self.planner.ranges(view)
            if not self.planner.has_records(ranges):
                return None
        body = {**self._origin, **self.planner.to_json(ranges)}
        gated = interval is not None and self.pipeline.gates_empty_intervals()
        event = Event.EMPTY
        if has_data(ranges) or gated:
            event = Event.PLANNED
        return view.row(view.head.epoch + 1, event, 0, owner=self.owner, interval=interval, body=body)

    @property
    def _origin(self) -> dict[str, Any]:
        """What a row of this plan says in any case: the definition, and which run it is."""
        origin: dict[str, Any] = {"definition": self.pipeline.to_json()}
        if self.instance is not None:
            origin["instance"] = self.instance
        return origin

    # ---- one that continues, or is replaced

    def _continue(self, view: View, existing: Checkpoint) -> Row | None:
        self._refuse_outdated(existing)
        old: Checkpoint | None = None  # the one whose rows are replaced
        row: Row | None
        if self._is_to_be_replaced(view, existing):
            old, row = existing, self._replace(view, existing)
        else:
            row = self._take_over(view, existing)
            if row and existing.replaces:
                old = view.require(existing.replaces)
        if old:
            _check_replaceable(self.pipeline, old, view.handles_in_force(old), self.parts)
        return row

    def _is_to_be_replaced(self, view: View, checkpoint: Checkpoint) -> bool:
        """Whether a request asks for another checkpoint in place of this one.

        A request replaces an interval once. It does so again only if an upstream pipeline has replaced its input since.
        """
        if not self.reprocess or checkpoint.state is not State.COMMITTED:
            return False
        if self.planner.has_changed_upstream(checkpoint):
            return True
        return _is_replaceable(checkpoint) and not self._has_replaced(view, checkpoint)

    def _refuse_outdated(self, checkpoint: Checkpoint) -> None:
        """Refuse a request for a checkpoint that reads what another pipeline has replaced since.

        What is staged continues, but it is not what was requested: the interval as it is published now.
        """
        if (
            self.reprocess
            and checkpoint.state in (State.STAGED, State.COMMITTING)
            and self.planner.has_changed_upstream(checkpoint)
        ):
            raise Busy(
                f"{self.pipeline.name}: blocked by unsettled epoch {checkpoint.epoch}.",
                f"It is {checkpoint.state.value}, from an interval of {list(checkpoint.after)} that was replaced "
                "since.",
                f"{how_to_settle(checkpoint)}, then plan again. Nothing was written.",
                code="checkpoint-open",
            )

    def _has_replaced(self, view: View, checkpoint: Checkpoint) -> bool:
        """Whether this request has replaced the interval already.

        A task that runs twice asks twice, the second time perhaps after others.
        """
        while checkpoint.replaces is not None:
            if checkpoint.request == self.reprocess:
                return True
            checkpoint = view.require(checkpoint.replaces)
        return False

    def _replace(self, view: View, old: Checkpoint) -> Row:
        self.planner.check_same_pipeline(old)
        pinned = self.planner.to_json(self.planner.repeat_ranges(view, old))
        body = {**self._origin, **pinned, "replaces": old.epoch, "request": self.reprocess}
        columns = {"owner": self.owner, "interval": old.interval, "body": body}
        return view.row(view.head.epoch + 1, Event.PLANNED, 0, **columns)

    def _take_over(self, view: View, checkpoint: Checkpoint) -> Row | None:
        """Return the row by which the owner takes over a checkpoint; None when nothing has to change."""
        if checkpoint.state is State.COMMITTED:
            return None
        if checkpoint.owner != self.owner and checkpoint.state is not State.ABORTED:
            todo = how_to_settle(checkpoint)
            if not checkpoint.is_held:
                todo = f"Retry when it has ended. {todo}"
            raise Busy(
                f"{self.pipeline.name}: blocked by unsettled epoch {checkpoint.epoch}.",
                f"It is {checkpoint.state.value} and belongs to '{checkpoint.owner}', {_why_open(checkpoint)}.",
                todo,
                code="checkpoint-open",
            )
        if checkpoint.state not in (State.ABORTED, State.PLANNED):
            return None
        is_outdated = self.planner.has_changed_upstream(checkpoint)
        if checkpoint.state is State.PLANNED and not is_outdated and not self._differs(checkpoint):
            return None
        self.planner.check_same_pipeline(checkpoint)
        body = self._origin
        if self.reprocess and checkpoint.replaces:
            body["request"] = self.reprocess
        if is_outdated:
            body |= self.planner.to_json(self.planner.repeat_ranges(view, checkpoint))
        columns: dict[str, Any] = {"owner": self.owner, "interval": checkpoint.interval, "body": body}
        return view.row(checkpoint.epoch, Event.PLANNED, checkpoint.attempt, **columns)

    def _differs(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.definition.json != self.pipeline.to_json() or not checkpoint.was_of(self.owner, self.instance)


def _find_of_interval(view: View, name: str, interval: Interval, reprocess: str | None) -> Checkpoint | None:
    """Find the last checkpoint of that interval; None: there is none.

    An attempt to replace it that was aborted has left the one before in force.
    """
    for checkpoint in reversed(view.planned_for(interval)):
        if checkpoint.interval != interval:
            raise InvalidPipeline(
                f"{name}: the interval {interval} overlaps one that is pinned.",
                f"Epoch {checkpoint.epoch} covers {checkpoint.interval} and is {_describe_state(checkpoint)}.",
                f"Run exactly that interval{_suggest_reprocess(checkpoint)}, or start at its end. Was the schedule "
                "changed? Nothing was written.",
                code="interval-overlaps",
            )
        if reprocess or checkpoint.replaces is None or checkpoint.state is not State.ABORTED:
            return checkpoint
    return None


def _describe_state(checkpoint: Checkpoint) -> str:
    if checkpoint.skipped is None:
        return checkpoint.state.value
    return f"skipped by {checkpoint.owner} ({checkpoint.skipped})"


def _suggest_reprocess(checkpoint: Checkpoint) -> str:
    if checkpoint.skipped is None:
        return ""
    return ", to be processed again although it is skipped (reprocess)"


def _why_open(checkpoint: Checkpoint) -> str:
    if checkpoint.is_held:
        return "and its gate failed it"
    return "which has not ended or waits to be published"


def _is_replaceable(checkpoint: Checkpoint) -> bool:
    """Whether a committed interval had something to read: one without records is not replaced."""
    if checkpoint.state is not State.COMMITTED:
        return False
    if checkpoint.forwarded is not None:
        return True
    was_published_or_skipped = bool(checkpoint.handles) or checkpoint.skipped is not None
    return was_published_or_skipped and has_data(checkpoint.ranges)


def _check_kind(pipeline: Pipeline) -> None:
    if pipeline.mode == "chained" or pipeline.state:
        why = "starts where the last one ended"
        if pipeline.state:
            why = "continues from its state"
        raise InvalidPipeline(
            f"{pipeline.name}: its checkpoints cannot be processed again.",
            f"Each checkpoint of this pipeline {why}.",
            "Give it a new name and new targets, and run it from the start. Nothing was written.",
            code="not-reprocessable",
        )


def _check_replaceable(pipeline: Pipeline, old: Checkpoint, shown: Mapping[str, Handle], parts: Parts) -> None:
    """Refuse where a sink cannot retract what it has published, or where that is not known."""
    if old.forwarded is not None:
        raise InvalidPipeline(
            f"{pipeline.name}: {old.interval} cannot be processed again.",
            f"Epoch {old.epoch} says that it is published ({old.reason}); what was published is not known here.",
            "Process it by a pipeline with a new name and new targets. Nothing was written.",
            code="publication-not-recorded",
        )
    names = {sink.name for sink in pipeline.sinks}
    gone = sorted(set(shown) - names)
    if gone:
        raise InvalidPipeline(
            f"{pipeline.name}: epoch {old.epoch} was published to {gone}, which are no longer sinks of the pipeline.",
            "Its rows there would stay beside those of the new one.",
            "Keep the sink until the interval is processed again. Nothing was written.",
            code="sink-removed",
        )
    for name, handle in shown.items():
        require_replaceable(parts.sink(pipeline, name)).check_replace(handle)
