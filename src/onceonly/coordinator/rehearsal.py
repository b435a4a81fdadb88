"""The rehearsal before a decision: each sink goes through what its commit will do, up to the write that counts.

A decision is final, so it is taken only if every sink has just shown that it can publish. What a sink says
instead decides what happens to the checkpoint:

    StageAgain          its attempt is ended and staged again, a bounded number of times; an approval ends with it
    REFUSALS            it stays staged until a person has acted; the reason is recorded
    any other error     no answer: it stays staged with its verdict and its approval, and is tried again

The decision is recorded only if everything that was rehearsed is unchanged: the attempt (by its nonce) and its handles,
the pipeline's last decision, and what its sinks have published last. Otherwise another process was first, and it is
rehearsed again. That ends: each repetition is caused by another decision, abort or publication of this pipeline. What
the gate or a person has said of an attempt does not change while it is staged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.checkpoint.commands import how_to_run
from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import MAX_UNFIT_ATTEMPTS, Checkpoint, Event, Handle, Row, State
from onceonly.checkpoint.sink import REFUSALS, OverwritingRows, Publication, Sink
from onceonly.coordinator import gate, rewind, target_history
from onceonly.coordinator.manual import Action
from onceonly.coordinator.messages import reason_in_brackets, require_attempt
from onceonly.coordinator.publish import NOTHING_REHEARSED, Failure, Publisher, Rehearsed
from onceonly.coordinator.reprocess import find_shown_again
from onceonly.error_codes import without_rows
from onceonly.errors import (
    ActionNeeded,
    CannotPublish,
    InDoubt,
    NotCommitted,
    OnceonlyError,
    StageAgain,
    TargetWentBack,
    first_sentence,
)
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.table import Transitions
from onceonly.statetable.view import View
from onceonly.waits import wait_for

DECIDED = (State.COMMITTING, State.COMMITTED)
MAX_REASON_CHARACTERS = 1_000  # characters of an error that are recorded


@dataclass(frozen=True)
class Basis:
    """Everything that a rehearsal rests on. A decision is recorded only if it is unchanged."""

    state: State
    nonce: str
    handles: Mapping[str, Handle]
    decision: int  # the pipeline's last one
    publications: Mapping[str, tuple[Publication, ...]]  # by sink: the last one in each of its targets
    replaced: Mapping[str, Handle]  # by sink: the handle whose rows are in force now, in whose place it comes
    shown_again: str | None = None  # a sink that lacked these rows, and shows them again

    @classmethod
    def from_view(cls, view: View, epoch: int) -> Basis:
        """Return what a rehearsal of that checkpoint rests on, as `view` shows it."""
        checkpoint = view.require(epoch)
        claim = checkpoint.claims.get(checkpoint.attempt)
        return cls(
            checkpoint.state,
            claim.nonce if claim else "",
            checkpoint.handles,
            view.head.decision,
            {sink: target_history.publications_of(view, sink) for sink in checkpoint.handles},
            view.handles_to_replace(checkpoint),
            find_shown_again(view, checkpoint),
        )


@dataclass(frozen=True)
class Refusal:
    """The error of a sink's rehearsal."""

    sink: str
    error: Exception

    @property
    def code(self) -> str:
        if isinstance(self.error, OnceonlyError):
            return self.error.code
        return ""


