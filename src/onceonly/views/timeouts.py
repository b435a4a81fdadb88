"""How much of its time-out a pending transaction has used: after it the broker ends it, and it is written again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.views import formatting

WARN_AT = 0.8  # of the time-out


def warnings(checkpoint: Checkpoint, now: datetime) -> Iterator[str]:
    """Yield a line for each sink whose pending transactions are about to time out, or have.

    Args:
        now: aware.
    """
    if checkpoint.state not in (State.STAGED, State.COMMITTING):
        return
    for sink in checkpoint.waiting:
        share = compute_used_share(checkpoint, sink, now)
        if share is not None and share >= WARN_AT:
            yield (
                f"{checkpoint.pipeline} epoch {checkpoint.epoch}: the open transactions of sink '{sink}' have used "
                f"{share:.0%} of their time-out and keep read_committed readers waiting. Commit or abort: "
                f"{_ending_commands(checkpoint)}. (After the time-out the broker aborts them; their rows are in the "
                "spool, and the commit writes them again.)"
            )


def _ending_commands(checkpoint: Checkpoint) -> str:
    """Return the commands that end its transactions: a person decides on a held one, which recovery leaves as it is."""
    if checkpoint.held:
        return formatting.how_to_decide(checkpoint.pipeline, checkpoint.epoch, checkpoint.changed_seq)
    return f"onceonly recover {checkpoint.pipeline}"


def compute_used_share(checkpoint: Checkpoint, sink: str, now: datetime) -> float | None:
    """Return the share of a sink's time-out that has passed (1.0: all).

    None if the sink has no open transaction, or is in doubt.

    Args:
        now: aware.
    """
    handle = checkpoint.handles[sink]
    if "opened_at" not in handle or sink in checkpoint.in_doubt:
        return None
    opened_at = datetime.fromisoformat(handle["opened_at"])
    return (now - opened_at).total_seconds() / float(handle["timeout"])
