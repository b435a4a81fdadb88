"""What a pipeline that runs by intervals leaves out: time between two pinned intervals that no interval covers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from onceonly.checkpoint.offsets import Interval


def gaps_between(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the gaps between these pinned intervals, oldest first.

    They are in any order and may be repeated, but do not overlap: so each ends before the one that begins next.
    """
    in_order = sorted((interval.start, interval.end) for interval in intervals)
    return [Interval(end, start) for (_, end), (start, _) in pairwise(in_order) if end < start]
