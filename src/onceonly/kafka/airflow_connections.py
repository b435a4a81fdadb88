"""Airflow connections from the environment: AIRFLOW_CONN_<ID>, as JSON or as URI. Airflow itself is not needed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from shlex import quote
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline

Lookup = Callable[[str], Mapping[str, Any]]  # connection id -> its extra: settings of librdkafka
NOTHING_WRITTEN = "Nothing was written."
EXAMPLES = {  # kind -> what a connection of it says, for `airflow connections add`
    "kafka": """--conn-type generic --conn-extra '{"bootstrap.servers": "HOST:9092"}'""",
    "registry": """--conn-type generic --conn-extra '{"url": "http://HOST:8081"}'""",
    "aws": '--conn-json \'{"conn_type": "aws", "login": "KEY", "password": "SECRET"}\'',
    "wasb": '--conn-json \'{"conn_type": "wasb", "login": "ACCOUNT", "password": "KEY"}\'',
    "google_cloud_platform": '--conn-json \'{"conn_type": "google_cloud_platform", '
    '"extra": {"key_path": "/PATH/key.json"}}\'',
}


def variable_name(conn_id: str) -> str:
    """Return the name of the environment variable that holds this connection."""
    return f"AIRFLOW_CONN_{conn_id.upper()}"


def read_variable(conn_id: str, env: Mapping[str, str] = os.environ) -> Mapping[str, Any]:
    """Return the extra of a connection, from its environment variable.

    Raises:
        InvalidPipeline: there is no such variable, or it cannot be parsed; its content is never shown.
    """
    text = env.get(variable_name(conn_id), "").strip()
    if not text:
        raise missing_connection_error(conn_id, f"The environment variable {variable_name(conn_id)} is not set.")
    try:
        settings = _parse_extra(text)
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' cannot be read.",
            f"{variable_name(conn_id)} is neither a connection as JSON nor as URI, or its extra is not a JSON object.",
            f'Write {{"conn_type": "kafka", "extra": {{"bootstrap.servers": "…"}}}}. {NOTHING_WRITTEN}',
            code="connection-unreadable",
        )
    return settings


def read_store_connection(
    conn_id: str, setting: str, kind: str, env: Mapping[str, str] = os.environ
) -> tuple[Mapping[str, Any], str | None, str | None]:
    """Return extra, login and password of a connection to an object store, from its environment variable.

    Args:
        setting: the variable that names the connection.
        kind: its type.
    Raises:
        InvalidPipeline: there is no such variable, or it cannot be parsed; its content is never shown.
    """
    try:
        extra = read_variable(conn_id, env)
    except InvalidPipeline as error:
        todo = (
            f"{setting} names it. Unset that, or write it as a connection of type '{kind}' "
            f"({name_page('object-stores')}): airflow connections add {quote(conn_id)} {EXAMPLES[kind]}, or "
            f"{variable_name(conn_id)}. {NOTHING_WRITTEN}"
        )
        raise InvalidPipeline(error.what, error.why, todo, code=error.code) from None
    text = env[variable_name(conn_id)].strip()
    if text.startswith("{"):
        connection = json.loads(text)
        return extra, connection.get("login"), connection.get("password")
    uri = urlsplit(text)
    return extra, unquote(uri.username or ""), unquote(uri.password or "")


def write_variable(conn_id: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the variable for a child process, as `read_variable` and Airflow read it."""
    return {variable_name(conn_id): json.dumps({"conn_type": "kafka", "extra": dict(settings)})}


def write_variables(conn_ids: Iterable[str], connections: Lookup) -> dict[str, str]:
    """Return environment variables that give these connections to another process; nothing else shows them."""
    variables: dict[str, str] = {}
    for conn_id in conn_ids:
        variables |= write_variable(conn_id, connections(conn_id))
    return variables


def missing_connection_error(conn_id: str, why: str, kind: str = "kafka") -> InvalidPipeline:
    """Return the error for a connection that does not exist.

    Args:
        kind: what it is for, of EXAMPLES.
    """
    return InvalidPipeline(
        f"the Airflow connection '{conn_id}' does not exist.",
        why,
        f"Add it: airflow connections add {quote(conn_id)} {EXAMPLES[kind]}, or set {variable_name(conn_id)}. "
        f"{NOTHING_WRITTEN}",
        code="connection-missing",
    )


def _parse_extra(text: str) -> Any:
    """Return the extra of a connection that is written as JSON or as URI; an object, unless it is malformed.

    Raises:
        ValueError: the connection or its extra cannot be parsed.
    """
    extra = json.loads(text).get("extra") if text.startswith("{") else _extra_of_uri(text)
    if isinstance(extra, str) and extra:
        return json.loads(extra)
    return extra or {}


def _extra_of_uri(uri: str) -> str | dict[str, str]:
    """Return the extra of `kafka://?__extra__=<JSON>` or `kafka://?bootstrap.servers=…&…`, URL-encoded."""
    query = dict(parse_qsl(urlsplit(uri).query, keep_blank_values=True))
    return query.get("__extra__", query)
