"""What the pages and their answers show passes the filter of Airflow's logs, and ours for addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow._shared.secrets_masker import mask_secret, redact
from markupsafe import Markup

from onceonly.kafka import connection
from onceonly.views import queries


def shown(data: Any) -> Any:
    """Texts, in lists and by name, without the secrets of this process's connections and the passwords in addresses."""
    if isinstance(data, dict):
        return {key: shown(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [shown(value) for value in data]
    if isinstance(data, Markup) or not isinstance(data, str):  # markup is of a macro, whose parts were looked at
        return data
    return queries.without_secrets(redact(data))


def remember(settings: Mapping[str, Any]) -> None:
    """A Kafka connection's secrets, also those whose names say nothing to Airflow."""
    for key, value in settings.items():
        if connection.SECRET.search(key):
            mask_secret(value)
