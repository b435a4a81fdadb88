"""Waiting for a condition, with a time limit and a message."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from onceonly.errors import NotCommitted

T = TypeVar("T")


def wait_until(
    ready: Callable[[], T | None],
    what: str,
    seconds: float,
    meanwhile: Callable[[], None] | None = None,
    every: float = 0.5,
) -> T:
    """Return the first result of `ready` that is neither None nor False. `meanwhile` may raise, to stop waiting."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = ready()
        if result:
            return result
        if meanwhile:
            meanwhile()
        time.sleep(every)
    raise NotCommitted(f"timed out waiting until {what}.", f"It took more than {seconds:.0f} s.", code="demo-failed")
