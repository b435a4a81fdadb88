"""The stage job: what spark-submit runs, through jobs/stage.py."""

from __future__ import annotations

import sys

from onceonly.errors import exit_code
from onceonly.wiring import LiveParts, coordinator, stage


def main(argv: list[str]) -> int:
    """Stage PIPELINE EPOCH for OWNER; everything else comes from the state table and the environment."""
    name, epoch, owner = argv
    parts = LiveParts()
    try:
        done = stage(parts, coordinator(parts), name, int(epoch), owner)
    except Exception as error:
        print(f"ONCEONLY: {error}", file=sys.stderr, flush=True)
        return exit_code(error)
    print(f"ONCEONLY: {name} epoch {epoch} is {done.state.value}, {done.rows} rows", flush=True)
    return 0
