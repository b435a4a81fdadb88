"""A Delta table of numbers and days, and what a pipeline that reads it would pin; without Spark."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from unit import tables

from onceonly.checkpoint.offsets import DELTA, Interval, TopicRange
from onceonly.coordinator.ranges import RangePlanner
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import DeltaSource
from onceonly.sources.delta import DeltaReader

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
FEED = {"delta.enableChangeDataFeed": "true"}


class Table:
    """Partitioned by day."""

    def __init__(self, folder: Path) -> None:
        self.uri = str(folder / "orders")
        self.state = tables.make(folder)

    def write(self, *numbers: int, day: str | None = "mon", **options: Any) -> None:
        rows = pa.table({"n": pa.array(numbers, pa.int64()), "day": pa.array([day] * len(numbers), pa.string())})
        self.add(rows, **options)

    def add(self, rows: pa.Table, **options: Any) -> None:
        given: dict[str, Any] = {"mode": "append", "schema_mode": "merge", "partition_by": ["day"], **options}
        write_deltalake(self.uri, rows, **given)

    def add_by(self, spark: Any, writer: str, *numbers: int, day: str = "mon") -> None:
        """Append by delta-rs, or by Spark, as its tables with deletion vectors need it."""
        if writer == "delta-rs":
            return self.write(*numbers, day=day)
        frame = spark.createDataFrame([(number, day) for number in numbers], "n LONG, day STRING").coalesce(1)
        frame.write.format("delta").mode("append").save(self.uri)

    @property
    def now(self) -> DeltaTable:
        return DeltaTable(self.uri)

    @property
    def end(self) -> int:
        """The number of its next version."""
        return self.now.version() + 1

    def reader(self, **options: Any) -> DeltaReader:
        return DeltaReader(DeltaSource(self.uri, **options), self.uri)

    def pin(self, interval: Interval | None = None, **options: Any) -> TopicRange:
        """What the first checkpoint of a pipeline would pin."""
        pipeline = Pipeline(
            name="p",
            source=DeltaSource(self.uri, **options),
            transform="jobs:f",
            sinks=[DeltaSink("x", "x")],
            mode="interval" if interval else "chained",
        )
        (pinned,) = RangePlanner(pipeline, {"orders": self.reader(**options)}, interval).ranges(self.state.view("p"))
        return TopicRange.from_json(json.loads(json.dumps(pinned.to_json())))

    def range(self, start: int, end: int, previous: TopicRange | None = None, **options: Any) -> TopicRange:
        """These versions, as they would be pinned."""
        wanted = TopicRange("orders", str(self.now.metadata().id), {0: (start, end)}, DELTA)
        return self.reader(**options).add_mark(wanted, previous)

    def entry(self, version: int) -> Path:
        return Path(self.uri, "_delta_log", f"{version:020}.json")

    def actions(self, version: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.entry(version).read_text().splitlines()]

    def rewrite(self, version: int, actions: list[dict[str, Any]]) -> None:
        """As another program might have written that version."""
        self.entry(version).write_text("\n".join(map(json.dumps, actions)))

    def exchange(self, first: int, *numbers: int) -> None:
        """The table is restored from a copy that ends before version `first`, and others write these rows to it."""
        for version in range(first, self.end):
            self.entry(version).unlink()
        for number in numbers:
            self.write(number)

    def date(self, version: int, minute: float) -> None:
        """The version was committed at that minute after noon."""
        at = (NOON + timedelta(minutes=minute)).timestamp()
        os.utime(self.entry(version), (at, at))


def minutes(start: int, end: int) -> Interval:
    return Interval(NOON + timedelta(minutes=start), NOON + timedelta(minutes=end))
