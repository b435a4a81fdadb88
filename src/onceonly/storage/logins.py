"""The Airflow connections by which object stores are reached: by the settings that name them, what becomes of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from onceonly.settings import Settings
from onceonly.storage import aws, azure_login, google_login

# The attribute of the settings, the variable, and the type of the connection in Airflow.
STORES: dict[str, tuple[str, str, ModuleType]] = {
    "aws_connection": ("ONCEONLY_AWS_CONNECTION", "aws", aws),
    "azure_connection": ("ONCEONLY_AZURE_CONNECTION", "wasb", azure_login),
    "google_connection": ("ONCEONLY_GOOGLE_CONNECTION", "google_cloud_platform", google_login),
}
# Of a connection: its extra, login and password; by its id, the variable that names it, and its type.
Find = Callable[[str, str, str], tuple[Mapping[str, Any], str | None, str | None]]


def take_up(settings: Settings, find: Find) -> None:
    """Let this process reach each store by the connection that the settings name, if they name one.

    Raises:
        InvalidPipeline: there is no such connection, or it cannot be used.
    """
    for attribute, (variable, kind, store) in STORES.items():
        if conn_id := getattr(settings, attribute):
            store.take_up(conn_id, store.settings_of(*find(conn_id, variable, kind)))


def taken_up(settings: Settings, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what a process elsewhere needs to use these connections as this one does, keys included.

    Nothing without any connection.
    """
    variables: dict[str, str] = {}
    for attribute, (_, _, store) in STORES.items():
        variables |= store.taken_up(getattr(settings, attribute), env)
    return variables
