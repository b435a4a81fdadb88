"""Manual resolution: what people record where a decision cannot be carried out, and what they look at before.

Each step acts first and records afterwards, by compare-and-set on the very handle that it has acted on. Where another
process has replaced that handle meanwhile, the step begins again with the new one.
"""

from __future__ import annotations

from onceonly.checkpoint.model import Checkpoint, Event, Outcome, Row, State
from onceonly.coordinator.manual import Action, RowTest
from onceonly.coordinator.publish import Publisher, sink_row
from onceonly.coordinator.sweep import discard_idle
from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline, OnceonlyError, OutcomeUnknown, first_sentence
from onceonly.statetable.table import Transitions
from onceonly.statetable.view import View

OUTCOMES = (Event.PUBLISHED, Event.REPLACED, Event.IN_DOUBT)


class Resolver:
    """Records manual resolutions of single sinks."""

    def __init__(self, transitions: Transitions, publisher: Publisher) -> None:
        self._transitions, self._publisher = transitions, publisher

    def evidence(self, name: str, epoch: int, sink: str) -> list[str]:
        """Return what the sink shows of this checkpoint, line by line; of one that does not answer, its error."""
        checkpoint = self._transitions.state_table.view(name).require(epoch)
        if sink not in checkpoint.handles:
            raise InvalidPipeline(
                f"{name} epoch {epoch} has nothing staged for a sink '{sink}'.",
                f"Its sinks: {', '.join(checkpoint.handles) or 'none yet'}.",
                f"Look first: onceonly describe {name} {epoch}. Nothing was changed.",
                code="no-such-sink",
            )
        try:
            return self._publisher.sink(checkpoint, sink).evidence(checkpoint.handles[sink])
        except Exception as error:  # it does not answer: that is what there is to see
            return [first_sentence(error)]

    # ---- give up

    def give_up(self, name: str, epoch: int, sink: str, action: Action, gone: bool, removed: bool) -> Checkpoint:
        """Try once more to publish, then fence and record, until the sink no longer waits for this checkpoint."""
        view = self._transitions.state_table.view(name)
        if not action.record(view):
            action.require_unchanged(view)
            waiting = _require_waiting(view.require(epoch), sink)
            if waiting.rewinds_to is not None and not removed:
                raise _not_removed_error(waiting, sink)
            is_own = _is_outcome_after(view)
            self._publisher.publish(view)  # a last try, which is also what it takes for other sinks
            view = self._transitions.state_table.view(name)
            while sink in view.require(epoch).waiting:
                _refuse_out_of_order(view, view.require(epoch), sink)
                view = self._give_up(view, epoch, sink, action, gone, is_own)
        return self._publisher.finish(view, epoch).require(epoch)

    def give_up_unpublished(self, view: View, epoch: int, sink: str, action: Action) -> Checkpoint:
        """Give up what this process has just tried to publish, and could not for a reason that is known.

        Raises:
            InvalidPipeline: its outcome is in doubt: that is for a person to say.
            OutcomeUnknown: the target does not answer.
        """
        is_own = _is_outcome_after(view)
        while sink in view.require(epoch).waiting:
            if sink in view.require(epoch).in_doubt:
                raise doubt_error(view.require(epoch), sink)
            _refuse_out_of_order(view, view.require(epoch), sink)
            view = self._give_up(view, epoch, sink, action, False, is_own)
        return self._publisher.finish(view, epoch).require(epoch)

    def _give_up(self, seen: View, epoch: int, sink: str, action: Action, gone: bool, is_own: RowTest) -> View:
        """Fence the handle, then record that it is given up, or that it was published. Returns the view after.

        Only what was fenced is given up: a handle that another process records meanwhile could be published.
        Some rows may be visible anyway, or nothing may show which. What the sink shows after the fence is
        recorded with it.
        """
        waiting = seen.require(epoch)
        outcome, not_fenced = self._fence(seen, waiting, sink, gone)
        if outcome:
            return self._publisher.record_published(seen, epoch, sink, outcome)
        evidence: dict[str, list[str]] = {}
        if not not_fenced:
            lines = self.evidence(seen.pipeline, epoch, sink)
            if lines:
                evidence["evidence"] = lines

        def decide(view: View) -> Row | None:
            now = view.require(epoch)
            if sink not in now.waiting or now.handles[sink] != waiting.handles[sink]:
                return None
            if (sink in now.in_doubt) != (sink in waiting.in_doubt):
                return None
            return sink_row(view, now, sink, Event.GIVEN_UP, {**action.body, **not_fenced, **evidence})

        return self._transitions.change(seen.pipeline, action.guard(decide, is_own))

    def _fence(
        self, seen: View, checkpoint: Checkpoint, sink: str, gone: bool
    ) -> tuple[Outcome | None, dict[str, str]]:
        """Return what the sink shows once no process can publish to it; with `gone`, why it could not be fenced.

        The fence is evidence of a later decision, so a target that went back, or may have gone back, is not fenced:
        nobody would notice any more what it lacks.

        Raises:
            InvalidPipeline: the target lacks checkpoints that are not recorded as missing.
            OutcomeUnknown: it does not answer, and `gone` does not say that it never will.
        """
        live = self._publisher.sink(checkpoint, sink)
        try:
            self._publisher.require_accepted(seen, checkpoint, sink)
            outcome = live.fence(checkpoint.handles[sink], checkpoint.decision or 0)
            if outcome:
                return outcome, {}  # what it shows counts, whatever fails from here on
            discard_idle(
                self._transitions.state_table, live, checkpoint.pipeline, {(checkpoint.epoch, checkpoint.attempt)}
            )
        except InvalidPipeline:
            raise
        except Exception as error:
            if not gone:
                raise _not_fenced_error(checkpoint, sink, error) from error
            return None, {"not_fenced": first_sentence(error)[:500]}
        return None, {}

    # ---- say what happened

    def resolve_doubt(self, name: str, epoch: int, sink: str, committed: bool, action: Action) -> Checkpoint:
        """Record whether what is in doubt was published, unless that is recorded already, and publish the rest."""
        view = self._transitions.state_table.view(name)
        if not action.record(view):
            view = self._record_resolution(view, epoch, sink, committed, action)
        _, failures = self._publisher.publish(view)
        if failures:
            raise failures[0].error
        return self._transitions.state_table.view(name).require(epoch)

    def _record_resolution(self, view: View, epoch: int, sink: str, committed: bool, action: Action) -> View:
        action.require_unchanged(view)
        _require_doubt(view.require(epoch), sink)
        is_own = _is_outcome_after(view)
        self._publisher.publish(view)  # a last look, which is also what it takes for other sinks
        view = self._transitions.state_table.view(view.pipeline)
        while sink in view.require(epoch).in_doubt and not action.record(view):
            view = self._resolve(view, epoch, sink, committed, action, is_own)
        if not action.record(view):
            raise _evidence_error(view.require(epoch), sink)
        return view

    def _resolve(self, seen: View, epoch: int, sink: str, committed: bool, action: Action, is_own: RowTest) -> View:
        """Record a handle of which nothing is in doubt any more, in place of the very one that the sink has judged.

        Judging looks at the target, and may end transactions there.
        """
        doubtful = seen.require(epoch)
        old = doubtful.handles[sink]
        new = dict(self._publisher.sink(doubtful, sink).resolve_handle(old, committed))

        def decide(view: View) -> Row | None:
            now = view.require(epoch)
            if sink not in now.in_doubt or now.handles[sink] != old:
                return None
            return sink_row(view, now, sink, Event.REPLACED, {"handle": new, **action.body})

        return self._transitions.change(seen.pipeline, action.guard(decide, is_own))