class Rehearser:
    """Rehearses what is to be published, and takes the decision on it."""

    def __init__(self, transitions: Transitions, parts: Parts, publisher: Publisher) -> None:
        self._transitions, self._parts, self._publisher = transitions, parts, publisher

    def decide(self, name: str, epoch: int, attempt: int | None = None) -> tuple[View, Rehearsed]:
        """Record the decision to publish a staged checkpoint, unless it is decided already.

        Args:
            attempt: the only one to decide on; None: whichever is current.
        Returns:
            The view after it, and the sinks that have rehearsed what was decided.
        Raises:
            StageAgain: its attempt is being aborted (`Checkpoint.has_to_be_staged_again`).
            Fenced: another attempt is current.
            NotCommitted: it stays as it is.
        """
        view = self._transitions.state_table.view(name)
        sinks: dict[str, Sink] = {}
        while True:
            checkpoint = view.require(epoch)
            if checkpoint.state in DECIDED:
                return view, NOTHING_REHEARSED
            require_attempt(checkpoint, attempt)
            _check_staged(checkpoint)
            view = self._finish_earlier(view, epoch)
            if view.require(epoch).last_seq != checkpoint.last_seq:
                continue  # another process was first, and may have staged what its gate has not let through
            basis = Basis.from_view(view, epoch)
            pipeline = checkpoint.definition.pipeline
            handles: dict[str, Handle] = {}
            refusal = _find_other_rows(checkpoint, basis)
            if refusal is None:
                handles, refusal = self._rehearse(view, pipeline, checkpoint.handles, sinks)
            if refusal is None:
                refusal = _find_newer_rows(view, checkpoint, sinks)
            if refusal:
                view = self._record_refusal(checkpoint, basis, refusal)
                continue
            view = self._record_decision(view, checkpoint, basis, handles)
            decided = view.require(epoch)
            if (decided.decision, decided.handles) == (basis.decision + 1, handles):
                return view, _key_by_epoch(epoch, sinks)
            # Another process was first: rehearse again, from the view after it.

    def decide_rewind(self, name: str, epoch: int, action: Action) -> tuple[View, Rehearsed]:
        """Record the decision to go back. It is the checkpoint's first row, so nothing is staged that could be kept.

        Raises:
            NotCommitted: nothing was recorded.
        """
        view = self._transitions.state_table.view(name)
        while True:
            seq = view.head.seq
            sinks: dict[str, Sink] = {}
            retractions = rewind.plan_retractions(view, epoch, self._parts, self._transitions.state_table.id)
            pipeline = rewind.list_undone(view, epoch)[0].definition.pipeline
            handles, refusal = self._rehearse(view, pipeline, retractions, sinks)
            if refusal:
                view = self._transitions.state_table.view(name)
                if view.head.seq == seq:
                    raise _rewind_error(view, epoch, refusal) from refusal.error
                continue  # another process was first, and it may be due to that
            row: Row | None = None

            def decide(now: View, seq: int = seq, handles: Mapping[str, Handle] = handles) -> Row | None:
                nonlocal row
                row = None
                if now.head.seq == seq:
                    row = rewind.row(now, epoch, handles, action)
                return row

            view = self._transitions.change(name, action.guard(decide), view)
            if action.record(view) and row is None:
                return view, NOTHING_REHEARSED  # the same person has asked twice at once
            if row:
                return view, _key_by_epoch(view.head.epoch, sinks)

    def _rehearse(
        self, view: View, pipeline: Pipeline, handles: Mapping[str, Handle], sinks: dict[str, Sink]
    ) -> tuple[dict[str, Handle], Refusal | None]:
        """Rehearse the handles for the pipeline's next decision. Returns those to decide on.

        Args:
            sinks: those that were made before, and may have kept what they computed. New ones are added.
        """
        rehearsed = dict(handles)
        for name, handle in handles.items():
            try:
                if name not in sinks:
                    sinks[name] = self._parts.sink(pipeline, name)
                last = target_history.last_publication(sinks[name], view)
                with wait_for(f"sink '{name}', which checks whether it can publish"):
                    rehearsed[name] = dict(sinks[name].rehearse(handle, view.head.decision + 1, last))
            except TargetWentBack as error:
                return rehearsed, Refusal(name, self._explain_history(pipeline, view, error))
            except Exception as error:
                return rehearsed, Refusal(name, error)
        return rehearsed, None

    def _explain_history(self, pipeline: Pipeline, view: View, error: TargetWentBack) -> Exception:
        """Return the refusal that plan and stage would make: with what is missing, and the ways out."""
        try:
            target_history.check(self._transitions.state_table, self._parts, pipeline, view)
        except ActionNeeded as refusal:
            return refusal
        except Exception:  # the sink's own refusal stands, whatever can be told of it
            return error
        return error

    def _finish_earlier(self, view: View, epoch: int) -> View:
        """Publish what was decided before: a sink's rehearsal counts only for what comes next in its target.

        A sink in doubt holds up its own publications alone. Another error may be the very one that this checkpoint's
        publication would meet after the decision.

        Raises:
            NotCommitted: one of this checkpoint's sinks has not published an earlier decision.
        """
        view, failures = self._publisher.publish(view)
        checkpoint = view.require(epoch)
        if checkpoint.state is not State.STAGED:
            return view
        for failure in failures:
            if failure.sink in checkpoint.handles and not isinstance(failure.error, InDoubt):
                raise _earlier_decision_error(checkpoint, failure) from failure.error
        return view

    # ---- what is recorded

    def _record_decision(self, view: View, checkpoint: Checkpoint, basis: Basis, handles: Mapping[str, Handle]) -> View:
        """Record the decision, unless something has changed that the rehearsal rested on. Returns the view after."""
        epoch = checkpoint.epoch
        changed = {name: handle for name, handle in handles.items() if handle != checkpoint.handles[name]}
        body: dict[str, Any] = {}
        if changed:
            body["handles"] = changed

        def decide(now: View) -> Row | None:
            if Basis.from_view(now, epoch) != basis:
                return None
            return now.row(epoch, Event.COMMITTING, checkpoint.attempt, decision=basis.decision + 1, body=body)

        return self._transitions.change(view.pipeline, decide, view)

    def _record_refusal(self, checkpoint: Checkpoint, basis: Basis, refusal: Refusal) -> View:
        """Record what follows from a refusal, and raise it.

        Returns:
            The present view, if something has changed that the rehearsal rested on: the refusal may be due to that.
        Raises:
            StageAgain: the attempt is being aborted.
            NotCommitted: the checkpoint stays staged.
        """
        name, epoch, error = checkpoint.pipeline, checkpoint.epoch, refusal.error
        is_unfit = isinstance(error, StageAgain) and len(checkpoint.unfit_attempts) < MAX_UNFIT_ATTEMPTS
        waits_for_person = not is_unfit and isinstance(error, (StageAgain, *REFUSALS))

        def decide(now: View) -> Row | None:
            if Basis.from_view(now, epoch) != basis or not (is_unfit or waits_for_person):
                return None
            if is_unfit:
                return _unfit_row(now, checkpoint, refusal)
            return _refusal_row(now, checkpoint, refusal)

        view = self._transitions.change(name, decide)
        now = view.require(epoch)
        if is_unfit and now.has_to_be_staged_again and now.attempt == checkpoint.attempt:
            raise _unfit_error(checkpoint, refusal) from error
        if Basis.from_view(view, epoch) != basis:
            return view
        if waits_for_person:
            raise _action_needed_error(checkpoint, refusal) from error
        raise _no_answer_error(checkpoint, refusal) from error


