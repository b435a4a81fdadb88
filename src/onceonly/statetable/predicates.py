"""Choices of rows: as an SQL condition for those in files, and as a test for those in memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from onceonly.checkpoint.model import Event, Row
from onceonly.checkpoint.offsets import Interval


@dataclass(frozen=True)
class Where:
    """A choice of rows, said twice: `sql` for rows in files, `test` for rows in memory. Both have to mean the same."""

    sql: str
    test: Callable[[Row], bool]

    def __and__(self, other: Where) -> Where:
        return Where(f"({self.sql}) AND ({other.sql})", lambda row: self.test(row) and other.test(row))

    def __or__(self, other: Where) -> Where:
        return Where(f"({self.sql}) OR ({other.sql})", lambda row: self.test(row) or other.test(row))

    def __invert__(self) -> Where:
        return Where(f"({self.sql}) IS NOT TRUE", lambda row: not self.test(row))  # NULL is not true, either


EVERY = Where("true", lambda row: True)
OWNED = Where("owner IS NOT NULL", lambda row: row.owner is not None)
WITH_INTERVAL = Where("interval_start IS NOT NULL", lambda row: row.interval is not None)


def of_event(*events: Event) -> Where:
    listed = ", ".join(f"'{event.value}'" for event in events)
    return Where(f"event IN ({listed})", lambda row: row.event in events)


PINS = of_event(Event.PLANNED, Event.EMPTY)  # rows that pin offsets
AFTER = Where("body LIKE '%\"after\":{%'", lambda row: bool(row.body.get("after")))
REPLACES = Where(
    f"event = '{Event.PLANNED.value}' AND attempt = 0 AND body LIKE '%\"replaces\":%'",
    lambda row: row.event is Event.PLANNED and row.attempt == 0 and "replaces" in row.body,
)

SKIPS = Where(  # in files, a definition may have that key as well: whoever needs to know tests the row
    f"event = '{Event.EMPTY.value}' AND body LIKE '%\"skipped\":%'",
    lambda row: row.event is Event.EMPTY and row.body.get("skipped") is not None,
)


def above_seq(seq: int) -> Where:
    return Where(f"seq > {seq}", lambda row: row.seq > seq)


def from_epoch(first: int, last: int | None = None) -> Where:
    """Return the rows of these epochs, both ends included; None: of all from the first one on."""
    until = "" if last is None else f" AND epoch <= {last}"
    return Where(f"epoch >= {first}{until}", lambda row: first <= row.epoch and (last is None or row.epoch <= last))


def of_epochs(epochs: Sequence[int]) -> Where:
    listed = ", ".join(map(str, epochs)) or "NULL"
    return Where(f"epoch IN ({listed})", lambda row: row.epoch in epochs)


def owned_by(owner: str) -> Where:
    return Where(f"owner = {_text_literal(owner)}", lambda row: row.owner == owner)


def published_to(sink: str, above: int) -> Where:
    """Return the publications of that sink by a later decision."""
    later = Where(
        f"sink = {_text_literal(sink)} AND decision > {above}",
        lambda row: row.sink == sink and (row.decision or 0) > above,
    )
    return of_event(Event.PUBLISHED) & later


def rewinds_after(epoch: int) -> Where:
    return of_event(Event.REWOUND) & from_epoch(epoch + 1)


def overlaps(interval: Interval) -> Where:
    return _compare_time("interval_start", "<", interval.end) & _compare_time("interval_end", ">", interval.start)


def starts_since(time: datetime) -> Where:
    """Return the rows whose interval starts at that time or later."""
    return _compare_time("interval_start", ">=", time)


def ends_until(time: datetime) -> Where:
    """Return the rows whose interval ends at that time or earlier."""
    return _compare_time("interval_end", "<=", time)


_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}  # by SQL's operators


def _compare_time(column: str, sign: str, bound: datetime) -> Where:
    """Return the rows with an interval of which that column compares so with the bound."""
    compare = _COMPARISONS[sign]

    def test(row: Row) -> bool:
        if row.interval is None:
            return False
        time = row.interval.start if column == "interval_start" else row.interval.end
        return bool(compare(time, bound))

    return Where(f"{column} {sign} {_time_literal(bound)}", test)


def _text_literal(value: str) -> str:
    """Return the value as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def _time_literal(value: datetime) -> str:
    return f"arrow_cast('{value.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
