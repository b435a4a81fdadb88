"""What this process waits for now, by name and since when, for whoever shows it: the command line, and the page.

Whatever may take longer than SHOWN_AFTER_SECONDS is named where it happens, by `wait_for`. It costs about a microsecond
and changes nothing, so a call that usually returns at once is named as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count

SHOWN_AFTER_SECONDS = 2.0
CLOCK = "%H:%M:%S UTC"


@dataclass(eq=False)
class Wait:
    """One wait, which has not ended.

    Args:
        what: a noun phrase that completes "waiting for …"; of a step its name. It holds no secret.
        is_step: it only groups the waits in it: a step of a command, or the command.
        detail: how far it is, for people; set by whoever waits.
    """

    what: str
    is_step: bool = False
    detail: str = ""
    started: float = field(default_factory=time.monotonic)
    since: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


_numbers = count()
_open: dict[int, Wait] = {}  # in the order in which they began


@contextmanager
def wait_for(what: str) -> Iterator[Wait]:
    """Name what the block waits for."""
    with _list_while_open(Wait(what)) as wait:
        yield wait


@contextmanager
def step(name: str) -> Iterator[Wait]:
    """Name the step that the block is."""
    with _list_while_open(Wait(name, is_step=True)) as wait:
        yield wait


def list_open(min_seconds: float = 0.0) -> list[Wait]:
    """Return the waits that have lasted that long, the oldest first."""
    return [wait for wait in list(_open.values()) if wait.seconds >= min_seconds]


def describe(waits: list[Wait]) -> str:
    """Return 'stage: waiting for Spark to start, since 21:21:07 UTC': the last step, and the last wait in it.

    Args:
        waits: as `list_open` returns them; not empty.
    """
    steps = [wait for wait in waits if wait.is_step]
    waits_in_steps = [wait for wait in waits if not wait.is_step]
    last = (waits_in_steps or steps)[-1]
    words = f"waiting for {last.what}" if waits_in_steps else last.what
    if waits_in_steps and steps:
        words = f"{steps[-1].what}: {words}"
    if last.detail:
        words = f"{words}, {last.detail}"
    return f"{words}, since {last.since.strftime(CLOCK)}"


@contextmanager
def _list_while_open(wait: Wait) -> Iterator[Wait]:
    number = next(_numbers)
    _open[number] = wait
    try:
        yield wait
    finally:
        del _open[number]