def _find_other_rows(checkpoint: Checkpoint, basis: Basis) -> Refusal | None:
    """Refuse what was staged in place of other rows than those in force now: they may be there again, or lost since.

    Published as it is, its rows would come beside them, or take out what is not there.
    """
    if basis.shown_again:
        why = f"What epoch {checkpoint.replaces} published there was lost when these rows were asked for."
        error = StageAgain(f"sink '{basis.shown_again}' shows these rows again.", why, code="rows-there-again")
        return Refusal(basis.shown_again, error)
    for sink, handle in checkpoint.handles.items():
        if handle.get("replaces") != basis.replaced.get(sink):
            error = StageAgain(
                f"sink '{sink}': other rows are in force than those in whose place it was staged.",
                f"What epoch {checkpoint.replaces} shows there was recorded as missing since, or as there again.",
                code="rows-in-force-changed",
            )
            return Refusal(sink, error)
    return None


def _find_newer_rows(view: View, checkpoint: Checkpoint, sinks: Mapping[str, Sink]) -> Refusal | None:
    """Refuse to process records again where that would take out rows of later ones, which nobody has asked for."""
    if checkpoint.replaces is None:
        return None
    for name, handle in checkpoint.handles.items():
        live, own = sinks[name], checkpoint.transaction(name)
        if not isinstance(live, OverwritingRows):
            continue
        try:
            overwritten = live.list_overwritten(handle)
        except Exception as error:
            return Refusal(name, error)
        for txn in overwritten:
            other = view.checkpoint(txn.epoch) if txn.prefix == own.prefix else None
            if other and _age(other) > _age(checkpoint):
                return Refusal(name, _newer_rows_error(checkpoint, name, other))
    return None


