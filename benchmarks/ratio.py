"""Two ways of doing one thing, in turns, so that whatever else the machine does hits both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Ratio:
    """Medians in seconds of `rounds` alternating runs; `target` is the most that the ratio should be."""

    name: str
    ours: list[float]
    theirs: list[float]
    target: float

    @property
    def value(self) -> float:
        return median(self.ours) / median(self.theirs)

    def __str__(self) -> str:
        verdict = "met" if self.value <= self.target else "NOT met"
        return (
            f"{self.name}\n  {_seconds(self.ours)} against {_seconds(self.theirs)}, {len(self.ours)} rounds each\n"
            f"  ratio {self.value:.3f}, target ≤ {self.target}: {verdict}"
        )


def alternate(
    name: str, ours: Callable[[], object], theirs: Callable[[], object], target: float, rounds: int, warm: int = 1
) -> Ratio:
    """`warm` uncounted rounds, then `rounds` counted ones; who goes first changes every round."""
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    sides = [("ours", ours), ("theirs", theirs)]
    for number in range(warm + rounds):
        for side, work in sides if number % 2 else reversed(sides):
            started = time.perf_counter()
            work()
            if number >= warm:
                times[side].append(time.perf_counter() - started)
    return Ratio(name, times["ours"], times["theirs"], target)


def _seconds(times: list[float]) -> str:
    return f"{median(times):.3f} s (from {min(times):.3f} to {max(times):.3f})"
