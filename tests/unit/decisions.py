"""A folder of numbers that a pipeline publishes to, and what another one that reads it would pin; without Spark."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

from unit import tables
from unit.lightfiles import LightFiles
from unit.versions import NOON, minutes

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.offsets import FILES, Interval, TopicRange
from onceonly.coordinator.ranges import RangePlanner
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import FileSource
from onceonly.sources.files import FileReader
from onceonly.testing.fakes import FakeReceipts

STATE, OTHER = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
STREAM = f"{STATE}-flights-lake"


class Folder:
    """Each decision is a checkpoint of its own, whose epoch is the same number."""

    def __init__(self, folder: Path) -> None:
        self.path, self._beside = folder / "orders", folder
        self.uri = str(self.path)
        self.state = tables.make(folder)

    # ---- what its writer does

    def stage(self, decision: int, *numbers: int, state: str = STATE, pipeline: str = "flights", **more: Any) -> Handle:
        txn = Transaction(state, pipeline, "lake", decision, 1, uuid.uuid4().hex[:12])
        return {**self.sink.stage(txn, [{"value": number} for number in numbers]), **more}

    def publish(self, decision: int, *numbers: int, **more: Any) -> Handle:
        handle = self.stage(decision, *numbers, **more)
        self.commit(handle, decision)
        return handle

    def commit(self, handle: Handle, decision: int) -> None:
        self.sink.commit(handle, decision, FakeReceipts(self._beside / "receipts"))

    def go_back(self, decision: int, *olds: Handle) -> None:
        """Its writer takes back what these have published."""
        txn = Transaction(STATE, "flights", "lake", decision, 0, uuid.uuid4().hex[:12])
        self.commit(self.sink.retraction(txn, olds, None), decision)

    @property
    def sink(self) -> LightFiles:
        return LightFiles(self.path)

    # ---- what others do

    def manifest(self, decision: int, state: str = STATE, pipeline: str = "flights") -> Path:
        return self.path / "_onceonly" / f"{pipeline}-lake-{decision:06d}-{state[:8]}.manifest"

    def change(self, decision: int, /, **fields: Any) -> None:
        """The manifest as somebody else, or an older version, might have written it. None: without the field."""
        place = self.manifest(decision)
        told = {**json.loads(place.read_text()), **fields}
        place.write_text(json.dumps({name: value for name, value in told.items() if value is not None}))

    def date(self, decision: int, minute: float) -> None:
        """The decision was published at that minute after noon."""
        self.change(decision, at=(NOON + timedelta(minutes=minute)).isoformat())

    def file(self, decision: int) -> Path:
        return self.path / f"flights-lake-{decision:06d}-{STATE[:8]}-00000.jsonl"

    # ---- what a reader pins, and finds

    def reader(self, **options: Any) -> FileReader:
        return FileReader(FileSource(self.uri, **options), self.uri)

    def pin(self, interval: Interval | None = None, **options: Any) -> TopicRange:
        """What the first checkpoint of a pipeline would pin."""
        mode: Any = "interval" if interval else "chained"
        source, sinks = FileSource(self.uri, **options), [DeltaSink("x", "x")]
        pipeline = Pipeline(name="p", source=source, transform="jobs:f", sinks=sinks, mode=mode)
        (pinned,) = RangePlanner(pipeline, {"orders": self.reader(**options)}, interval).ranges(self.state.view("p"))
        return TopicRange.from_json(json.loads(json.dumps(pinned.to_json())))

    def range(self, start: int, end: int, previous: TopicRange | None = None, **options: Any) -> TopicRange:
        """These decisions, as they would be pinned."""
        wanted = TopicRange("orders", STREAM, {0: (start, end)}, FILES)
        return self.reader(**options).add_mark(wanted, previous)

    def numbers(self, range_: TopicRange) -> list[int]:
        """As Spark would read them."""
        return numbers(self.reader(), self.path, range_)


def numbers(reader: FileReader, folder: Path, range_: TopicRange) -> list[int]:
    reader.verify((range_,))
    files = [file.path for manifest in reader._read_pinned_manifests(range_) for file in manifest.files]
    return [json.loads(line)["value"] for path in files for line in (folder / path).read_text().splitlines()]


__all__ = ["OTHER", "STATE", "Folder", "minutes", "numbers"]
