"""Two pipelines, topic → table → table, on real Delta tables without Spark. The second one adds MORE to each number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from unit import tables
from unit.lightdelta import LightDelta
from unit.world import NOON, minutes

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.reprocess import Reprocess
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import DeltaSource, KafkaSource
from onceonly.sources.delta import DeltaReader
from onceonly.testing.fakes import FakeSource

TEN, NEXT = minutes(0, 10), minutes(10, 20)
MORE = 1000  # what the second pipeline adds


class Parts:
    """Tables below `folder`, by their paths; topics beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sink(self, pipeline: Pipeline, name: str) -> LightDelta:
        config: Any = pipeline.sink(name)
        return LightDelta(self.folder / config.path, name)

    def sources(self, pipeline: Pipeline) -> Mapping[str, Any]:
        return {source.topic: self._source(source) for source in pipeline.sources}

    def _source(self, config: Any) -> Any:
        if isinstance(config, DeltaSource):
            return DeltaReader(config, str(self.folder / config.path))
        return FakeSource(config.topic, self.folder)

    def numbers(self, checkpoint: Checkpoint) -> list[int]:
        """What the checkpoint has to read, as Spark would."""
        sources = self.sources(checkpoint.definition.pipeline)
        return [
            number for range_ in checkpoint.ranges for number in _numbers(sources[range_.topic], range_, self.folder)
        ]


def _numbers(source: Any, range_: Any, folder: Path) -> list[int]:
    if isinstance(source, FakeSource):
        return [row["value"] for row in source.read(None, (range_,))]
    source.verify((range_,))
    found = [pq.read_table(folder / range_.topic / file.path)["n"] for file in source._list_files(range_)]
    return [number for column in found for number in column.to_pylist()]


class Chain:
    """The pipeline `first` writes the table 'lake', from which `second` writes 'out'."""

    def __init__(self, folder: Path, mode: str = "chained", **changes: Any) -> None:
        self.parts, self.mode = Parts(folder), mode
        self.state = tables.make(folder)
        self.topic = FakeSource("flights", folder)
        self.first = self.pipeline("first", KafkaSource("flights"), "lake")
        self.second = self.pipeline("second", DeltaSource("lake"), "out", **{"after": ["first"], **changes})
        self.ended: set[str] = set()
        self.added = 0  # what the first pipeline's transform adds now

    def pipeline(self, name: str, source: Any, path: str, **changes: Any) -> Pipeline:
        made = {"name": name, "source": source, "transform": f"jobs:{name}", "mode": self.mode, **changes}
        return Pipeline(sinks=[DeltaSink(path, path)], **made)

    @property
    def through(self) -> Coordinator:
        parts: Any = self.parts
        return Coordinator(self.state, parts)

    def put(self, *numbers: int) -> None:
        """Records whose value is also their minute after noon."""
        self.topic.append(0, *((minutes(number, number + 1).start, number) for number in numbers))

    def alive(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.owner not in self.ended

    def plan(
        self, pipeline: Pipeline, interval: Interval | None = None, owner: str = "run", again: str | None = None
    ) -> Checkpoint | None:
        return self.through.plan(
            pipeline, owner, self.alive, interval, again and Reprocess(again), instance=owner
        ).checkpoint

    def stage(self, planned: Checkpoint) -> Checkpoint:
        adds = {"first": self.added}.get(planned.pipeline, MORE)
        produce: Callable[[Checkpoint], Any] = lambda claimed: {  # noqa: E731
            sink: [number + adds for number in self.parts.numbers(claimed)] for sink in claimed.sinks
        }
        return self.through.stage(planned.pipeline, planned.epoch, produce)

    def run(self, pipeline: Pipeline, interval: Interval | None = None, again: str | None = None) -> Checkpoint | None:
        """One checkpoint; None: there is nothing to do."""
        owner = f"run-{pipeline.name}-{self.state.view(pipeline.name).head.seq}"
        planned = self.plan(pipeline, interval, owner, again)
        if planned is None or planned.state.is_settled:
            return planned
        self.stage(planned)
        return self.through.commit(planned.pipeline, planned.epoch)

    def now(self, name: str, epoch: int) -> Checkpoint:
        return self.state.view(name).require(epoch)

    def rows(self, path: str) -> list[int]:
        """As an independent reader finds them."""
        uri = self.parts.folder / path
        return sorted(DeltaTable(uri).to_pyarrow_table()["n"].to_pylist()) if uri.exists() else []

    def write(self, *numbers: int, path: str = "lake") -> None:
        """Somebody else writes to the table between the two."""
        write_deltalake(self.parts.folder / path, LightDelta.rows(None, None, numbers), mode="append")  # type: ignore[arg-type]

    def entry(self, version: int) -> Path:
        return self.parts.folder / "lake" / "_delta_log" / f"{version:020}.json"


__all__ = ["MORE", "NEXT", "NOON", "TEN", "Chain", "minutes"]
