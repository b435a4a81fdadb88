"""Carrying out decisions: in order per sink, each once; what a sink cannot do holds up only its own later decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, Event, Handle, Outcome, Row, State
from onceonly.checkpoint.sink import Sink
from onceonly.coordinator import target_history
from onceonly.coordinator.messages import classify_settle_error, fenced_error
from onceonly.coordinator.sweep import discard_idle
from onceonly.errors import Fenced, InDoubt, NotCommitted, OnceonlyError, OutcomeUnknown, TargetWentBack, first_sentence
from onceonly.statetable.table import Transitions
from onceonly.statetable.view import View
from onceonly.waits import wait_for


@dataclass(frozen=True)
class Failure:
    """The error that keeps a decided checkpoint from being settled.

    Args:
        sink: the one that was not published; None: all were, and something else failed.
    """

    checkpoint: Checkpoint
    sink: str | None
    error: Exception


Rehearsed = Mapping[tuple[int, str], Sink]  # by epoch and sink
NOTHING_REHEARSED: Rehearsed = MappingProxyType({})


class Publisher:
    """Publishes what is decided, and discards what never will be."""

    def __init__(self, transitions: Transitions, parts: Parts) -> None:
        self._transitions, self._parts = transitions, parts

    def publish(self, view: View, rehearsed: Rehearsed = NOTHING_REHEARSED) -> tuple[View, list[Failure]]:
        """Carry out all decisions that `view` shows. Returns the view after it, and the first failure of each sink.

        Args:
            rehearsed: by epoch and name, the sinks that have rehearsed it in this process, and may use what they have
                computed.
        """
        failed_sinks: set[str] = set()  # later decisions wait for them
        failures: list[Failure] = []
        decided_checkpoints = [checkpoint for checkpoint in view.open if checkpoint.state is State.COMMITTING]
        for checkpoint in sorted(decided_checkpoints, key=lambda cp: cp.decision or 0):
            for sink in checkpoint.waiting:
                if sink in failed_sinks:
                    continue
                try:
                    view = self._publish_sink(view, checkpoint, sink, rehearsed.get((checkpoint.epoch, sink)))
                except Exception as error:
                    failed_sinks.add(sink)
                    failures.append(Failure(checkpoint, sink, _classify_error(error, checkpoint, sink)))
            try:
                view = self.finish(view, checkpoint.epoch)
            except Exception as error:
                failures.append(Failure(checkpoint, None, classify_settle_error(error, checkpoint)))
        return view, failures

    def finish(self, view: View, epoch: int) -> View:
        """Record COMMITTED once no sink is waiting; then remove what was kept until then."""

        def decide(view: View) -> Row | None:
            now = view.require(epoch)
            if now.state is not State.COMMITTING or now.waiting:
                return None
            return view.row(epoch, Event.COMMITTED, now.attempt, decision=now.decision)

        view = self._transitions.change(view.pipeline, decide, view)
        done = view.require(epoch)
        if done.state is State.COMMITTED:  # only now: what a process leaves that dies before the end is swept later
            self.discard(done, [attempt for attempt in done.claims if attempt != done.attempt])
            if done.claims:
                self._release(done)
        return view

    def _release(self, done: Checkpoint) -> None:
        """Remove what each published sink has kept until the end was recorded."""
        for sink in done.published:
            live = self.sink(done, sink)
            live.release(done.transaction(sink))
            discard_idle(self._transitions.state_table, live, done.pipeline)

    def discard(self, checkpoint: Checkpoint, attempts: list[int], gone: Collection[str] = ()) -> dict[str, str]:
        """Remove what these attempts have staged, in every sink; rows that are kept are only made unpublishable.

        Args:
            gone: sinks that will never answer again, by manual resolution. Nothing that they hold can be published.
        Returns:
            By sink: of those that did not answer, the error that came instead.
        """
        errors_by_sink: dict[str, str] = {}
        ended = {(checkpoint.epoch, attempt) for attempt in attempts}
        for attempt in attempts:
            pipeline = checkpoint.claimed_under[attempt].pipeline
            for sink in checkpoint.sinks_of(attempt):
                try:
                    live = self._parts.sink(pipeline, sink)
                    self._discard(live, checkpoint, attempt)
                    discard_idle(self._transitions.state_table, live, checkpoint.pipeline, ended)
                except Exception as error:
                    if sink not in gone:
                        raise
                    errors_by_sink[sink] = first_sentence(error)[:500]
        return errors_by_sink

    def _discard(self, live: Sink, checkpoint: Checkpoint, attempt: int) -> None:
        txn = checkpoint.transaction(live.name, attempt)
        if checkpoint.keeps_rows_of(attempt):
            with wait_for(f"sink '{live.name}' to make its staged rows unpublishable"):
                live.revoke(txn)
            return
        handle: Handle | None = None
        if attempt == checkpoint.attempt:  # the recorded handles are those of the current attempt
            handle = checkpoint.handles.get(live.name)
        with wait_for(f"sink '{live.name}' to remove its staged rows"):
            live.discard(txn, handle)

    # ---- one sink

    def _publish_sink(self, view: View, checkpoint: Checkpoint, sink: str, rehearsed: Sink | None) -> View:
        receipts = _RecordedHandle(self._transitions, view, checkpoint.epoch, sink)
        try:
            live = rehearsed or self.sink(checkpoint, sink)
            last = target_history.last_publication(live, view)
            with wait_for(f"sink '{sink}' to publish"):
                outcome = live.commit(checkpoint.handles[sink], checkpoint.decision or 0, receipts, last)
        except Exception as error:
            now = self._transitions.state_table.view(view.pipeline)
            if sink in now.require(checkpoint.epoch).published:
                return now  # by another process meanwhile, which may be why it failed here
            if isinstance(error, TargetWentBack):
                raise target_history.history_error(self._parts, error, now, checkpoint, sink) from error
            if isinstance(error, InDoubt):
                handle = receipts.view.require(checkpoint.epoch).handles[sink]
                self._record_doubt(now, checkpoint.epoch, sink, handle, error)
            if isinstance(error, Fenced) and sink in now.require(checkpoint.epoch).waiting:
                raise _fenced_target_error(error, checkpoint, sink) from error  # at the target; no outcome is recorded
            raise
        return self.record_published(receipts.view, checkpoint.epoch, sink, outcome)

    def record_published(self, view: View, epoch: int, sink: str, outcome: Outcome) -> View:
        """Record the outcome of a sink that was waiting, and return the view after it."""

        def decide(view: View) -> Row | None:
            now = view.require(epoch)
            if sink not in now.waiting:
                return None
            body: dict[str, Any] = {**outcome.detail, "already": outcome.already}
            if outcome.proof:
                body["proof"] = dict(outcome.proof)
            return sink_row(view, now, sink, Event.PUBLISHED, body)

        return self._transitions.change(view.pipeline, decide, view)

    def _record_doubt(self, view: View, epoch: int, sink: str, handle: Handle, doubt: InDoubt) -> None:
        """Record the doubt about the handle that was published, and about no other one that has taken its place."""

        def decide(view: View) -> Row | None:
            now = view.require(epoch)
            if sink not in now.waiting or sink in now.in_doubt or now.handles[sink] != handle:
                return None
            return sink_row(view, now, sink, Event.IN_DOUBT, {"why": doubt.why})

        self._transitions.change(view.pipeline, decide, view)

    def require_accepted(self, view: View, checkpoint: Checkpoint, sink: str) -> None:
        """Refuse to give a sink up while its target lacks checkpoints that are not recorded as missing."""
        pipeline = checkpoint.definition.pipeline
        target_history.require_accepted(self._transitions.state_table, self._parts, pipeline, sink, view)

    def sink(self, checkpoint: Checkpoint, sink: str) -> Sink:
        """Make a sink of the checkpoint's definition."""
        return self._parts.sink(checkpoint.definition.pipeline, sink)


