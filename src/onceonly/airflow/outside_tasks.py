"""Connections for a process that is no task: as tasks find them, in Airflow's secrets backends and its database.

Airflow is imported when it is asked, and only where one is set up: importing it makes its folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline, NotCommitted, first_sentence
from onceonly.kafka.airflow_connections import variable_name
from onceonly.redaction import hide_credentials

CONFIGURATION_PREFIXES = ("AIRFLOW__", "AIRFLOW_HOME", "AIRFLOW_CONFIG")
MAX_ERROR_LENGTH = 300  # characters of a backend's error


def find_connection(conn_id: str) -> tuple[str | None, str]:
    """Return a connection as its variable would have it (JSON), or None and where it was looked for.

    Raises:
        InvalidPipeline: there is no Airflow here that could be asked.
        NotCommitted: a secrets backend or the database could not be asked, and no other one has it.
    """
    obstacle = _find_obstacle()
    if obstacle:
        raise InvalidPipeline(
            f"whether the Airflow connection '{conn_id}' exists is not known.",
            f"Airflow was not asked: {obstacle}.",
            f"Set {variable_name(conn_id)} to the connection as JSON ({name_page('connections')}), or try again where "
            f"`airflow connections get {conn_id}` answers. Nothing was written.",
            code="connection-unanswered",
        )
    with redirect_stdout(sys.stderr):  # what Airflow says at its import does not belong into a command's answer
        connection, errors = _ask_backends(conn_id)
    if connection is not None:
        return connection, ""
    if errors:
        raise NotCommitted(
            f"whether the Airflow connection '{conn_id}' exists is not known.",
            f"Airflow could not be asked: {'; '.join(f'{name}: {text}' for name, text in errors.items())}.",
            "Set what Airflow's own processes have (AIRFLOW_HOME, AIRFLOW__DATABASE__SQL_ALCHEMY_CONN, …), see that "
            f"`airflow connections get {conn_id}` answers, and try again. Nothing was written.",
            code="connection-unanswered",
        )
    return None, "Airflow has no connection of that name, either."


def _find_obstacle() -> str | None:
    """Return why there is no Airflow to ask; None: there is one."""
    if find_spec("airflow") is None:
        return "it is not installed in this environment"
    if not is_set_up():
        return "none is set up for this user (AIRFLOW_HOME is not set, and there is no ~/airflow/airflow.cfg)"
    return None


def is_set_up(env: Mapping[str, str] = os.environ) -> bool:
    """Return whether this user has an Airflow, as far as the environment and the usual folder tell."""
    if any(name.startswith(CONFIGURATION_PREFIXES) for name in env):
        return True
    with suppress(RuntimeError):  # this user has no home
        return Path("~/airflow/airflow.cfg").expanduser().is_file()
    return False


def _ask_backends(conn_id: str) -> tuple[str | None, dict[str, str]]:
    """Return the connection of the first backend that has it, or None; and the errors of those asked, by name.

    Airflow's own look-up passes over a backend that fails, so a failure would look like a connection that is missing.
    """
    try:
        from airflow.configuration import ensure_secrets_loaded

        backends = ensure_secrets_loaded()
    except Exception as error:
        return None, {"airflow": _describe(error)}
    errors: dict[str, str] = {}
    for backend in backends:
        try:
            connection: Any = backend.get_connection(conn_id=conn_id)
            if connection is not None:
                return str(connection.as_json()), {}  # decrypts it, which fails with another Fernet key
        except Exception as error:
            errors[type(backend).__name__] = _describe(error)
    return None, errors


def _describe(error: Exception) -> str:
    """Return an error in few words, without a password that an address in it may have."""
    text: str = hide_credentials(first_sentence(error))
    return text[:MAX_ERROR_LENGTH].rstrip(".")
