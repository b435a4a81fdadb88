"""What a command changes: refused before any work where it could not be recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceonly.settings import Settings

if TYPE_CHECKING:
    from onceonly.coordinator.coordinator import Coordinator


def coordinator(settings: Settings) -> Coordinator:
    """On what the environment names.

    Raises:
        NotCommitted: nothing could be recorded in the state table.
    """
    from onceonly.runtime import factory
    from onceonly.statetable import location

    location.check_writable(settings.state)
    return factory.coordinator(factory.LiveParts(settings))
