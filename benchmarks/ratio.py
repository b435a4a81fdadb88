"""Several ways of doing one thing, in turns, so that whatever else the machine does hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import psutil

from benchmarks.goals import CPU
from benchmarks.results import Row, ratio

Work = Callable[[], object]
TICK = 0.01  # seconds: what the kernel counts in


def alternate(
    sides: Mapping[str, Work], rounds: int, warm: int = 1, unit: str = "s", settle: Work = lambda: None
) -> list[Row]:
    """Times of each side: `warm` uncounted rounds, then `rounds` counted ones; the order turns round every time.

    Sides that take seconds have a second row: the CPU that they used, in this process and all below it, a broker
    included. It depends less on what else the machine does.

    Args:
        settle: waits, uncounted, for what a side has left running.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(warm + rounds):
        for name in list(sides) if number % 2 else reversed(list(sides)):
            settle()
            before = cpu()
            took = seconds(sides[name])
            if number >= warm:
                times[name].append(took)
                spent[name].append(max(cpu() - before, TICK))
    if unit == "ms":
        return [Row(name, unit, [1000 * each for each in runs]) for name, runs in times.items()]
    walls = [Row(name, unit, runs) for name, runs in times.items()]
    return walls + [Row(f"{name}{CPU}", "s", runs) for name, runs in spent.items()]


def against(rows: list[Row]) -> list[Row]:
    """The rows, and the ratio of the first one to each other; the same of the CPU."""
    walls = [row for row in rows if not row.measure.endswith(CPU)]
    spent = [row for row in rows if row.measure.endswith(CPU)]
    return [*rows, *(ratio(kind[0], other) for kind in (walls, spent) for other in kind[1:])]


def seconds(work: Work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def cpu() -> float:
    """Seconds of CPU of this process and of all that it started, ended ones included."""
    me = psutil.Process()
    return sum(_spent(process) for process in [me, *me.children(recursive=True)])


def _spent(process: psutil.Process) -> float:
    try:
        used = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(used.user + used.system + used.children_user + used.children_system)
