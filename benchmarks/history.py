"""Plan + commit with 20,000 checkpoints of history against 10, on the real state table with fake sink and source."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

from benchmarks import past
from benchmarks.past import HOUR, START
from benchmarks.ratio import against, alternate
from benchmarks.results import Result, Row
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.coordinator import Coordinator
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts

Mode = Literal["chained", "interval"]
MODES: tuple[Mode, ...] = ("chained", "interval")


def history(folder: Path, epochs: int = 20_000, rounds: int = 15) -> Result:
    """One more checkpoint on a long history, and on a short one."""
    return Result(
        "History",
        "One more checkpoint on fakes (only the state table is written), by how many the pipeline has behind it.",
        [row for mode in MODES for row in _history(folder, mode, epochs, rounds)],
    )


def _history(folder: Path, mode: Mode, epochs: int, rounds: int) -> list[Row]:
    held = {f"{mode}, {number:,} epochs": steps(folder / f"{mode}-{number}", mode, number) for number in (epochs, 10)}
    sides = {name: partial(next, made) for name, made in held.items()}
    return against(alternate(sides, rounds, warm=3, unit="ms"))


def steps(folder: Path, mode: Mode, held: int) -> Iterator[None]:
    """After `held` checkpoints each step plans, stages (a fake: next to nothing) and commits one more."""
    pipeline = pipeline_named("p", mode)
    state = StateTable.make(str(folder / "state"))
    source = FakeParts(folder).sources(pipeline)["t"]
    source.append(0, *[(START, "past")])
    past.write(state, [pipeline], held, source.log().topic_id)
    yield from steps_of(state.uri, folder, pipeline, held)


def steps_of(state: str, folder: Path, pipeline: Pipeline, held: int = 0) -> Iterator[None]:
    """One checkpoint each, with a fake source and sink in `folder`."""
    parts = FakeParts(folder)
    source = parts.sources(pipeline)["t"]
    through = Coordinator(StateTable(state), parts)
    for number in count(held):
        start = START + number * HOUR
        source.append(0, (start, "row"))
        interval = Interval(start, start + HOUR) if pipeline.mode == "interval" else None
        planned = through.plan(pipeline, f"owner-{uuid.uuid4().hex}", lambda checkpoint: False, interval)
        assert planned.checkpoint is not None
        through.stage(pipeline.name, planned.checkpoint.epoch, lambda checkpoint: {"s": ["row"]})
        through.commit(pipeline.name, planned.checkpoint.epoch)
        yield


def pipeline_named(name: str, mode: Mode = "chained") -> Pipeline:
    sinks = [DeltaSink("s", path=name)]  # of its own: else it would count as renamed
    return Pipeline(name=name, source=KafkaSource("t"), transform="m:f", sinks=sinks, mode=mode)
