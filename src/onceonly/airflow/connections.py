"""Connections inside a task: Airflow looks them up, in its secrets backends, the environment or its database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from onceonly import redaction
from onceonly.airflow.versions import AirflowNotFoundException
from onceonly.errors import InvalidPipeline
from onceonly.kafka import lookup
from onceonly.runtime import spark_connection
from onceonly.runtime.spark_connection import SparkConnection, parse_connection
from onceonly.settings import Settings
from onceonly.storage import logins


def from_airflow(conn_id: str) -> Mapping[str, Any]:
    """Return the extra of a connection, which Airflow masks in its logs from now on.

    Raises:
        InvalidPipeline: there is no such connection.
    """
    extra: Mapping[str, Any] = _require_connection(conn_id).extra_dejson
    return extra


def use_stores() -> None:
    """Let this process reach object stores by the connections that the settings name, if they name any.

    Raises:
        InvalidPipeline: there is no such connection, or it cannot be used.
    """

    def find(conn_id: str, variable: str, kind: str) -> tuple[Mapping[str, Any], str | None, str | None]:
        connection = _require_connection(conn_id)
        return connection.extra_dejson, connection.login, connection.password

    logins.use_connections(Settings.from_env().store_connections, find)


def _require_connection(conn_id: str) -> Any:
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise lookup.missing(conn_id, "Airflow has no connection of that name.") from error


def spark(conn_id: str) -> SparkConnection:
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
            f"airflow connections add {conn_id} --conn-type spark --conn-host 'local[*]' (or spark://…, yarn, k8s://…, "
            "sc://…). Nothing was written.",
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
