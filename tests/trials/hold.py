"""Stops a task right after a step is recorded, so that something can be done to it there. Named by ONCEONLY_NOTIFY."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onceonly.checkpoint.model import Checkpoint, Event, Row
from onceonly.dev.demo.standalone import wait_until
from onceonly.settings import Settings


def at_event(checkpoint: Checkpoint, row: Row) -> None:
    """Wait as long as the file `hold-<event>` is there; it gets the pid of whoever waits."""
    file = _file(Settings.from_env().home, row.event)
    if file.exists():
        file.write_text(str(os.getpid()))
    while file.exists():
        time.sleep(0.05)


@contextmanager
def held(home: Path, event: Event) -> Iterator[Path]:
    """Whoever records `event` within this block waits there until it ends."""
    file = _file(home, event)
    file.touch()
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def waiting(file: Path) -> int:
    """The pid of the process that waits."""
    return wait_until(lambda: int(file.read_text() or 0), f"a task waits at {file.name}", 300)


def _file(home: Path, event: Event) -> Path:
    return home / f"hold-{event.value}"
