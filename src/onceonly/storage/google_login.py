"""An Airflow connection of type `google_cloud_platform`: the path of a key file, where delta-rs looks for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from onceonly.errors import InvalidPipeline
from onceonly.storage.google_names import FILES

PATH = "key_path"
# What only Airflow's own client can use.
AIRFLOW_ONLY = ("keyfile_dict", "key_secret_name", "credential_config_file", "impersonation_chain")


def settings_of(extra: Mapping[str, Any], login: str | None, password: str | None) -> Mapping[str, Any]:
    """Return the settings of a connection, all in its extra."""
    return extra


def take_up(conn_id: str, settings: Mapping[str, Any], env: MutableMapping[str, str] = os.environ) -> None:
    """Let this process, and those that it starts, use the connection; without a key file, the usual chain counts.

    Raises:
        InvalidPipeline: it cannot be used; nothing was changed.
    """
    new_env = variables(conn_id, settings)
    if new_env:
        for name in FILES:
            env.pop(name, None)
    env.update(new_env)


def variables(conn_id: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the variable for a connection. Raises InvalidPipeline: it cannot be used. No value is shown."""
    unsupported = [name for name in AIRFLOW_ONLY if settings.get(name)]
    if unsupported:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' cannot be used for Google Cloud Storage.",
            f"It has {', '.join(unsupported)}, which only Airflow's own client can use.",
            f"Set its {PATH} to a key file, or use the machine's identity (docs/object-stores.md). "
            "Nothing was written.",
        )
    return {FILES[0]: str(settings[PATH])} if settings.get(PATH) else {}


def taken_up(conn_id: str | None, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what a process elsewhere needs to use the connection as this one does; the file has to be there."""
    return {FILES[0]: env[FILES[0]]} if conn_id and env.get(FILES[0]) else {}
