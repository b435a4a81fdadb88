"""How many rows a target lacks."""

from __future__ import annotations

from collections.abc import Sequence

from onceonly.checkpoint.model import Checkpoint


def count_lost_rows(checkpoints: Sequence[Checkpoint], sink: str) -> int | None:
    """Count the rows that are missing; None: the sink does not count them.

    What was replaced or retracted does not count.
    """
    total = 0
    for checkpoint in checkpoints:
        rows = checkpoint.handles[sink].get("rows")
        if _is_superseded(checkpoint, checkpoints):
            continue
        if rows is None:
            return None
        total += rows
    return total


def _is_superseded(checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]) -> bool:
    """Whether one of these has replaced it or retracted it: whatever does is decided later, so it is one of them."""
    for later in checkpoints:
        if later.replaces == checkpoint.epoch:
            return True
        if later.rewinds_to is not None and later.rewinds_to < checkpoint.origin and checkpoint.epoch < later.epoch:
            return True
    return False
