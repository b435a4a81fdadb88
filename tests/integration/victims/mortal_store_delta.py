"""A pipeline on an object store whose Delta sink changes rows that are published: it may be killed at any request.

The first checkpoints are published before: what is killed has rows to take out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from patience import PATIENCE
from unit.lightdelta import LightDelta, LightMerge

from onceonly.checkpoint.model import Checkpoint, Transaction
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.reprocess import Reprocess
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import PARTITIONS, DeltaSink, Merge
from onceonly.pipeline.sources import KafkaSource
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts, FakeSource

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
FIRST = Interval(NOON, NOON + HOUR)
SECOND = Interval(NOON + HOUR, NOON + 2 * HOUR)
MOST, VALUES = 5, 12  # records of a checkpoint, and of the topic
KEYS, PARTS = 5, 3
LATE = 7  # the value of a change that is older than what the table has
MORE = 100  # what an interval that is processed again adds to each value


class LightParted(LightDelta):
    """Rows are numbers, partitioned by their remainder."""

    def rows(self, txn: Transaction, rows: Any) -> pa.Table:
        given = list(rows)
        return pa.table({"part": pa.array([n % PARTS for n in given], pa.int64()), "n": pa.array(given, pa.int64())})


def _numbers(uri: str) -> list[Any]:
    return sorted(DeltaTable(uri).to_pyarrow_table()["n"].to_pylist())


def _changes(uri: str) -> list[Any]:
    return sorted((row["n"], row["at"], row["text"]) for row in DeltaTable(uri).to_pyarrow_table().to_pylist())


def _change(value: int) -> tuple[int, int, str, str]:
    return value % KEYS, 0 if value == LATE else value + 1, str(value), "day"


def _newest() -> list[Any]:
    changes = [_change(value) for value in range(VALUES)]
    return sorted(max(change for change in changes if change[0] == key)[:3] for key in range(KEYS))


def _last_of_each_part() -> list[Any]:
    starts = range(0, VALUES, MOST)
    found = [[n for n in range(start, min(start + MOST, VALUES))] for start in starts]
    last = {n % PARTS: values for values in found for n in values}
    return sorted(n for part, values in last.items() for n in values if n % PARTS == part)


@dataclass(frozen=True)
class Kind:
    """A way in which a sink changes rows.

    Args:
        sink: one that stages without Spark.
        options: of the sink.
        row: what it gets for a record.
        shown: a table's rows, as an independent reader finds them.
        truth: what they are in the end.
        interval: it is processed again.
    """

    sink: type[LightDelta]
    options: dict[str, Any]
    row: Callable[[int], Any]
    shown: Callable[[str], list[Any]]
    truth: list[Any]
    interval: Interval | None = None

    def at(self, uri: str) -> LightDelta:
        return self.sink(uri, **self.options)  # type: ignore[arg-type]


MERGE = {"merge": Merge(keys=["n"], order_by=["at"])}
REPLACE = {"replace": PARTITIONS, "partition_by": ["part"]}
AGAIN = sorted(value if value >= MOST else value + MORE for value in range(VALUES))
KINDS = {
    "append": Kind(LightDelta, {}, int, _numbers, list(range(VALUES))),
    "merge": Kind(LightMerge, MERGE, _change, _changes, _newest()),
    "partitions": Kind(LightParted, REPLACE, int, _numbers, _last_of_each_part()),
    "again": Kind(LightDelta, {}, int, _numbers, AGAIN, FIRST),
}


class Parts(FakeParts):
    """The source is in a folder, and everything else below a URI."""

    def __init__(self, folder: Path, root: str, kind: Kind) -> None:
        super().__init__(folder)
        self.root, self.kind = root, kind

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        return self.kind.at(f"{self.root}/{name}")

    def produce(self, checkpoint: Checkpoint) -> dict[str, list[Any]]:
        more = MORE if checkpoint.replaces else 0
        found = super().produce(checkpoint).items()
        return {name: [self.kind.row(row["value"] + more) for row in rows] for name, rows in found}


@dataclass(frozen=True)
class World:
    """A topic in a folder, and a pipeline of that kind that has everything else below a URI."""

    folder: Path
    root: str
    name: str

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]

    @property
    def lake(self) -> str:
        return f"{self.root}/lake"

    @property
    def through(self) -> Coordinator:
        return Coordinator(StateTable.make(f"{self.root}/state"), Parts(self.folder, self.root, self.kind))

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(
            name="flights",
            source=KafkaSource("flights", max_records=None if self.kind.interval else MOST),
            transform="jobs.flights:clean",
            sinks=[DeltaSink("lake", "lake", **self.kind.options)],
            mode="interval" if self.kind.interval else "chained",
        )

    def begin(self) -> None:
        """Publish what the next checkpoint changes."""
        self.folder.mkdir()
        hours = (NOON if value < MOST else NOON + HOUR for value in range(VALUES))
        FakeSource("flights", self.folder).append(0, *zip(hours, range(VALUES), strict=True))
        if self.kind.interval is None:
            assert run(str(self.folder), self.root, self.name)
        else:
            for interval in (FIRST, SECOND):
                finish(self.through, self.pipeline, interval)

    def staged(self) -> int:
        """The epoch of the next checkpoint, which is staged by now."""
        epoch = stage(self.through, self.pipeline, self.kind.interval, self.request)
        assert epoch
        return epoch

    @property
    def request(self) -> str | None:
        return "again" if self.kind.interval else None

    def settle(self) -> None:
        """After whoever was killed: all that is left is done by others."""
        while run(str(self.folder), self.root, self.name):
            pass


def run(folder: str, root: str, name: str) -> bool:
    """Settle what others have left, and do the next checkpoint; whether there was one."""
    world = World(Path(folder), root, name)
    return finish(world.through, world.pipeline, world.kind.interval, world.request)


def commit(go: Any, environment: Mapping[str, str], world: World, epoch: int) -> None:
    """As a task does it that knows of no other."""
    os.environ.update(environment)
    through = world.through
    go.wait(PATIENCE)
    through.commit("flights", epoch)


def finish(through: Coordinator, pipeline: Pipeline, interval: Interval | None, request: str | None = None) -> bool:
    epoch = stage(through, pipeline, interval, request)
    if epoch:
        through.commit("flights", epoch)
    return bool(epoch)


def stage(through: Coordinator, pipeline: Pipeline, interval: Interval | None, request: str | None) -> int:
    """0: there is nothing to do."""
    owner = f"run {os.getpid()} {os.urandom(4).hex()}"
    planned = through.plan(
        pipeline, owner, lambda checkpoint: False, interval, request and Reprocess(request)
    ).checkpoint
    if planned is None or planned.state.is_settled:
        return 0
    through.stage("flights", planned.epoch, through.parts.produce, owner)  # type: ignore[attr-defined]
    return planned.epoch
