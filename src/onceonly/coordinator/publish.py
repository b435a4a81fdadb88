"""Carrying out decisions: in order per sink, each once; what a sink cannot do holds up only its own later decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from onceonly.checkpoint.interfaces import Parts, Sink
from onceonly.checkpoint.model import Checkpoint, Event, Handle, Outcome, Row, State
from onceonly.coordinator.id_pool import end_idle
from onceonly.coordinator.messages import fenced
from onceonly.errors import Fenced, InDoubt, InvalidPipeline, NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.transitions import Transitions
from onceonly.statetable.view import View


class Publisher:
    """Publishes what is decided, and records what a person says where that cannot be."""

    def __init__(self, transitions: Transitions, parts: Parts) -> None:
        self._transitions, self._parts = transitions, parts

    def publish(self, view: View) -> list[Exception]:
        """Carry out all decisions that `view` shows. Returns the first error of each sink that met one."""
        held: set[str] = set()
        errors: list[Exception] = []
        deciding = [checkpoint for checkpoint in view.open if checkpoint.state is State.COMMITTING]
        for checkpoint in sorted(deciding, key=lambda cp: cp.decision or 0):
            for sink in checkpoint.waiting:
                if sink in held:
                    continue
                try:
                    view = self._publish_sink(view, checkpoint, sink)
                except Exception as error:
                    held.add(sink)
                    errors.append(_classified(error, checkpoint, sink))
            try:
                view = self.finish(view, checkpoint.epoch)
            except Exception as error:
                errors.append(error)
        return errors

    def finish(self, view: View, epoch: int) -> View:
        """Record COMMITTED once no sink is waiting; then remove what was kept until then."""

        def decide(view: View) -> Row | None:
            now = view.require(epoch)
            if now.state is not State.COMMITTING or now.waiting:
                return None
            return view.row(epoch, Event.COMMITTED, now.attempt, decision=now.decision)

        view = self._transitions.change(view.pipeline, decide, view)
        done = view.require(epoch)
        if done.state is State.COMMITTED:
            self.discard(done, [attempt for attempt in done.claims if attempt != done.attempt])
            for sink in done.published if done.claims else ():
                live = self._sink(done, sink)
                live.release(done.transaction(sink))
                end_idle(self._transitions.state, live, done.pipeline)
        return view

    def discard(self, checkpoint: Checkpoint, attempts: list[int], gone: Collection[str] = ()) -> dict[str, str]:
        """Remove what these attempts have staged, in every sink; rows that are kept are only made unpublishable.

        Args:
            gone: sinks that never answer again, as a person says. Nothing that they hold can be decided on.
        Returns:
            Those of them that did not answer, and what came instead.
        """
        left = dict[str, str]()
        over = {(checkpoint.epoch, attempt) for attempt in attempts}
        for attempt in attempts:
            pipeline = Pipeline.from_json(checkpoint.claimed_under[attempt])
            for sink in checkpoint.sinks_of(attempt):
                try:
                    live = self._parts.sink(pipeline, sink)
                    self._discard(live, checkpoint, attempt)
                    end_idle(self._transitions.state, live, checkpoint.pipeline, over)
                except Exception as error:
                    if sink not in gone:
                        raise
                    left[sink] = f"{type(error).__name__}: {error}"[:500]
        return left

    def _discard(self, live: Sink, checkpoint: Checkpoint, attempt: int) -> None:
        txn = checkpoint.transaction(live.name, attempt)
        if checkpoint.keeps(attempt):
            live.renounce(txn)
        else:
            live.abort(txn, checkpoint.handles.get(live.name) if attempt == checkpoint.attempt else None)

    # ---- a person's word

    def evidence(self, name: str, epoch: int, sink: str) -> list[str]:
        """What the sink shows of this checkpoint now, line by line."""
        checkpoint = self._transitions.state.view(name).require(epoch)
        if sink not in checkpoint.handles:
            raise InvalidPipeline(
                f"{name} epoch {epoch} has nothing staged for a sink '{sink}'.",
                f"Its sinks: {', '.join(checkpoint.handles) or 'none yet'}.",
                f"Look first: onceonly describe {name} {epoch}. Nothing was changed.",
            )
        try:
            return self._sink(checkpoint, sink).evidence(checkpoint.handles[sink])
        except Exception as error:  # it does not answer: that is what there is to see
            return [f"{type(error).__name__}: {error}"]

    def give_up(
        self, name: str, epoch: int, sink: str, said: Mapping[str, str], gone: bool, removed: bool
    ) -> Checkpoint:
        """See `Coordinator.give_up`; `said` is who, and why."""
        view = self._transitions.state.view(name)
        waiting = _waiting(view.require(epoch), sink)
        if waiting.rewinds_to is not None and not removed:
            raise _not_taken_out(waiting, sink)
        self.publish(view)  # a last try, which is also what it takes for other sinks
        view = self._transitions.state.view(name)
        while sink in view.require(epoch).waiting:
            _refuse_out_of_order(view, view.require(epoch), sink)
            view = self._give_up(view, epoch, sink, said, gone)
        return self.finish(view, epoch).require(epoch)

    def _give_up(self, seen: View, epoch: int, sink: str, said: Mapping[str, str], gone: bool) -> View:
        """Only what was fenced is given up: a handle that another process records meanwhile could be published."""
        waiting = seen.require(epoch)
        outcome, not_fenced = self._fence(waiting, sink, gone)
        if outcome:
            return self._record_published(seen, epoch, sink, outcome)

        def decide(view: View) -> Row | None:
            now = view.require(epoch)
            if sink not in now.waiting or now.handles[sink] != waiting.handles[sink]:
                return None
            return _of_sink(view, now, sink, Event.GIVEN_UP, {**said, **not_fenced})

        return self._transitions.change(seen.pipeline, decide)

    def judge(self, name: str, epoch: int, sink: str, committed: bool, who: str, reason: str) -> Checkpoint:
        """Record a person's word on what is in doubt, and go on from it.

        Raises:
            InvalidPipeline: nothing is in doubt there; what can be seen is not a matter of opinion.
        """
        in_doubt = self._transitions.state.view(name).require(epoch).in_doubt
        if sink not in in_doubt:
            raise InvalidPipeline(
                f"{name} epoch {epoch}: sink '{sink}' is not in doubt.",
                f"In doubt: {', '.join(in_doubt) or 'none'}.",
                f"Settle it by its evidence: onceonly recover {name}. Nothing was changed.",
            )

        def decide(view: View) -> Row | None:
            now = view.require(epoch)
            if sink not in now.in_doubt:
                return None
            body = {"handle": dict(self._sink(now, sink).judged(now.handles[sink], committed))}
            said = {"who": who, "reason": reason, "verdict": "committed" if committed else "aborted"}
            return _of_sink(view, now, sink, Event.REPLACED, body | said)

        errors = self.publish(self._transitions.change(name, decide))
        if errors:
            raise errors[0]
        return self._transitions.state.view(name).require(epoch)

    def _fence(self, checkpoint: Checkpoint, sink: str, gone: bool) -> tuple[Outcome | None, dict[str, str]]:
        """What the sink shows once nobody can publish to it any more; where a person says it is gone, why it could not.

        Raises:
            OutcomeUnknown: it does not answer, and nobody says that it never will.
        """
        live = self._sink(checkpoint, sink)
        try:
            outcome = live.fence(checkpoint.handles[sink], checkpoint.decision or 0)
            if outcome:
                return outcome, {}  # what it shows counts, whatever fails from here on
            end_idle(self._transitions.state, live, checkpoint.pipeline, {(checkpoint.epoch, checkpoint.attempt)})
        except Exception as error:
            if not gone:
                raise _not_fenced(checkpoint, sink, error) from error
            return None, {"not_fenced": f"{type(error).__name__}: {error}"[:500]}
        return None, {}

    # ---- one sink

    def _publish_sink(self, view: View, checkpoint: Checkpoint, sink: str) -> View:
        receipts = _Recorded(self._transitions, view, checkpoint.epoch, sink)
        try:
            outcome = self._sink(checkpoint, sink).commit(checkpoint.handles[sink], checkpoint.decision or 0, receipts)
        except Exception as error:
            now = self._transitions.state.view(view.pipeline)
            if sink in now.require(checkpoint.epoch).published:
                return now  # by another process meanwhile, which may be what we tripped over
            if isinstance(error, InDoubt):
                self._record_doubt(now, checkpoint.epoch, sink, error)
            if isinstance(error, Fenced) and sink in now.require(checkpoint.epoch).waiting:
                raise _fenced_off(error, checkpoint, sink) from error  # at the target; nobody has recorded an end
            raise
        return self._record_published(receipts.view, checkpoint.epoch, sink, outcome)

    def _record_published(self, view: View, epoch: int, sink: str, outcome: Outcome) -> View:
        def decide(view: View) -> Row | None:
            now = view.require(epoch)
            if sink not in now.waiting:
                return None
            return _of_sink(view, now, sink, Event.PUBLISHED, {**outcome.detail, "already": outcome.already})

        return self._transitions.change(view.pipeline, decide, view)

    def _record_doubt(self, view: View, epoch: int, sink: str, doubt: InDoubt) -> None:
        def decide(view: View) -> Row | None:
            now = view.require(epoch)
            if sink not in now.waiting or sink in now.in_doubt:
                return None
            return _of_sink(view, now, sink, Event.IN_DOUBT, {"why": doubt.why})

        self._transitions.change(view.pipeline, decide, view)

    def _sink(self, checkpoint: Checkpoint, sink: str) -> Sink:
        return self._parts.sink(Pipeline.from_json(checkpoint.definition), sink)


class _Recorded:
    """The `Receipts` of one sink of one decided checkpoint."""

    def __init__(self, transitions: Transitions, view: View, epoch: int, sink: str) -> None:
        self._transitions, self.view, self._epoch, self._sink = transitions, view, epoch, sink

    def replace(self, old: Handle, new: Handle) -> Handle:
        def decide(view: View) -> Row | None:
            now = view.require(self._epoch)
            if self._sink in now.given_up:
                raise fenced(now, f"sink '{self._sink}' was given up")
            if self._sink not in now.waiting or dict(now.handles[self._sink]) != dict(old):
                return None
            return _of_sink(view, now, self._sink, Event.REPLACED, {"handle": dict(new)})

        self.view = self._transitions.change(self.view.pipeline, decide, self.view)
        return self.view.require(self._epoch).handles[self._sink]


def _of_sink(view: View, checkpoint: Checkpoint, sink: str, event: Event, body: dict[str, Any]) -> Row:
    return view.row(checkpoint.epoch, event, checkpoint.attempt, sink=sink, decision=checkpoint.decision, body=body)


def _waiting(checkpoint: Checkpoint, sink: str) -> Checkpoint:
    if checkpoint.state is State.COMMITTING and sink in checkpoint.waiting:
        return checkpoint
    raise InvalidPipeline(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: sink '{sink}' is not waiting to be published.",
        f"The checkpoint is {checkpoint.state.value}; waiting: {', '.join(checkpoint.waiting) or 'none'}.",
        f"Look first: onceonly describe {checkpoint.pipeline} {checkpoint.epoch}. Nothing was changed.",
    )


def _refuse_out_of_order(view: View, checkpoint: Checkpoint, sink: str) -> None:
    """Fenced at a decision, a sink may take no earlier one either: evidence goes by order."""
    decided = (cp for cp in view.open if cp.decision is not None and sink in cp.waiting)
    first = min(decided, key=lambda cp: cp.decision or 0)
    if first.epoch != checkpoint.epoch:
        raise InvalidPipeline(
            f"{checkpoint.pipeline} epoch {checkpoint.epoch}: sink '{sink}' cannot be given up yet.",
            f"Epoch {first.epoch}, which was decided before it, still waits for that sink.",
            f"Settle that first: onceonly recover {checkpoint.pipeline}, or: onceonly resolve {checkpoint.pipeline} "
            f"{first.epoch} --give-up {sink} --reason …. Nothing was changed.",
        )


def _classified(error: Exception, checkpoint: Checkpoint, sink: str) -> Exception:
    """An error that nobody classified says nothing about the outcome, and "surely not" says it of one try alone."""
    if isinstance(error, OnceonlyError) and not isinstance(error, NotCommitted):
        return error
    unknown = _unknown(error, checkpoint, sink)
    unknown.__cause__ = error
    return unknown


def _unknown(error: Exception, checkpoint: Checkpoint, sink: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: whether sink '{sink}' was published is not known.",
        _said(error),
        f"The decision stands and nothing was deleted. Retry: onceonly recover {checkpoint.pipeline}",
    )


def _fenced_off(error: Fenced, checkpoint: Checkpoint, sink: str) -> OutcomeUnknown:
    """A person may have died between fencing the sink and recording that it is given up: only a person ends that."""
    name, epoch = checkpoint.pipeline, checkpoint.epoch
    return OutcomeUnknown(
        f"{name} epoch {epoch}: whether sink '{sink}' was published is not known.",
        f"{_said(error)} Nobody has recorded an end of it.",
        f"Retry: onceonly recover {name}. If it stays so, its giving up was interrupted, which this completes: "
        f"onceonly resolve {name} {epoch} --give-up {sink} --reason …",
    )


def _not_fenced(checkpoint: Checkpoint, sink: str, error: Exception) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: sink '{sink}' cannot be given up yet.",
        f"A process may still publish to it, and it does not answer: {_said(error)}",
        "Retry when it answers. If it is gone for good: "
        f"onceonly resolve {checkpoint.pipeline} {checkpoint.epoch} --give-up {sink} --gone --reason …",
    )


def _not_taken_out(checkpoint: Checkpoint, sink: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: sink '{sink}' cannot be given up as it is.",
        f"This checkpoint takes rows out of it, which are read again after epoch {checkpoint.rewinds_to}: given up, "
        "they would be there twice.",
        "Remove the rows of the later epochs from the sink by hand, then: onceonly resolve "
        f"{checkpoint.pipeline} {checkpoint.epoch} --give-up {sink} --removed --reason …. Nothing was changed.",
    )


def _said(error: Exception) -> str:
    return f"{error.what} {error.why}" if isinstance(error, OnceonlyError) else f"{type(error).__name__}: {error}"
