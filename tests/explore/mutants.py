"""Guards of the core, each with the text that takes it out and the scenario that has to notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One guard taken out: in `module`, `text` (which is there once) becomes `instead`.

    Args:
        seen_by: scenario that breaks a promise without the guard.
    """

    name: str
    module: str
    text: str
    instead: str
    seen_by: str


COORDINATOR = "onceonly.coordinator.coordinator"
PLAN, STAGE, GATE, PUBLISH, ABORT, RESOLVE, REWIND, SWEEP, SKIP = (
    f"onceonly.coordinator.{name}"
    for name in ("plan", "stage", "gate", "publish", "abort", "resolve", "rewind", "sweep", "skip")
)
REHEARSAL, MANUAL, HISTORY, ACCEPT_LOSS = (
    f"onceonly.coordinator.{name}" for name in ("rehearsal", "manual", "target_history", "accept_loss")
)
REPROCESS, REPAIR = "onceonly.coordinator.reprocess", "onceonly.coordinator.repair"
MODEL, OFFSETS = "onceonly.checkpoint.model", "onceonly.checkpoint.offsets"
ROW_FORMAT, VIEW = (
    "onceonly.statetable.row_format",
    "onceonly.statetable.view",
)

FIXES = [
    Mutant(
        "01: STAGED by the attempt's number alone",
        STAGE,
        "if now.live_nonce is None or now.live_nonce != mine.live_nonce:",
        "if now.state is not State.PLANNED or now.attempt != mine.attempt:",
        "two-runs",
    ),
    Mutant(
        "02: a claim lives on when it is planned again",
        MODEL,
        'return {**owners, **plan, **NOTHING_STAGED, "schemas": _keep_schemas(checkpoint, row), **_repin_ranges(row)}',
        'return {**owners, **plan, **NOTHING_STAGED, "live_nonce": checkpoint.live_nonce, "schemas": {}}',
        "sink-added",
    ),
    Mutant(
        "05: a rewind is given up while its rows are there",
        RESOLVE,
        "if waiting.rewinds_to is not None and not removed:",
        "if False:",
        "rewind-give-up",
    ),
    Mutant(
        "06: given up without a fence",
        RESOLVE,
        "outcome = live.fence(checkpoint.handles[sink], checkpoint.decision or 0)",
        "outcome = None",
        "give-up-in-flight",
    ),
    Mutant(
        "06: what the fence finds is not looked at",
        RESOLVE,
        "        if outcome:\n            return self._publisher.record_published(seen, epoch, sink, outcome)\n",
        "",
        "give-up-fails",
    ),
    Mutant(
        "06: a fence that fails is taken for one",
        RESOLVE,
        "            if not gone:\n                raise _not_fenced_error(checkpoint, sink, error) from error\n",
        "",
        "give-up-in-flight",
    ),
    Mutant(
        "10: a sink that was fenced is passed over",
        PUBLISH,
        "                raise _fenced_target_error(error, checkpoint, sink) from error  # at the target; no outcome is recorded\n",
        "                raise\n",
        "fenced-by-others",
    ),
    Mutant(
        "14: discarded by the definition of now",
        PUBLISH,
        "pipeline = checkpoint.claimed_under[attempt].pipeline\n            for sink in checkpoint.sinks_of(attempt):",
        "pipeline = checkpoint.definition.pipeline\n            for sink in checkpoint.sinks:",
        "sink-gone-goes-on",
    ),
    Mutant(
        "14: swept by the definition of now",
        SWEEP,
        "for definition in (checkpoint.definition, *checkpoint.claimed_under.values()):",
        "for definition in (checkpoint.definition,):",
        "sink-gone",
    ),
    Mutant(
        "given up out of order",
        RESOLVE,
        "                _refuse_out_of_order(view, view.require(epoch), sink)\n",
        "",
        "give-up-second",
    ),
]

