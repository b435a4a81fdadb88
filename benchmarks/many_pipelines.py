"""One more checkpoint, the status of all, and a recovery without work, by how many pipelines share the state table."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from click.testing import CliRunner

from benchmarks import past
from benchmarks.history import pipeline_named, steps_of
from benchmarks.ratio import alternate, seconds
from benchmarks.results import Result, Row, ratio
from onceonly.cli import main
from onceonly.coordinator.coordinator import Coordinator
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts

PIPELINES = (1, 10, 100, 1_000)
EPOCHS = 1_000
ROUNDS = 9


def many_pipelines(folder: Path) -> Result:
    """All but one pipeline are idle; all have as long a history."""
    made = {number: _made(folder / str(number), number) for number in PIPELINES}
    steps = {f"{number}": steps_of(state, folder / f"at-work-{number}", _busy()) for number, state in made.items()}
    found = alternate({name: partial(next, made) for name, made in steps.items()}, ROUNDS, warm=2, unit="ms")
    points = [
        Row("one more checkpoint", "ms", row.runs, x=number) for number, row in zip(PIPELINES, found, strict=True)
    ]
    alone, beside = (Row(name, "ms", row.runs) for name, row in (("alone", found[0]), ("beside", found[-1])))
    status = {number: [seconds(partial(_status, state)) for _ in range(3)] for number, state in made.items()}
    nothing = {number: [seconds(partial(_recover, state, folder / f"idle-{number}"))] for number, state in made.items()}
    most = PIPELINES[-1]
    return Result(
        "Many pipelines",
        f"A state table with {EPOCHS:,} checkpoints of each pipeline. One more is run, on fakes (its "
        "first checkpoints are not counted); then `onceonly status`, and a recovery of all with nothing to do.",
        [
            *points,
            *(Row("status of all pipelines", "s", runs, x=number) for number, runs in status.items()),
            *(Row("recovery, nothing to do", "s", runs, x=number) for number, runs in nothing.items()),
            Row(f"beside {most:,} pipelines ÷ alone", "ratio", ratio(beside, alone).runs, value=_value(beside, alone)),
            Row(f"status of {most:,} pipelines", "s", status[most]),
            Row(f"recovery of nothing, {most:,} pipelines", "s", nothing[most]),
        ],
        x="pipelines",
        notes=[past.HOW],
    )


def _value(ours: Row, theirs: Row) -> float | None:
    return ratio(ours, theirs).value


def _made(folder: Path, number: int) -> str:
    state = StateTable.make(str(folder / "state"))
    past.write(state, [pipeline_named(f"p{each:04}") for each in range(number)], EPOCHS)
    return state.uri


def _busy():  # type: ignore[no-untyped-def]
    return pipeline_named("busy")


def _status(state: str) -> None:
    done = CliRunner().invoke(main, ["status", "--json"], env={"ONCEONLY_STATE": state}, catch_exceptions=False)
    assert done.exit_code == 0, done.output


def _recover(state: str, folder: Path) -> None:
    table = StateTable(state)
    through = Coordinator(table, FakeParts(folder))
    for name in table.pipelines():
        through.recover(name, lambda checkpoint: False)
