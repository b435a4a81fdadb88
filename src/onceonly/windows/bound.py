"""The bound of the watermark: how late a row may be dated and still move it.

One event of the year 2092, from a device with a wrong clock, would otherwise close every window. The bound comes from
what the checkpoint has pinned, and not from a clock: a stage that is repeated computes the same.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

WATERMARK = "watermark"  # the state's column that carries it
AS_OF = "onceonly.as_of"  # key in the column's metadata: the time of the checkpoint, in microseconds since 1970
NOTE = "onceonly.note"  # key in the metadata of a changed column: a sentence for the log and `describe`


def dated(state: Any, as_of: datetime) -> Any:
    """Return the state with the time of the checkpoint that is being staged: the end of its interval, or of its plan.

    A state without windows is returned as it is.
    """
    if WATERMARK not in state.columns:
        return state
    metadata = state.schema[WATERMARK].metadata
    return state.withMetadata(WATERMARK, {**metadata, AS_OF: round(as_of.timestamp() * 1e6)})


def latest(state: Any, ahead: timedelta) -> int | None:
    """Return the latest time that moves the watermark, in microseconds; None where no checkpoint is staged (a test)."""
    as_of = state.schema[WATERMARK].metadata.get(AS_OF)
    return None if as_of is None else as_of + ahead // timedelta(microseconds=1)


def note(rows_ahead: int, ahead: timedelta) -> dict[str, str]:
    """Return the metadata that tells of rows dated ahead; empty if there are none."""
    if not rows_ahead:
        return {}
    rows = "1 row is" if rows_ahead == 1 else f"{rows_ahead:,} rows are"
    return {NOTE: f"{rows} dated more than {ahead} ahead of the checkpoint: did not move the watermark"}
