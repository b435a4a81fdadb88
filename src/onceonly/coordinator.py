"""The one place where checkpoints are decided. Sinks, DAGs, the command line and the UI only call it.

Every change of state is a compare-and-set on the state table: read a view, decide from it, write from it, and when
another writer was first, read and decide again. Whatever has an effect outside happens only after the row that
permits it, and may happen again after a crash: so it is idempotent.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.checkpoint import Checkpoint, Claim, Event, Outcome, Row, State
from onceonly.errors import Busy, Fenced, InvalidPipeline, NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.offsets import Interval
from onceonly.pipeline import Pipeline
from onceonly.planning import Pins
from onceonly.protocols import Parts
from onceonly.state import Lost, StateTable, View

Alive = Callable[[Checkpoint], bool]  # is the owner of this checkpoint still at work?
Produce = Callable[[Checkpoint], Mapping[str, Any]]  # read the pinned range, transform: a DataFrame per sink
Notify = Callable[[Checkpoint, Row], None]


@dataclass(frozen=True)
class Planned:
    """What plan decided: `fresh` is False for a checkpoint that was there before; None means no new data."""

    checkpoint: Checkpoint | None
    fresh: bool


class Coordinator:
    """Plan, stage, commit, abort and recover checkpoints of the pipelines of one state table."""

    def __init__(self, state: StateTable, parts: Parts, notify: Notify | None = None) -> None:
        self.state, self.parts = state, parts
        self._notify = notify or (lambda checkpoint, row: None)

    # ---- plan

    def plan(self, pipeline: Pipeline, owner: str, alive: Alive, interval: Interval | None = None) -> Planned:
        """Settle what earlier checkpoints left, then pin what the next one covers.

        The same owner (or the same interval) gets the same checkpoint, however often it asks.

        Raises:
            Busy: another owner's checkpoint is in the way and that owner is alive.
            InvalidPipeline, SourceLost: nothing was written.
        """
        pins = Pins(pipeline, self.parts.source(pipeline), interval)
        self.state.tidy(pipeline.name)
        errors = self._settle(pipeline.name, lambda cp: cp.owner == owner or alive(cp))
        if errors and pipeline.mode == "chained":
            raise errors[0]  # in interval mode the commit task meets it, after its own staging
        known, row = None, None

        def decide(view: View) -> Row | None:
            nonlocal known, row
            known = _known(view, pipeline, owner, interval)
            row = _take_over(view, known, pipeline, owner) if known else self._pin(view, pins, owner)
            return row

        view = self._change(pipeline.name, decide)
        epoch = row.epoch if row else known.epoch if known else None
        return Planned(_get(view, epoch) if epoch else None, fresh=known is None and row is not None)

    def _pin(self, view: View, pins: Pins, owner: str) -> Row | None:
        range_ = pins.range(view)
        if range_.span == 0 and pins.interval is None:
            return None
        body = {"definition": pins.pipeline.to_json(), "ranges": [range_.to_json()]}
        event = Event.PLANNED if range_.span else Event.EMPTY
        return _row(view, view.head.epoch + 1, event, 0, owner=owner, interval=pins.interval, body=body)

    # ---- stage

    def stage(self, name: str, epoch: int, produce: Produce, owner: str | None = None) -> Checkpoint:
        """Claim the next attempt, stage every sink, and record all handles in one row.

        A checkpoint that is staged or decided already is returned as it is.

        Raises:
            Fenced: a newer attempt, an abort or another owner took over; what this process wrote is removed.
        """
        checkpoint = self._claim(name, epoch, owner)
        if checkpoint.state is not State.PLANNED:
            return checkpoint
        pipeline = Pipeline.from_json(checkpoint.definition)
        try:
            handles = self._stage_sinks(pipeline, checkpoint, produce)
        except BaseException:
            self._discard(pipeline, checkpoint, [checkpoint.attempt])  # ours alone, and surely not recorded
            raise
        return self._record_staged(pipeline, checkpoint, handles)

    def _claim(self, name: str, epoch: int, owner: str | None) -> Checkpoint:
        def decide(view: View) -> Row | None:
            checkpoint = _get(view, epoch)
            if owner is not None and checkpoint.owner != owner:
                raise _fenced(checkpoint, f"'{checkpoint.owner}' has taken it over")
            if checkpoint.state is State.ABORTING:
                raise _fenced(checkpoint, "it is being aborted")
            if checkpoint.state not in (State.PLANNED, State.ABORTED):
                return None
            claim = Claim(uuid.uuid4().hex[:12], self.state.id, f"{socket.gethostname()}:{os.getpid()}")
            return _row(view, epoch, Event.CLAIMED, checkpoint.attempt + 1, body=vars(claim))

        return _get(self._change(name, decide), epoch)

    def _stage_sinks(self, pipeline: Pipeline, checkpoint: Checkpoint, produce: Produce) -> dict[str, Any]:
        source = self.parts.source(pipeline)
        source.verify(checkpoint.ranges)
        outputs = produce(checkpoint)
        _check_outputs(pipeline, outputs)
        handles = {
            sink.name: dict(self.parts.sink(pipeline, sink.name).stage(checkpoint.transaction(sink.name), rows))
            for sink in pipeline.sinks
            for rows in [outputs[sink.name]]
        }
        source.verify(checkpoint.ranges)  # a topic deleted, or records removed, while they were read
        return handles

    def _record_staged(self, pipeline: Pipeline, mine: Checkpoint, handles: Mapping[str, Any]) -> Checkpoint:
        def decide(view: View) -> Row | None:
            now = _get(view, mine.epoch)
            if now.state is not State.PLANNED or now.attempt != mine.attempt:
                raise _fenced(now, f"attempt {now.attempt} is current and this was attempt {mine.attempt}")
            return _row(view, mine.epoch, Event.STAGED, mine.attempt, body={"handles": handles})

        try:
            return _get(self._change(pipeline.name, decide), mine.epoch)
        except Fenced:
            self._discard(pipeline, mine, [mine.attempt])
            raise

    # ---- commit

    def commit(self, name: str, epoch: int) -> Checkpoint:
        """Take the decision, then publish it and every earlier one that is still waiting.

        Raises:
            NotCommitted: not staged, or aborted: there is nothing to publish.
            OnceonlyError: a sink did not publish; the decision stands, call again.
        """

        def decide(view: View) -> Row | None:
            checkpoint = _get(view, epoch)
            if checkpoint.state in (State.COMMITTING, State.COMMITTED):
                return None
            if checkpoint.state is not State.STAGED:
                raise NotCommitted(
                    f"{name} epoch {epoch} cannot be committed.",
                    f"It is {checkpoint.state.value}, not staged{_because(checkpoint)}.",
                    f"Plan and stage it again: onceonly describe {name} {epoch}",
                )
            return _row(view, epoch, Event.COMMITTING, checkpoint.attempt, decision=view.head.decision + 1)

        view = self._change(name, decide)
        if _get(view, epoch).state is State.COMMITTED:
            return _get(view, epoch)
        errors = self._publish(view)
        if errors:
            raise errors[0]
        return _get(self.state.view(name), epoch)

    def _publish(self, view: View) -> list[Exception]:
        """Carry out all decisions that `view` shows, in order per sink; a sink that fails holds up only itself."""
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
            view = self._finish(view, checkpoint.epoch)
        return errors

    def _publish_sink(self, view: View, checkpoint: Checkpoint, sink: str) -> View:
        pipeline = Pipeline.from_json(checkpoint.definition)
        outcome = self.parts.sink(pipeline, sink).commit(checkpoint.handles[sink], checkpoint.decision or 0)
        return self._record_published(view, checkpoint.epoch, sink, outcome)

    def _record_published(self, view: View, epoch: int, sink: str, outcome: Outcome) -> View:
        def decide(view: View) -> Row | None:
            now = _get(view, epoch)
            if sink not in now.waiting:
                return None
            body = {**outcome.detail, "already": outcome.already}
            return _row(view, epoch, Event.PUBLISHED, now.attempt, sink=sink, decision=now.decision, body=body)

        return self._change(view.pipeline, decide, view)

    def _finish(self, view: View, epoch: int) -> View:
        def decide(view: View) -> Row | None:
            now = _get(view, epoch)
            if now.state is not State.COMMITTING or now.waiting:
                return None
            return _row(view, epoch, Event.COMMITTED, now.attempt, decision=now.decision)

        view = self._change(view.pipeline, decide, view)
        done = _get(view, epoch)
        if done.state is State.COMMITTED:
            lost_attempts = [attempt for attempt in done.claims if attempt != done.attempt]
            self._discard(Pipeline.from_json(done.definition), done, lost_attempts)
        return view

    # ---- abort

    def abort(self, name: str, epoch: int, reason: str, owner: str | None = None) -> Checkpoint:
        """Discard what was staged. Only before the decision.

        Raises:
            Fenced: the decision is taken, or another owner has taken the checkpoint over; nothing was touched.
        """

        def decide(view: View) -> Row | None:
            checkpoint = _get(view, epoch)
            if owner is not None and checkpoint.owner != owner:
                raise _fenced(checkpoint, f"'{checkpoint.owner}' has taken it over")
            if checkpoint.state in (State.COMMITTING, State.COMMITTED):
                raise _fenced(checkpoint, "the decision to publish it is taken")
            if checkpoint.state in (State.ABORTING, State.ABORTED):
                return None
            return _row(view, epoch, Event.ABORTING, checkpoint.attempt, body={"reason": reason})

        checkpoint = _get(self._change(name, decide), epoch)
        if checkpoint.state is State.ABORTED:
            return checkpoint
        self._discard(Pipeline.from_json(checkpoint.definition), checkpoint, list(checkpoint.claims))
        return self._record_aborted(checkpoint)

    def _record_aborted(self, mine: Checkpoint) -> Checkpoint:
        def decide(view: View) -> Row | None:
            now = _get(view, mine.epoch)
            current = now.state is State.ABORTING and now.attempt == mine.attempt
            return _row(view, mine.epoch, Event.ABORTED, now.attempt) if current else None

        return _get(self._change(mine.pipeline, decide), mine.epoch)

    def _discard(self, pipeline: Pipeline, checkpoint: Checkpoint, attempts: list[int]) -> None:
        for attempt in attempts:
            for sink in pipeline.sinks:
                handle = checkpoint.handles.get(sink.name) if attempt == checkpoint.attempt else None
                self.parts.sink(pipeline, sink.name).abort(checkpoint.transaction(sink.name, attempt), handle)

    # ---- recover

    def recover(self, name: str, alive: Alive) -> list[Checkpoint]:
        """Settle whatever the pipeline's ended owners left behind, and remove late leftovers.

        Returns:
            The checkpoints that were unsettled, as they are now.
        Raises:
            the first error met, after everything else was tried.
        """
        before = [checkpoint.epoch for checkpoint in self.state.view(name).open]
        errors = self._settle(name, alive)
        view = self.state.view(name)
        self._sweep(view)
        if errors:
            raise errors[0]
        return [_get(view, epoch) for epoch in before]

    def _settle(self, name: str, alive: Alive) -> list[Exception]:
        errors: list[Exception] = []
        for checkpoint in self.state.view(name).open:
            try:
                match checkpoint.state:
                    case State.COMMITTING:
                        self.commit(name, checkpoint.epoch)
                    case State.STAGED if not alive(checkpoint):
                        self.commit(name, checkpoint.epoch)
                    case State.ABORTING:
                        self.abort(name, checkpoint.epoch, checkpoint.reason or "")
                    case State.PLANNED if not alive(checkpoint):
                        self.abort(
                            name, checkpoint.epoch, f"its owner '{checkpoint.owner}' has ended", checkpoint.owner
                        )
            except Fenced:
                continue  # settled by another process between our look and our step
            except Exception as error:
                errors.append(error)
        return errors

    def _sweep(self, view: View) -> None:
        """Remove output of attempts that can never be recorded: a zombie may finish writing after its abort."""
        latest = view.latest
        if latest is None:
            return
        pipeline = Pipeline.from_json(latest.definition)
        for sink in pipeline.sinks:
            live = self.parts.sink(pipeline, sink.name)
            for txn in live.leftovers(f"{self.state.id}-{pipeline.name}-{sink.name}"):
                owner = view.checkpoint(txn.epoch)
                if owner and (txn.attempt < owner.attempt or owner.state is State.ABORTED):
                    live.abort(txn, None)

    # ---- a person's word

    def give_up(self, name: str, epoch: int, sink: str, who: str, reason: str) -> Checkpoint:
        """Record that this sink will never get this checkpoint, unless it shows that it has it."""
        view = self.state.view(name)
        checkpoint = _get(view, epoch)
        if checkpoint.state is not State.COMMITTING or sink not in checkpoint.waiting:
            raise InvalidPipeline(
                f"{name} epoch {epoch}: sink '{sink}' is not waiting to be published.",
                f"The checkpoint is {checkpoint.state.value}; waiting: {', '.join(checkpoint.waiting) or 'none'}.",
                f"Look first: onceonly describe {name} {epoch}. Nothing was changed.",
            )
        self._publish(view)  # a last try: what failed may have landed, and then it is published, not given up

        def decide(view: View) -> Row | None:
            now = _get(view, epoch)
            if sink not in now.waiting:
                return None
            body = {"who": who, "reason": reason}
            return _row(view, epoch, Event.GIVEN_UP, now.attempt, sink=sink, decision=now.decision, body=body)

        return _get(self._finish(self._change(name, decide), epoch), epoch)

    # ---- compare-and-set

    def _change(self, name: str, decide: Callable[[View], Row | None], view: View | None = None) -> View:
        """Write what `decide` makes of the current view (None: nothing to do) and return the view that results."""
        while True:
            view = view or self.state.view(name)
            row = decide(view)
            if row is None:
                return view
            try:
                view = self.state.append(view, row)
            except Lost:
                view = None
                continue
            self._notify(_get(view, row.epoch), row)
            return view


def _row(view: View, epoch: int, event: Event, attempt: int, **columns: Any) -> Row:
    return Row(view.pipeline, view.head.seq + 1, epoch, event, attempt, **columns)


def _get(view: View, epoch: int) -> Checkpoint:
    checkpoint = view.checkpoint(epoch)
    if checkpoint is None:
        raise InvalidPipeline(
            f"{view.pipeline} has no epoch {epoch}.",
            f"The last one planned is {view.head.epoch or 'none'}.",
            "See what there is: onceonly status",
        )
    return checkpoint


def _known(view: View, pipeline: Pipeline, owner: str, interval: Interval | None) -> Checkpoint | None:
    """The checkpoint that this plan is about, when it is there already."""
    if interval:
        return _known_interval(view, pipeline.name, interval)
    mine = view.planned_by(owner)
    if mine and mine[-1].state is not State.ABORTED:
        return mine[-1]
    latest = view.latest  # in chained mode nothing follows an aborted checkpoint: its offsets come first
    return latest if latest and latest.state is not State.COMMITTED else None


def _known_interval(view: View, name: str, interval: Interval) -> Checkpoint | None:
    for known in view.planned_for(interval):
        if known.interval != interval:
            raise InvalidPipeline(
                f"{name}: the interval {interval} overlaps one that is pinned.",
                f"Epoch {known.epoch} covers {known.interval} and is {known.state.value}.",
                "Run exactly that interval, or start at its end. Was the schedule changed? Nothing was written.",
            )
        return known
    return None


def _take_over(view: View, known: Checkpoint, pipeline: Pipeline, owner: str) -> Row | None:
    """The row that makes `owner` the owner of a checkpoint that is there; None when nothing has to change."""
    if known.state is State.COMMITTED:
        return None
    if known.owner != owner and known.state is not State.ABORTED:
        raise Busy(
            f"{pipeline.name}: epoch {known.epoch} is in the way.",
            f"It is {known.state.value} and belongs to '{known.owner}', which has not ended or waits to be published.",
            f"Retry when it has ended, or settle it: onceonly recover {pipeline.name}",
        )
    definition = pipeline.to_json()
    if known.state is State.ABORTED or (known.state is State.PLANNED and known.definition != definition):
        body = {"definition": definition}
        return _row(view, known.epoch, Event.PLANNED, known.attempt, owner=owner, interval=known.interval, body=body)
    return None


def _check_outputs(pipeline: Pipeline, outputs: Mapping[str, Any]) -> None:
    names = {sink.name for sink in pipeline.sinks}
    if set(outputs) != names:
        raise InvalidPipeline(
            f"{pipeline.name}: the transform's outputs do not match the sinks.",
            f"It returned {sorted(outputs)} and the sinks are {sorted(names)}.",
            "Return one DataFrame per sink, by name. Nothing was staged.",
        )


def _because(checkpoint: Checkpoint) -> str:
    return f" ({checkpoint.reason})" if checkpoint.reason else ""


def _fenced(checkpoint: Checkpoint, why: str) -> Fenced:
    return Fenced(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch} is not this process's to change.",
        f"It is {checkpoint.state.value}, and {why}.",
        "Nothing of the current attempt was touched; this process stops.",
    )


def _classified(error: Exception, checkpoint: Checkpoint, sink: str) -> Exception:
    """An error that nobody classified says nothing about the outcome."""
    if isinstance(error, OnceonlyError):
        return error
    unknown = OutcomeUnknown(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: whether sink '{sink}' was published is not known.",
        f"{type(error).__name__}: {error}",
        f"The decision stands and nothing was deleted. Retry: onceonly recover {checkpoint.pipeline}",
    )
    unknown.__cause__ = error
    return unknown
