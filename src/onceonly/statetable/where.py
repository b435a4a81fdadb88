"""Choices of rows: as an SQL condition for those in files, and as a test for those in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from onceonly.checkpoint.model import Event, Row
from onceonly.checkpoint.offsets import Interval


@dataclass(frozen=True)
class Where:
    """Both have to mean the same."""

    sql: str
    test: Callable[[Row], bool]

    def __and__(self, other: Where) -> Where:
        return Where(f"({self.sql}) AND ({other.sql})", lambda row: self.test(row) and other.test(row))

    def __or__(self, other: Where) -> Where:
        return Where(f"({self.sql}) OR ({other.sql})", lambda row: self.test(row) or other.test(row))


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


def above(seq: int) -> Where:
    return Where(f"seq > {seq}", lambda row: row.seq > seq)


def from_epoch(first: int, last: int | None = None) -> Where:
    until = "" if last is None else f" AND epoch <= {last}"
    return Where(f"epoch >= {first}{until}", lambda row: first <= row.epoch and (last is None or row.epoch <= last))


def of_epochs(epochs: Sequence[int]) -> Where:
    listed = ", ".join(map(str, epochs)) or "NULL"
    return Where(f"epoch IN ({listed})", lambda row: row.epoch in epochs)


def owned_by(owner: str) -> Where:
    return Where(f"owner = {_text(owner)}", lambda row: row.owner == owner)


def published_to(sink: str, above: int) -> Where:
    """Publications of that sink by a later decision."""
    later = Where(
        f"sink = {_text(sink)} AND decision > {above}", lambda row: row.sink == sink and (row.decision or 0) > above
    )
    return of_event(Event.PUBLISHED) & later


def rewinds_after(epoch: int) -> Where:
    return of_event(Event.REWOUND) & from_epoch(epoch + 1)


def overlaps(interval: Interval) -> Where:
    return starts(before=interval.end) & ends(after=interval.start)


def starts(*, until: datetime | None = None, before: datetime | None = None, since: datetime | None = None) -> Where:
    """Rows whose interval starts at or before, before, or at or after that time; pass exactly one of them."""
    return _bounded("interval_start", lambda interval: interval.start, until=until, before=before, since=since)


def ends(*, until: datetime | None = None, after: datetime | None = None, since: datetime | None = None) -> Where:
    """Rows whose interval ends at or before, after, or at or after that time; pass exactly one of them."""
    return _bounded("interval_end", lambda interval: interval.end, until=until, after=after, since=since)


_COMPARED: dict[str, tuple[str, Callable[[datetime, datetime], bool]]] = {
    "until": ("<=", lambda found, time: found <= time),
    "before": ("<", lambda found, time: found < time),
    "since": (">=", lambda found, time: found >= time),
    "after": (">", lambda found, time: found > time),
}


def _bounded(column: str, of: Callable[[Interval], datetime], **bounds: datetime | None) -> Where:
    ((name, time),) = [(name, time) for name, time in bounds.items() if time is not None]
    sign, holds = _COMPARED[name]
    return Where(
        f"{column} {sign} {_time(time)}", lambda row: row.interval is not None and holds(of(row.interval), time)
    )


def _text(value: str) -> str:
    """The value as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def _time(value: datetime) -> str:
    return f"arrow_cast('{value.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
