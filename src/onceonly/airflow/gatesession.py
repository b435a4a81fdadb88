"""Spark for a task: the Connect server, or a session of the task's own on the master that the connection names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from onceonly.airflow import connections
from onceonly.runtime import client_job
from onceonly.runtime.live_services import LiveServices
from onceonly.runtime.spark_connection import SparkConnection
from onceonly.spark.conf import stay_here


@dataclass
class GateParts(LiveServices):
    """Parts whose Spark is that of an Airflow connection."""

    target: SparkConnection = field(default_factory=SparkConnection)
    session_opened: bool = False

    def spark(self, records: int | None = None) -> Any:
        from onceonly.spark.session import session

        if not self.target.remote:
            stay_here()
        self.session_opened = True
        return session(self.settings, {"spark.master": self.target.master} | self.target.conf, records)

    def end(self) -> None:
        """End what a Connect server does for this process; a session of the process's own ends with it."""
        if self.session_opened and self.target.remote:
            client_job.interrupt(self)


def parts(plain: LiveServices, conn_id: str) -> GateParts:
    """Return the same parts on the Spark of that connection.

    Raises:
        InvalidPipeline: there is no such connection.
    """
    target = connections.spark(conn_id)
    return GateParts(replace(plain.settings, spark_remote=target.remote), plain.connections, target)


@dataclass
class RecoveryParts(LiveServices):
    """Parts for recovery, which looks the connection up when it needs Spark: as a rule it does not."""

    conn_id: str = "spark"
    gate_parts: GateParts | None = None

    def spark(self, records: int | None = None) -> Any:
        self.gate_parts = self.gate_parts or parts(LiveServices(self.settings, self.connections), self.conn_id)
        return self.gate_parts.spark(records)

    def end(self) -> None:
        """End what Spark does for this process, if it was needed."""
        if self.gate_parts:
            self.gate_parts.end()
