"""The gate as a task of its own, between stage and commit."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onceonly.airflow import notices
from onceonly.airflow.links import CheckpointLink, DocsLink, docs_page
from onceonly.airflow.notices import Notifier
from onceonly.airflow.operators import OnceonlyOperator, SparkOperator, owner_of, task_outcome
from onceonly.airflow.versions import AirflowFailException
from onceonly.counts import count
from onceonly.errors import GateFailed

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink

    from onceonly.airflow.gatesession import GateParts
    from onceonly.checkpoint.model import Checkpoint
    from onceonly.coordinator.coordinator import Coordinator
    from onceonly.runtime.factory import LiveParts


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
        self.on_held = notices.listed(on_held)

    def parts(self) -> LiveParts:
        return self.gate_parts()

    def gate_parts(self) -> GateParts:
        """Parts whose Spark is that of the connection."""
        from onceonly.airflow import gatesession

        plain = OnceonlyOperator.parts(self)
        made = self._job = gatesession.parts(plain, self.spark_conn_id)  # on_kill ends what it asks of Spark
        return made

    def gatekeeper(self) -> Coordinator:
        """The coordinator that examines."""
        return self.coordinator()

    def execute(self, context: Any) -> dict[str, Any]:
        return self.examine(context)

    def examine(self, context: Any) -> dict[str, Any]:
        """Have the rows examined, here or by a driver on the cluster, for which the task is deferred."""
        work, started = self.work(context), time.time()
        with task_outcome(context):
            parts = self.gate_parts()
            if parts.target.cluster and (submission := work.gate(parts.target, parts.settings, parts.connections)):
                self.wait_for(submission, started)
        return self._judged(context)

    def ended(self, context: Any, event: Any) -> dict[str, Any]:
        """Back from the triggerer: what follows from the verdict that a driver on the cluster has recorded."""
        self.require_judged(context, event)
        return self._judged(context, by_driver=True)

    def require_judged(self, context: Any, event: Any) -> None:
        """Raise an error unless the driver has recorded a verdict."""
        from onceonly.airflow.triggers import driver_of
        from onceonly.settings import Settings

        with task_outcome(context):
            self.work(context).require_judged(driver_of(event), Settings.from_env(), event["state"])

    def _judged(self, context: Any, by_driver: bool = False) -> dict[str, Any]:
        from onceonly.airflow import stats
        from onceonly.coordinator import gate

        with task_outcome(context):
            done = self.gatekeeper().gate(self.pipeline, self.find_epoch(context), owner_of(context))
        if by_driver:
            stats.judged(done)
        if done.verdict:
            self.docs = docs_page(done)
            self._log(done.verdict)
            self._tell(done, what="of_gate")
        for trouble in notices.notify(self.on_held, context, done) if done.held else ():
            self.log.warning("%s", trouble)
        try:
            with task_outcome(context):
                gate.require(done)
        except GateFailed as failed:
            raise AirflowFailException(self._with_page(str(failed), done)) from failed
        verdict = done.verdict or {}
        return {"epoch": done.epoch, "outcome": verdict.get("outcome"), "docs": self.docs or None}

    def _with_page(self, text: str, done: Checkpoint) -> str:
        """With the page of the Data Docs in place of the address of their files."""
        stored = done.verdict and done.verdict["docs"]
        return text.replace(stored, self.docs) if stored else text

    def _log(self, verdict: Mapping[str, Any]) -> None:
        for sink, seen in verdict["sinks"].items():
            self.log.info("sink '%s': %s, examined %s", sink, count(seen["rows"], "row"), _where(seen["path"]))
            for each in seen["checks"]:
                level = self.log.info if each["ok"] else self.log.warning
                said = "ok" if each["ok"] else each["severity"].upper()
                level("  %s: %s (%s)", said, each["what"], each["observed"])
        self.log.info("verdict: %s, by %s", verdict["outcome"], verdict["by"])
        if self.docs:
            self.log.info("Data Docs: %s", self.docs)


def _where(path: str) -> str:
    return "on Spark" if path == "spark" else path
