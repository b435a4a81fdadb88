"""The demo: the flights of 2013, and a pipeline that processes them.

A process can be held right after its decision, so that the demo can kill it there: ONCEONLY_NOTIFY names `at_decision`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from onceonly.checkpoint.model import Checkpoint, Event, Row
from onceonly.settings import Settings


def hold_file(home: Path) -> Path:
    """Return the file that holds processes: while it exists, one writes its pid into it after a decision, and waits."""
    return home / "hold-at-decision"


def at_decision(checkpoint: Checkpoint, row: Row) -> None:
    """Wait after the decision, before anything is published, while the file exists."""
    file = hold_file(Settings.from_env().home)
    if row.event is not Event.COMMITTING or not file.exists():
        return
    file.write_text(str(os.getpid()))
    while file.exists():
        time.sleep(0.05)