GUARDS = [
    Mutant(
        "a handle is replaced whatever it is by now",
        PUBLISH,
        "if self._sink not in now.waiting or dict(now.handles[self._sink]) != dict(old):",
        "if self._sink not in now.waiting:",
        "two-write-again",
    ),
    Mutant(
        "claimed while it is being aborted",
        STAGE,
        "            if checkpoint.state is State.ABORTING:\n"
        '                raise fenced_error(checkpoint, "it is being aborted")\n'
        "            if checkpoint.state not in (State.PLANNED, State.ABORTED):",
        "            if checkpoint.state not in (State.PLANNED, State.ABORTED, State.ABORTING):",
        "abort-stage",
    ),
    Mutant(
        "aborted after the decision",
        ABORT,
        "            if checkpoint.state in (State.COMMITTING, State.COMMITTED):\n"
        '                raise fenced_error(checkpoint, "the decision to publish it is made", "it can no longer be aborted")\n',
        "            if checkpoint.state in (State.COMMITTING, State.COMMITTED):\n                return None\n",
        "abort-commit",
    ),
    Mutant(
        "claimed whoever owns it by now",
        STAGE,
        "            if owner is not None and checkpoint.owner != owner:\n"
        "                raise fenced_error(checkpoint, f\"'{checkpoint.owner}' has taken it over\")\n"
        "            if checkpoint.state is State.ABORTING:\n"
        '                raise fenced_error(checkpoint, "it is being aborted")',
        "            if checkpoint.state is State.ABORTING:\n"
        '                raise fenced_error(checkpoint, "it is being aborted")',
        "two-runs",
    ),
    Mutant(
        "aborted whoever owns it by now",
        ABORT,
        "            if owner is not None and checkpoint.owner != owner:\n"
        "                raise fenced_error(checkpoint, f\"'{checkpoint.owner}' has taken it over\")\n"
        "            if checkpoint.state in (State.COMMITTING, State.COMMITTED):",
        "            if checkpoint.state in (State.COMMITTING, State.COMMITTED):",
        "two-runs",
    ),
    Mutant(
        "claimed by who waited in a queue",
        STAGE,
        "if since is not None and checkpoint.last_seq != since:",
        "if False:",
        "queued",
    ),
    Mutant(
        "claimed although others have gone on without it",
        STAGE,
        "newer = find_successor(view, checkpoint)",
        "newer = None",
        "rewind-staged-again",
    ),
    Mutant(
        "an abort that is not the one carried out is recorded",
        ABORT,
        "current = now.last_seq == mine.last_seq  # the very abort that was carried out, and no later one",
        "current = now.state is State.ABORTING",
        "aborted-again",
    ),
    Mutant(
        "an error while staging leaves what is staged",
        STAGE,
        "            self._publisher.discard(mine, [mine.attempt])  # ours alone, and surely not recorded\n",
        "            pass\n",
        "stage-fails",
    ),
    Mutant(
        "who is fenced leaves what it staged",
        STAGE,
        "        except Fenced:\n            self._publisher.discard(mine, [mine.attempt])\n            raise",
        "        except Fenced:\n            raise",
        "stage-fenced",
    ),
    Mutant(
        "a sink that failed takes its later decisions",
        PUBLISH,
        "                    failed_sinks.add(sink)\n",
        "",
        "doubt-holds-up",
    ),
    Mutant(
        "decisions are carried out as they are found",
        PUBLISH,
        "sorted(decided_checkpoints, key=lambda cp: cp.decision or 0)",
        "decided_checkpoints",
        "doubt-holds-up",
    ),
    Mutant(
        "committed while sinks are waiting",
        PUBLISH,
        "if now.state is not State.COMMITTING or now.waiting:",
        "if now.state is not State.COMMITTING:",
        "commit-twice",
    ),
    Mutant(
        "given up by a handle that is another by now",
        RESOLVE,
        "if sink not in now.waiting or now.handles[sink] != waiting.handles[sink]:",
        "if sink not in now.waiting:",
        "give-up-fails-late",
    ),
    Mutant(
        "in doubt by what was judged already",
        RESOLVE,
        "if sink not in now.in_doubt or now.handles[sink] != old:",
        "if False:",
        "doubt-ends",
    ),
    Mutant(
        "earlier attempts are left when it is committed",
        PUBLISH,
        "            self.discard(done, [attempt for attempt in done.claims if attempt != done.attempt])\n",
        "",
        "sink-gone-goes-on",
    ),
    Mutant(
        "decided without a verdict",
        GATE,
        "    if checkpoint.verdict is None:\n        raise NotCommitted(",
        "    if checkpoint.verdict is None:\n        return\n        raise NotCommitted(",
        "commit-ungated",
    ),
    Mutant(
        "a later verdict counts",
        GATE,
        "            if self._current(view, checkpoint).verdict:\n                return None\n",
        "            self._current(view, checkpoint)\n",
        "two-verdicts",
    ),
    Mutant(
        "a verdict on another attempt counts",
        GATE,
        "if now.attempt != checkpoint.attempt or (now.state is not State.STAGED and not now.verdict):",
        "if now.state is not State.STAGED and not now.verdict:",
        "staged-again",
    ),
    Mutant(
        "aborted although a person decides",
        ABORT,
        "            if checkpoint.has_been_held and who is None:\n"
        '                raise fenced_error(checkpoint, "its gate failed it and holds it", "only a person may abort it")\n',
        "",
        "held",
    ),
    Mutant(
        "approved what is not held",
        GATE,
        "            if not now.is_held:\n                raise _not_held_error(now)\n",
        "            if now.state is not State.STAGED:\n                raise _not_held_error(now)\n",
        "held",
    ),
    Mutant(
        "swept while it is staged",
        SWEEP,
        "return txn.attempt < owner.attempt or owner.state is State.ABORTED",
        "return txn.attempt <= owner.attempt",
        "sweep-stage",
    ),
    Mutant(
        "the sweep reads the state first",
        SWEEP,
        "    leftovers = recent_leftovers\n    if leftovers is None:\n        leftovers = list(live.leftovers(prefix))\n    if leftovers:\n        view = state_table.view(name)  # after the list: what was claimed since cannot be in it\n",
        "    view = state_table.view(name)\n    leftovers = recent_leftovers\n    if leftovers is None:\n        leftovers = list(live.leftovers(prefix))\n    if leftovers:\n",
        "sweep-aborted",
    ),
    Mutant(
        "a slot is leased twice",
        STAGE,
        "free_slots = [slot for slot in range(slot_count) if slot not in leased_slots]",
        "free_slots = list(range(slot_count))",
        "pool-intervals",
    ),
    Mutant(
        "the pool is ended by an older look",
        SWEEP,
        '    open_transactions = live.list_pooled(f"{state_table.id}-{pipeline}-{live.name}")\n    if not open_transactions:\n        return []\n    view = state_table.view(pipeline)  # after the list: what a newer lease has opened since cannot be in it\n',
        '    view = state_table.view(pipeline)\n    open_transactions = live.list_pooled(f"{state_table.id}-{pipeline}-{live.name}")\n    if not open_transactions:\n        return []\n',
        "pool-intervals",
    ),
    Mutant(
        "what waits in the pool is ended",
        SWEEP,
        "return waits and live.is_needed(holder.handles[sink], txn)",
        "return False",
        "pool-kept",
    ),
    Mutant(
        "boundaries are not put between their neighbours",
        OFFSETS,
        "clamped[partition] = max(low, offset if high is None else min(offset, high))",
        "clamped[partition] = offset",
        "late-records",
    ),
    Mutant(
        "a rewind beside what is open",
        REWIND,
        "    if view.open:\n",
        "    if False:\n",
        "rewind-run",
    ),
    Mutant(
        "a task that runs twice replaces twice",
        PLAN,
        "if self.reprocess and checkpoint.request == self.reprocess.request:",
        "if False:",
        "reprocess-twice",
    ),
    Mutant(
        "taken over while its owner is at work",
        PLAN,
        "if checkpoint.owner != self.owner and checkpoint.state is not State.ABORTED:",
        "if False:",
        "polite-runs",
    ),
    Mutant(
        "what was given up is taken for replaced",
        VIEW,
        "own = {name: handle for name, handle in checkpoint.handles.items() if checkpoint.is_shown_by(name)}",
        "own = dict(checkpoint.handles)",
        "give-up-reprocessed",
    ),
    Mutant(
        "what another has published meanwhile is an error",
        PUBLISH,
        "            if sink in now.require(checkpoint.epoch).published:\n                return now  # by another process meanwhile, which may be why it failed here\n",
        "",
        "late",
    ),
    Mutant(
        "offsets are left out that are staged",
        SKIP,
        "    if view.open:\n",
        "    if False:\n",
        "skip-staged",
    ),
    Mutant(
        "what an aborted checkpoint pinned is left out, too",
        SKIP,
        "    committed = latest.state is State.COMMITTED\n",
        "    committed = True\n",
        "skip-aborted",
    ),
    Mutant(
        "offsets are left out that were read",
        SKIP,
        "if not start < skip.to <= end:",
        "if False:",
        "skip-twice",
    ),
    Mutant(
        "a row is written beside another",
        "explore.table",
        "if self.chain(row.pipeline) is not chain or row.seq != chain.head.seq + 1:",
        "if row.seq != chain.head.seq + 1 and False:",
        "two-runs",
    ),
]