def _is_outcome_after(looked_at: View) -> RowTest:
    """Return a test of whether a row says how publishing went since the person's number was checked.

    The last try writes such rows itself. Another process may do so as well: the target's evidence counts in any case.
    """
    return lambda row: row.seq > looked_at.head.seq and row.event in OUTCOMES and "who" not in row.body


def _require_waiting(checkpoint: Checkpoint, sink: str) -> Checkpoint:
    """Return the checkpoint, or refuse one that does not wait for that sink."""
    if checkpoint.state is State.COMMITTING and sink in checkpoint.waiting:
        return checkpoint
    raise InvalidPipeline(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: sink '{sink}' is not waiting to be published.",
        f"The checkpoint is {checkpoint.state.value}; waiting: {', '.join(checkpoint.waiting) or 'none'}.",
        f"Look first: onceonly describe {checkpoint.pipeline} {checkpoint.epoch}. Nothing was changed.",
        code="sink-not-waiting",
    )


def _require_doubt(checkpoint: Checkpoint, sink: str) -> None:
    if sink not in checkpoint.in_doubt:
        raise InvalidPipeline(
            f"{checkpoint.pipeline} epoch {checkpoint.epoch}: sink '{sink}' is not in doubt.",
            f"In doubt: {', '.join(checkpoint.in_doubt) or 'none'}.",
            f"Settle it by its evidence: onceonly recover {checkpoint.pipeline}. Nothing was changed.",
            code="sink-not-in-doubt",
        )


