"""A pipeline with a folder of files on S3. Whoever runs it may be killed at any of its requests.

Its state table is on disk: what happens when that is on S3 is seen in `mortal_s3`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from integration.projects.light_stores import LightStoreFiles

from onceonly.coordinator.coordinator import Coordinator
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import FileSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts

SINKS = ("lake",)
NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


class Parts(FakeParts):
    """The source is in a folder, and the targets are below a URI."""

    def __init__(self, folder: Path, root: str) -> None:
        super().__init__(folder)
        self.root = root

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        return LightStoreFiles(f"{self.root}/{name}", name, files=2)


def flights(most: int = 6) -> Pipeline:
    return Pipeline(
        name="flights",
        source=KafkaSource("flights", max_records=most),
        transform="jobs.flights:clean",
        sinks=[FileSink(name, name, "json") for name in SINKS],
    )


def coordinator(folder: Path, root: str) -> Coordinator:
    return Coordinator(StateTable.make(str(folder / "state")), Parts(folder, root))


def run(folder: str, root: str) -> bool:
    """Settle what others have left, and do the next checkpoint; whether there was one."""
    through, owner = coordinator(Path(folder), root), f"run {os.getpid()} {os.urandom(4).hex()}"
    planned = through.plan(flights(), owner, lambda checkpoint: False).checkpoint
    if planned is None or planned.state.settled:
        return False
    through.stage("flights", planned.epoch, through.parts.produce, owner)  # type: ignore[attr-defined]
    through.commit("flights", planned.epoch)
    return True