# Guards of the edge: what was rehearsed, what people have seen, and targets that change behind everybody's back
EDGE = [
    Mutant(
        "published is recorded beside given up",
        PUBLISH,
        "            if sink not in now.waiting:\n                return None\n            body: dict[str, Any] =",
        "            if sink in now.published:\n                return None\n            body: dict[str, Any] =",
        "give-up-gone",
    ),
    Mutant(
        "given up from a stale view",
        RESOLVE,
        "            self._publisher.publish(view)  # a last try, which is also what it takes for other sinks\n"
        "            view = self._transitions.state_table.view(name)\n",
        "            self._publisher.publish(view)  # a last try, which is also what it takes for other sinks\n",
        "give-up-available",
    ),
    Mutant(
        "recovery settles what an owner has staged who is alive",
        COORDINATOR,
        "case State.STAGED if not alive(checkpoint):",
        "case State.STAGED:",
        "recover-alive",
    ),
    Mutant(
        "recovery aborts what an owner has planned who is alive",
        COORDINATOR,
        "case State.PLANNED if not alive(checkpoint):",
        "case State.PLANNED:",
        "recover-alive",
    ),
    Mutant(
        "published from a view before the decision",
        REHEARSAL,
        "            view = self._record_decision(view, checkpoint, basis, handles)\n"
        "            decided = view.require(epoch)\n",
        "            decided = self._record_decision(view, checkpoint, basis, handles).require(epoch)\n",
        "commit-alone",
    ),
    Mutant(
        "a pipeline is renamed",
        COORDINATOR,
        "        view = self.state_table.tidy(self.state_table.view(pipeline.name))\n"
        "        restore_check.refuse_renamed(self.state_table, view, pipeline, sources)\n",
        "        view = self.state_table.tidy(self.state_table.view(pipeline.name))\n",
        "renamed",
    ),
    Mutant(
        "an approval outlives its attempt",
        MODEL,
        "verdict=None, approved=None,",
        "verdict=None,",
        "approval-ends",
    ),
    Mutant(
        "what was held is never settled once nothing is staged",
        MODEL,
        "        if self.gate is None or self.verdict is None:\n            return False\n        return self.gate",
        "        if self.gate is None:\n            return False\n        return self.gate",
        "approves-too-late",
    ),
    Mutant(
        "approved where an earlier attempt failed",
        MODEL,
        'self.gate["on_fail"] == "hold" and self.attempt in self.failed_attempts',
        'self.gate["on_fail"] == "hold" and bool(self.failed_attempts)',
        "approves-another",
    ),
    Mutant(
        "decided without a rehearsal of what changed meanwhile",
        REHEARSAL,
        "            if Basis.from_view(now, epoch) != basis:\n"
        "                return None\n"
        "            return now.row(epoch, Event.COMMITTING, checkpoint.attempt, decision=basis.decision + 1, body=body)",
        "            mine = now.require(epoch)\n"
        "            if mine.state is not State.STAGED or mine.attempt != checkpoint.attempt:\n"
        "                return None\n"
        "            return now.row(epoch, Event.COMMITTING, mine.attempt, decision=now.head.decision + 1, body=body)",
        "two-columns",
    ),
    Mutant(
        "decided on another attempt than was rehearsed",
        REHEARSAL,
        '            claim.nonce if claim else "",\n            checkpoint.handles,\n',
        '            "",\n            {},\n',
        "staged-again-behind",
    ),
    Mutant(
        "decided although it was aborted while it was rehearsed",
        REHEARSAL,
        "            checkpoint.state,\n            claim",
        "            State.STAGED,\n            claim",
        "abort-commit",
    ),
    Mutant(
        "decided although its sinks continue from another publication",
        REHEARSAL,
        "            {sink: target_history.publications_of(view, sink) for sink in checkpoint.handles},\n",
        "            {},\n",
        "loss-accepted-rehearsed",
    ),
    Mutant(
        "decided without asking for the verdict on what was staged meanwhile",
        REHEARSAL,
        "            if view.require(epoch).last_seq != checkpoint.last_seq:\n",
        "            checkpoint = view.require(epoch)\n            if checkpoint.state is not State.STAGED:\n",
        "staged-again-behind",
    ),
    Mutant(
        "recovery decides on another attempt than it has looked at",
        COORDINATOR,
        "            self.commit(name, epoch, attempt)\n",
        "            self.commit(name, epoch)\n",
        "recover-taken-over",
    ),
    Mutant(
        "recovery judges another attempt than it has looked at",
        COORDINATOR,
        'self.gate(name, epoch, "recovery", attempt)',
        'self.gate(name, epoch, "recovery")',
        "recover-taken-over",
    ),
    Mutant(
        "staged again without a bound",
        REHEARSAL,
        " and len(checkpoint.unfit_attempts) < MAX_UNFIT_ATTEMPTS\n",
        "\n",
        "damaged-each-time",
    ),
    Mutant(
        "the attempts that did not fit are forgotten",
        MODEL,
        "unfit = checkpoint.unfit_attempts | {row.attempt} if",
        "unfit = frozenset({row.attempt}) if",
        "damaged-each-time",
    ),
    Mutant(
        "given up where the target went back",
        RESOLVE,
        "            self._publisher.require_accepted(seen, checkpoint, sink)\n",
        "",
        "give-up-went-back",
    ),
    Mutant(
        "given up where nobody knows whether the target went back",
        RESOLVE,
        "            self._publisher.require_accepted(seen, checkpoint, sink)\n",
        "            try:\n"
        "                self._publisher.require_accepted(seen, checkpoint, sink)\n"
        "            except Exception as error:\n"
        "                if isinstance(error, InvalidPipeline):\n"
        "                    raise\n",
        "give-up-went-back",
    ),
    Mutant(
        "published to where it is not recorded to the end what is missing",
        HISTORY,
        "    if not last.absent and is_missing(view, live.name, last):\n",
        "    if False:\n",
        "loss-half-accepted",
    ),
    Mutant(
        "plan ignores a target that is there again",
        HISTORY,
        "        return self.is_back or (not",
        "        return (not",
        "absence-accepted",
    ),
    Mutant(
        "plan ignores that what was accepted as lost is there again",
        HISTORY,
        "        return self.shows_lost or is_missing(",
        "        return is_missing(",
        "loss-returns",
    ),
    Mutant(
        "published to where what was accepted as lost is there again",
        HISTORY,
        "    return _add_lost(view, live.name, last)\n",
        "    return last\n",
        "loss-returns",
    ),
    Mutant(
        "a rehearsal goes by what it has computed before another decision",
        REHEARSAL,
        "            view.head.decision,\n            {sink:",
        "            0,\n            {sink:",
        "two-columns",
    ),
    Mutant(
        "the rehearsal ignores that it has to be staged again",
        REHEARSAL,
        "            except TargetWentBack as error:\n",
        "            except StageAgain:\n                continue\n            except TargetWentBack as error:\n",
        "two-columns",
    ),
    Mutant(
        "plan ignores a target that went back",
        COORDINATOR,
        "        notes = target_history.check(self.state_table, self.parts, pipeline, current_view)\n",
        "        notes = list[str]()\n",
        "went-back",
    ),
    Mutant(
        "stage ignores a target that went back",
        STAGE,
        "        self._check_targets(self._transitions.state_table.view(name), epoch)\n",
        "",
        "went-back-planned",
    ),
    Mutant(
        "the rehearsal ignores a target that went back",
        REHEARSAL,
        "                last = target_history.last_publication(sinks[name], view)\n",
        "                last = None\n",
        "went-back-staged",
    ),
    Mutant(
        "commit ignores a target that went back",
        PUBLISH,
        "            last = target_history.last_publication(live, view)\n",
        "            last = None\n",
        "went-back-decided",
    ),
    Mutant(
        "manual actions ignore what the person has seen",
        MANUAL,
        "        if self.seen.seq < subject.seq:\n",
        "        if False:\n",
        "approves-too-late",
    ),
    Mutant(
        "approved whatever the person has seen",
        GATE,
        "action.guard(decide)).require(epoch)",
        "decide).require(epoch)",
        "approves-too-late",
    ),
    Mutant(
        "aborted whatever the person has seen",
        ABORT,
        "guarded = action.guard(decide) if action else decide",
        "guarded = decide",
        "held",
    ),
    Mutant(
        "gone back whatever the person has seen",
        REHEARSAL,
        "self._transitions.change(name, action.guard(decide), view)",
        "self._transitions.change(name, decide, view)",
        "rewind-run",
    ),
    Mutant(
        "offsets left out whatever the person has seen",
        SKIP,
        "action.guard(lambda view: _offsets_row(view, source, skip))",
        "lambda view: _offsets_row(view, source, skip)",
        "skip-both",
    ),
    Mutant(
        "given up whatever the person has seen",
        RESOLVE,
        "                return None\n"
        "            return sink_row(view, now, sink, Event.GIVEN_UP, {**action.body, **not_fenced, **evidence})\n\n"
        "        return self._transitions.change(seen.pipeline, action.guard(decide, is_own))",
        "                return None\n"
        "            return sink_row(view, now, sink, Event.GIVEN_UP, {**action.body, **not_fenced, **evidence})\n\n"
        "        return self._transitions.change(seen.pipeline, decide)",
        "give-up-both",
    ),
    Mutant(
        "a loss accepted whatever the person has seen",
        ACCEPT_LOSS,
        "        action.require_unchanged(loss.comparison.view, is_own)\n",
        "",
        "loss-accepted-rehearsed",
    ),
    Mutant(
        "a loss is accepted by an older look at the target",
        ACCEPT_LOSS,
        "        is_first = now.head.seq == view.head.seq\n",
        "        is_first = True\n",
        "loss-accepted-twice",
    ),
]

