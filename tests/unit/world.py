"""One pipeline on fakes and a real state table, for tests of what the coordinator decides."""

from datetime import UTC, datetime, timedelta

from unit import tables

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.coordinator import Coordinator
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.testing.fakes import FakeParts, FakeSink, FakeSource

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
SINKS = [DeltaSink("lake", "lake"), DeltaSink("files", "files")]


class World:
    """One pipeline with its topic, its outputs and its state table; every call remembers nothing of the one before."""

    table = staticmethod(tables.make)

    def __init__(self, folder, **changes) -> None:
        self.state = self.table(folder)
        self.parts = FakeParts(folder)
        defaults = {"name": "flights", "source": KafkaSource("flights"), "transform": "jobs.flights:clean"}
        self.pipeline = Pipeline(**{**defaults, "sinks": SINKS, **changes})
        self.ended: set[str] = set()  # owners that are not at work any more
        self.put(*range(5))

    @property
    def coordinator(self) -> Coordinator:
        return Coordinator(self.state, self.parts)

    @property
    def source(self) -> FakeSource:
        return FakeSource("flights", self.parts.folder)

    @property
    def lake(self) -> FakeSink:
        return self.parts.sink(self.pipeline, "lake")

    @property
    def files(self) -> FakeSink:
        return self.parts.sink(self.pipeline, "files")

    def put(self, *values: int, partition: int = 0) -> None:
        """Records whose value is also their minute after noon."""
        self.source.append(partition, *((NOON + timedelta(minutes=v), v) for v in values))

    def alive(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.owner not in self.ended

    def plan(
        self, owner: str = "run-1", interval: Interval | None = None, instance: str | None = None
    ) -> Checkpoint | None:
        return self.coordinator.plan(self.pipeline, owner, self.alive, interval, instance=instance).checkpoint

    def stage(self, epoch: int = 1, owner: str | None = None) -> Checkpoint:
        return self.coordinator.stage("flights", epoch, self.parts.produce, owner)

    def commit(self, epoch: int = 1) -> Checkpoint:
        return self.coordinator.commit("flights", epoch)

    def abort(self, epoch: int = 1, owner: str | None = None) -> Checkpoint:
        return self.coordinator.abort("flights", epoch, "told to", owner)

    def recover(self) -> list[Checkpoint]:
        return self.coordinator.recover("flights", self.alive)

    def run(self, owner: str, interval: Interval | None = None) -> Checkpoint:
        checkpoint = self.plan(owner, interval)
        self.stage(checkpoint.epoch, owner)
        return self.commit(checkpoint.epoch)

    def staged(self, count: int) -> None:
        """Stage that many intervals of ten minutes, none decided."""
        for number in range(1, count + 1):
            self.plan(f"run-{number}", minutes(10 * number - 10, 10 * number))
            self.stage(number)

    def now(self, epoch: int = 1) -> Checkpoint:
        return self.state.view("flights").checkpoint(epoch)

    def events(self) -> list[str]:
        return [row.event.value for row in self.state.history("flights")]


class Durable(World):
    """On a state table that other processes, and the command line, find."""

    table = staticmethod(tables.real)

    @classmethod
    def with_two_checkpoints(cls, folder):
        world = cls(folder)
        world.run("run-1")
        world.put(10, 11)
        world.run("run-2")
        return world


def minutes(start: int, end: int) -> Interval:
    return Interval(NOON + timedelta(minutes=start), NOON + timedelta(minutes=end))


def values(sink: FakeSink) -> list[int]:
    return [row["value"] for row in sink.rows()]