class _RecordedHandle:
    """The `Receipts` of one sink of one decided checkpoint. `view` is the one after the last replacement."""

    def __init__(self, transitions: Transitions, view: View, epoch: int, sink: str) -> None:
        self._transitions, self.view, self._epoch, self._sink = transitions, view, epoch, sink

    def replace(self, old: Handle, new: Handle) -> Handle:
        def decide(view: View) -> Row | None:
            now = view.require(self._epoch)
            if self._sink in now.given_up:
                raise fenced_error(now, f"sink '{self._sink}' was given up")
            if self._sink not in now.waiting or dict(now.handles[self._sink]) != dict(old):
                return None
            return sink_row(view, now, self._sink, Event.REPLACED, {"handle": dict(new)})

        self.view = self._transitions.change(self.view.pipeline, decide, self.view)
        return self.view.require(self._epoch).handles[self._sink]


def sink_row(view: View, checkpoint: Checkpoint, sink: str, event: Event, body: dict[str, Any]) -> Row:
    """Return a row of one sink of a decided checkpoint."""
    return view.row(checkpoint.epoch, event, checkpoint.attempt, sink=sink, decision=checkpoint.decision, body=body)


def _classify_error(error: Exception, checkpoint: Checkpoint, sink: str) -> Exception:
    """Return the error of a publication, with the outcome that is known by it.

    An error that nobody classified says nothing about the outcome, and "surely not" says it of one try alone.
    """
    if isinstance(error, OnceonlyError) and not isinstance(error, NotCommitted):
        return error.naming(checkpoint.pipeline, checkpoint.epoch)
    unknown = _unknown_outcome_error(error, checkpoint, sink)
    unknown.__cause__ = error
    return unknown


def _unknown_outcome_error(error: Exception, checkpoint: Checkpoint, sink: str) -> OutcomeUnknown:
    code = "outcome-unknown"
    if isinstance(error, OnceonlyError) and error.code:
        code = error.code
    return OutcomeUnknown(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: whether sink '{sink}' was published is not known.",
        first_sentence(error),
        f"The decision stands and nothing was deleted. Retry: onceonly recover {checkpoint.pipeline}",
        code=code,
    )


def _fenced_target_error(error: Fenced, checkpoint: Checkpoint, sink: str) -> OutcomeUnknown:
    """Return the error of a target that fences this decision off, though no outcome of it is recorded.

    Giving up may have been interrupted after the fence and before its row: only manual resolution ends that.
    """
    name, epoch = checkpoint.pipeline, checkpoint.epoch
    return OutcomeUnknown(
        f"{name} epoch {epoch}: whether sink '{sink}' was published is not known.",
        f"{first_sentence(error)} No process has recorded an outcome of it.",
        f"Retry: onceonly recover {name}. If that does not help, giving the sink up was interrupted. To complete it: "
        f"onceonly resolve {name} {epoch} --give-up {sink} --reason …",
        code="outcome-unknown",
    )
