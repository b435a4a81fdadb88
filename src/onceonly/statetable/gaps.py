"""What a pipeline that runs by intervals leaves out: time between two pinned intervals that no interval covers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from onceonly.checkpoint.offsets import Interval


def between(pinned: Iterable[Interval]) -> list[Interval]:
    """The gaps between these intervals, oldest first.

    They are in any order and may be repeated, but do not overlap: so each ends before the one that begins next.
    """
    in_order = sorted((each.start, each.end) for each in pinned)
    return [Interval(end, start) for (_, end), (start, _) in pairwise(in_order) if end < start]
