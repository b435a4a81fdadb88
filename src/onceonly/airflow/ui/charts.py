"""Charts as plain geometry, which the templates draw as SVG: bars for each checkpoint, a line over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, log10

from onceonly.airflow.ui import page_data
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.counts import count
from onceonly.views import formatting
from onceonly.views import queries as reading
from onceonly.views.summary import reach

WIDTH, HEIGHT = 420, 150  # of the drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 46, 6, 10, 18  # around the plot
INNER, FLOOR = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM
ROUND_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400)


@dataclass(frozen=True)
class Bar:
    epoch: int
    state: str
    x: float
    y: float
    width: float
    height: float
    label: str


@dataclass(frozen=True)
class Tick:
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
    several = any(len(reading.rows_by_sink(each)) > 1 for each in checkpoints)
    title = "Rows per checkpoint, all sinks together" if several else "Rows per checkpoint"
    return _bars(title, "rows", checkpoints, reading.rows, formatting.number, _round_number)


def durations(checkpoints: Sequence[Checkpoint]) -> Chart:
    """From plan to end."""

    def seconds(checkpoint: Checkpoint) -> float | None:
        took = page_data.duration(checkpoint)
        return took.total_seconds() if took is not None else None

    return _bars("Time from plan to end", "", checkpoints, seconds, _span, _round_seconds)


def freshness(checkpoints: Sequence[Checkpoint], now: datetime) -> Chart | None:
    """How far the published rows were behind the clock: it grows with time, and each commit takes it back.

    Args:
        checkpoints: newest first.
        now: where the line ends; None of them may be younger.
    """
    done = sorted((cp for cp in checkpoints if cp.state is State.COMMITTED), key=lambda cp: cp.updated_at)
    if len(done) < 2:
        return None
    points = list(_sawtooth(done, now))
    start = points[0][0]
    width = max((now - start).total_seconds(), 1.0)
    top = _round_seconds(max(lag for _, lag in points))
    line = " ".join(
        f"{LEFT + INNER * (at - start).total_seconds() / width:.1f},{_y(lag, top):.1f}" for at, lag in points
    )
    summary = f"now {_span(points[-1][1])}, at most {_span(max(lag for _, lag in points))}"
    return Chart(
        "Lag: age of the published data", summary, _ticks(top, _span), formatting.clock(start), "now", line=line
    )


def _sawtooth(done: Iterable[Checkpoint], now: datetime) -> Iterable[tuple[datetime, float]]:
    """(time, seconds behind): just before and just after each commit."""
    reached: datetime | None = None
    for checkpoint in done:
        at, before = checkpoint.updated_at, reached
        reached = max(filter(None, (reached, reach(checkpoint))))
        if before:
            yield at, _behind(at, before)
        yield at, _behind(at, reached)
    if reached:
        yield now, _behind(now, reached)


def _behind(at: datetime, reached: datetime) -> float:
    return max(0.0, (at - reached).total_seconds())


def _bars(
    title: str,
    unit: str,
    checkpoints: Sequence[Checkpoint],
    measure: Callable[[Checkpoint], float | None],
    words: Callable[[int | None], str],
    round_up: Callable[[float], float],
) -> Chart:
    """Newest first in, oldest at the left out."""
    shown = list(reversed(checkpoints))
    values = [measure(cp) for cp in shown]
    known = [value for value in values if value is not None]
    top = round_up(max(known, default=0))
    step = INNER / max(len(shown), 12)
    bars = [
        Bar(
            cp.epoch,
            formatting.state(cp),
            LEFT + n * step + 1,
            _y(value, top),
            max(step - 2, 1),
            FLOOR - _y(value, top),
            label,
        )
        for n, (cp, value) in enumerate(zip(shown, values, strict=True))
        if value is not None
        for label in [f"epoch {cp.epoch}: {words(int(value))} {unit}".rstrip() + f", {formatting.state(cp)}"]
    ]
    summary = (
        f"{count(len(known), 'checkpoint')}, from {words(int(min(known)))} to {words(int(max(known)))}"
        if known
        else "none"
    )
    ends = [f"epoch {cp.epoch}" for cp in (shown[:1] + shown[-1:])] or ["", ""]
    end = LEFT + max(len(shown), 4) * step  # room for both labels
    return Chart(title, f"{summary} {unit}".strip(), _ticks(top, words), ends[0], ends[-1], bars, end=end)


def _y(value: float, top: float) -> float:
    return FLOOR - (FLOOR - TOP) * min(value / top, 1.0)


def _ticks(top: float, words: Callable[[int | None], str]) -> list[Tick]:
    return [Tick(_y(part, top), words(int(part))) for part in (0, top / 2, top)]


def _round_number(value: float) -> float:
    """The next 1, 2, 4 or 10 of its magnitude: half of it is round, too."""
    size = 10 ** int(log10(max(value, 1)))
    return next(float(size * step) for step in (1, 2, 4, 10) if size * step >= max(value, 2))


def _round_seconds(value: float) -> float:
    return next((float(each) for each in ROUND_SECONDS if each >= value), ceil(value / 172_800) * 172_800.0)


def _span(seconds: float | None) -> str:
    return formatting.span(timedelta(seconds=seconds or 0))
