"""Carrying out decisions: in order per sink, each once; what a sink cannot do holds up only its own later decisions."""

from __future__ import annotations

from typing import Any

from onceonly.checkpoint import Checkpoint, Event, Handle, Outcome, Row, State
from onceonly.errors import InDoubt, InvalidPipeline, NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.ledger import Ledger, fenced, get, next_row
from onceonly.pipeline import Pipeline
from onceonly.pooling import end_idle
from onceonly.protocols import Parts, Sink
from onceonly.state import View


class Publisher:
    """Publishes what is decided, and records what a person says where that cannot be."""

    def __init__(self, ledger: Ledger, parts: Parts) -> None:
        self._ledger, self._parts = ledger, parts

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
            now = get(view, epoch)
            if now.state is not State.COMMITTING or now.waiting:
                return None
            return next_row(view, epoch, Event.COMMITTED, now.attempt, decision=now.decision)

        view = self._ledger.change(view.pipeline, decide, view)
        done = get(view, epoch)
        if done.state is State.COMMITTED:
            self.discard(done, [attempt for attempt in done.claims if attempt != done.attempt])
            for sink in done.published if done.claims else ():
                live = self._sink(done, sink)
                live.release(done.transaction(sink))
                end_idle(self._ledger.state, live, done.pipeline)
        return view

    def discard(self, checkpoint: Checkpoint, attempts: list[int]) -> None:
        """Remove what these attempts have staged, in every sink; rows that are kept are only made unpublishable."""
        for sink in checkpoint.sinks if attempts else ():
            live = self._sink(checkpoint, sink)
            for attempt in attempts:
                txn = checkpoint.transaction(sink, attempt)
                if checkpoint.keeps(attempt):
                    live.renounce(txn)
                else:
                    live.abort(txn, checkpoint.handles.get(sink) if attempt == checkpoint.attempt else None)
            over = {(checkpoint.epoch, attempt) for attempt in attempts}
            end_idle(self._ledger.state, live, checkpoint.pipeline, over)

    # ---- a person's word

    def evidence(self, name: str, epoch: int, sink: str) -> list[str]:
        """What the sink shows of this checkpoint now, line by line."""
        checkpoint = get(self._ledger.state.view(name), epoch)
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

    def give_up(self, name: str, epoch: int, sink: str, who: str, reason: str) -> Checkpoint:
        """Record that this sink will never get this checkpoint, unless it shows that it has it."""
        view = self._ledger.state.view(name)
        _waiting(get(view, epoch), sink)
        self.publish(view)  # a last try: what failed may have landed, and then it is published, not given up
        view = self._ledger.state.view(name)
        while sink in get(view, epoch).waiting:
            view = self._give_up(get(view, epoch), sink, {"who": who, "reason": reason})
        return get(self.finish(view, epoch), epoch)

    def _give_up(self, seen: Checkpoint, sink: str, said: dict[str, str]) -> View:
        """Only what was renounced is given up: a handle that another process records meanwhile could be published."""
        renounced = self._renounce(seen, sink)

        def decide(view: View) -> Row | None:
            now = get(view, seen.epoch)
            if sink not in now.waiting or now.handles[sink] != seen.handles[sink]:
                return None
            return _of_sink(view, now, sink, Event.GIVEN_UP, said | renounced)

        return self._ledger.change(seen.pipeline, decide)

    def judge(self, name: str, epoch: int, sink: str, committed: bool, who: str, reason: str) -> Checkpoint:
        """Record a person's word on what is in doubt, and go on from it.

        Raises:
            InvalidPipeline: nothing is in doubt there; what can be seen is not a matter of opinion.
        """
        in_doubt = get(self._ledger.state.view(name), epoch).in_doubt
        if sink not in in_doubt:
            raise InvalidPipeline(
                f"{name} epoch {epoch}: sink '{sink}' is not in doubt.",
                f"In doubt: {', '.join(in_doubt) or 'none'}.",
                f"Settle it by its evidence: onceonly recover {name}. Nothing was changed.",
            )

        def decide(view: View) -> Row | None:
            now = get(view, epoch)
            if sink not in now.in_doubt:
                return None
            body = {"handle": dict(self._sink(now, sink).judged(now.handles[sink], committed))}
            said = {"who": who, "reason": reason, "verdict": "committed" if committed else "aborted"}
            return _of_sink(view, now, sink, Event.REPLACED, body | said)

        errors = self.publish(self._ledger.change(name, decide))
        if errors:
            raise errors[0]
        return get(self._ledger.state.view(name), epoch)

    def _renounce(self, checkpoint: Checkpoint, sink: str) -> dict[str, str]:
        """A sink that is gone for good must not keep a person from ending the checkpoint; that is recorded."""
        live = self._sink(checkpoint, sink)
        try:
            live.renounce(checkpoint.transaction(sink))
            end_idle(self._ledger.state, live, checkpoint.pipeline, {(checkpoint.epoch, checkpoint.attempt)})
        except Exception as error:
            return {"not_fenced": f"{type(error).__name__}: {error}"[:500]}
        return {}

    # ---- one sink

    def _publish_sink(self, view: View, checkpoint: Checkpoint, sink: str) -> View:
        receipts = _Recorded(self._ledger, view, checkpoint.epoch, sink)
        try:
            outcome = self._sink(checkpoint, sink).commit(checkpoint.handles[sink], checkpoint.decision or 0, receipts)
        except Exception as error:
            now = self._ledger.state.view(view.pipeline)
            if sink in get(now, checkpoint.epoch).published:
                return now  # by another process meanwhile, which may be what we tripped over
            if isinstance(error, InDoubt):
                self._record_doubt(now, checkpoint.epoch, sink, error)
            raise
        return self._record_published(receipts.view, checkpoint.epoch, sink, outcome)

    def _record_published(self, view: View, epoch: int, sink: str, outcome: Outcome) -> View:
        def decide(view: View) -> Row | None:
            now = get(view, epoch)
            if sink not in now.waiting:
                return None
            return _of_sink(view, now, sink, Event.PUBLISHED, {**outcome.detail, "already": outcome.already})

        return self._ledger.change(view.pipeline, decide, view)

    def _record_doubt(self, view: View, epoch: int, sink: str, doubt: InDoubt) -> None:
        def decide(view: View) -> Row | None:
            now = get(view, epoch)
            if sink not in now.waiting or sink in now.in_doubt:
                return None
            return _of_sink(view, now, sink, Event.IN_DOUBT, {"why": doubt.why})

        self._ledger.change(view.pipeline, decide, view)

    def _sink(self, checkpoint: Checkpoint, sink: str) -> Sink:
        return self._parts.sink(Pipeline.from_json(checkpoint.definition), sink)


