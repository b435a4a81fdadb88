"""Hiding secrets: passwords in addresses, and secret settings of Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping

CREDENTIALS = re.compile(r"://[^/\s]+@")  # to the last @: a password may contain one
# What Spark's own spark.redaction.regex hides in its UI and event log, and the keys of Azure and Google.
SECRET = re.compile(r"secret|password|passphrase|token|(access|account|private)[._-]?key", re.IGNORECASE)
GIVEN = re.compile(rf"({SECRET.pattern})[\w.-]*\"?\s*[=:]\s*\S", re.IGNORECASE)  # in a value, such as -Dx.password=…
PLACE = re.compile(r"File$|\.(secretKeyRef|secrets)\.")  # says where a secret is, as Kubernetes' settings do
JVM_OPTIONS = re.compile(r"(default|extra)JavaOptions$")


def secret(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings that must not be arguments of a process: other users of its machine can see them."""
    return {key: value for key, value in conf.items() if _is_one(key, value) or _holds_one(value)}


def public(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings that are not secret."""
    hidden = secret(conf)
    return {key: value for key, value in conf.items() if key not in hidden}


def of_a_jvm(conf: Mapping[str, str]) -> list[str]:
    """The names of settings that become arguments of a JVM, however they are passed to Spark."""
    return sorted(key for key in conf if JVM_OPTIONS.search(key))


def _is_one(key: str, value: str) -> bool:
    """Whether the setting is secret by its name. A boolean never is."""
    return bool(SECRET.search(key)) and not PLACE.search(key) and value.lower() not in ("true", "false")


def _holds_one(value: str) -> bool:
    return bool(GIVEN.search(value) or CREDENTIALS.search(value))
