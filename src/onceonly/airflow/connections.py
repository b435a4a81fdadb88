"""Connections inside a task: Airflow looks them up, in its secrets backends, the environment or its database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import BaseHook

from onceonly.airflow.versions import AirflowNotFoundException
from onceonly.filesystems import aws
from onceonly.kafka import lookup
from onceonly.settings import Settings


def from_airflow(conn_id: str) -> Mapping[str, Any]:
    """The extra of a connection, which Airflow masks in its logs from now on.

    Raises:
        InvalidPipeline: there is no such connection.
    """
    extra: Mapping[str, Any] = _connection(conn_id).extra_dejson
    return extra


def use_aws() -> None:
    """Let this process reach S3 by the connection that ONCEONLY_AWS_CONNECTION names, if it names one.

    Raises:
        InvalidPipeline: there is no such connection, or it cannot be used.
    """
    if conn_id := Settings.from_env().aws_connection:
        found = _connection(conn_id)
        aws.take_up(conn_id, aws.settings_of(found.extra_dejson, found.login, found.password))


def _connection(conn_id: str) -> Any:
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise lookup.missing(conn_id, "Airflow has no connection of that name.") from error


def handed_over(conn_ids: Iterable[str]) -> dict[str, str]:
    """Environment variables that give these connections to a child process; nothing else shows them."""
    found: dict[str, str] = {}
    for conn_id in conn_ids:
        found |= lookup.to_environment(conn_id, from_airflow(conn_id))
    return found
