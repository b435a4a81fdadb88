"""The gate as a task of its own, between stage and commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from onceonly.airflow.links import CheckpointLink, DocsLink
from onceonly.airflow.operators import CheckpointOperator, owner_of, task_outcome
from onceonly.errors import GateFailed

if TYPE_CHECKING:
    from onceonly.wiring import LiveParts


class GateOperator(CheckpointOperator):
    """Has the staged rows examined; fails when the gate does, and is then not retried: the verdict is recorded.

    Returns {"epoch", "outcome", "docs"}. What is held passes once a person has approved it and the task is cleared.

    Args:
        spark_conn_id: as of the stage; used for sinks with more rows than the gate takes in process.
    """

    docs = ""  # for the link
    operator_extra_links = (CheckpointLink(), DocsLink())

    def __init__(self, *, spark_conn_id: str = "spark", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.spark_conn_id = spark_conn_id

    def parts(self) -> LiveParts:
        from onceonly.airflow import gatesession

        return gatesession.parts(super().parts(), self.spark_conn_id)

    def execute(self, context: Any) -> dict[str, Any]:
        from onceonly import gating

        with task_outcome():
            done = self.coordinator().gate(self.pipeline, self.find_epoch(context), owner_of(context))
        if done.verdict:
            self.docs = done.verdict["docs"] or ""
            self._log(done.verdict)
        try:
            gating.require(done)
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
