"""The one place where checkpoints are decided. Sinks, DAGs, the command line and the UI only call it.

Every change of state is a compare-and-set on the state table: read a view, decide from it, write from it, and when
another writer was first, read and decide again. Whatever has an effect outside happens only after the row that
permits it, and may happen again after a crash: so it is idempotent.

`Coordinator` says what each step promises, and which errors it raises. How it is done stands in the step's own module.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, Event, State, Transaction
from onceonly.checkpoint.offsets import Interval
from onceonly.checkpoint.sink import PooledTransaction
from onceonly.coordinator import accept_loss, forward, restore_check, rewind, skip, target_history, upstream
from onceonly.coordinator.abort import Aborter
from onceonly.coordinator.accept_loss import Acceptance, Loss
from onceonly.coordinator.adopt import Takeover, record_takeover
from onceonly.coordinator.forget import forget
from onceonly.coordinator.forward import Forward
from onceonly.coordinator.gate import Gatekeeper, not_approved_error
from onceonly.coordinator.manual import Action, Seen
from onceonly.coordinator.messages import classify_settle_error, classify_sweep_error, uncommitted_error
from onceonly.coordinator.names_in_commands import name_in_commands
from onceonly.coordinator.plan import Planned, Planning
from onceonly.coordinator.publish import Publisher, Rehearsed
from onceonly.coordinator.ranges import RangePlanner
from onceonly.coordinator.rehearsal import Rehearser
from onceonly.coordinator.repair import Lack, Repairer, Wish
from onceonly.coordinator.reprocess import Reprocess, check_request, find_interval
from onceonly.coordinator.resolve import Resolver
from onceonly.coordinator.skip import Skip
from onceonly.coordinator.stage import Prepare, Produce, Renewal, Stager
from onceonly.coordinator.sweep import sweep
from onceonly.errors import Fenced, GateFailed, OnceonlyError, StageAgain
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.table import Notify, StateTable, Transitions
from onceonly.statetable.view import View

Alive = Callable[[Checkpoint], bool]  # is the owner of this checkpoint still running?


@name_in_commands
class Coordinator:
    """Plan, stage, gate, commit, abort and recover checkpoints of the pipelines of one state table."""

    def __init__(self, state_table: StateTable, parts: Parts, notify: Notify | None = None) -> None:
        self.state_table, self.parts = state_table, parts
        self._transitions = Transitions(state_table, notify)
        self._publisher = Publisher(self._transitions, parts)
        self._stager = Stager(self._transitions, parts, self._publisher)
        self._gatekeeper = Gatekeeper(self._transitions, parts)
        self._rehearser = Rehearser(self._transitions, parts, self._publisher)
        self._aborter = Aborter(self._transitions, self._publisher)
        self._resolver = Resolver(self._transitions, self._publisher)
        self._repairer = Repairer(self._transitions, parts, self._publisher, self._resolver)

    # ---- plan

    def plan(
        self,
        pipeline: Pipeline,
        owner: str,
        alive: Alive,
        interval: Interval | None = None,
        reprocess: Reprocess | None = None,
        instance: str | None = None,
    ) -> Planned:
        """Settle what earlier checkpoints left, then pin what the next one covers.

        The same owner (or the same interval) gets the same checkpoint, however often it asks.

        Args:
            reprocess: a checkpoint that is committed gets another one, which takes its place, in all sinks or in some.
            instance: tells the owner from others that had its name before, such as a run that was deleted; None: it
                is not told apart.
        Raises:
            Busy: blocked by an unsettled checkpoint of another owner, who is alive.
            InvalidPipeline, SourceLost: nothing was written.
            ActionNeeded: a target went back, of this pipeline or of one that it reads; nothing was pinned.
        """
        if pipeline.gate:
            self.parts.inspector(pipeline).check()
        sources = self.parts.sources(pipeline)
        if reprocess and reprocess.epoch is not None and pipeline.mode == "interval":
            interval = find_interval(self.state_table.view(pipeline.name), reprocess.epoch, interval)
        find_barrier = None
        if pipeline.after:
            find_barrier = partial(upstream.find_barrier, self.state_table, self.parts, pipeline, interval)
        planner = RangePlanner(pipeline, sources, interval, find_barrier)
        planning = Planning(pipeline, self.parts, planner, owner, reprocess, instance)
        view = self.state_table.tidy(self.state_table.view(pipeline.name))
        restore_check.refuse_renamed(self.state_table, view, pipeline, sources)
        restore_check.check_plan(self.state_table, view, pipeline, self.parts, sources)
        errors = self._settle(view, lambda checkpoint: checkpoint.owner == owner or alive(checkpoint))
        if errors and pipeline.mode == "chained":
            raise errors[0]  # in interval mode the commit task meets it, after its own staging
        current_view: View | None = view
        if view.open:
            current_view = None  # what was open has been settled since
        notes = target_history.check(self.state_table, self.parts, pipeline, current_view)
        planned_view = self._transitions.change(pipeline.name, planning.decide, current_view)
        return replace(planning.result(planned_view), notes=tuple(notes))

    def check_request(self, name: str, epoch: int, request: Reprocess) -> tuple[str, ...]:
        """Return the sinks that a request about a checkpoint would write, as things stand; nothing is written.

        Raises:
            InvalidPipeline: a sink cannot do what is asked for, or there is nothing to write.
            Busy: another request for the same records is under way.
        """
        return check_request(self.state_table.view(name), epoch, request, self.parts)

    # ---- stage

    def stage(
        self,
        name: str,
        epoch: int,
        produce: Produce,
        owner: str | None = None,
        since: int | None = None,
        prepare: Prepare = lambda checkpoint: {},
        renewal: Renewal = nullcontext,
        code: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Claim the next attempt, stage every sink, and record all handles in one row.

        A checkpoint that is staged or decided already is returned as it is.

        Args:
            produce: makes the rows by sink, from the checkpoint as it was claimed, with its schemas pinned.
            owner: who has to own the checkpoint; None: anyone.
            since: the checkpoint's last row when this was asked for. A process that waited in a queue meanwhile takes
                nothing over from a process that came first.
            prepare: called before `produce`; returns the schemas to pin, where no earlier attempt has pinned any.
            renewal: keeps the claim renewed from when it is made until what was staged is recorded or removed.
            code: which code makes the rows; recorded with the claim, for people.
        Raises:
            Fenced: a newer attempt, an abort or another owner took over; what this process wrote is removed.
            ActionNeeded: a target went back; nothing was written.
        """
        return self._stager.stage(name, epoch, prepare, produce, owner, since, renewal, code or {})

    # ---- gate

    def gate(self, name: str, epoch: int, by: str, attempt: int | None = None) -> Checkpoint:
        """Examine what is staged and record the verdict; the first one of an attempt wins.

        A checkpoint without a gate, or with a verdict, is returned as it is; `gate.require_passed` says what follows.

        Args:
            attempt: the only one to examine; None: whichever is current.
        Raises:
            NotCommitted: nothing is staged.
            Fenced: it was aborted, or staged again, meanwhile.
        """
        return self._gatekeeper.examine(name, epoch, by, attempt)

    def approve(self, name: str, epoch: int, who: str, reason: str, seen: Seen | None = None) -> Checkpoint:
        """Record that a held checkpoint may be published although the gate failed it; commit or recover does it.

        Args:
            seen: what the person was shown of the checkpoint. Every manual action is refused without it.
        Raises:
            InvalidPipeline: it is not held, or has changed since the person looked.
        """
        return self._gatekeeper.approve(name, epoch, who, reason, seen)

    def publish_approved(self, name: str, epoch: int, attempt: int) -> Checkpoint:
        """Commit what a person has approved, as that person's act: its run may have ended, or not.

        Args:
            attempt: the one that was approved. Another one is nobody's wish.
        Raises:
            InvalidPipeline: nobody has approved it; nothing was decided.
            Fenced: another attempt is current.
            OnceonlyError: as `commit` raises.
        """
        now = self.state_table.view(name).require(epoch)
        if now.attempt == attempt and now.approved is None:
            raise not_approved_error(now)
        return self.commit(name, epoch, attempt)

    # ---- commit

    def commit(self, name: str, epoch: int, attempt: int | None = None) -> Checkpoint:
        """Rehearse, take the decision, and publish it; each earlier decision that is still waiting comes first.

        Args:
            attempt: the only one to decide on; None: whichever is current.
        Raises:
            Fenced: another attempt is current.
            StageAgain: what was staged could not be published any more. The attempt was aborted, and nothing decided:
                stage it again.
            ActionNeeded: it stays staged, and is not decided, until a person has acted.
            NotCommitted: not staged, aborted, not let through by its gate, or a sink gave no answer (code "no-answer"):
                nothing was decided; call again.
            OnceonlyError: a sink did not publish; the decision stands, call again.
        """
        try:
            view, rehearsed = self._rehearser.decide(name, epoch, attempt)
        except StageAgain:
            now = self.state_table.view(name).require(epoch)
            if now.state is State.ABORTING:
                self._aborter.finish(now)
            raise
        return self._publish(view, epoch, rehearsed)

    def _publish(self, view: View, epoch: int, rehearsed: Rehearsed) -> Checkpoint:
        if view.require(epoch).state is not State.COMMITTED:
            view, failures = self._publisher.publish(view, rehearsed)
            if failures:
                raise failures[0].error
        done = view.require(epoch)
        if done.state is not State.COMMITTED:
            raise uncommitted_error(done)
        self._report(done)
        return done

    def _report(self, done: Checkpoint) -> None:
        """Show how far the pipeline is. Nothing depends on it, so a failure only causes a warning."""
        if done.is_repair:
            return  # its offsets were passed by the checkpoint that it repairs
        try:
            sources = self.parts.sources(done.definition.pipeline)
            for range_ in done.ranges:
                sources[range_.topic].report(done, self.state_table.id)
        except OnceonlyError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=3)

    def require_sinks(self, name: str, epoch: int, gone: Collection[str] = ()) -> None:
        """Open every sink of a checkpoint, before something is recorded that this process is then to carry out.

        Opening asks no service: it finds connections, settings and packages that are missing here.

        Args:
            gone: sinks that nothing is asked of.
        Raises:
            OnceonlyError: one cannot be opened by this process; nothing was recorded.
        """
        pipeline = self.state_table.view(name).require(epoch).definition.pipeline
        for config in pipeline.sinks:
            if config.name not in gone:
                self.parts.sink(pipeline, config.name)

    # ---- abort

    def abort(
        self,
        name: str,
        epoch: int,
        reason: str,
        owner: str | None = None,
        who: str | None = None,
        gone: Collection[str] = (),
        seen: Seen | None = None,
    ) -> Checkpoint:
        """Discard what was staged. Only before the decision.

        What a gate has failed is kept for people to look at, until another attempt begins.

        Args:
            owner: who has to own it still.
            who: the person who decides this, where it is one.
            gone: sinks that do not answer and never will again: what they hold stays, and is never published.
            seen: what that person was shown of the checkpoint.
        Raises:
            InvalidPipeline: the checkpoint has changed since the person looked.
            Fenced: the decision is taken, another owner has taken the checkpoint over, or its gate holds it;
                nothing was touched.
        """
        return self._aborter.abort(name, epoch, reason, owner, who, gone, seen)

    # ---- recover

    def recover(self, name: str, alive: Alive) -> list[Checkpoint]:
        """Settle whatever the pipeline's ended owners left behind, and remove late leftovers.

        Returns:
            The checkpoints that were unsettled, as they are now.
        Raises:
            the first error met, after everything else was tried.
        """
        before = self.state_table.view(name)
        errors = self._settle(before, alive)
        try:
            sweep(self.state_table, self.parts, name, before)
        except Exception as error:
            errors.append(classify_sweep_error(error, name))
        if errors:
            raise errors[0]
        now = before
        if before.open:
            now = self.state_table.view(name)
        return [now.require(checkpoint.epoch) for checkpoint in before.open]

    def _settle(self, view: View, alive: Alive) -> list[Exception]:
        """Publish what is decided, finish aborts, and settle what ended owners have left. Returns the errors met."""
        name = view.pipeline
        errors: list[Exception] = []
        for checkpoint in view.open:
            try:
                match checkpoint.state:
                    case State.COMMITTING:
                        self.commit(name, checkpoint.epoch)
                    case State.STAGED if not alive(checkpoint):
                        self._settle_staged(checkpoint)
                    case State.ABORTING:
                        self._aborter.finish(checkpoint)
                    case State.PLANNED if not alive(checkpoint):
                        reason = f"its owner '{checkpoint.owner}' has ended"
                        self.abort(name, checkpoint.epoch, reason, checkpoint.owner)
            except Fenced:
                continue  # another process has settled it since it was read
            except Exception as error:
                errors.append(classify_settle_error(error, checkpoint))
        return errors

    def _settle_staged(self, staged: Checkpoint) -> None:
        """Commit or abort by the verdict. Without one, the gate is asked now. What is held, `abort` refuses.

        Gate and commit name the attempt: a later one may be of an owner who is alive.
        """
        name, epoch, attempt = staged.pipeline, staged.epoch, staged.attempt
        self.gate(name, epoch, "recovery", attempt)
        try:
            self.commit(name, epoch, attempt)
        except GateFailed:
            self.abort(name, epoch, "the gate failed it", staged.owner)
        except StageAgain:
            return  # aborted by the commit: nobody stages it now, and a next run uses the same offsets

    def sweep(self, name: str) -> list[Transaction | PooledTransaction]:
        """End and remove what no live attempt of the pipeline owns; returns what it was."""
        return sweep(self.state_table, self.parts, name)

    def forget(self, name: str) -> Checkpoint:
        """Let the next checkpoint remove what the pipeline's state was; returns the last one that published it."""
        return forget(self.state_table.view(name), self.parts)

    # ---- rewind

    def list_undone(self, name: str, epoch: int) -> list[Checkpoint]:
        """Return what a rewind to that epoch would retract, the last one first; it changes nothing.

        Raises:
            InvalidPipeline: whatever `rewind` would refuse now, so that nobody is asked about what cannot be done.
        """
        view = self.state_table.view(name)
        later = self._check_rewind(view, epoch)
        rewind.plan_retractions(view, epoch, self.parts, self.state_table.id)
        return later

    def _check_rewind(self, view: View, epoch: int) -> list[Checkpoint]:
        """Return what a rewind would retract. Raise if a target is ahead of the state table or behind."""
        later = rewind.list_undone(view, epoch)
        pipeline = later[0].definition.pipeline
        restore_check.check_stage(self.state_table, pipeline, self.parts, view)
        target_history.check(self.state_table, self.parts, pipeline, view)
        return later

    def rewind(self, name: str, epoch: int, who: str, reason: str, seen: Seen | None = None) -> Checkpoint:
        """Retract what was published after `epoch`, and let the pipeline continue from there.

        Args:
            seen: what the person was shown of the pipeline.
        Raises:
            InvalidPipeline: something is unsettled, a sink cannot retract its rows, targets are ahead of the state
                table, or the pipeline has changed since the person looked; nothing was changed.
            NotCommitted: the rehearsal did not pass; nothing was changed.
            OnceonlyError: a sink did not do it; the decision stands, recover finishes it.
        """
        action = rewind.action(epoch, who, reason, seen)
        row = action.record(self.state_table.view(name))
        if row:
            return self.commit(name, row.epoch)
        action.require_unchanged(self.state_table.view(name))
        self._check_rewind(self.state_table.view(name), epoch)
        view, rehearsed = self._rehearser.decide_rewind(name, epoch, action)
        return self._publish(view, action.checkpoint_in(view).epoch, rehearsed)

    def forward(self, pipeline: Pipeline, said: Forward) -> Checkpoint:
        """Continue after what the targets show, where the state table is behind them, or new beside them.

        Raises:
            InvalidPipeline: something is unsettled, it would go back, the pipeline keeps state, or it has changed
                since the person looked.
        """
        return forward.forward(self._transitions, self.parts, pipeline, said)

    def adopt(self, pipeline: Pipeline, takeover: Takeover, who: str) -> Checkpoint:
        """Record that the pipeline begins where another job has ended. Repeated, it changes nothing.

        Raises:
            InvalidPipeline: it has begun, or its targets show that it has published before.
        """
        sources = self.parts.sources(pipeline)
        view = self.state_table.view(pipeline.name)
        restore_check.refuse_renamed(self.state_table, view, pipeline, sources)
        restore_check.check_plan(self.state_table, view, pipeline, self.parts, sources)
        return record_takeover(self._transitions, pipeline, sources, takeover, who)

    # ---- manual resolution

    def skip(self, name: str, interval: Interval, who: str, reason: str, seen: Seen | None = None) -> Checkpoint:
        """Record that what no interval covers, between two that are pinned, is left out on purpose.

        Args:
            seen: what the person was shown of the pipeline. A checkpoint that has begun since is a change.
        Raises:
            InvalidPipeline: it is not such a gap, or not all of it, or another interval was pinned since the person
                looked; nothing was written.
        """
        return skip.skip_interval(self._transitions, self.parts, name, interval, who, reason, seen)

    def skip_offsets(self, name: str, said: Skip) -> Checkpoint:
        """Record that a chained pipeline continues in one partition at a later offset; nothing before it is read.

        Raises:
            InvalidPipeline: something is unsettled, it is not ahead of the pipeline and in the log, the pipeline
                keeps state or runs by intervals, or it has changed since the person looked; nothing was written.
        """
        return skip.skip_offsets(self._transitions, self.parts, name, said)

    def compare_targets(self, pipeline: Pipeline) -> list[str]:
        """Return notes for people on whether the targets still have what was published to them. Raises as `plan`."""
        return target_history.check(self.state_table, self.parts, pipeline)

    def loss(self, name: str, sink: str) -> Loss:
        """Find what a sink's target lacks of what was published to it; it changes nothing.

        Raises:
            InvalidPipeline: it lacks nothing.
        """
        return accept_loss.find(self.state_table, self.parts, name, sink)

    def accept_loss(self, name: str, sink: str, said: Acceptance) -> list[Checkpoint]:
        """Record that a sink's target lacks these checkpoints, and continue from the target as it is.

        Returns:
            All checkpoints that are recorded as missing in a target of that sink.
        Raises:
            InvalidPipeline: as `loss`; it shows rows again that a rewind had retracted; or a decision is not settled.
        """
        view = accept_loss.accept(self._transitions, self.parts, name, sink, said)
        return [checkpoint for checkpoint in view.missing() if sink in checkpoint.missing]

    def lack(self, pipeline: Pipeline, sink: str, again: bool = False) -> Lack:
        """Find what a sink lacks of what was decided for it; it changes nothing.

        Args:
            again: rows that the sink cannot take back may come once more.
        Raises:
            InvalidPipeline: the pipeline has no such sink.
            NotCommitted: its target does not answer.
        """
        return self._repairer.find(pipeline, sink, again)

    def begin_repair(self, pipeline: Pipeline, sink: str, wish: Wish) -> list[Reprocess]:
        """Record what a sink lacks, give up there what stays open, and return the requests that bring it back.

        Returns:
            What `plan` is to be asked for, in this order. Repeated, those that are left.
        Raises:
            InvalidPipeline: it has changed since the person looked, or it cannot be repaired; nothing was written.
            OutcomeUnknown: a process may still publish what is open, because the target does not answer.
        """
        return self._repairer.begin(pipeline, sink, wish)

    def evidence(self, name: str, epoch: int, sink: str) -> list[str]:
        """Return what the sink shows of this checkpoint now, for a person who has to decide.

        Raises:
            InvalidPipeline: nothing is staged for such a sink.
        """
        return self._resolver.evidence(name, epoch, sink)

    def give_up(
        self,
        name: str,
        epoch: int,
        sink: str,
        who: str,
        reason: str,
        gone: bool = False,
        removed: bool = False,
        seen: Seen | None = None,
    ) -> Checkpoint:
        """Record that this sink will never get this checkpoint, unless it shows that it has it.

        Args:
            gone: the target does not answer and never will again, so nobody can publish to it.
            removed: of a rewind: what it should have retracted was removed by hand.
            seen: what the person was shown of the checkpoint.
        Raises:
            InvalidPipeline: it does not wait for that sink; a rewind's rows are still there; or the checkpoint has
                changed since the person looked.
            OutcomeUnknown: the target does not answer, so a process may still publish to it.
        """
        action = Action.on_checkpoint(Event.GIVEN_UP, epoch, who, reason, seen, sink)
        return self._resolver.give_up(name, epoch, sink, action, gone, removed)

    def resolve_doubt(
        self, name: str, epoch: int, sink: str, committed: bool, who: str, reason: str, seen: Seen | None = None
    ) -> Checkpoint:
        """Record whether what is in doubt in this sink was published, as a person found out, and continue from it.

        The sink is asked first, once more: where the target shows the outcome by now, that is recorded instead.

        Raises:
            InvalidPipeline: nothing is in doubt there; what can be seen is not a matter of opinion.
        """
        verdict = "committed" if committed else "aborted"
        action = Action.on_checkpoint(Event.REPLACED, epoch, who, reason, seen, sink, verdict=verdict)
        return self._resolver.resolve_doubt(name, epoch, sink, committed, action)