REPAIRS = [
    Mutant(
        "a chain goes on from a repair",
        ROW_FORMAT,
        "chain=self.chain if checkpoint.is_repair else max(self.chain, row.epoch)",
        "chain=max(self.chain, row.epoch)",
        "chain-past-live",
    ),
    Mutant(
        "the state goes on from a repair",
        VIEW,
        "if earlier is None or not earlier.is_repair:",
        "if True:",
        "chain-past-state",
    ),
    Mutant(
        "rows come once more each time their request is repeated",
        PLAN,
        "if self._has_replaced(view, checkpoint) and (self.reprocess.again or not is_outdated):",
        "if False:",
        "repair-once-more",
    ),
    Mutant(
        "a repair writes all sinks",
        MODEL,
        "        if self.only is None:\n            return names\n",
        "        return names\n",
        "repair-three-sinks",
    ),
    Mutant(
        "rows in force are left where only some sinks are written",
        VIEW,
        "if name in checkpoint.sinks and name not in checkpoint.again:",
        "if checkpoint.only is None:",
        "repair-recover",
    ),
    Mutant(
        "what is in force is asked of the last checkpoint alone",
        VIEW,
        "        if checkpoint.replaces is None:\n            return own\n        return {**self",
        "        if True:\n            return own\n        return {**self",
        "reprocess-after-repair",
    ),
    Mutant(
        "published beside rows that are there again",
        REHEARSAL,
        'if handle.get("replaces") != basis.replaced.get(sink):',
        "if False:",
        "repair-lost",
    ),
    Mutant(
        "a rewind leaves the repairs of what it retracts",
        REWIND,
        "filter(_has_published, _with_repairs(view, later))",
        "filter(_has_published, later)",
        "chain-past-rewind",
    ),
    Mutant(
        "what a repair leaves in a new sink is not swept",
        SWEEP,
        "for checkpoint in (view.latest, last) if checkpoint",
        "for checkpoint in (view.latest,) if checkpoint",
        "new-sink-past",
    ),
    Mutant(
        "an aborted repair is staged although another has come in its place",
        STAGE,
        "        same_records = view.repairs_of(aborted.origin)\n",
        "        return None\n",
        "chain-past-aborted",
    ),
    Mutant(
        "an aborted repair is staged although an older one has taken its place since",
        STAGE,
        "if other.epoch > aborted.epoch or (has_its_place and other.epoch != aborted.epoch):",
        "if other.epoch > aborted.epoch:",
        "repairs-aborted",
    ),
    Mutant(
        "an aborted repair goes on although another has taken its place since",
        PLAN,
        "if checkpoint.replaces == last.epoch and self._asks_for(view, checkpoint):",
        "if self._asks_for(view, checkpoint):",
        "repairs-aborted",
    ),
    Mutant(
        "an aborted repair is staged although a rewind has taken back what it repairs",
        STAGE,
        "    return None if aborted.interval else view.find_rewind_of(aborted.epoch)\n",
        "    return None\n",
        "chain-past-rewound",
    ),
    Mutant(
        "rows come beside those of which nobody knows whether they are there",
        REPROCESS,
        "        if unclear and name not in again:\n",
        "        if False:\n",
        "repair-unclear",
    ),
    Mutant(
        "a chain goes on from a repair of all sinks",
        REPROCESS,
        "return old.interval is None or len(sinks) < len(pipeline.sinks)",
        "return len(sinks) < len(pipeline.sinks)",
        "chain-again-live",
    ),
    Mutant(
        "a request is taken for done that was done for other sinks",
        PLAN,
        "    if all(differing):\n",
        "    if False:\n",
        "repair-other-wish",
    ),
    Mutant(
        "an aborted repair of other sinks goes on",
        PLAN,
        'return is_alike and list(aborted.only or ()) == repair.get("only", [])',
        "return is_alike",
        "chain-past-aborted",
    ),
    Mutant(
        "what a rewind has taken back is repaired",
        PLAN,
        " or checkpoint.state is State.ABORTED or view.is_rewound(checkpoint.epoch):\n            raise InvalidPipeline(",
        " or checkpoint.state is State.ABORTED:\n            raise InvalidPipeline(",
        "chain-past-rewind",
    ),
    Mutant(
        "published rows come once more although nobody has named the sink",
        REPROCESS,
        "elif not is_again and (handle is not None or is_lost):",
        "elif not is_again and is_lost:",
        "repair-unnamed",
    ),
    Mutant(
        "lost rows come once more although nobody has named the sink",
        REPROCESS,
        "elif not is_again and (handle is not None or is_lost):",
        "elif not is_again and handle is not None:",
        "lost-ledger-unnamed",
    ),
    Mutant(
        "a sink is completed that has the rows",
        REPROCESS,
        "self.only and (sink.name not in self.only or sink.name in complete)",
        "self.only and sink.name not in self.only",
        "new-topic-past-twice",
    ),
    Mutant(
        "an interval that was never processed is run for all sinks by a request for one",
        PLAN,
        "        if self.reprocess and self.reprocess.only:\n"
        "            raise _unprocessed_error(self.pipeline, self.planner.interval)\n",
        "",
        "past-of-nothing",
    ),
    Mutant(
        "an aborted checkpoint goes on for all sinks by a request for one",
        PLAN,
        "        if self.reprocess and self.reprocess.only and existing.state is State.ABORTED and existing.replaces is None:\n",
        "        if False:\n",
        "past-of-aborted",
    ),
    Mutant(
        "an older day takes out a newer one",
        REHEARSAL,
        "refusal = _find_newer_rows(view, checkpoint, sinks)",
        "refusal = None",
        "older-day",
    ),
    Mutant(
        "what was run last counts as the newest day",
        REHEARSAL,
        "return checkpoint.interval.start.timestamp(), 0",
        "return 0, checkpoint.origin",
        "older-day-run-later",
    ),
    Mutant(
        "a repair counts as the newest of a chain",
        REHEARSAL,
        "    return 0, checkpoint.origin\n",
        "    return 0, checkpoint.epoch\n",
        "older-epoch",
    ),
    Mutant(
        "rewound over rows of which nobody knows whether they are there",
        REWIND,
        "    _refuse_unclear(view, epoch, later, newest)\n",
        "",
        "rewind-unclear",
    ),
]

