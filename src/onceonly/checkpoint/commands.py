"""Commands that messages and views tell people to run."""

from __future__ import annotations

from onceonly.checkpoint.model import Checkpoint


def how_to_run(checkpoint: Checkpoint) -> str:
    """How an aborted checkpoint is run again."""
    if checkpoint.interval is None:
        return f"the next run of '{checkpoint.pipeline}' does it, or onceonly run FILE.py:NAME"
    start, end = (f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in (checkpoint.interval.start, checkpoint.interval.end))
    return f"clear its run in Airflow, or onceonly run FILE.py:NAME --interval {start} {end}"
