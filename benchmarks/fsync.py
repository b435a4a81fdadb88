"""What it costs that a power failure can take nothing: checkpoints with fsync, and with one that does nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from benchmarks.checkpoint import ours
from benchmarks.history import steps
from benchmarks.ratio import against, alternate
from benchmarks.results import Result, Row
from benchmarks.world import ROWS, world


def fsync(folder: Path) -> Result:
    """On fakes, where all that is written is the state table; and from a topic into a Delta table."""
    return Result(
        "fsync",
        f"Plan and commit on fakes (only the state table is written), and a whole checkpoint of {ROWS:,} small "
        "records, Kafka → Delta; each with fsync and with one that does nothing.",
        [*_state_table(folder / "fakes"), *_whole_checkpoint(folder / "whole")],
    )


def _state_table(folder: Path, rounds: int = 30) -> list[Row]:
    kept, unkept = (steps(folder / name, "chained", 10) for name in ("kept", "unkept"))
    sides = {"state table, fsync": lambda: next(kept), "state table, no fsync": _without(lambda: next(unkept))}
    return against(alternate(sides, rounds, warm=3, unit="ms"))


def _whole_checkpoint(folder: Path, rows: int = ROWS, rounds: int = 7) -> list[Row]:
    with world(folder, rows) as parts:
        numbers = count(1)
        work = lambda: ours(parts, next(numbers))  # noqa: E731
        sides = {"whole checkpoint, fsync": work, "whole checkpoint, no fsync": _without(work)}
        return against(alternate(sides, rounds, warm=2))


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
