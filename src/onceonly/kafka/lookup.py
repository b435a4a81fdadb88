"""Airflow connections from the environment: AIRFLOW_CONN_<ID>, as JSON or as URI. Airflow itself is not needed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from onceonly.errors import InvalidPipeline

Lookup = Callable[[str], Mapping[str, Any]]  # connection id -> its extra: settings of librdkafka
NOTHING_WRITTEN = "Nothing was written."


def variable(conn_id: str) -> str:
    """The name of the environment variable that holds this connection."""
    return f"AIRFLOW_CONN_{conn_id.upper()}"


def from_environment(conn_id: str, env: Mapping[str, str] = os.environ) -> Mapping[str, Any]:
    """The extra of a connection, from its environment variable.

    Raises:
        InvalidPipeline: there is no such variable, or it cannot be parsed; its content is never shown.
    """
    text = env.get(variable(conn_id), "").strip()
    if not text:
        raise missing(conn_id, f"The environment variable {variable(conn_id)} is not set.")
    try:
        extra = json.loads(text).get("extra") if text.startswith("{") else _of_uri(text)
        found = json.loads(extra) if isinstance(extra, str) and extra else extra or {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' cannot be read.",
            f"{variable(conn_id)} is neither a connection as JSON nor as URI, or its extra is not a JSON object.",
            f'Write {{"conn_type": "kafka", "extra": {{"bootstrap.servers": "…"}}}}. {NOTHING_WRITTEN}',
        )
    return found


def of_store(
    conn_id: str, setting: str, kind: str, env: Mapping[str, str] = os.environ
) -> tuple[Mapping[str, Any], str | None, str | None]:
    """Extra, login and password of a connection to an object store, from its environment variable.

    Args:
        setting: the variable that names the connection.
        kind: its type.
    Raises:
        InvalidPipeline: there is no such variable, or it cannot be parsed; its content is never shown.
    """
    try:
        extra = from_environment(conn_id, env)
    except InvalidPipeline as error:
        todo = f"{setting} names it: write it as a connection of type '{kind}' (docs/object-stores.md), or unset that."
        raise InvalidPipeline(error.what, error.why, f"{todo} {NOTHING_WRITTEN}") from None
    text = env[variable(conn_id)].strip()
    if text.startswith("{"):
        whole = json.loads(text)
        return extra, whole.get("login"), whole.get("password")
    there = urlsplit(text)
    return extra, unquote(there.username or ""), unquote(there.password or "")


def to_environment(conn_id: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """The variable for a child process, as `from_environment` and Airflow read it."""
    return {variable(conn_id): json.dumps({"conn_type": "kafka", "extra": dict(settings)})}


def handed_over(conn_ids: Iterable[str], connections: Lookup) -> dict[str, str]:
    """Environment variables that give these connections to another process; nothing else shows them."""
    found: dict[str, str] = {}
    for conn_id in conn_ids:
        found |= to_environment(conn_id, connections(conn_id))
    return found


def missing(conn_id: str, why: str) -> InvalidPipeline:
    """The error for a connection that does not exist."""
    return InvalidPipeline(
        f"the Airflow connection '{conn_id}' does not exist.",
        why,
        f"Add it: airflow connections add {conn_id} --conn-type kafka "
        f'--conn-extra \'{{"bootstrap.servers": "…"}}\', or set {variable(conn_id)}. {NOTHING_WRITTEN}',
    )


def _of_uri(uri: str) -> str | dict[str, str]:
    """`kafka://?__extra__=<JSON>` or `kafka://?bootstrap.servers=…&…`, URL-encoded."""
    query = dict(parse_qsl(urlsplit(uri).query, keep_blank_values=True))
    return query.get("__extra__", query)
