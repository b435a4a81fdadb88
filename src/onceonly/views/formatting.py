"""Values as text for people: short, and the same on the command line and in Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from onceonly.checkpoint.model import Checkpoint, Event
from onceonly.views.queries import rows_by_sink

HELD, REFUSED = "held", "refused"


def number(value: int | None) -> str:
    """Return '6,000', or '-' where the number is not known."""
    if value is None:
        return "-"
    return f"{value:,}"


def clock(time: datetime) -> str:
    """Return date and time to the second, without the zone."""
    return f"{time:%Y-%m-%d %H:%M:%S}"


def age(since: datetime) -> str:
    """Return the time since then, as `span` writes it."""
    return span(datetime.now(UTC) - since)


def span(length: timedelta) -> str:
    """Return a length of time in its largest unit: '42 s', '3 min', '5 h', '2 d'."""
    seconds = max(0, int(length.total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def place(uri: str) -> str:
    """Return a path as one would type it in the current folder; an address as it is."""
    try:
        return str(Path(uri).relative_to(Path.cwd()))
    except ValueError:
        return uri


def owner(key: str) -> str:
    """Return an owner key without what only the machine needs."""
    kind, *process = key.split(":")
    if kind == "cli" and len(process) > 2:
        return f"cli {process[0]}:{process[-2]}"
    return key.replace(":", " ", 1)


def state(checkpoint: Checkpoint) -> str:
    """Return its state as people see it.

    That is the recorded one; HELD or REFUSED where the checkpoint is staged and waits for a person.
    """
    if checkpoint.is_held:
        return HELD
    if checkpoint.refused:
        return REFUSED
    return checkpoint.state.value


def event(entry: Mapping[str, Any]) -> str:
    """Return what an entry of `queries.timeline` is called.

    REPLACED is said of a handle, and not of rows: its rows are sent in a new transaction, or a person has resolved it.
    """
    if entry["event"] == Event.REPLACED.value:
        return "resolved" if "verdict" in entry["detail"] else "new transaction"
    return str(entry["event"]).replace("_", " ")


def rows(checkpoint: Checkpoint) -> str:
    """Return '200'; of several sinks each by its name.

    A sum would count a record once for each sink that it went to. A repair names its sink, as others have rows, too.
    """
    by_sink = rows_by_sink(checkpoint)
    text = counts(by_sink)
    if checkpoint.is_repair and len(by_sink) == 1:
        text = f"{next(iter(by_sink))} {text}"
    if checkpoint.bad_records:
        return f"{text} ({checkpoint.bad_records:,} bad)"
    return text


def counts(by_sink: Mapping[str, int | None]) -> str:
    """Return counts by sink as `rows` writes them; '-' where nothing is staged."""
    if len(by_sink) == 1 or not any(by_sink.values()):
        return number(next(iter(by_sink.values()), None))
    return ", ".join(f"{sink} {number(count)}" for sink, count in by_sink.items())


def count_rows(by_sink: Mapping[str, int | None]) -> str:
    """Return `counts` with their unit: '1 row', 'lake 5, late 1 rows'."""
    unit = "row" if list(by_sink.values()) == [1] else "rows"
    return f"{counts(by_sink)} {unit}"