LOST = [
    Mutant(
        "rows that a sink has lost come once more although they are there again",
        REHEARSAL,
        "    if basis.shown_again:\n",
        "    if False:\n",
        "lost-ledger-staged",
    ),
    Mutant(
        "a correction that was lost is left out where the rows that it corrected are there",
        REPROCESS,
        "        if self.lost is None:\n            return complete\n",
        "        return complete\n",
        "lost-correction",
    ),
    Mutant(
        "a repair that was lost is repeated where the first rows are there again",
        REPAIR,
        "            if shows_lacked(after, checkpoint, sink):\n",
        "            if False:\n",
        "lost-ledger-returns",
    ),
    Mutant(
        "a repair that is decided is published beside rows that are there again",
        ACCEPT_LOSS,
        " or comes_in_place_of_others(view, checkpoint, sink):",
        ":",
        "lost-ledger-returns",
    ),
    Mutant(
        "an unknown outcome is given up and written again",
        REPAIR,
        "            if failure.sink == sink and not _is_surely_not_published(failure.error):\n",
        "            if False:\n",
        "lost-in-doubt",
    ),
    Mutant(
        "published to where what is there again is recorded only in part",
        HISTORY,
        "                shows_lost = shows_lost or bool(view.head.reappeared.get(sink))  # recorded, and not to its end\n",
        "",
        "lost-half-found",
    ),
    Mutant(
        "published to where what is there again is recorded only in part, by a process that does not compare",
        HISTORY,
        "    if view.head.reappeared.get(live.name):\n",
        "    if False:\n",
        "lost-half-found-staged",
    ),
    Mutant(
        "rows are written again of which a later checkpoint has replaced some",
        REPAIR,
        "        if sink in later.handles:\n            return True\n",
        "",
        "lost-correction",
    ),
]

MUTANTS = [*FIXES, *GUARDS, *EDGE, *REPAIRS, *LOST]