class _Recorded:
    """The `Receipts` of one sink of one decided checkpoint."""

    def __init__(self, ledger: Ledger, view: View, epoch: int, sink: str) -> None:
        self._ledger, self.view, self._epoch, self._sink = ledger, view, epoch, sink

    def replace(self, old: Handle, new: Handle) -> Handle:
        def decide(view: View) -> Row | None:
            now = get(view, self._epoch)
            if self._sink in now.given_up:
                raise fenced(now, f"sink '{self._sink}' was given up")
            if self._sink not in now.waiting or dict(now.handles[self._sink]) != dict(old):
                return None
            return _of_sink(view, now, self._sink, Event.REPLACED, {"handle": dict(new)})

        self.view = self._ledger.change(self.view.pipeline, decide, self.view)
        return get(self.view, self._epoch).handles[self._sink]


def _of_sink(view: View, checkpoint: Checkpoint, sink: str, event: Event, body: dict[str, Any]) -> Row:
    return next_row(
        view, checkpoint.epoch, event, checkpoint.attempt, sink=sink, decision=checkpoint.decision, body=body
    )


def _waiting(checkpoint: Checkpoint, sink: str) -> Checkpoint:
    if checkpoint.state is State.COMMITTING and sink in checkpoint.waiting:
        return checkpoint
    raise InvalidPipeline(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: sink '{sink}' is not waiting to be published.",
        f"The checkpoint is {checkpoint.state.value}; waiting: {', '.join(checkpoint.waiting) or 'none'}.",
        f"Look first: onceonly describe {checkpoint.pipeline} {checkpoint.epoch}. Nothing was changed.",
    )


def _classified(error: Exception, checkpoint: Checkpoint, sink: str) -> Exception:
    """An error that nobody classified says nothing about the outcome, and "surely not" says it of one try alone."""
    if isinstance(error, OnceonlyError) and not isinstance(error, NotCommitted):
        return error
    unknown = OutcomeUnknown(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: whether sink '{sink}' was published is not known.",
        f"{error.what} {error.why}" if isinstance(error, OnceonlyError) else f"{type(error).__name__}: {error}",
        f"The decision stands and nothing was deleted. Retry: onceonly recover {checkpoint.pipeline}",
    )
    unknown.__cause__ = error
    return unknown
