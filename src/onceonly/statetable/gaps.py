"""The intervals of a pipeline that are missing: no checkpoint has published them, and nobody has left them out.

An interval is covered by a checkpoint of its own that is committed, had no records, or is not settled yet. Without one
it is a gap until it is run or skipped, whatever its history, such as an aborted checkpoint whose run was deleted.
A repair writes only some sinks, of an interval that is committed already: it covers nothing that is not.

Time that nobody has asked for is a gap only between covered intervals. An aborted interval may have been asked for by
accident, and a skipped one is not wanted: neither begins or ends such a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import starmap

from onceonly.checkpoint.model import Event
from onceonly.checkpoint.offsets import Interval
from onceonly.statetable.predicates import PINS, SKIPS, WITH_INTERVAL, Where, of_epochs, of_event
from onceonly.statetable.rows import Rows

_SETTLING = of_event(Event.COMMITTED, Event.EMPTY)  # the last rows by which an interval becomes covered


@dataclass(frozen=True)
class Coverage:
    """What the intervals of a pipeline cover.

    Args:
        gaps: the missing intervals, oldest first.
        end: of the last covered interval, or of what was skipped right behind it; None: none is covered.
    """

    gaps: tuple[Interval, ...] = ()
    end: datetime | None = None


def read_coverage(rows: Rows, open_epochs: Iterable[int], asked: Collection[Interval] = ()) -> Coverage:
    """Return what the intervals of a pipeline cover.

    Args:
        open_epochs: those that are not settled in these rows.
        asked: intervals that count as covered, whether they have a checkpoint or not.
    """
    pins = PINS & WITH_INTERVAL
    covering = rows.of_epochs_ended_by(_SETTLING) | of_epochs(sorted(open_epochs))
    covered = [*rows.intervals(pins & covering), *asked]
    aborted = _read_intervals(rows, pins & ~covering)
    if not aborted and not find_coverage(covered).gaps:
        return find_coverage(covered)  # what was skipped joins on, and the bodies of all rows need not be read
    skipped: list[Interval] = []
    skipped_epochs: list[int] = []
    for row in filter(SKIPS.test, rows.find(SKIPS & WITH_INTERVAL)):
        if row.interval:
            skipped.append(row.interval)
            skipped_epochs.append(row.epoch)
    if skipped:
        covered = [*rows.intervals(pins & covering & ~of_epochs(skipped_epochs)), *asked]
    return find_coverage(covered, skipped, aborted)


def find_coverage(
    covered: Collection[Interval], skipped: Collection[Interval] = (), aborted: Iterable[Interval] = ()
) -> Coverage:
    """Return what these intervals cover. They are in any order, and may be repeated.

    Where an aborted interval lies in a gap, it is a gap of its own: its boundaries are pinned, so that it is run, or
    skipped, exactly as it is.
    """
    settled = [*covered, *skipped]
    missing: set[Interval] = set()
    for interval in aborted:
        if not any(map(interval.overlaps, settled)):
            missing.add(interval)
    end: datetime | None = None
    if covered:
        start = min(covered, key=_by_time).start
        end = max(covered, key=_end).end
        missing.update(_find_holes([*settled, *missing], Interval(start, end)))
        for interval in sorted(skipped, key=_by_time):
            if interval.start <= end:
                end = max(end, interval.end)
    return Coverage(tuple(sorted(missing, key=_by_time)), end)


def _find_holes(intervals: Iterable[Interval], span: Interval) -> list[Interval]:
    """Return the time in the span that none of these covers, which may overlap each other."""
    inside = filter(span.overlaps, intervals)
    holes = []
    covered_until = span.start
    for interval in sorted(inside, key=_by_time):
        if covered_until < interval.start:
            holes.append(Interval(covered_until, interval.start))
        covered_until = max(covered_until, interval.end)
    return holes


def _read_intervals(rows: Rows, where: Where) -> set[Interval]:
    """Return the intervals of the chosen rows, each once."""
    return set(starmap(Interval, rows.values(where, "interval_start", "interval_end")))


def _end(interval: Interval) -> datetime:
    return interval.end


def _by_time(interval: Interval) -> tuple[datetime, datetime]:
    return interval.start, interval.end
