"""A pipeline with its state table and two Delta tables on S3. Whoever runs it may be killed at any of its requests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unit.lightdelta import LightDelta

from onceonly.checkpoint.model import Checkpoint
from onceonly.coordinator.coordinator import Coordinator
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.statetable import store_log
from onceonly.statetable import table as state
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts

SINKS = ("lake", "late")
NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


class Parts(FakeParts):
    """The source is in a folder, and everything else below a URI."""

    def __init__(self, folder: Path, root: str) -> None:
        super().__init__(folder)
        self.root = root

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        return LightDelta(f"{self.root}/{name}", name)  # type: ignore[arg-type]

    def produce(self, checkpoint: Checkpoint) -> dict[str, list[Any]]:
        return {name: [row["value"] for row in rows] for name, rows in super().produce(checkpoint).items()}


def flights(*sinks: str, most: int = 5) -> Pipeline:
    return Pipeline(
        name="flights",
        source=KafkaSource("flights", max_records=most),
        transform="jobs.flights:clean",
        sinks=[DeltaSink(name, name) for name in sinks],
    )


def coordinator(folder: Path, root: str) -> Coordinator:
    return Coordinator(StateTable.make(f"{root}/state"), Parts(folder, root))


def step(environment: Mapping[str, str], folder: str, root: str, name: str, epoch: int) -> None:
    """One step of that checkpoint of a pipeline with one sink, in a process of its own, as tasks of Airflow are.

    On a slow machine, looks would be repeated because they are old. So here none is.
    """
    os.environ.update(environment)
    store_log.LOOK_FRESH_SECONDS = state.IDENTITY_FRESH_SECONDS = float("inf")
    through, owner = coordinator(Path(folder), root), f"run {epoch}"
    if name == "plan":
        through.plan(flights(SINKS[0]), owner, lambda checkpoint: False)
    elif name == "stage":
        through.stage("flights", epoch, through.parts.produce, owner)  # type: ignore[attr-defined]
    else:
        through.commit("flights", epoch)


def run(folder: str, root: str, sinks: tuple[str, ...] = SINKS) -> bool:
    return ran(coordinator(Path(folder), root), flights(*sinks))


def ran(through: Coordinator, pipeline: Pipeline) -> bool:
    """Settle what others have left, and do the next checkpoint; whether there was one."""
    owner = f"run {os.getpid()} {os.urandom(4).hex()}"
    planned = through.plan(pipeline, owner, lambda checkpoint: False).checkpoint
    if planned is None or planned.state.is_settled:
        return False
    through.stage("flights", planned.epoch, through.parts.produce, owner)  # type: ignore[attr-defined]
    through.commit("flights", planned.epoch)
    return True
