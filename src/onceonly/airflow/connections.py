"""Connections inside a task: Airflow looks them up, in its secrets backends, the environment or its database.

Spark for a gate or recovery is that of such a connection: a Connect server, or a session of the task's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from onceonly import redaction
from onceonly.airflow.versions import AirflowNotFoundException
from onceonly.errors import InvalidPipeline
from onceonly.kafka import airflow_connections
from onceonly.runtime import spark_connection, spark_master
from onceonly.runtime.client_job import InterruptibleServices
from onceonly.runtime.live_services import LiveServices
from onceonly.runtime.spark_connection import SparkConnection, parse_connection
from onceonly.settings import Settings
from onceonly.spark.conf import stay_here
from onceonly.storage import logins


def read_extra(conn_id: str) -> Mapping[str, Any]:
    """Return the extra of a connection, which Airflow masks in its logs from now on.

    Raises:
        InvalidPipeline: there is no such connection.
    """
    extra: Mapping[str, Any] = _require_connection(conn_id).extra_dejson
    return extra


def log_in_to_stores() -> None:
    """Let this process reach object stores by the connections that the settings name, if they name any.

    Raises:
        InvalidPipeline: there is no such connection, or it cannot be used.
    """

    def find(conn_id: str, variable: str, kind: str) -> tuple[Mapping[str, Any], str | None, str | None]:
        connection = _require_connection(conn_id, kind)
        return connection.extra_dejson, connection.login, connection.password

    logins.use_connections(Settings.from_env().store_connections, find)


def _require_connection(conn_id: str, kind: str = "kafka") -> Any:
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise airflow_connections.missing_connection_error(
            conn_id, "Airflow has no connection of that name.", kind
        ) from error


def read_spark_connection(conn_id: str) -> SparkConnection:
    """Return where Spark is, as that connection says; Airflow masks its secrets in its logs from now on.

    Raises:
        InvalidPipeline: there is no such connection, or it says what cannot be done.
    """
    try:
        connection: Any = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' does not exist.",
            "Tasks reach Spark through it (spark_conn_id=…).",
            f"Add it: airflow connections add {quote(conn_id)} --conn-type generic --conn-host 'local[*]'. In place of "
            "local[*]: spark://…, yarn, k8s://… or sc://…. Nothing was written.",
            code="connection-missing",
        ) from error
    extra = connection.extra_dejson
    keytab_value = str(extra.get("keytab") or "")
    if spark_connection.decode_keytab(keytab_value):
        mask_secret(keytab_value)
    target = parse_connection(
        conn_id,
        connection.host,
        connection.port,
        connection.password,
        extra,
        connection.conn_type,
        connection.login,
    )
    for value in redaction.secret(target.conf).values():
        mask_secret(value)
    return target


@dataclass
class GateServices(InterruptibleServices):
    """Services whose Spark is that of an Airflow connection."""

    target: SparkConnection = field(default_factory=SparkConnection)

    def open_session(self, records: int | None) -> Any:
        from onceonly.spark.session import session

        spark_master.require_master(self.target)
        if not self.target.remote:
            stay_here()
        return session(self.settings, {"spark.master": self.target.master} | self.target.conf, records)

    def end(self) -> None:
        """End what a Connect server does for this process; a session of the process's own ends with it."""
        if self.target.remote:
            self.interrupt()


def open_gate_services(plain: LiveServices, conn_id: str) -> GateServices:
    """Return the same services on the Spark of that connection.

    Raises:
        InvalidPipeline: there is no such connection.
    """
    target = read_spark_connection(conn_id)
    return GateServices(replace(plain.settings, spark_remote=target.remote), plain.connections, target)


@dataclass
class RecoveryServices(LiveServices):
    """Services for recovery, which looks the connection up when it needs Spark: as a rule it does not."""

    conn_id: str = "spark"
    gate_services: GateServices | None = None

    def spark(self, records: int | None = None) -> Any:
        if self.gate_services is None:
            self.gate_services = open_gate_services(LiveServices(self.settings, self.connections), self.conn_id)
        return self.gate_services.spark(records)

    def end(self) -> None:
        """End what Spark does for this process, if it was needed."""
        if self.gate_services:
            self.gate_services.end()
