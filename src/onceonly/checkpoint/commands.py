"""Commands that messages and views tell people to run."""

from __future__ import annotations

from onceonly.checkpoint.model import Checkpoint


def how_to_run(checkpoint: Checkpoint) -> str:
    """Return how an aborted checkpoint is run again."""
    if checkpoint.interval is None:
        return f"the next run of '{checkpoint.pipeline}' does it, or onceonly run FILE.py:NAME"
    interval = f"{checkpoint.interval.start:%Y-%m-%dT%H:%M:%SZ} {checkpoint.interval.end:%Y-%m-%dT%H:%M:%SZ}"
    return f"clear its run in Airflow, or onceonly run FILE.py:NAME --interval {interval}"
