"""The gate and the commit as tasks. The commit also stages again what could not be published any more."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onceonly.airflow import notices
from onceonly.airflow.base import CheckpointLink, DocsLink, OnceonlyOperator, docs_page, owner_of, task_outcome
from onceonly.airflow.notices import Notifier
from onceonly.airflow.operators import SparkOperator
from onceonly.airflow.versions import AirflowFailException
from onceonly.checkpoint.data_docs import find_address
from onceonly.checkpoint.model import Checkpoint, Row, State
from onceonly.counts import count
from onceonly.errors import ActionNeeded, GateFailed, InvalidPipeline, StageAgain

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink

    from onceonly.airflow.connections import GateServices
    from onceonly.coordinator.coordinator import Coordinator
    from onceonly.runtime.live_services import LiveServices

FINAL_ERRORS = (InvalidPipeline, ActionNeeded)  # a person has to act; when the run has ended, recovery tries it again


class GateOperator(SparkOperator):
    """Has the staged rows examined; fails when the gate does, and is then not retried: the verdict is recorded.

    Returns {"epoch", "outcome", "docs"}; "docs" is the page that shows the Data Docs. What is held passes once somebody
    has approved it and the task is cleared.
    Spark is that of the stage; it is asked about sinks with more rows than the gate takes in process.

    Args:
        on_held: Airflow notifiers, or functions of a context, that are called when the checkpoint is held. `held` in
            that context has "pipeline", "epoch", "text", "checks", "page", "approve" and "abort".
    """

    docs = ""  # for the link
    operator_extra_links: Collection[BaseOperatorLink] = (CheckpointLink(), DocsLink())

    def __init__(self, *, on_held: Notifier | Sequence[Notifier] | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.on_held = notices.as_list(on_held)

    def services(self) -> LiveServices:
        return self.gate_services()

    def gate_services(self) -> GateServices:
        """Return services whose Spark is that of the connection."""
        from onceonly.airflow import connections

        plain = OnceonlyOperator.services(self)
        services = connections.open_gate_services(plain, self.spark_conn_id)
        self._job = services  # on_kill ends what it asks of Spark
        return services

    def gatekeeper(self) -> Coordinator:
        """Return the coordinator that examines."""
        return self.coordinator()

    def execute(self, context: Any) -> dict[str, Any]:
        return self.examine(context)

    def examine(self, context: Any) -> dict[str, Any]:
        """Have the rows examined, here or by a driver on the cluster, for which the task is deferred."""
        work, started = self.work(context), time.time()
        with task_outcome(context):
            services = self.gate_services()
            if services.target.cluster:
                submission = work.prepare_gate(services.target, services.settings, services.connections)
                if submission:
                    self.wait_for(submission, started)  # does not return: the task is deferred
        return self._take_verdict(context)

    def execute_complete(self, context: Any, event: Any) -> dict[str, Any]:
        """Continue after the triggerer: act on the verdict that a driver on the cluster has recorded."""
        self.require_judged(context, event)
        return self._take_verdict(context, by_driver=True)

    def require_judged(self, context: Any, event: Any) -> None:
        """Raise an error unless the driver has recorded a verdict."""
        from onceonly.airflow.triggers import driver_of
        from onceonly.settings import Settings

        with task_outcome(context):
            self.work(context).require_judged(driver_of(event), Settings.from_env(), event["state"])

    def _take_verdict(self, context: Any, by_driver: bool = False) -> dict[str, Any]:
        """Get the verdict, which is made here unless a driver has made it; log and report it, and fail if it does.

        People are notified of a held checkpoint before the task fails.
        """
        from onceonly.airflow import stats
        from onceonly.coordinator import gate

        with task_outcome(context):
            checkpoint = self.gatekeeper().gate(self.pipeline, self.find_epoch(context), owner_of(context))
        if by_driver:
            stats.count_verdict(checkpoint)
        if checkpoint.verdict:
            self.docs = docs_page(checkpoint)
            self._log_verdict(checkpoint.verdict)
            self._report_gate_lineage(checkpoint)
        if checkpoint.is_held:
            notices.notify_once(self.on_held, context, [checkpoint], self.log)
        try:
            with task_outcome(context):
                gate.require_passed(checkpoint)
        except GateFailed as failed:
            raise AirflowFailException(self._link_docs(str(failed), checkpoint)) from failed
        verdict = checkpoint.verdict or {}
        return {"epoch": checkpoint.epoch, "outcome": verdict.get("outcome"), "docs": self.docs or None}

    def _link_docs(self, text: str, checkpoint: Checkpoint) -> str:
        """Return a message with the page of the Data Docs in place of the address of their files."""
        stored = find_address(checkpoint)
        if not stored:
            return text
        return text.replace(stored, self.docs)

    def _log_verdict(self, verdict: Mapping[str, Any]) -> None:
        for sink, report in verdict["sinks"].items():
            place = "on Spark" if report["path"] == "spark" else report["path"]
            self.log.info("sink '%s': %s, examined %s", sink, count(report["rows"], "row"), place)
            for check in report["checks"]:
                self._log_check(check)
        self.log.info("verdict: %s, by %s", verdict["outcome"], verdict["by"])
        if self.docs:
            self.log.info("Data Docs: %s", self.docs)

    def _log_check(self, check: Mapping[str, Any]) -> None:
        if check["ok"]:
            self.log.info("  %s: %s (%s)", "ok", check["what"], check["observed"])
        else:
            self.log.warning("  %s: %s (%s)", check["severity"].upper(), check["what"], check["observed"])


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

    def services(self) -> LiveServices:
        return OnceonlyOperator.services(self)  # to publish, it needs no connection of a Spark

    def gatekeeper(self) -> Coordinator:
        from onceonly.runtime.live_services import open_coordinator

        return open_coordinator(self.gate_services(), log=self._log_transition)

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
                notices.notify_once(self.on_held, context, self._noticed, self.log)
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
        return self.coordinator().state_table.view(self.pipeline).require(self.find_epoch(context))

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
        if notices.is_due(checkpoint, row) and not checkpoint.is_held:  # `_take_verdict` tells of what is held
            self._noticed.append(checkpoint)
