"""A pipeline into a table, run by processes that die: at a named point, or whenever they are killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from iceberg_tables import TABLE, ArrowRows, create_table, sql_properties
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.table import Table

from onceonly import KafkaSource, Pipeline
from onceonly.checkpoint.model import Checkpoint
from onceonly.coordinator.coordinator import Coordinator
from onceonly.runtime import live_services
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings
from onceonly.testing.fakes import FakeParts, FakeSource
from onceonly_iceberg import IcebergSink, commits, name_mapping, staged_files, staging
from onceonly_iceberg.file_store import FileStore
from onceonly_iceberg.sink import IcebergWriter

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
DIED = 9

# where a process dies -> what it is about to do, or has just done
POINTS: Mapping[str, tuple[Any, str, bool]] = {
    "before the list is begun": (staged_files, "begin", False),
    "list begun": (staged_files, "begin", True),
    "rows written": (staging, "_describe", False),
    "rows described": (staged_files, "save", False),
    "list saved": (staged_files, "save", True),
    "rehearsed": (name_mapping, "require_same_columns", True),
    "before the commit": (commits, "append", False),
    "manifests written": (Table, "_do_commit", False),
    "metadata written": (MetastoreCatalog, "_write_metadata", True),
    "committed": (Table, "_do_commit", True),
    "synced": (commits, "append", True),
    "before the release": (FileStore, "delete_file", False),
    "released": (FileStore, "delete_file", True),
}


class Parts(LiveServices):
    """Live sinks, and a fake topic."""

    def sources(self, pipeline: Pipeline) -> Mapping[str, FakeSource]:  # type: ignore[override]
        return {source.topic: FakeSource(source.topic, self.settings.home) for source in pipeline.sources}


@dataclass(frozen=True)
class World:
    """One pipeline. Every process makes it anew from the folder."""

    folder: str

    @property
    def lake(self) -> str:
        return f"{self.folder}/lake"

    @property
    def pipeline(self) -> Pipeline:
        sinks = [IcebergSink("lake", TABLE, properties=sql_properties(self.lake))]
        source = KafkaSource("flights", max_records=2)
        return Pipeline(name="flights", source=source, transform="jobs.flights:same", sinks=sinks)

    @property
    def parts(self) -> Parts:
        return Parts(Settings.from_env({"ONCEONLY_HOME": f"{self.folder}/home", "ONCEONLY_PROJECT": self.folder}))

    def make(self, records: int) -> None:
        Path(self.folder, "home").mkdir()
        create_table(self.lake)
        self.append(0, records)

    def append(self, start: int, end: int) -> None:
        """Write records into the topic, with these numbers."""
        FakeSource("flights", self.parts.settings.home).append(0, *((NOON, number) for number in range(start, end)))

    def coordinator(self) -> Coordinator:
        return live_services.open_planner(self.parts)

    def run_to_the_end(self, owner: str) -> None:
        """Plan, stage and commit, after what earlier processes have left, until nothing is left to read."""
        IcebergWriter.stage = IcebergWriter.stage_small_batch  # type: ignore[method-assign]
        coordinator = self.coordinator()
        for number in count():
            planned = coordinator.plan(self.pipeline, f"{owner}-{number}", lambda checkpoint: False).checkpoint
            if planned is None:
                return
            coordinator.stage("flights", planned.epoch, self.produce)
            coordinator.commit("flights", planned.epoch)

    def produce(self, checkpoint: Checkpoint) -> dict[str, ArrowRows]:
        rows = FakeParts(self.parts.settings.home).produce(checkpoint)["lake"]
        numbers = [int(row["value"]) for row in rows]
        return {"lake": ArrowRows(pa.table({"n": pa.array(numbers, pa.int32())}))}


def run(world: World, owner: str, point: str = "", times: int = 1) -> None:
    """Run to the end, or die when a point is reached for the n-th time."""
    if point:
        die_at(point, times)
    world.run_to_the_end(owner)


def die_at(point: str, times: int) -> None:
    owner, name, is_after = POINTS[point]
    original: Callable[..., Any] = getattr(owner, name)
    left = [times]

    def call(*arguments: Any, **keywords: Any) -> Any:
        left[0] -= 1
        if not left[0] and not is_after:
            os._exit(DIED)
        result = original(*arguments, **keywords)
        if not left[0]:
            os._exit(DIED)
        return result

    setattr(owner, name, staticmethod(call) if isinstance(vars(owner).get(name), staticmethod) else call)
