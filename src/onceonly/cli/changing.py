"""What commands work with: the Spark of this home, and a state table that can be written where they change it."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from onceonly.settings import Settings

if TYPE_CHECKING:
    from onceonly.coordinator.coordinator import Coordinator
    from onceonly.runtime.factory import LiveParts


def coordinator(settings: Settings) -> Coordinator:
    """On what the environment names.

    Raises:
        NotCommitted: nothing could be recorded in the state table.
    """
    from onceonly.runtime import factory
    from onceonly.statetable import location

    location.check_writable(settings.state)
    return factory.coordinator(parts(settings))


def parts(settings: Settings) -> LiveParts:
    """With the Spark server of `onceonly services up --spark` where it runs and nothing else is named."""
    from onceonly.runtime import factory

    return factory.LiveParts(with_spark(settings))


def with_spark(settings: Settings) -> Settings:
    found = settings.embedded_at("spark") if settings.spark_remote is None else None
    return replace(settings, spark_remote=found) if found and _is_open(found) else settings


def _is_open(address: str) -> bool:
    """A server that has died is still on record."""
    there = urlsplit(address)
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((there.hostname or "localhost", there.port or 0)) == 0
