"""A pipeline with a folder of files on S3. Whoever runs it may be killed at any of its requests.

Its state table is on disk: what happens when that is on S3 is seen in `mortal_s3`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from integration.projects.light_stores import LightStoreFiles
from integration.victims import mortal_s3

from onceonly.coordinator.coordinator import Coordinator
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import FileSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts

SINKS = ("lake",)


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
    return mortal_s3.ran(coordinator(Path(folder), root), flights())
