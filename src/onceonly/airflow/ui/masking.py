"""Masking: what the pages and their answers show passes the filter of Airflow's logs, and ours for addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow._shared.secrets_masker import mask_secret, redact
from markupsafe import Markup

from onceonly import redaction
from onceonly.kafka import connection


def mask(data: Any) -> Any:
    """Return JSON without the secrets of this process's connections and the passwords in addresses.

    Texts are masked, also in lists and dicts; other values are returned as they are, also HTML that a macro has made.
    """
    if isinstance(data, dict):
        return {key: mask(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [mask(value) for value in data]
    if isinstance(data, Markup) or not isinstance(data, str):  # markup is of a macro, whose parts were looked at
        return data
    return redaction.hide_credentials(redact(data))


def remember(settings: Mapping[str, Any]) -> None:
    """Mask a Kafka connection's secrets from now on, also those whose names say nothing to Airflow."""
    for key, value in settings.items():
        if connection.SECRET.search(key):
            mask_secret(value)
