"""The stage step: claim the next attempt, write each sink's transaction, and record all handles in one row.

A claim is a row, made before anything is written under its nonce. So whatever a process leaves behind can be found by
its name, and only the claim that is current may record what it staged.

The caller gives what reads and transforms, as functions. Each is called once, in the order of this module, and calls
nothing back: what it needs recorded, it returns.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from onceonly.checkpoint.interfaces import Parts, Source
from onceonly.checkpoint.model import Checkpoint, Claim, Event, Handle, Row, State
from onceonly.checkpoint.sink import Sink, StateBackend
from onceonly.coordinator import restore_check, target_history
from onceonly.coordinator.messages import fenced_error
from onceonly.coordinator.publish import Publisher
from onceonly.coordinator.reprocess import check_sinks, refuse_shown_again
from onceonly.counts import count
from onceonly.errors import Fenced, InvalidPipeline, NotCommitted, OnceonlyError
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.requirements import count_slots
from onceonly.statetable.table import Transitions
from onceonly.statetable.view import View
from onceonly.waits import wait_for

NO_DETAILS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Produced:
    """The input of a stage: rows by sink, and how many records were bad (Checkpoint.bad).

    Args:
        is_small_batch: the rows are made of so few records that one process may take them.
        read: how many records were read, as far as that was counted anyway (Checkpoint.read).
    """

    rows: Mapping[str, Any]
    bad: Mapping[str, Any] = field(default_factory=dict)
    is_small_batch: bool = False
    read: Mapping[str, Any] = field(default_factory=dict)


# Begins to read a claimed checkpoint; returns the schemas by which a first attempt decodes it. Empty: by none.
Prepare = Callable[[Checkpoint], Mapping[str, Any]]

# Reads the pinned range and transforms it: a DataFrame per sink
Produce = Callable[[Checkpoint], Mapping[str, Any] | Produced]

# Calls a function that renews the claim, regularly while its block runs and until that returns False
Renewal = Callable[[Callable[[], bool]], AbstractContextManager[Any]]


class Stager:
    """Stages checkpoints; what it wrote and could not record, it removes."""

    def __init__(self, transitions: Transitions, parts: Parts, publisher: Publisher) -> None:
        self._transitions, self._parts, self._publisher = transitions, parts, publisher

    def stage(
        self,
        name: str,
        epoch: int,
        prepare: Prepare,
        produce: Produce,
        owner: str | None,
        since: int | None,
        renewal: Renewal,
        code: Mapping[str, Any] = NO_DETAILS,
    ) -> Checkpoint:
        """Check the targets, claim, stage what was claimed, and record it; what could not be recorded is removed."""
        self._check_targets(self._transitions.state_table.view(name), epoch)
        view = self.claim(name, epoch, owner, since, code)
        checkpoint = view.require(epoch)
        if checkpoint.state is not State.PLANNED:
            return checkpoint
        with renewal(partial(self.renew, checkpoint)):
            try:
                body = self._stage_claimed(view, checkpoint, prepare, produce)
            except BaseException as error:
                self._remove(checkpoint, error)
                raise
            return self.record(checkpoint, **body)

    def _check_targets(self, view: View, epoch: int) -> None:
        """Refuse, before anything is claimed or written, if a target went back: else one would be made in its place."""
        checkpoint = view.require(epoch)
        if checkpoint.state in (State.PLANNED, State.ABORTED):
            pipeline = checkpoint.definition.pipeline
            if checkpoint.is_repair:
                check_state_before(pipeline, checkpoint, view, self._parts)
            target_history.check(self._transitions.state_table, self._parts, pipeline, view, self._publisher.publish)

    def _remove(self, mine: Checkpoint, error: BaseException) -> None:
        """Remove what this attempt wrote before that error.

        Raises:
            Fenced: something has ended the attempt, and removes what it wrote too: so it may have failed by that.
        """
        try:
            self._publisher.discard(mine, [mine.attempt])  # ours alone, and surely not recorded
        except Exception:
            self._check_still_claimed(mine, error)
            raise
        if isinstance(error, Exception):
            self._check_still_claimed(mine, error)

    def _check_still_claimed(self, mine: Checkpoint, error: BaseException) -> None:
        """Raise Fenced in place of the error, if something has ended the attempt; whatever else happens, return."""
        try:
            now = self._transitions.state_table.view(mine.pipeline).require(mine.epoch)
        except Exception:  # not known; the caller raises what it has met
            return
        try:
            _require_claim(mine, now)
        except Fenced as fenced_off:
            raise fenced_off from error

    def claim(
        self,
        name: str,
        epoch: int,
        owner: str | None,
        since: int | None = None,
        code: Mapping[str, Any] = NO_DETAILS,
    ) -> View:
        """Take the next attempt, and return the view after it. What is staged or decided already stays as it is.

        Args:
            code: that makes the rows, for people.
        Raises:
            Fenced: it is not this process's to claim, or no longer.
        """
        nonce = uuid.uuid4().hex[:12]
        worker = f"{socket.gethostname()}:{os.getpid()}"

        def decide(view: View) -> Row | None:
            checkpoint = view.require(epoch)
            if owner is not None and checkpoint.owner != owner:
                raise fenced_error(checkpoint, f"'{checkpoint.owner}' has taken it over")
            if checkpoint.state is State.ABORTING:
                raise fenced_error(checkpoint, "it is being aborted")
            if checkpoint.state not in (State.PLANNED, State.ABORTED):
                return None
            newer: int | None = None
            if checkpoint.state is State.ABORTED:
                newer = find_successor(view, checkpoint)
            if newer:
                raise fenced_error(checkpoint, f"epoch {newer} has continued without it")
            if since is not None and checkpoint.last_seq != since:
                raise fenced_error(checkpoint, "it has changed since this process was started to stage it")
            slot = _find_free_slot(view, checkpoint)
            claim = Claim(nonce, self._transitions.state_table.id, worker, slot, dict(code) or None)
            return view.row(epoch, Event.CLAIMED, checkpoint.attempt + 1, body=claim.to_json())

        return self._transitions.change(name, decide)

    def renew(self, mine: Checkpoint) -> bool:
        """Record that the stage process which claimed `mine` is running; False: its claim has ended."""

        def decide(view: View, now: Checkpoint) -> Row | None:
            is_current = now.live_nonce is not None and now.live_nonce == mine.live_nonce
            if not is_current:
                return None
            return view.row(mine.epoch, Event.RENEWED, mine.attempt)

        return self._transitions.advance(mine.pipeline, mine.epoch, decide).live_nonce == mine.live_nonce

    def pin(self, mine: Checkpoint, schemas: Mapping[str, Any]) -> Checkpoint:
        """Record by which registered schemas this attempt and every later one decode.

        What an earlier attempt has pinned stays, and is in the result.

        Raises:
            Fenced: the claim has ended.
        """

        def decide(view: View, now: Checkpoint) -> Row | None:
            _require_claim(mine, now)
            if now.schemas:
                return None
            return view.row(mine.epoch, Event.PINNED, mine.attempt, body={"schemas": schemas})

        return self._transitions.advance(mine.pipeline, mine.epoch, decide)

    def _stage_claimed(self, view: View, mine: Checkpoint, prepare: Prepare, produce: Produce) -> dict[str, Any]:
        """Stage every sink, and return what the row STAGED says of it."""
        pipeline = mine.definition.pipeline
        if mine.replaces is not None:
            check_sinks(pipeline, view.require(mine.replaces), mine.sinks, mine.named_again, view, self._parts)
            refuse_shown_again(view, mine)
        sinks = {name: self._parts.sink(pipeline, name) for name in mine.sinks}
        restore_check.check_stage(self._transitions.state_table, pipeline, self._parts, view, sinks.values())
        sources = self._parts.sources(pipeline)
        _verify_ranges(sources, mine)
        schemas = prepare(mine)
        pinned = mine
        if schemas:
            pinned = self.pin(mine, schemas)  # before a row is decoded; what an earlier attempt has pinned stays
        produced = produce(pinned)
        if not isinstance(produced, Produced):
            produced = Produced(produced)
        _check_outputs(pipeline, produced.rows)
        handles: dict[str, dict[str, Any]] = {}
        for name, sink in sinks.items():
            handles[name] = _stage_sink(sink, mine, produced, handles)
        if mine.replaces is not None:
            now = self._transitions.state_table.view(mine.pipeline)
            for name, old in now.handles_to_replace(mine).items():
                handles[name]["replaces"] = old
        _verify_ranges(sources, mine)  # a topic deleted, or records removed, while they were read
        return {"handles": handles, "bad": produced.bad, "read": produced.read}

    def record(
        self,
        mine: Checkpoint,
        handles: Mapping[str, Any],
        bad: Mapping[str, Any] = NO_DETAILS,
        read: Mapping[str, Any] = NO_DETAILS,
    ) -> Checkpoint:
        """Record STAGED for the claim `mine`, unless something has ended it since: then what it staged is removed."""

        def decide(view: View, now: Checkpoint) -> Row | None:
            _require_claim(mine, now)
            body: dict[str, Any] = {"handles": handles}
            if bad:
                body["bad"] = bad
            if read:
                body["read"] = read
            return view.row(mine.epoch, Event.STAGED, mine.attempt, body=body)

        try:
            return self._transitions.advance(mine.pipeline, mine.epoch, decide)
        except Fenced:
            self._publisher.discard(mine, [mine.attempt])
            raise


def _stage_sink(sink: Sink, checkpoint: Checkpoint, produced: Produced, staged: Mapping[str, Handle]) -> dict[str, Any]:
    """Stage one sink's rows. An error that nobody classified gets a note with the sink, and stays what it is.

    Args:
        staged: the handles of the sinks before it, for people who wait.
    """
    txn, rows = checkpoint.transaction(sink.name), produced.rows[sink.name]
    try:
        with wait_for(f"the rows of sink '{sink.name}' to be staged") as wait:
            wait.detail = _describe_staged(staged)
            if produced.is_small_batch:
                return dict(sink.stage_small_batch(txn, rows))
            return dict(sink.stage(txn, rows))
    except Exception as error:
        if not isinstance(error, OnceonlyError):
            error.add_note(f"It happened while the rows of sink '{sink.name}' were written.")
        raise


def _describe_staged(staged: Mapping[str, Handle]) -> str:
    """Return 'after 1,204 rows of lake, 3 rows of late'; empty before the first sink is staged."""
    texts = []
    for name, handle in staged.items():
        if handle.get("rows") is not None:
            texts.append(f"{count(handle['rows'], 'row')} of {name}")
    return f"after {', '.join(texts)}" if texts else ""


def _require_claim(mine: Checkpoint, now: Checkpoint) -> None:
    """Refuse to write for a claim that something has ended since."""
    if now.live_nonce is None or now.live_nonce != mine.live_nonce:
        was = f"this was attempt {mine.attempt}, which has been ended"
        raise fenced_error(now, f"attempt {now.attempt} is current and {was}")


def find_successor(view: View, aborted: Checkpoint) -> int | None:
    """Return the epoch that came after an aborted checkpoint and covers its records, or has taken the place it was for.

    That is a newer request, an older one that was planned again, a rewind, or `onceonly state forward`. None: no other
    one has.
    """
    if aborted.interval:
        same_records = view.planned_for(aborted.interval)
    elif aborted.is_repair:
        same_records = view.repairs_of(aborted.origin)
    else:
        return view.head.chain if view.head.chain != aborted.epoch else None
    for other in reversed(same_records):
        is_rival = aborted.replaces is not None and other.replaces == aborted.replaces
        has_its_place = is_rival and other.state is not State.ABORTED
        if other.epoch > aborted.epoch or (has_its_place and other.epoch != aborted.epoch):
            return other.epoch
    return None if aborted.interval else view.find_rewind_of(aborted.epoch)


def find_state_before(view: View, checkpoint: Checkpoint) -> Handle | None:
    """Find the handle of the pipeline's state as the checkpoint before left it; None: there was none, or it keeps none.

    Raises:
        InvalidPipeline: what is before is not committed, or its state was given up.
    """
    state_sink = checkpoint.definition.pipeline.state
    if state_sink is None:
        return None
    before = view.continued_from(checkpoint)
    while before and state_sink.name in before.sinks:
        _require_state(checkpoint, before, state_sink.name)
        if state_sink.name in before.handles:
            return before.handles[state_sink.name]
        before = view.continued_from(before)
    return None


def check_state_before(pipeline: Pipeline, repaired: Checkpoint, view: View, parts: Parts) -> None:
    """Refuse a repair whose rows cannot be computed, because the state from which they were is not there any more.

    Args:
        pipeline: as it is now.
        repaired: the checkpoint to repair, or one that does so.
    Raises:
        InvalidPipeline: it was computed without this state, or a part of what it was computed from is missing.
        OutcomeUnknown: the storage of the state does not answer.
    """
    state = pipeline.state
    if state is None:
        return
    origin = view.require(repaired.origin)
    if state.name not in origin.sinks:
        raise _missing_state_error(pipeline, origin, f"That checkpoint was computed without the state '{state.name}'.")
    before = find_state_before(view, origin)
    backend = parts.sink(pipeline, state.name)
    if before is None or not isinstance(backend, StateBackend):
        return
    missing = backend.find_missing(before)
    if missing:
        raise _missing_state_error(pipeline, origin, f"Its rows are computed from the state before it: {missing}.")


def _missing_state_error(pipeline: Pipeline, origin: Checkpoint, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{pipeline.name}: epoch {origin.epoch} cannot be repaired.",
        why,
        "Restore that state, or process the records by a pipeline with a new name and new targets. Nothing was "
        "written.",
        code="state-before-missing",
    )


def _require_state(checkpoint: Checkpoint, before: Checkpoint, sink: str) -> None:
    if before.state is State.COMMITTED and not (sink in before.given_up or sink in before.missing):
        return
    if sink in before.missing:
        raise _lost_state_error(checkpoint, before)
    why = f"is {before.state.value}"
    if sink in before.given_up:
        why = "was given up"
    raise InvalidPipeline(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch} has no state to continue from.",
        f"The state of epoch {before.epoch} {why}.",
        f"Settle it first: onceonly describe {checkpoint.pipeline} {before.epoch}. Nothing was staged.",
        code="state-unsettled",
    )


def _lost_state_error(checkpoint: Checkpoint, before: Checkpoint) -> InvalidPipeline:
    return InvalidPipeline(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch} has no state to continue from.",
        f"The state of epoch {before.epoch} is missing: its target went back, and that was accepted.",
        f"Go back to the last epoch whose state is there: onceonly status {checkpoint.pipeline}, then: onceonly rewind "
        f"{checkpoint.pipeline} EPOCH --reason …. Nothing was staged.",
        code="state-missing",
    )


def _verify_ranges(sources: Mapping[str, Source], checkpoint: Checkpoint) -> None:
    for range_ in checkpoint.ranges:
        sources[range_.topic].verify((range_,))


def _check_outputs(pipeline: Pipeline, outputs: Mapping[str, Any]) -> None:
    names = {sink.name for sink in pipeline.sinks}
    if set(outputs) != names:
        raise InvalidPipeline(
            f"{pipeline.name}: the transform's outputs do not match the sinks.",
            f"It returned {sorted(outputs)} and the sinks are {sorted(names)}.",
            "Return one DataFrame per sink, by name. Nothing was staged.",
            code="transform-result-invalid",
        )


# ---- the pool of transactional ids: slots that the state table leases to attempts


def _find_free_slot(view: View, checkpoint: Checkpoint) -> int | None:
    """Find a slot for the checkpoint's next attempt; None: its pipeline has no pool.

    One that no unsettled checkpoint holds; else one of its own earlier attempts, which will surely not be recorded.

    Raises:
        NotCommitted: all are leased.
    """
    pipeline = checkpoint.definition.pipeline
    slot_count = count_slots(pipeline)
    if slot_count is None:
        return None
    own_slots = _leased_slots([checkpoint])
    leased_slots = _leased_slots([other for other in view.open if other.epoch != checkpoint.epoch])
    free_slots = [slot for slot in range(slot_count) if slot not in leased_slots]
    if free_slots:
        return min(free_slots, key=lambda slot: (slot in own_slots, slot))
    raise NotCommitted(
        f"{pipeline.name} epoch {checkpoint.epoch}: every slot of the pool of transactional ids is leased.",
        f"pool_size={slot_count}, and that many attempts wait for their outcome to be recorded.",
        f"Settle them: onceonly recover {pipeline.name}. Or raise KafkaSink(pool_size=…). Nothing was staged.",
        code="pool-exhausted",
    )


def _leased_slots(checkpoints: Iterable[Checkpoint]) -> set[int]:
    slots = set()
    for checkpoint in checkpoints:
        for claim in checkpoint.claims.values():
            if claim.slot is not None:
                slots.add(claim.slot)
    return slots
