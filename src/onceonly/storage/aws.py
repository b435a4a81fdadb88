"""An Airflow connection of type `aws`, as the environment variables by which every client of S3 finds credentials.

So it counts for delta-rs, pyarrow and S3A alike, and for the processes that this one starts; and it is written nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from onceonly.errors import InvalidPipeline

KEY, SECRET, PROFILE = "aws_access_key_id", "aws_secret_access_key", "profile_name"
VARIABLES = {
    KEY: "AWS_ACCESS_KEY_ID",
    SECRET: "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
    PROFILE: "AWS_PROFILE",
    "region_name": "AWS_REGION",
    "endpoint_url": "AWS_ENDPOINT_URL",
}
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
CHAIN = "AWS_FORCE_CREDENTIAL_LOAD"  # beside an endpoint, delta-rs looks for nothing but keys, unless it is told to
ROLES = ("role_arn", "assume_role_method", "assume_role_kwargs", "external_id")  # what only Airflow's own client does


def settings_of(extra: Mapping[str, Any], login: str | None, password: str | None) -> Mapping[str, Any]:
    """Return the settings of a connection; Airflow keeps the two keys as login and password, or in the extra."""
    keys = {KEY: login, SECRET: password} if login and password else {}
    return {**extra, **keys}


def take_up(conn_id: str, settings: Mapping[str, Any], env: MutableMapping[str, str] = os.environ) -> None:
    """Let this process, and those that it starts, use the connection.

    Keys or a profile take the place of all credentials that the environment names. Without either, the usual chain is
    used: environment, profile, instance.

    Raises:
        InvalidPipeline: it cannot be used; nothing was changed.
    """
    adopt(variables(conn_id, settings), env)


def provider(env: Mapping[str, str]) -> dict[str, Any]:
    """Return where a client that knows no profiles gets credentials, as an argument; empty: by itself.

    The order is that of delta-rs: keys, then a profile, if one is to count.

    Raises:
        InvalidPipeline: what reads profiles is not installed.
    """
    if all(env.get(name) for name in KEYS) or (env.get("AWS_ENDPOINT_URL") and env.get(CHAIN, "").lower() != "true"):
        return {}
    if not env.get("AWS_PROFILE") and not any(map(os.path.exists, _profile_files(env))):
        return {}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise InvalidPipeline(
            f"the AWS profile cannot be read: '{error.name}' is not installed.",
            "There is a profile in ~/.aws, or AWS_PROFILE names one.",
            "pip install 'onceonly[stores]', or give both keys in the environment. Nothing was written.",
        ) from error
    return {"credential_provider": Boto3CredentialProvider()}


def _profile_files(env: Mapping[str, str]) -> list[str]:
    """Return the paths of the files that hold profiles."""
    return [
        os.path.expanduser(env.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"),
        os.path.expanduser(env.get("AWS_CONFIG_FILE") or "~/.aws/config"),
    ]


def variables(conn_id: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables for a connection. Raises InvalidPipeline: it cannot be used. No value is shown."""
    if why := _find_obstacle(settings):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' cannot be used for S3.",
            why,
            "Give it both keys (login and password), or a profile, or neither (docs/object-stores.md). Nothing was "
            "written.",
        )
    env: dict[str, str] = {}
    for name, value in settings.items():
        if name in VARIABLES and value:
            env[VARIABLES[name]] = str(value)
    endpoint = env.get("AWS_ENDPOINT_URL", "")
    if endpoint.startswith("http://"):
        env["AWS_ALLOW_HTTP"] = "true"
    if endpoint and "AWS_ACCESS_KEY_ID" not in env:
        env[CHAIN] = "true"
    return env


def taken_up(conn_id: str | None, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what a process elsewhere needs to use the connection as this one does, keys included.

    Nothing without a connection.
    """
    return _select_variables(env) if conn_id else {}


def adopt(variables: Mapping[str, str], env: MutableMapping[str, str] = os.environ) -> None:
    """Let credentials among these variables take the place of all that the environment names."""
    if any(name in variables for name in CREDENTIALS):
        for name in CREDENTIALS:
            env.pop(name, None)
    env.update(variables)


def for_executors(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what Python on Spark's executors needs to reach S3 by this environment's keys, as S3A hands them over."""
    return _select_variables(env) if all(map(env.get, KEYS)) else {}


def _select_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a connection can set, as far as they are set."""
    return {name: env[name] for name in sorted({*VARIABLES.values(), "AWS_ALLOW_HTTP", CHAIN}) if env.get(name)}


def _find_obstacle(settings: Mapping[str, Any]) -> str | None:
    """Return why a connection with these settings cannot be used; None: it can be."""
    roles = [name for name in ROLES if settings.get(name)]
    if roles:
        return f"It names a role ({', '.join(roles)}), which only a profile or the machine itself can assume."
    if bool(settings.get(KEY)) != bool(settings.get(SECRET)):
        return f"It has only one of {KEY} and {SECRET}."
    if settings.get(KEY) and settings.get(PROFILE):
        return f"It has keys and a profile ({PROFILE}); give only one of them."
    return None
