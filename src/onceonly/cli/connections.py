"""Connections of commands: where tasks look, too. First the environment, then what the installed Airflow knows.

Whoever provides the entry point `onceonly.connections` is asked for what the environment lacks; the package's own is
that of Airflow. What is found becomes a variable of this process and of those that it starts, and is written nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline, OnceonlyError
from onceonly.kafka import airflow_connections
from onceonly.waits import wait_for

GROUP = "onceonly.connections"
# connection id -> the connection as AIRFLOW_CONN_<ID> has it, or why it is not known
FindConnection = Callable[[str], tuple[str | None, str]]


def read_extra(conn_id: str) -> Mapping[str, Any]:
    """Return the extra of a connection.

    Raises:
        InvalidPipeline: it does not exist, or cannot be read, or there is no Airflow here that could be asked.
        NotCommitted: Airflow could not be asked.
    """
    reason = add_variable(conn_id)
    try:
        return airflow_connections.read_variable(conn_id)
    except InvalidPipeline as error:
        raise _explain(error, reason) from None


def read_store_connection(conn_id: str, setting: str, kind: str) -> tuple[Mapping[str, Any], str | None, str | None]:
    """Return extra, login and password of a connection to an object store; see `airflow_connections`.

    Raises:
        InvalidPipeline: it does not exist, or cannot be read, or there is no Airflow here that could be asked.
        NotCommitted: Airflow could not be asked.
    """
    try:
        reason = add_variable(conn_id)
    except OnceonlyError as error:
        todo = f"{setting} names it, of type '{kind}' ({name_page('object-stores')}). Unset that, or: {error.todo}"
        raise type(error)(error.what, error.why, todo, error.code) from error
    try:
        return airflow_connections.read_store_connection(conn_id, setting, kind)
    except InvalidPipeline as error:
        raise _explain(error, reason) from None


def add_variable(conn_id: str) -> str:
    """Set the variable of a connection, unless the environment has it. Returns where it is not; "": it is known.

    Raises:
        InvalidPipeline: there is no Airflow here that could be asked.
        NotCommitted: Airflow could not be asked.
    """
    variable = airflow_connections.variable_name(conn_id)
    if os.environ.get(variable, "").strip():
        return ""
    reasons: list[str] = []
    errors: list[OnceonlyError] = []
    for entry_point in entry_points(group=GROUP):
        try:
            with wait_for(f"Airflow, asked for the connection '{conn_id}'"):
                find_connection: FindConnection = entry_point.load()
                text, reason = find_connection(conn_id)
        except OnceonlyError as error:
            errors.append(error)  # another one may know it
            continue
        if text:
            os.environ[variable] = text
            return ""
        reasons.append(reason)
    if errors:
        first = errors[0]
        why = f"The environment variable {variable} is not set. {first.why}"
        raise type(first)(first.what, why, first.todo, first.code) from first
    return " ".join(reasons)


def _explain(error: InvalidPipeline, reason: str) -> InvalidPipeline:
    """Add where else was looked, to the error for a connection that does not exist."""
    if error.code != "connection-missing":
        return error
    return InvalidPipeline(error.what, f"{error.why} {reason}".strip(), error.todo, code=error.code)
