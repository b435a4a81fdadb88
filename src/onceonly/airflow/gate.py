"""The gate as a task of its own, between stage and commit."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onceonly.airflow import notices
from onceonly.airflow.base import OnceonlyOperator, owner_of, task_outcome
from onceonly.airflow.links import CheckpointLink, DocsLink, docs_page
from onceonly.airflow.notices import Notifier
from onceonly.airflow.operators import SparkOperator
from onceonly.airflow.versions import AirflowFailException
from onceonly.counts import count
from onceonly.errors import GateFailed

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink

    from onceonly.airflow.gatesession import GateParts
    from onceonly.checkpoint.model import Checkpoint
    from onceonly.coordinator.coordinator import Coordinator
    from onceonly.runtime.live_services import LiveServices


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

    def parts(self) -> LiveServices:
        return self.gate_parts()

    def gate_parts(self) -> GateParts:
        """Return parts whose Spark is that of the connection."""
        from onceonly.airflow import gatesession

        plain = OnceonlyOperator.parts(self)
        parts = gatesession.parts(plain, self.spark_conn_id)
        self._job = parts  # on_kill ends what it asks of Spark
        return parts

    def gatekeeper(self) -> Coordinator:
        """Return the coordinator that examines."""
        return self.coordinator()

    def execute(self, context: Any) -> dict[str, Any]:
        return self.examine(context)

    def examine(self, context: Any) -> dict[str, Any]:
        """Have the rows examined, here or by a driver on the cluster, for which the task is deferred."""
        work, started = self.work(context), time.time()
        with task_outcome(context):
            parts = self.gate_parts()
            if parts.target.cluster:
                submission = work.gate(parts.target, parts.settings, parts.connections)
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
        if checkpoint.held:
            for failure in notices.notify(self.on_held, context, checkpoint):
                self.log.warning("%s", failure)
        try:
            with task_outcome(context):
                gate.require(checkpoint)
        except GateFailed as failed:
            raise AirflowFailException(self._link_docs(str(failed), checkpoint)) from failed
        verdict = checkpoint.verdict or {}
        return {"epoch": checkpoint.epoch, "outcome": verdict.get("outcome"), "docs": self.docs or None}

    def _link_docs(self, text: str, checkpoint: Checkpoint) -> str:
        """Return a message with the page of the Data Docs in place of the address of their files."""
        stored = checkpoint.verdict and checkpoint.verdict["docs"]
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
