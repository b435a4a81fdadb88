"""The parts that commands work with: the Spark of this home, and a state table that they can write."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from onceonly.settings import Settings

if TYPE_CHECKING:
    from onceonly.coordinator.coordinator import Coordinator
    from onceonly.runtime.live_services import LiveServices


def open_coordinator(settings: Settings) -> Coordinator:
    """Return a coordinator on the state table and services that the environment names.

    Raises:
        NotCommitted: nothing could be recorded in the state table.
    """
    from onceonly.runtime import live_services
    from onceonly.statetable import location

    location.check_writable(settings.state)
    return live_services.open_coordinator(open_services(settings))


def open_services(settings: Settings) -> LiveServices:
    """Return live services, on the Spark that `use_embedded_spark` names."""
    from onceonly.cli import connections
    from onceonly.runtime import live_services

    return live_services.LiveServices(use_embedded_spark(settings), connections.read_extra)


def use_embedded_spark(settings: Settings) -> Settings:
    """Add the Spark server of `onceonly services up --spark`, where it runs and nothing else is named."""
    if settings.spark_remote is not None:
        return settings
    address = settings.embedded_at("spark")
    if not address or not _is_open(address):
        return settings
    return replace(settings, spark_remote=address)


def _is_open(address: str) -> bool:
    """Return whether a server accepts connections there: one that has died is still on record."""
    url = urlsplit(address)
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((url.hostname or "localhost", url.port or 0)) == 0
