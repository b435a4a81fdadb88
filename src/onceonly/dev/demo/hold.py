"""Stops a process right after it took a decision, so that the demo can kill it there. Named by ONCEONLY_NOTIFY."""

from __future__ import annotations

import os
import time
from pathlib import Path

from onceonly.checkpoint.model import Checkpoint, Event, Row
from onceonly.settings import Settings


def hold_file(home: Path) -> Path:
    """While this file exists, a process that has taken a decision writes its pid into it and waits."""
    return home / "hold-at-decision"


def at_decision(checkpoint: Checkpoint, row: Row) -> None:
    """Wait, decided and not published, as long as the file is there."""
    file = hold_file(Settings.from_env().home)
    if row.event is not Event.COMMITTING or not file.exists():
        return
    file.write_text(str(os.getpid()))
    while file.exists():
        time.sleep(0.05)
