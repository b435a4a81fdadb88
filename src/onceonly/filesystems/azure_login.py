"""An Airflow connection of type `wasb`, as the environment variables by which every client of Azure finds credentials.

So it counts for delta-rs, Microsoft's client and Hadoop alike, and for the processes that this one starts; and it is
written nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from onceonly.errors import InvalidPipeline
from onceonly.filesystems.azure_names import KEY, NAME, TOKEN

LOGIN, PASSWORD, SAS = "login", "password", "sas_token"
CREDENTIALS = (KEY, TOKEN, "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY", "AZURE_STORAGE_SAS_KEY")
OTHERS = (
    "connection_string",
    "tenant_id",
    "shared_access_key",
    "managed_identity_client_id",
)  # of Airflow's own client


def settings_of(extra: Mapping[str, Any], login: str | None, password: str | None) -> Mapping[str, Any]:
    """The settings of a connection: the account is its login, and the key its password."""
    return {**extra, LOGIN: login, PASSWORD: password}


def take_up(conn_id: str, settings: Mapping[str, Any], env: MutableMapping[str, str] = os.environ) -> None:
    """Let this process, and those that it starts, use the connection; without a key or token, the usual chain counts.

    Raises:
        InvalidPipeline: it cannot be used; nothing was changed.
    """
    found = variables(conn_id, settings)
    if len(found) > 1:
        for name in CREDENTIALS:
            env.pop(name, None)
    env.update(found)


def variables(conn_id: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Raises InvalidPipeline: it cannot be used. No value is shown."""
    if why := _against(settings):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' cannot be used for Azure.",
            why,
            "Give it the account as login, and its key as password, or a sas_token, or neither "
            "(docs/object-stores.md). Nothing was written.",
        )
    named = {NAME: settings[LOGIN], KEY: settings.get(PASSWORD), TOKEN: settings.get(SAS)}
    return {name: str(value) for name, value in named.items() if value}


def taken_up(conn_id: str | None, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a process elsewhere needs to use the connection as this one does, keys included; nothing without one."""
    return {name: env[name] for name in (NAME, KEY, TOKEN) if conn_id and env.get(name)}


def _against(settings: Mapping[str, Any]) -> str | None:
    if found := [name for name in OTHERS if settings.get(name)]:
        return f"It has {', '.join(found)}, which only Airflow's own client can use."
    if not settings.get(LOGIN):
        return "It names no account."
    if settings.get(PASSWORD) and settings.get(SAS):
        return f"It has a key and a {SAS}; give only one of them."
    return None
