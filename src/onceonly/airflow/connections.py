"""Kafka connections inside a task: Airflow looks them up, in its secrets backends, the environment or its database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from onceonly.kafka import lookup


def from_airflow(conn_id: str) -> Mapping[str, Any]:
    """The extra of a connection, which Airflow masks in its logs from now on.

    Raises:
        InvalidPipeline: there is no such connection.
    """
    try:
        connection: Any = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise lookup.missing(conn_id, "Airflow has no connection of that name.") from error
    extra: Mapping[str, Any] = connection.extra_dejson
    return extra


def handed_over(conn_ids: Iterable[str]) -> dict[str, str]:
    """Environment variables that give these connections to a child process; nothing else shows them."""
    found: dict[str, str] = {}
    for conn_id in conn_ids:
        found |= lookup.to_environment(conn_id, from_airflow(conn_id))
    return found
