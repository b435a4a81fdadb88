"""Offsets at which there is no record: markers of transactions, and what was aborted or compacted away."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.world import World, minutes, values

from onceonly.checkpoint.interfaces import Findings
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.coordinator import gate as gating
from onceonly.errors import GateFailed
from onceonly.gate import bounds
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.testing.fakes import FakeSource

LAKE = [DeltaSink("lake", "lake")]


class Rows:
    """The bounds of a real gate."""

    def __init__(self, world: World) -> None:
        self.world = world

    def check(self) -> list[str]:
        return []

    def examine(self, checkpoint: Checkpoint) -> Findings:
        checks = bounds.check(self.world.pipeline.gate, checkpoint, self.world.lake)
        return Findings({"lake": {"rows": checkpoint.handles["lake"]["rows"], "path": "in process", "checks": checks}})

    def forget(self, examined: Findings) -> None:
        return


def make(folder: Path, **changes: object) -> World:
    """Records 0 to 4 are published by a pipeline whose gate wants a row of every checkpoint."""
    world = World(folder, **{"sinks": LAKE, "gate": Gate(min_rows=1), **changes})
    world.parts.inspector = lambda pipeline: Rows(world)
    run(world, "run-1", minutes(0, 10) if world.pipeline.mode == "interval" else None)
    return world


def run(world: World, owner: str, interval: object = None) -> Checkpoint | None:
    checkpoint = world.plan(owner, interval)
    if checkpoint is None:
        return None
    world.stage(checkpoint.epoch, owner)
    if world.pipeline.gate:
        gating.require_passed(world.coordinator.gate("flights", checkpoint.epoch, owner))
    return world.commit(checkpoint.epoch)


def test_range_without_records_is_no_new_data(tmp_path: Path) -> None:
    world = make(tmp_path)
    world.source.append(0, None, None, None)
    before = world.events()
    assert run(world, "run-2") is None
    assert world.events() == before
    world.put(10, 11)
    done = run(world, "run-3")
    assert done is not None
    assert done.ranges[0].partitions == {0: (5, 10)}
    assert values(world.lake) == [0, 1, 2, 3, 4, 10, 11]


def test_one_record_in_any_partition_is_new_data(tmp_path: Path) -> None:
    world = make(tmp_path)
    world.source.append(0, None, None)
    world.source.append(1, None, None)
    assert run(world, "run-2") is None
    world.put(20, partition=1)
    assert run(world, "run-3") is not None
    assert values(world.lake) == [0, 1, 2, 3, 4, 20]


def test_one_record_in_any_topic_is_new_data(tmp_path: Path) -> None:
    sources = [KafkaSource("flights"), KafkaSource("weather")]
    folder = tmp_path / "several"
    folder.mkdir()
    weather = FakeSource("weather", folder)
    weather.append(0, None)
    world = make(folder, source=sources)
    world.source.append(0, None)
    weather.append(0, None, None)
    assert run(world, "run-2") is None
    world.put(30)
    assert run(world, "run-3") is not None


def test_cap_on_records_counts_from_the_first_one(tmp_path: Path) -> None:
    """More offsets without a record come first than a checkpoint may have."""
    world = make(tmp_path, source=KafkaSource("flights", max_records=5))
    world.source.append(0, *[None] * 12)
    assert run(world, "run-2") is None
    world.put(*range(20, 28))
    spans = [dict(done.ranges[0].partitions) for owner in ("run-3", "run-4") if (done := run(world, owner))]
    assert spans == [{0: (5, 22)}, {0: (22, 25)}]
    assert values(world.lake) == [0, 1, 2, 3, 4, *range(20, 28)]


def test_without_a_gate_it_is_a_checkpoint(tmp_path: Path) -> None:
    """It is behind the pipeline then, and nobody reads it again."""
    world = make(tmp_path, gate=None)
    world.source.append(0, None, None, None)
    done = run(world, "run-2")
    assert done is not None
    assert (done.state, done.ranges[0].partitions) == (State.COMMITTED, {0: (5, 8)})


def test_empty_interval_fails_its_gate(tmp_path: Path) -> None:
    world = make(tmp_path, mode="interval")
    world.source.append(0, None, None, None)
    with pytest.raises(GateFailed):
        run(world, "run-2", minutes(10, 20))
