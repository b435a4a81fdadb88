"""Hiding secrets: passwords in addresses, and secret settings of Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

CREDENTIALS = re.compile(r"://[^/\s]+@")  # to the last @: a password may contain one
# What Spark's own spark.redaction.regex hides in its UI and event log, and the keys of Azure and Google.
SECRET = re.compile(r"secret|password|passphrase|token|(access|account|private)[._-]?key", re.IGNORECASE)
# In a value, such as -Dx.password=…
SECRET_IN_VALUE = re.compile(rf"({SECRET.pattern})[\w.-]*\"?\s*[=:]\s*\S", re.IGNORECASE)
PLACE_OF_SECRET = re.compile(r"File$|\.(secretKeyRef|secrets)\.")  # says where a secret is, as Kubernetes' settings do
JVM_OPTIONS = re.compile(r"(default|extra)JavaOptions$")


def hide_credentials(data: Any) -> Any:
    """Return JSON without the credentials in addresses.

    Handles hold no secret, but an address that a user gave may carry a password.
    """
    if isinstance(data, dict):
        return {key: hide_credentials(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [hide_credentials(value) for value in data]
    if isinstance(data, str):
        return CREDENTIALS.sub("://…@", data)
    return data


def secret(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that must not be arguments of a process: other users of its machine can see them."""
    return {key: value for key, value in conf.items() if _is_secret_by_name(key, value) or _has_secret(value)}


def public(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that are not secret."""
    secrets = secret(conf)
    return {key: value for key, value in conf.items() if key not in secrets}


def of_a_jvm(conf: Mapping[str, str]) -> list[str]:
    """Return the names of settings that become arguments of a JVM, however they are passed to Spark."""
    return sorted(key for key in conf if JVM_OPTIONS.search(key))


def _is_secret_by_name(key: str, value: str) -> bool:
    """Whether the setting is secret by its name. A boolean never is."""
    return bool(SECRET.search(key)) and not PLACE_OF_SECRET.search(key) and value.lower() not in ("true", "false")


def _has_secret(value: str) -> bool:
    """Whether the value of a setting has a secret in it, or an address with a password."""
    return bool(SECRET_IN_VALUE.search(value) or CREDENTIALS.search(value))