def _evidence_error(checkpoint: Checkpoint, sink: str) -> InvalidPipeline:
    what_counts = "That counts, whatever a person says."
    if sink in checkpoint.published:
        what_counts = "It is recorded as published."
    return InvalidPipeline(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: sink '{sink}' is not in doubt any more.",
        f"Its target shows by now how it ended. {what_counts}",
        f"Look: onceonly describe {checkpoint.pipeline} {checkpoint.epoch}. Your answer was not needed, and is not "
        "recorded.",
        code="evidence-exists",
    )


def _refuse_out_of_order(view: View, checkpoint: Checkpoint, sink: str) -> None:
    """Refuse to give a sink up while an earlier decision waits for it.

    Fenced at a decision, a sink may take no earlier one either: evidence goes by order.
    """
    decided: list[Checkpoint] = []
    for other in view.open:
        if other.decision is not None and sink in other.waiting:
            decided.append(other)
    first = min(decided, key=lambda cp: cp.decision or 0)
    if first.epoch != checkpoint.epoch:
        raise InvalidPipeline(
            f"{checkpoint.pipeline} epoch {checkpoint.epoch}: sink '{sink}' cannot be given up yet.",
            f"Epoch {first.epoch}, which was decided before it, still waits for that sink.",
            f"Settle that first: onceonly recover {checkpoint.pipeline}, or: onceonly resolve {checkpoint.pipeline} "
            f"{first.epoch} --give-up {sink} --reason …. Nothing was changed.",
            code="earlier-decision-open",
        )


def _not_fenced_error(checkpoint: Checkpoint, sink: str, error: Exception) -> OutcomeUnknown:
    give_up = f"onceonly resolve {checkpoint.pipeline} {checkpoint.epoch} --give-up {sink} --gone --reason …"
    if isinstance(error, OnceonlyError) and error.code == "handle-damaged":
        return OutcomeUnknown(
            f"{checkpoint.pipeline} epoch {checkpoint.epoch}: sink '{sink}' cannot be given up yet.",
            f"Its handle cannot be read, so nothing can be fenced by it. {error.what} {error.why}",
            f"Restore an earlier copy of the state table ({name_page('operations', 'backup-and-restore')}), "
            f"then: onceonly recover. Without a copy, stop every process that may be publishing this checkpoint, "
            f"then: {give_up}",
            code="handle-damaged",
        )
    return OutcomeUnknown(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: sink '{sink}' cannot be given up yet.",
        f"A process may still publish to it, and it does not answer: {first_sentence(error)}",
        f"Repeat the command when it answers. If it no longer exists: {give_up}",
        code="sink-not-fenced",
    )


def _not_removed_error(checkpoint: Checkpoint, sink: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: sink '{sink}' cannot be given up as it is.",
        f"This checkpoint takes rows out of it, which are read again after epoch {checkpoint.rewinds_to}: given up, "
        "they would be there twice.",
        "Remove the rows of the later epochs from the sink by hand, then: onceonly resolve "
        f"{checkpoint.pipeline} {checkpoint.epoch} --give-up {sink} --removed --reason …. Nothing was changed.",
        code="rows-not-removed",
    )


def doubt_error(checkpoint: Checkpoint, sink: str) -> InvalidPipeline:
    """Return the refusal to repair a sink of which nobody knows whether it has the rows of a decided checkpoint."""
    name, epoch = checkpoint.pipeline, checkpoint.epoch
    return InvalidPipeline(
        f"{name}: sink '{sink}' cannot be repaired yet.",
        f"Whether it has the rows of epoch {epoch} is in doubt, so written again they could be there twice.",
        f"Say what you find out: onceonly resolve {name} {epoch} --committed {sink} --reason …, or: onceonly resolve "
        f"{name} {epoch} --aborted {sink} --reason …. Nothing was written.",
        code="sink-in-doubt",
    )
