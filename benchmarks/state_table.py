"""One checkpoint on fakes: plan, stage and commit, of which only the state table is written."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.history import steps
from benchmarks.ratio import alternate
from benchmarks.results import Result


def state_table(folder: Path, rounds: int = 40) -> Result:
    """After ten others; 6 rows, 6 views, with fsync."""
    made = steps(folder / "one", "chained", 10)
    return Result(
        "One checkpoint of the state table",
        "Plan, stage and commit with a fake source and sink: six rows and six views of the state table, with fsync.",
        alternate({"one checkpoint": partial(next, made)}, rounds, warm=3, unit="ms"),
    )
