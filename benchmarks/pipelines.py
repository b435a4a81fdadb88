"""Pipelines at work at once on one state table, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.history import pipeline_named, steps_of
from benchmarks.results import Result, Row, ratio
from onceonly.statetable.table import StateTable

NUMBERS = (1, 2, 4, 8, 16, 32, 64)
SECONDS = 12.0
MOST = NUMBERS[-1]


@dataclass(frozen=True)
class Worked:
    """Of one process: when its first checkpoint began and its last one ended, by one clock; seconds of each."""

    began: float
    ended: float
    took: list[float]
    failures: list[str]


def pipelines(folder: Path) -> Result:
    """Each makes checkpoints for some seconds, with a fake source and sink of its own."""
    found = {number: _at_once(folder / str(number), number) for number in NUMBERS}
    rates = {number: _rate(runs) for number, runs in found.items()}
    took = {number: [1000 * each for run in runs for each in run.took] for number, runs in found.items()}
    failures = {number: [len(run.failures) for run in runs] for number, runs in found.items()}
    one, most = (Row(f"throughput of {number}", "checkpoints/s", [rates[number]]) for number in (1, MOST))
    worst = max(took[MOST]) / median(took[MOST])
    return Result(
        "Pipelines at once",
        f"Each pipeline is a process of its own with a fake source and sink: plan, stage and commit for "
        f"{SECONDS:g} s, all on one state table.",
        [
            *(Row("throughput", "checkpoints/s", [rates[number]], x=number) for number in NUMBERS),
            *(Row("one checkpoint", "ms", took[number], "median", x=number) for number in NUMBERS),
            *(Row("one checkpoint", "ms", [max(took[number])], "worst", x=number) for number in NUMBERS),
            *(Row("failures", "of all", [sum(failures[number])], x=number) for number in NUMBERS),
            Row(f"failures of {MOST} at once", "of all", [sum(failures[MOST])]),
            Row(f"worst ÷ median of {MOST} at once", "ratio", [worst]),
            Row(f"throughput of {MOST} at once ÷ of 1", "ratio", ratio(most, one).runs),
        ],
        x="pipelines at once",
        notes=sorted({why for runs in found.values() for run in runs for why in run.failures}),
    )


def _at_once(folder: Path, number: int) -> list[Worked]:
    state = str(folder / "state")
    StateTable.make(state)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(number, context) as pool:
        ready = manager.Barrier(number)
        futures: list[Future[Worked]] = [
            pool.submit(_work, state, folder / f"p{each}", f"p{each}", ready) for each in range(number)
        ]
        return [future.result() for future in futures]


def _work(state: str, folder: Path, name: str, ready: object) -> Worked:
    """All begin together, once each has tried a checkpoint: that imports and makes what is needed."""
    steps, _ = _tried(steps_of(state, folder, pipeline_named(name)))
    ready.wait()  # type: ignore[attr-defined]
    began, took, failures = time.time(), list[float](), list[str]()
    while time.time() < began + SECONDS:
        started = time.perf_counter()
        steps, error = _tried(steps or steps_of(state, folder, pipeline_named(name)))
        if error:
            failures.append(f"{type(error).__name__}: {_first_line(error, name)}")
        else:
            took.append(time.perf_counter() - started)
    return Worked(began, time.time(), took, failures)


def _tried(steps: Iterator[None]) -> tuple[Iterator[None] | None, Exception | None]:
    """After an error, the next checkpoint settles what this one left."""
    try:
        next(steps)
    except Exception as error:
        return None, error
    return steps, None


def _rate(runs: list[Worked]) -> float:
    return sum(len(run.took) for run in runs) / (max(run.ended for run in runs) - min(run.began for run in runs))


def _first_line(error: Exception, name: str) -> str:
    return str(error).splitlines()[0].replace(name, "NAME").partition(" epoch ")[0]
