"""The commit as a task: it also stages again what could not be published any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onceonly.airflow import notices
from onceonly.airflow.base import OnceonlyOperator, task_outcome
from onceonly.airflow.gate import GateOperator
from onceonly.airflow.links import CheckpointLink
from onceonly.checkpoint.model import Checkpoint, Row, State
from onceonly.errors import ActionNeeded, InvalidPipeline, StageAgain

if TYPE_CHECKING:
    from onceonly.coordinator.coordinator import Coordinator
    from onceonly.runtime.live_services import LiveServices

FINAL_ERRORS = (InvalidPipeline, ActionNeeded)  # a person has to act; when the run has ended, recovery tries it again


class CommitOperator(GateOperator):
    """Takes the decision and publishes; safe to run any number of times.

    If what is staged cannot be published any more, this task stages it again, on the Spark of the stage task, and asks
    the gate again, as often as the coordinator allows.
    An asset event goes out for each of its `outlets` that was published (`onceonly.airflow.outlets` makes them).

    Args:
        partition_keys: the events of an interval carry its start as their partition key, for DAGs with a
            `PartitionedAssetTimetable`. Such an event starts no other DAG.
        on_held: as for `GateOperator`, for an attempt that was staged here; and for an approval that ended with the
            attempt that it was given to. Then `held` has no checks, and its "approve" and "abort" are empty.
    """

    operator_extra_links = (CheckpointLink(),)

    def __init__(self, *, partition_keys: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.partition_keys = partition_keys
        self._noticed: list[Checkpoint] = []  # whose approval has ended: people are told

    def parts(self) -> LiveServices:
        return OnceonlyOperator.parts(self)  # to publish, it needs no connection of a Spark

    def gatekeeper(self) -> Coordinator:
        from onceonly.runtime.live_services import open_coordinator

        return open_coordinator(self.gate_parts(), log=self._log_transition)

    def execute(self, context: Any) -> dict[str, Any]:
        return self._publish(context)

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continue after the triggerer: a driver has examined the rows that this task has staged."""
        self.require_judged(context, event)
        self._take_verdict(context, by_driver=True)
        return self._publish(context)

    def resume_after_stage(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continue after the triggerer: a driver has staged the rows."""
        from onceonly.airflow.triggers import driver_of
        from onceonly.settings import Settings

        with task_outcome():
            self.work(context).require_staged(driver_of(event), Settings.from_env(), event["state"])
        return self._publish(context)

    def _publish(self, context: Any) -> dict[str, Any]:
        """Commit; once more for each time that it has to be staged again. Airflow forbids to call `execute` here."""
        while True:
            self._prepare(context)
            try:
                with task_outcome(final=FINAL_ERRORS):
                    checkpoint = self.coordinator().commit(self.pipeline, self.find_epoch(context))
            except StageAgain as error:
                self.log.warning("%s\n%s", error.what, error.why)
                self._notify(context)
                continue
            return self._announce(context, checkpoint)

    def _prepare(self, context: Any) -> None:
        """Do what the stage and gate tasks would, if a rehearsal has ended the attempt that these have worked on.

        Nothing is staged twice at once: only one process has the claim. An earlier try of this task may have failed at
        any point of it.
        """
        checkpoint = self._read_checkpoint(context)
        if checkpoint.unfit_attempts and checkpoint.state in (State.PLANNED, State.ABORTED):
            self._say(f"{self.pipeline} epoch {checkpoint.epoch} is staged again by this task")
            with task_outcome():
                self.run_stage(context, self.work(context), then="resume_after_stage")
            checkpoint = self._read_checkpoint(context)
        if not checkpoint.unfit_attempts or not checkpoint.gate:
            return
        if checkpoint.state is State.STAGED and checkpoint.verdict is None:
            self.examine(context)

    def _read_checkpoint(self, context: Any) -> Checkpoint:
        """Return the checkpoint as the state table has it now."""
        return self.coordinator().state.view(self.pipeline).require(self.find_epoch(context))

    def _announce(self, context: Any, checkpoint: Checkpoint) -> dict[str, Any]:
        """Report what is published to OpenLineage and to the DAGs that wait for it, and return the task's result."""
        from onceonly.airflow.assets import announce

        self._report_lineage(checkpoint)
        self.outlets = announce(context, checkpoint, self.outlets, self.partition_keys)
        published = dict(checkpoint.published)
        return {
            "epoch": checkpoint.epoch,
            "decision": checkpoint.decision,
            "rows": checkpoint.rows,
            "published": published,
        }

    def _log_transition(self, checkpoint: Checkpoint, row: Row) -> None:
        super()._log_transition(checkpoint, row)
        if notices.is_due(checkpoint, row) and not checkpoint.held:  # `_take_verdict` tells of what is held
            self._noticed.append(checkpoint)

    def _notify(self, context: Any) -> None:
        """Notify people of the approvals that have ended, once each."""
        while self._noticed:
            for failure in notices.notify(self.on_held, context, self._noticed.pop()):
                self.log.warning("%s", failure)
