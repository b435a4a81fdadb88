"""How much of its time-out a pending transaction has used: after it the broker ends it, and it is written again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.views import formatting

WARN_AT = 0.8  # of the time-out


def warnings(checkpoint: Checkpoint, now: datetime) -> Iterator[str]:
    """A line for each sink whose pending transactions are about to time out, or have.

    Args:
        now: aware.
    """
    if checkpoint.state not in (State.STAGED, State.COMMITTING):
        return
    for sink in checkpoint.waiting:
        part = used(checkpoint, sink, now)
        if part is not None and part >= WARN_AT:
            yield (
                f"{checkpoint.pipeline} epoch {checkpoint.epoch}: the open transactions of sink '{sink}' have used "
                f"{part:.0%} of their time-out and keep read_committed readers waiting. Commit or abort: "
                f"{_how(checkpoint)}. (After the time-out the broker aborts them; their rows are in the spool, and the "
                "commit writes them again.)"
            )


def _how(checkpoint: Checkpoint) -> str:
    """Recovery leaves a held one as it is."""
    if checkpoint.held:
        return formatting.how_to_decide(checkpoint.pipeline, checkpoint.epoch, checkpoint.changed_seq)
    return f"onceonly recover {checkpoint.pipeline}"


def used(checkpoint: Checkpoint, sink: str, now: datetime) -> float | None:
    """The part of its time-out that is used (1.0: all); None if the sink has no open transaction, or is in doubt."""
    handle = checkpoint.handles[sink]
    if "opened_at" not in handle or sink in checkpoint.in_doubt:
        return None
    opened = datetime.fromisoformat(handle["opened_at"])
    return (now - opened).total_seconds() / float(handle["timeout"])