def _age(checkpoint: Checkpoint) -> tuple[float, int]:
    """Return what sorts checkpoints by the age of their records."""
    if checkpoint.interval:
        return checkpoint.interval.start.timestamp(), 0
    return 0, checkpoint.origin


def _newer_rows_error(checkpoint: Checkpoint, sink: str, newer: Checkpoint) -> CannotPublish:
    name, epoch = checkpoint.pipeline, checkpoint.epoch
    return CannotPublish(
        f"sink '{sink}': newer rows would be lost.",
        f"It replaces whole partitions, and in those of epoch {epoch} are rows of {newer.interval or 'later records'} "
        f"(epoch {newer.epoch}).",
        f"Abort it: onceonly abort {name} {epoch} --reason …. The sink can stay as it is: --keep {sink}.",
        code="newer-rows-there",
    )


def _key_by_epoch(epoch: int, sinks: Mapping[str, Sink]) -> Rehearsed:
    return {(epoch, sink): live for sink, live in sinks.items()}


def _unfit_row(view: View, checkpoint: Checkpoint, refusal: Refusal) -> Row:
    """Return the row that aborts an attempt which has to be staged again.

    An approval does not forbid the abort: it was given to rows that do not exist any more.
    """
    body = {"reason": _why_unfit(checkpoint, refusal), "unfit": {"sink": refusal.sink, "code": refusal.code}}
    return view.row(checkpoint.epoch, Event.ABORTING, checkpoint.attempt, body=body)


def _refusal_row(view: View, checkpoint: Checkpoint, refusal: Refusal) -> Row | None:
    """Return the row that records a refusal; None if the same one is recorded.

    It is tried again every few minutes, perhaps for days.
    """
    recorded = view.require(checkpoint.epoch).refused
    if recorded and (recorded["sink"], recorded["code"]) == (refusal.sink, refusal.code):
        return None
    error = without_rows(_action_needed_error(checkpoint, refusal))
    body = {
        "code": refusal.code,
        "what": error.what,
        "why": error.why[:MAX_REASON_CHARACTERS],
        "todo": error.todo[:MAX_REASON_CHARACTERS],
    }
    return view.row(checkpoint.epoch, Event.REFUSED, checkpoint.attempt, sink=refusal.sink, body=body)


# ---- words


def _check_staged(checkpoint: Checkpoint) -> None:
    """Refuse what is not staged, and what its gate has not let through.

    Raises:
        StageAgain: another process, or an earlier try, has rehearsed it in vain.
        NotCommitted: for another reason.
    """
    if checkpoint.has_to_be_staged_again:
        raise _stage_again_error(
            checkpoint, f"{checkpoint.reason or 'a rehearsal has ended its attempt'}.", "stage-again"
        )
    if checkpoint.state is not State.STAGED:
        raise NotCommitted(
            f"{checkpoint.pipeline} epoch {checkpoint.epoch} cannot be committed.",
            f"It is {checkpoint.state.value}, not staged{reason_in_brackets(checkpoint)}.",
            f"Plan and stage it again: {how_to_run(checkpoint)}",
            code="not-staged",
        )
    gate.require_passed(checkpoint)


