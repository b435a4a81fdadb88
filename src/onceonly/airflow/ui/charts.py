"""Charts as plain geometry, which the templates draw as SVG: bars for each checkpoint, a line over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, log10

from onceonly.airflow.ui import pages
from onceonly.checkpoint.model import Checkpoint
from onceonly.counts import count
from onceonly.views import formatting
from onceonly.views import queries as reading

WIDTH, HEIGHT = 420, 150  # of the drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 46, 6, 10, 18  # around the plot
INNER, FLOOR = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM
ROUND_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400)


@dataclass(frozen=True)
class Bar:
    """A checkpoint in a chart; x and y are its upper left corner."""

    epoch: int
    state: str
    x: float
    y: float
    width: float
    height: float
    label: str


@dataclass(frozen=True)
class Tick:
    """A line of the scale."""

    y: float
    label: str


@dataclass(frozen=True)
class Chart:
    """`summary` says in words what the drawing shows."""

    title: str
    summary: str
    ticks: Sequence[Tick]
    first: str  # what the axis begins and ends with
    last: str
    bars: Sequence[Bar] = ()
    line: str = ""  # points of a polyline
    end: float = WIDTH - RIGHT  # where `last` ends


def rows(checkpoints: Sequence[Checkpoint]) -> Chart:
    """Return the rows of each checkpoint as bars. `checkpoints`: newest first."""
    title = "Rows per checkpoint"
    if any(len(reading.rows_by_sink(checkpoint)) > 1 for checkpoint in checkpoints):
        title = "Rows per checkpoint, all sinks together"
    return _bars(title, "rows", checkpoints, reading.total_rows, formatting.number, _round_number)


def durations(checkpoints: Sequence[Checkpoint]) -> Chart:
    """Return the time of each checkpoint from plan to end as bars. `checkpoints`: newest first."""

    def seconds(checkpoint: Checkpoint) -> float | None:
        duration = pages.compute_duration(checkpoint)
        return duration.total_seconds() if duration is not None else None

    return _bars("Time from plan to end", "", checkpoints, seconds, _span, _round_seconds)


def freshness(checkpoints: Sequence[Checkpoint], now: datetime) -> Chart | None:
    """Return as a line how old the newest published data were; None of fewer than two commits.

    It grows with time, and each commit that reaches further takes it back. Intervals before it may be missing: up to
    when the published rows are complete is said beside it.

    Args:
        checkpoints: newest first.
        now: where the line ends; None of them may be younger.
    """
    committed = list(filter(reading.is_progress, checkpoints))
    if len(committed) < 2:
        return None
    committed.sort(key=lambda checkpoint: checkpoint.updated_at)
    points = list(_sawtooth(committed, now))
    start = points[0][0]
    width = max((now - start).total_seconds(), 1.0)
    highest = max(lag for _, lag in points)
    top = _round_seconds(highest)
    coordinates = []
    for at, lag in points:
        x = LEFT + INNER * (at - start).total_seconds() / width
        coordinates.append(f"{x:.1f},{_y(lag, top):.1f}")
    summary = f"now {_span(points[-1][1])}, at most {_span(highest)}"
    ticks, line = _ticks(top, _span), " ".join(coordinates)
    return Chart("Age of the newest published data", summary, ticks, formatting.clock(start), "now", line=line)


def _sawtooth(committed: Iterable[Checkpoint], now: datetime) -> Iterable[tuple[datetime, float]]:
    """Yield (time, seconds behind) just before and just after each commit, and at `now`.

    An old interval that is committed late takes nothing back: what counts is the furthest that was reached.
    """
    reached: datetime | None = None
    for checkpoint in committed:
        at, reached_before = checkpoint.updated_at, reached
        reached = max(filter(None, (reached, checkpoint.data_end)))
        if reached_before:
            yield at, _seconds_behind(at, reached_before)
        yield at, _seconds_behind(at, reached)
    if reached:
        yield now, _seconds_behind(now, reached)


def _seconds_behind(at: datetime, reached: datetime) -> float:
    return max(0.0, (at - reached).total_seconds())


def _bars(
    title: str,
    unit: str,
    checkpoints: Sequence[Checkpoint],
    measure: Callable[[Checkpoint], float | None],
    words: Callable[[int | None], str],
    round_up: Callable[[float], float],
) -> Chart:
    """Return a bar for each checkpoint that has a value, the oldest at the left.

    Args:
        checkpoints: newest first.
        measure: the value of a checkpoint; None: it has none.
        words: how a value is written, without its unit.
        round_up: the value at which the axis ends, of the highest one.
    """
    oldest_first = checkpoints[::-1]
    values_by_index = {}
    for index, checkpoint in enumerate(oldest_first):
        value = measure(checkpoint)
        if value is not None:
            values_by_index[index] = value
    values = values_by_index.values()
    top = round_up(max(values, default=0))
    step = INNER / max(len(oldest_first), 12)
    bars = []
    for index, value in values_by_index.items():
        checkpoint, y = oldest_first[index], _y(value, top)
        state = formatting.state(checkpoint)
        label = f"epoch {checkpoint.epoch}: {words(int(value))} {unit}".rstrip() + f", {state}"
        bars.append(Bar(checkpoint.epoch, state, LEFT + index * step + 1, y, max(step - 2, 1), FLOOR - y, label))
    summary = "none"
    if values:
        least, most = words(int(min(values))), words(int(max(values)))
        span = f"from {least} to {most} {unit}"
        if least == most:
            span = f"{'each ' if len(values) > 1 else ''}{most} {unit}"
        summary = f"{count(len(values), 'checkpoint')}, {span.strip()}"
    first = last = ""
    if oldest_first:
        first, last = f"epoch {oldest_first[0].epoch}", f"epoch {oldest_first[-1].epoch}"
    if first == last:
        last = ""
    end = LEFT + max(len(oldest_first), 4) * step  # room for both labels
    return Chart(title, summary, _ticks(top, words) if values else [], first, last, bars, end=end)


def _y(value: float, top: float) -> float:
    """Return where a value is drawn, on an axis that ends at `top`."""
    return FLOOR - (FLOOR - TOP) * min(value / top, 1.0)


def _ticks(top: float, words: Callable[[int | None], str]) -> list[Tick]:
    """Return the ticks of an axis that ends at `top`: without its middle where that is no whole number."""
    return [Tick(_y(value, top), words(int(value))) for value in (0, top / 2, top) if value == int(value)]


def _round_number(value: float) -> float:
    """Return the next 1, 2, 4 or 10 of its magnitude: half of it is round, too."""
    size = 10 ** int(log10(max(value, 1)))
    return next(float(size * step) for step in (1, 2, 4, 10) if size * step >= max(value, 2))


def _round_seconds(value: float) -> float:
    """Return the next length of time that people count in; above a day, the next two days."""
    for seconds in ROUND_SECONDS:
        if seconds >= value:
            return float(seconds)
    return ceil(value / 172_800) * 172_800.0


def _span(seconds: float | None) -> str:
    return formatting.span(timedelta(seconds=seconds or 0))
