"""Which checkpoint a plan is about: one that is there, one to take over, a new one, or one in place of another.

Read `Planning.decide` first; what it calls follows in the order of the calls. Offsets: `ranges` and `boundaries`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onceonly.checkpoint.commands import PIPELINE_FILE, how_to_run_interval
from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.checkpoint.offsets import Interval, Ranges, has_data
from onceonly.coordinator.messages import how_to_settle
from onceonly.coordinator.ranges import RangePlanner
from onceonly.coordinator.reprocess import Reprocess, can_replace, check_sinks, refuse_shown_again
from onceonly.coordinator.stage import check_state_before
from onceonly.errors import Busy, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import can_fail_without_rows
from onceonly.statetable.view import View


@dataclass(frozen=True)
class Planned:
    """The result of a plan. `fresh` is False for a checkpoint that was there before; None means no new data.

    Args:
        gaps: the intervals before this one that are missing, oldest first.
        notes: for people, of the targets.
        hidden_offsets: with no new data: how many offsets lie behind open transactions of producers.
        is_at_end: with no new data: the sources have ended, and nothing more is to be read.
    """

    checkpoint: Checkpoint | None
    fresh: bool
    gaps: tuple[Interval, ...] = ()
    notes: tuple[str, ...] = ()
    hidden_offsets: int = 0
    is_at_end: bool = False

    @property
    def gap(self) -> Interval | None:
        """The missing interval that ends where this one begins; None: there is none."""
        interval = self.checkpoint.interval if self.checkpoint else None
        for gap in self.gaps[-1:]:
            if interval and gap.end == interval.start:
                return gap
        return None


@dataclass
class Planning:
    """One plan. `decide` may be asked again with a newer view; the last answer is the one that was written.

    Args:
        reprocess: the request to process what is committed once more; None: there is none.
        instance: which of the runs that had the owner's name; None: they are not told apart.
        existing: the checkpoint that the plan is about, where it was there before.
        row: what the plan writes; None: nothing has to change.
    """

    pipeline: Pipeline
    parts: Parts
    planner: RangePlanner
    owner: str
    reprocess: Reprocess | None
    instance: str | None = None
    existing: Checkpoint | None = None
    row: Row | None = None
    hidden_offsets: int = 0
    is_at_end: bool = False

    def decide(self, view: View) -> Row | None:
        """Return the row that the plan writes after `view`; None: nothing has to change."""
        self.existing = self._find(view)
        if self.existing:
            self.row = self._continue(view, self.existing)
        else:
            self.row = self._pin(view)
        return self.row

    def result(self, view: View) -> Planned:
        """Return what `decide` came to, in the view that has followed from it."""
        fresh = self.row is not None and (self.existing is None or self.existing.epoch != self.row.epoch)
        gaps: tuple[Interval, ...] = ()
        if self.planner.interval:
            gaps = tuple(view.gaps_before(self.planner.interval))
        row_or_checkpoint = self.row or self.existing
        if row_or_checkpoint is None:
            return Planned(None, fresh, gaps, hidden_offsets=self.hidden_offsets, is_at_end=self.is_at_end)
        return Planned(view.require(row_or_checkpoint.epoch), fresh, gaps)

    # ---- the checkpoint that is there already

    def _find(self, view: View) -> Checkpoint | None:
        if self.planner.interval:
            return self._find_last(view, _planned_for(view, self.pipeline.name, self.planner.interval))
        if self.reprocess:
            return self._find_last(view, self._candidates(view, self.reprocess))
        own = [checkpoint for checkpoint in view.planned_by(self.owner) if not checkpoint.is_repair]
        if own and own[-1].state is not State.ABORTED and not self._is_no_longer_own(view, own[-1]):
            return own[-1]
        latest = view.latest  # in chained mode nothing follows an aborted checkpoint: its offsets come first
        if latest and latest.state is not State.COMMITTED:
            return latest
        return None

    def _find_last(self, view: View, candidates: list[Checkpoint]) -> Checkpoint | None:
        """Find the last of the checkpoints that cover the same records; None: there is none.

        An attempt to take the place of another that was aborted has left that one in force. A request continues it, if
        it asks for the same sinks, and no other has taken that place since.
        """
        standing = [checkpoint for checkpoint in candidates if not _is_aborted_in_place(checkpoint)]
        if not standing:
            return None
        last = standing[-1]
        for checkpoint in reversed(candidates):
            if checkpoint.epoch == last.epoch:
                break
            if checkpoint.replaces == last.epoch and self._asks_for(view, checkpoint):
                return checkpoint
        return last

    def _asks_for(self, view: View, aborted: Checkpoint) -> bool:
        """Whether the request asks for the sinks of this checkpoint, which was aborted in place of another."""
        if self.reprocess is None or aborted.replaces is None:
            return False
        old = view.require(aborted.replaces)
        sinks = self.reprocess.choose_sinks(self.pipeline, self.reprocess.find_complete(view, old))
        repair = self._request_body(view, old, self.reprocess, sinks).get("repair", {})
        recorded = {"again": aborted.again, "absent": aborted.absent, "lacking": aborted.lacking}
        is_alike = all(list(names) == repair.get(key, []) for key, names in recorded.items())
        return is_alike and list(aborted.only or ()) == repair.get("only", [])

    def _request_body(
        self, view: View, old: Checkpoint, reprocess: Reprocess, sinks: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return what the first row of another checkpoint in place of `old` records of the request."""
        absent = []
        for name in sinks:
            if name in reprocess.again and can_replace(self.parts, self.pipeline, name):
                absent.append(name)
        return reprocess.body(self.pipeline, old, sinks, reprocess.find_complete(view, old), absent)

    def _candidates(self, view: View, reprocess: Reprocess) -> list[Checkpoint]:
        """Return the checkpoint of a chain that is asked for, and its repairs, oldest first.

        Raises:
            InvalidPipeline: it is not in force.
        """
        if not (reprocess.only or reprocess.again):
            raise _not_reprocessable_error(self.pipeline)
        if reprocess.epoch is None:
            raise _epoch_missing_error(self.pipeline)
        checkpoint = view.require(reprocess.epoch)
        is_of_chain = not checkpoint.is_repair and checkpoint.rewinds_to is None
        if not is_of_chain or checkpoint.state is State.ABORTED or view.is_rewound(checkpoint.epoch):
            raise InvalidPipeline(
                f"{self.pipeline.name}: epoch {checkpoint.epoch} cannot be repaired.",
                "It is a repair or a rewind, or it was aborted, or a rewind has taken it back.",
                f"Name a checkpoint that is in force: onceonly status {self.pipeline.name}. Nothing was written.",
                code="epoch-not-in-force",
            )
        return [checkpoint, *view.repairs_of(checkpoint.epoch)]

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
        if self.reprocess and self.reprocess.only:
            raise _unprocessed_error(self.pipeline, self.planner.interval)
        ranges, interval = self.planner.ranges(view), self.planner.interval
        if interval is None and not self.planner.chooses_start(view) and not self.planner.has_records(ranges):
            self.is_at_end = self.planner.is_at_end(ranges, view)
            if self.planner.hides_records and not self.is_at_end:
                self.hidden_offsets = self.planner.await_transactions()
                ranges = self.planner.ranges(view)
            has_records = self.planner.has_records(ranges)
            if not has_records and (has_data(ranges) or not self.planner.finds_end(view)):
                return None
        body = {**self._origin, **self.planner.to_json(ranges)}
        gated = interval is not None and _gates_empty_intervals(self.pipeline)
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
        sinks = self._sinks_to_write(view, existing)
        if sinks and self.reprocess:
            check_sinks(self.pipeline, existing, sinks, self.reprocess.again, view, self.parts)
            return self._replace(view, existing, self.reprocess, sinks)
        if self.reprocess and self.reprocess.only and existing.state is State.ABORTED and existing.replaces is None:
            raise _unprocessed_error(self.pipeline, existing.interval)  # planned again, it would write all sinks
        row = self._take_over(view, existing)
        if row and existing.replaces:
            old = view.require(existing.replaces)
            own_sinks = existing.only or tuple(sink.name for sink in self.pipeline.sinks)
            check_sinks(self.pipeline, old, own_sinks, existing.named_again, view, self.parts)
            refuse_shown_again(view, existing)
        return row

    def _sinks_to_write(self, view: View, checkpoint: Checkpoint) -> tuple[str, ...]:
        """Return the sinks of another checkpoint in place of this one, if the request asks for one; empty: it does not.

        A request takes the place of a checkpoint once. It does so again only if an upstream pipeline has replaced its
        input since, and no row would come twice by that; or in a sink that has lost what came of it. One that completes
        sinks needs no such memory: what it has written is there, or is lacking again.
        """
        if not self.reprocess or checkpoint.state is not State.COMMITTED:
            return ()
        if self.reprocess.only and checkpoint.skipped is not None:
            return ()  # no sink has what a person has left out
        is_outdated = self.planner.has_changed_upstream(checkpoint)
        if not is_outdated and not _is_replaceable(checkpoint):
            return ()
        sinks = self.reprocess.choose_sinks(self.pipeline, self.reprocess.find_complete(view, checkpoint))
        if self._has_replaced(view, checkpoint) and (self.reprocess.again or not is_outdated):
            sinks = self.reprocess.choose_lost(view, checkpoint, sinks)
        if sinks and not self.reprocess.only:
            _check_kind(self.pipeline, sinks, self.reprocess)
        return sinks

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

        Raises:
            InvalidPipeline: it has, but in other sinks than it names now.
        """
        of_name = []
        while checkpoint.replaces is not None:
            if self.reprocess and checkpoint.request == self.reprocess.request:
                of_name.append(checkpoint)
            checkpoint = view.require(checkpoint.replaces)
        if self.reprocess and of_name:
            _refuse_other_wish(self.reprocess, self.pipeline, of_name)
        return bool(of_name)

    def _replace(self, view: View, old: Checkpoint, reprocess: Reprocess, sinks: tuple[str, ...]) -> Row:
        """Return the row that plans another checkpoint in place of `old`.

        Raises:
            SourceLost: retention has taken records of it.
        """
        self.planner.check_same_pipeline(old)
        check_state_before(self.pipeline, old, view, self.parts)
        ranges = self.planner.repeat_ranges(view, old)
        self.planner.verify(ranges)
        request = self._request_body(view, old, reprocess, sinks)
        body = {**self._origin, **self.planner.to_json(ranges, old), **request}
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
        ranges: Ranges | None = None  # those of the upstream pipelines as they are now, if they are others
        if self.planner.has_changed_upstream(checkpoint):
            ranges = self.planner.repeat_ranges(view, checkpoint)
        else:
            ranges = self.planner.renew_rewritten(view, checkpoint)
        if checkpoint.state is State.PLANNED and ranges is None and not self._differs(checkpoint):
            return None
        self.planner.check_same_pipeline(checkpoint)
        body = self._origin
        if self.reprocess and checkpoint.replaces:
            body.update(self.reprocess.continued_body(checkpoint))
        if ranges is not None:
            body |= self.planner.to_json(ranges, checkpoint)
        columns: dict[str, Any] = {"owner": self.owner, "interval": checkpoint.interval, "body": body}
        return view.row(checkpoint.epoch, Event.PLANNED, checkpoint.attempt, **columns)

    def _differs(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.definition.json != self.pipeline.to_json() or not checkpoint.was_of(self.owner, self.instance)


def _planned_for(view: View, name: str, interval: Interval) -> list[Checkpoint]:
    """Return the checkpoints of that interval, oldest first. Raises InvalidPipeline: it overlaps another one."""
    planned = view.planned_for(interval)
    for checkpoint in reversed(planned):
        if checkpoint.interval != interval:
            raise InvalidPipeline(
                f"{name}: the interval {interval} overlaps one that is pinned.",
                f"Epoch {checkpoint.epoch} covers {checkpoint.interval} and is {_describe_state(checkpoint)}.",
                f"Run exactly that interval: {how_to_run_interval(checkpoint.interval or interval)}"
                f"{_suggest_reprocess(checkpoint)}; or start at its end. Was the schedule changed? Nothing was "
                "written.",
                code="interval-overlaps",
            )
    return planned


def _is_aborted_in_place(checkpoint: Checkpoint) -> bool:
    return checkpoint.replaces is not None and checkpoint.state is State.ABORTED


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


def _check_kind(pipeline: Pipeline, sinks: tuple[str, ...], reprocess: Reprocess) -> None:
    """Refuse to replace rows of a pipeline whose checkpoints continue one another."""
    if pipeline.state and len(sinks) == len(pipeline.sinks) - 1 and not reprocess.keep:
        raise _not_reprocessable_error(pipeline)
    if pipeline.mode == "chained" and not set(sinks) <= set(reprocess.again):
        raise _not_reprocessable_error(pipeline)


def _not_reprocessable_error(pipeline: Pipeline) -> InvalidPipeline:
    why = "starts where the last one ended"
    if pipeline.state:
        why = "continues from its state"
    return InvalidPipeline(
        f"{pipeline.name}: its checkpoints cannot be processed again.",
        f"Each checkpoint of this pipeline {why}.",
        "Give it a new name (Pipeline(name=…)) and new targets, and run it from the start: onceonly run "
        f"{PIPELINE_FILE}. "
        "Nothing was written.",
        code="not-reprocessable",
    )


def _epoch_missing_error(pipeline: Pipeline) -> InvalidPipeline:
    return InvalidPipeline(
        f"{pipeline.name}: the request names no checkpoint.",
        "The checkpoints of this pipeline have no intervals, so their numbers tell them apart.",
        f'Name one: --epoch N, or "epoch" in the run\'s conf (onceonly status {pipeline.name}). Nothing was written.',
        code="option-invalid",
    )


def _unprocessed_error(pipeline: Pipeline, interval: Interval | None) -> InvalidPipeline:
    command = how_to_run_interval(interval) if interval else f"onceonly run {PIPELINE_FILE}"
    return InvalidPipeline(
        f"{pipeline.name}: {interval} was never processed, so no sink of it can be completed.",
        todo=f"Run the interval first, for all sinks: {command}. Nothing was written.",
        code="interval-not-processed",
    )


def _refuse_other_wish(request: Reprocess, pipeline: Pipeline, of_name: Sequence[Checkpoint]) -> None:
    """Refuse a request that was done under this name for other sinks: nobody would see that it does nothing now.

    One that completes sinks is done wherever they lack rows, whatever its name.

    Args:
        of_name: the checkpoints that were planned under this name in place of one another, newest first.
    Raises:
        InvalidPipeline: nothing was written.
    """
    if not request.is_for_some_sinks or request.only:
        return
    differing = [_list_differing(request, pipeline, checkpoint) for checkpoint in of_name]
    if all(differing):
        raise InvalidPipeline(
            f"{pipeline.name}: a request of this name was done, for other sinks.",
            f"Epoch {of_name[0].epoch} has written {', '.join(of_name[0].sinks)}. This one differs in "
            f"{', '.join(differing[0])}.",
            "A request is known by its reason, and the person or run: give another reason. Nothing was written.",
            code="request-differs",
        )


def _list_differing(request: Reprocess, pipeline: Pipeline, done: Checkpoint) -> list[str]:
    """Return the sinks that the checkpoint has written and the request keeps, or the other way round.

    A sink that was added since has no part in it.
    """
    state = {pipeline.state.name} if pipeline.state else set()
    to_write = set(done.definition.sink_names) - set(request.keep) - state
    return sorted((to_write - set(done.sinks)) | (set(request.keep) & set(done.sinks)))


def _gates_empty_intervals(pipeline: Pipeline) -> bool:
    """Return whether an interval without records goes through the gate.

    Never if a sink replaces by a condition: an interval without records must not delete everything there.
    """
    if pipeline.gate is None:
        return False
    for sink in pipeline.sinks:
        if sink.clears_when_empty():
            return False
    return can_fail_without_rows(pipeline.gate)