def _why_unfit(checkpoint: Checkpoint, refusal: Refusal) -> str:
    approved = ""
    if checkpoint.approved:
        approved = f" The approval by {checkpoint.approved['who']} ended with it."
    why = first_sentence(refusal.error).removeprefix(f"sink '{refusal.sink}': ")[:MAX_REASON_CHARACTERS]
    what = f"attempt {checkpoint.attempt} could not be published to sink '{refusal.sink}' any more"
    return f"{what}: {why}{approved}"


def _unfit_error(checkpoint: Checkpoint, refusal: Refusal) -> StageAgain:
    return _stage_again_error(checkpoint, _why_unfit(checkpoint, refusal), refusal.code or "stage-again")


def _stage_again_error(checkpoint: Checkpoint, why: str, code: str) -> StageAgain:
    return StageAgain(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch} was not published: it has to be staged again.",
        why,
        "Nothing was decided, and its records are still to be processed. A run that is still running stages it again "
        f"by itself. Otherwise run it again; it uses the same offsets: {how_to_run(checkpoint)}",
        code=code,
    )


def _action_needed_error(checkpoint: Checkpoint, refusal: Refusal) -> ActionNeeded:
    name, epoch, error = checkpoint.pipeline, checkpoint.epoch, refusal.error
    todo, again = "", ""
    if isinstance(error, OnceonlyError):
        todo = error.naming(name, epoch).todo
    if isinstance(error, StageAgain):
        again = f" It was staged {len(checkpoint.unfit_attempts) + 1} times, and each time this was so."
        todo = (
            f"Find out what damages it. Then: onceonly abort {name} {epoch} --reason …, and run it again: "
            f"{how_to_run(checkpoint)}"
        )
    return ActionNeeded(
        f"{name} epoch {epoch} was not published: sink '{refusal.sink}' waits for a person to act.",
        f"{first_sentence(error)}{again}",
        f"{todo} Nothing was decided, and it stays staged. When that is done: onceonly recover {name}".strip(),
        code=refusal.code or "action-needed",
    )


def _no_answer_error(checkpoint: Checkpoint, refusal: Refusal) -> NotCommitted:
    return NotCommitted(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch} was not published: whether sink '{refusal.sink}' can publish "
        "it is not known.",
        first_sentence(refusal.error),
        "Nothing was decided, and it stays staged, with its verdict and approval. The commit can be tried again at any "
        f"time: clear the commit task, or when the run has ended: onceonly recover {checkpoint.pipeline}",
        code="no-answer",
    )


def _earlier_decision_error(checkpoint: Checkpoint, failure: Failure) -> NotCommitted:
    name, earlier = checkpoint.pipeline, failure.checkpoint
    return NotCommitted(
        f"{name} epoch {checkpoint.epoch} was not published: sink '{failure.sink}' has not published epoch "
        f"{earlier.epoch}, which was decided before it.",
        first_sentence(failure.error),
        f"Nothing was decided on epoch {checkpoint.epoch}, and it stays staged. Settle epoch {earlier.epoch} first: "
        f"onceonly recover {name}, or onceonly describe {name} {earlier.epoch}",
        code="earlier-decision-open",
    )


def _rewind_error(view: View, epoch: int, refusal: Refusal) -> NotCommitted:
    error = refusal.error
    error_class, code, todo = NotCommitted, "no-answer", "Try again."
    if isinstance(error, (StageAgain, *REFUSALS)):
        error_class, code = ActionNeeded, "action-needed"
        if isinstance(error, OnceonlyError):
            todo = error.todo
    return error_class(
        f"{view.pipeline} cannot go back to epoch {epoch}: sink '{refusal.sink}' could not publish that.",
        first_sentence(error),
        f"{todo} Nothing was decided or changed.",
        code=refusal.code or code,
    )
