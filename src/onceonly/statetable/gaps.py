"""What a pipeline that runs by intervals leaves out: time between two pinned intervals that no interval covers."""

from __future__ import annotations

import pyarrow as pa

from onceonly.checkpoint.offsets import Interval

COLUMNS = ("interval_start", "interval_end")


def between(pinned: pa.Table) -> list[Interval]:
    """The gaps between the intervals of a table with these `COLUMNS`, oldest first.

    They are in any order and may be repeated, but do not overlap: so each ends before the one that begins next.
    Nothing is made of the intervals themselves, of which there may be very many.
    """
    import pyarrow.compute as pc  # here: most pipelines have no intervals, and it takes long to import

    in_order = pinned.select(COLUMNS).sort_by([(name, "ascending") for name in COLUMNS])
    ends, starts = in_order["interval_end"][:-1], in_order["interval_start"][1:]
    apart = pc.less(ends, starts)
    found = zip(ends.filter(apart).to_pylist(), starts.filter(apart).to_pylist(), strict=True)
    return [Interval(end, start) for end, start in found]
