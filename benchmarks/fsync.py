"""What it costs that a power failure can take nothing: checkpoints with fsync, and with one that does nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from benchmarks.checkpoint import ours
from benchmarks.history import steps
from benchmarks.ratio import Ratio, alternate
from benchmarks.world import ROWS, world


def state_table(folder: Path, rounds: int = 30) -> Ratio:
    """On fakes: all that is written is the state table."""
    kept, unkept = (steps(folder / name, "chained", 10) for name in ("kept", "unkept"))
    name = "plan + commit: with fsync of the state table against without"
    return alternate(name, lambda: next(kept), _without(lambda: next(unkept)), 1.5, rounds, warm=3)


def whole_checkpoint(folder: Path, rows: int = ROWS, rounds: int = 5) -> Ratio:
    """From a topic into a Delta table: its files, too."""
    with world(folder, rows) as parts:
        numbers = count(1)
        work = lambda: ours(parts, next(numbers))  # noqa: E731
        name = f"a whole checkpoint of {rows:,} rows, Kafka → Delta: with fsync against without"
        return alternate(name, work, _without(work), 1.1, rounds)


def _without(work: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        with _no_fsync():
            work()

    return run


@contextmanager
def _no_fsync() -> Iterator[None]:
    real, os.fsync = os.fsync, lambda descriptor: None
    try:
        yield
    finally:
        os.fsync = real
