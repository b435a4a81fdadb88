"""The gate as a task of its own, between stage and commit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from onceonly.airflow.links import CheckpointLink, DocsLink
from onceonly.airflow.operators import SparkOperator, owner_of, task_outcome
from onceonly.errors import GateFailed

if TYPE_CHECKING:
    from onceonly.airflow.gatesession import GateParts


class GateOperator(SparkOperator):
    """Has the staged rows examined; fails when the gate does, and is then not retried: the verdict is recorded.

    Returns {"epoch", "outcome", "docs"}. What is held passes once a person has approved it and the task is cleared.
    Spark is that of the stage; it is asked about sinks with more rows than the gate takes in process.
    """

    docs = ""  # for the link
    operator_extra_links = (CheckpointLink(), DocsLink())

    def parts(self) -> GateParts:
        from onceonly.airflow import gatesession

        made = self._job = gatesession.parts(super().parts(), self.spark_conn_id)  # on_kill ends what it asks of Spark
        return made

    def execute(self, context: Any) -> dict[str, Any]:
        work, started = self.work(context), time.time()
        with task_outcome():
            parts = self.parts()
            driver = work.gate(parts.target, parts.settings) if parts.target.rest else None
            if driver:
                self.wait_for(driver, started)
        return self._judged(context)

    def ended(self, context: Any, event: Any) -> dict[str, Any]:
        """Back from the triggerer: what follows from the verdict that a driver on the cluster has recorded."""
        from onceonly.airflow.triggers import driver_of
        from onceonly.settings import Settings

        with task_outcome():
            self.work(context).require_judged(driver_of(event), Settings.from_env(), event["state"])
        return self._judged(context)

    def _judged(self, context: Any) -> dict[str, Any]:
        from onceonly.coordinator import gate

        with task_outcome():
            done = self.coordinator().gate(self.pipeline, self.find_epoch(context), owner_of(context))
        if done.verdict:
            self.docs = done.verdict["docs"] or ""
            self._log(done.verdict)
        try:
            gate.require(done)
        except GateFailed as failed:
            raise AirflowFailException(str(failed)) from failed
        verdict = done.verdict or {}
        return {"epoch": done.epoch, "outcome": verdict.get("outcome"), "docs": verdict.get("docs")}

    def _log(self, verdict: Mapping[str, Any]) -> None:
        for sink, seen in verdict["sinks"].items():
            self.log.info("sink '%s': %s rows, examined %s", sink, f"{seen['rows']:,}", _where(seen["path"]))
            for each in seen["checks"]:
                level = self.log.info if each["ok"] else self.log.warning
                said = "ok" if each["ok"] else each["severity"].upper()
                level("  %s: %s (%s)", said, each["what"], each["observed"])
        self.log.info("verdict: %s, by %s", verdict["outcome"], verdict["by"])
        if verdict["docs"]:
            self.log.info("Data Docs: %s", verdict["docs"])


def _where(path: str) -> str:
    return "on Spark" if path == "spark" else path
