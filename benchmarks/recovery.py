"""Recovery of checkpoints that ended owners left staged, ten in each pipeline."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from benchmarks.history import pipeline_named
from benchmarks.past import HOUR, START
from benchmarks.ratio import seconds
from benchmarks.results import Result, Row
from onceonly.checkpoint.model import State
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.coordinator import Coordinator
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts

EACH = 10
PIPELINES = (1, 10, 100)


def recovery(folder: Path) -> Result:
    """Everything is committed by it, in one process; what is measured starts with the table unopened."""
    rows = [Row("recovery", "s", [_recovery(folder / str(number), number)], x=number * EACH) for number in PIPELINES]
    last = rows[-1]
    return Result(
        "Recovery",
        f"Staged checkpoints of ended owners, {EACH} in each pipeline (intervals), settled by one process with fake "
        "sinks: one after the other, as `onceonly recover` does it.",
        [*rows, Row(f"{PIPELINES[-1] * EACH:,} pending checkpoints", "s", last.runs)],
        x="pending checkpoints",
    )


def _recovery(folder: Path, pipelines: int) -> float:
    state = str(folder / "state")
    StateTable.make(state)
    for number in range(pipelines):
        _leave(state, folder / f"p{number}", f"p{number}")
    return seconds(lambda: _recover(state, folder))


def _leave(state: str, folder: Path, name: str) -> None:
    """`EACH` staged checkpoints whose owners have ended."""
    parts, pipeline = FakeParts(folder), pipeline_named(name, "interval")
    through, source = Coordinator(StateTable(state), parts), parts.sources(pipeline)["t"]
    source.append(0, *((START + number * HOUR, "row") for number in range(EACH)))
    for number, start in zip(range(EACH), (START + number * HOUR for number in count()), strict=False):
        planned = through.plan(pipeline, f"owner-{number}", lambda checkpoint: True, Interval(start, start + HOUR))
        assert planned.checkpoint is not None
        through.stage(name, planned.checkpoint.epoch, lambda checkpoint: {"s": ["row"]})


def _recover(state: str, folder: Path) -> None:
    table = StateTable(state)
    for name in table.pipelines():
        settled = Coordinator(table, FakeParts(folder / name)).recover(name, lambda checkpoint: False)
        assert [each.state for each in settled] == [State.COMMITTED] * EACH
