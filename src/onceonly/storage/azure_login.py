"""An Airflow connection of type `wasb`, as the environment variables by which every client of Azure finds credentials.

So it counts for delta-rs, Microsoft's client and Hadoop alike, and for the processes that this one starts; and it is
written nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from onceonly.errors import InvalidPipeline
from onceonly.storage.azure_names import KEY, NAME, TOKEN

LOGIN, PASSWORD, SAS = "login", "password", "sas_token"
CREDENTIALS = (KEY, TOKEN, "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY", "AZURE_STORAGE_SAS_KEY")
# What only Airflow's own client can use.
AIRFLOW_ONLY = ("connection_string", "tenant_id", "shared_access_key", "managed_identity_client_id")


def settings_of(extra: Mapping[str, Any], login: str | None, password: str | None) -> Mapping[str, Any]:
    """Return the settings of a connection: the account is its login, and the key its password."""
    return {**extra, LOGIN: login, PASSWORD: password}


def take_up(conn_id: str, settings: Mapping[str, Any], env: MutableMapping[str, str] = os.environ) -> None:
    """Let this process, and those that it starts, use the connection; without a key or token, the usual chain counts.

    Raises:
        InvalidPipeline: it cannot be used; nothing was changed.
    """
    new_env = variables(conn_id, settings)
    if len(new_env) > 1:  # a key or a token, beside the account
        for name in CREDENTIALS:
            env.pop(name, None)
    env.update(new_env)


def variables(conn_id: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables for a connection. Raises InvalidPipeline: it cannot be used. No value is shown."""
    if why := _find_obstacle(settings):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' cannot be used for Azure.",
            why,
            "Give it the account as login, and its key as password, or a sas_token, or neither "
            "(docs/object-stores.md). Nothing was written.",
        )
    values = {NAME: settings[LOGIN], KEY: settings.get(PASSWORD), TOKEN: settings.get(SAS)}
    return {name: str(value) for name, value in values.items() if value}


def taken_up(conn_id: str | None, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what a process elsewhere needs to use the connection as this one does, keys included.

    Nothing without a connection.
    """
    if not conn_id:
        return {}
    return {name: env[name] for name in (NAME, KEY, TOKEN) if env.get(name)}


def _find_obstacle(settings: Mapping[str, Any]) -> str | None:
    """Return why a connection with these settings cannot be used; None: it can be."""
    unsupported = [name for name in AIRFLOW_ONLY if settings.get(name)]
    if unsupported:
        return f"It has {', '.join(unsupported)}, which only Airflow's own client can use."
    if not settings.get(LOGIN):
        return "It names no account."
    if settings.get(PASSWORD) and settings.get(SAS):
        return f"It has a key and a {SAS}; give only one of them."
    return None
