"""Several ways of doing one thing, in turns, so that whatever else the machine does hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from benchmarks.results import Row, ratio

Work = Callable[[], object]


def alternate(sides: Mapping[str, Work], rounds: int, warm: int = 1, unit: str = "s") -> list[Row]:
    """Times of each side: `warm` uncounted rounds, then `rounds` counted ones; the order turns round every time."""
    scale = {"s": 1, "ms": 1000}[unit]
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(warm + rounds):
        for name in list(sides) if number % 2 else reversed(sides):
            took = seconds(sides[name])
            if number >= warm:
                times[name].append(took * scale)
    return [Row(name, unit, runs) for name, runs in times.items()]


def against(rows: list[Row]) -> list[Row]:
    """The rows, and the ratio of the first one to each other."""
    return [*rows, *(ratio(rows[0], other) for other in rows[1:])]


def seconds(work: Work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
