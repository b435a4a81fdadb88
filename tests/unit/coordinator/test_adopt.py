"""Taking over from another job: where the first checkpoint begins, and when nobody can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from codes import raises
from unit.world import World, values

from onceonly.checkpoint.earlier_job import (
    BatchOutcome,
    ConsumerGroup,
    PlannedBatch,
    StreamingProgress,
    TableEvidence,
)
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.coordinator.adopt import Takeover, find_adoption, judge_batch, plan_takeover
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import DeltaSource, KafkaSource
from onceonly.views import descriptions


def query(committed: int | None, end: int, planned_end: int | None = None, topic: str = "flights") -> StreamingProgress:
    """A query on one partition that has read up to `end`, and has planned a batch up to `planned_end`."""
    planned = None
    if planned_end is not None:
        planned = PlannedBatch(0 if committed is None else committed + 1, {topic: {0: planned_end}})
    return StreamingProgress("/old", "q-1", committed, {topic: {0: end}}, planned)


def tables(*batches: int | None, named: bool = False) -> list[TableEvidence]:
    return [TableEvidence(f"/lake-{number}", batch, named) for number, batch in enumerate(batches)]


def take_over(world: World, job: Any, *shown: TableEvidence) -> Takeover:
    return plan_takeover(world.pipeline, world.parts.sources(world.pipeline), job, shown)


def adopt(world: World, job: Any, *shown: TableEvidence) -> Checkpoint:
    return world.coordinator.adopt(world.pipeline, take_over(world, job, *shown), "ann")


# ---- the planned batch


@pytest.mark.parametrize(
    ("committed", "shown", "outcome"),
    [
        (3, tables(4), BatchOutcome.PUBLISHED),
        (3, tables(3), BatchOutcome.NOT_PUBLISHED),
        (3, tables(None, 4), BatchOutcome.PUBLISHED),
        (3, [], BatchOutcome.UNKNOWN),
        (3, tables(None), BatchOutcome.UNKNOWN),
        (3, tables(None, named=True), BatchOutcome.UNKNOWN),  # it would have batch 3
        (3, tables(2), BatchOutcome.UNKNOWN),
        (3, tables(5), BatchOutcome.UNKNOWN),
        (3, tables(4, 3), BatchOutcome.UNKNOWN),
        (3, [*tables(2), TableEvidence("/named", 4, is_named=True)], BatchOutcome.PUBLISHED),
        (None, tables(0), BatchOutcome.PUBLISHED),
        (None, tables(None), BatchOutcome.UNKNOWN),  # is it the table of that query?
        (None, tables(None, named=True), BatchOutcome.NOT_PUBLISHED),
    ],
)
def test_planned_batch_is_judged_by_the_log_of_its_table(
    committed: int | None, shown: list[TableEvidence], outcome: BatchOutcome
) -> None:
    assert judge_batch(query(committed, 2, 4), shown) is outcome


@pytest.mark.parametrize(("shown", "outcome"), [([], None), (tables(3), None), (tables(4), BatchOutcome.UNKNOWN)])
def test_query_without_a_planned_batch(shown: list[TableEvidence], outcome: BatchOutcome | None) -> None:
    """A table that has a later batch shows that the folder is not the newest one."""
    assert judge_batch(query(3, 2), shown) is outcome


@pytest.mark.parametrize(("batch", "read"), [(4, [4]), (3, [2, 3, 4])])
def test_pipeline_begins_behind_what_is_published(tmp_path: Path, batch: int, read: list[int]) -> None:
    world = World(tmp_path)
    adopt(world, query(3, 2, 4), *tables(batch))
    world.run("run-1")
    assert values(world.lake) == read


@pytest.mark.parametrize("shown", [[], tables(None), tables(9)])
def test_unknown_batch_is_refused_and_nothing_recorded(tmp_path: Path, shown: list[TableEvidence]) -> None:
    world = World(tmp_path)
    with raises(InvalidPipeline, "streaming-batch-unknown", match="availableNow=True"):
        adopt(world, query(3, 2, 4), *shown)
    assert world.now() is None


# ---- what is recorded


def test_adoption_is_a_checkpoint_that_reads_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    done = adopt(world, query(3, 2, 4), *tables(4))
    assert (done.epoch, done.state, done.decision, done.owner) == (1, State.COMMITTED, None, "ann")
    assert done.ranges[0].partitions == {0: (4, 4)}
    assert done.adopted == {"folder": "/old", "query": "q-1", "committed": 3, "published": 4}
    assert (
        descriptions.describe_coverage(done)
        == "begins where batch 4 of the query of /old has ended (taken over by ann)"
    )


def test_adoption_repeated_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = adopt(world, query(3, 2))
    world.put(5)
    assert adopt(world, query(3, 2)) == first
    assert world.events() == ["empty"]


def test_pipeline_that_goes_on_reads_each_record_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    adopt(world, query(3, 2))
    world.run("run-1")
    world.put(5)
    world.run("run-2")
    assert values(world.lake) == [2, 3, 4, 5]


def test_adoption_without_new_records_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    adopt(world, query(3, 5))
    assert world.plan("run-1") is None
    world.put(5)
    world.run("run-2")
    assert values(world.lake) == [5]


def test_pipeline_that_has_begun_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    adopt(world, query(3, 2))
    for other in (query(3, 3), query(2, 2)):
        with raises(InvalidPipeline, "pipeline-has-begun"):
            adopt(world, other)
    world.run("run-1")
    with raises(InvalidPipeline, "pipeline-has-begun"):
        adopt(world, query(3, 2))
    view = world.state.view("flights")
    with raises(InvalidPipeline, "pipeline-has-begun"):
        find_adoption(view, world.pipeline, take_over(world, query(3, 2)))


def test_pipeline_that_has_published_elsewhere_is_refused(tmp_path: Path) -> None:
    """Its targets show another state table, where it may have gone further."""
    World(tmp_path / "one").run("run-1")
    other = World(tmp_path / "two")
    other.parts = World(tmp_path / "one").parts
    with raises(InvalidPipeline, "published-before"):
        adopt(other, query(3, 2))


def test_new_partition_begins_at_its_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put(6, 7, partition=1)
    world.source.expire(1, 1)
    assert take_over(world, query(3, 2)).starts == {"flights": {0: 2, 1: 1}}


@pytest.mark.parametrize("job", [query(3, 6), query(3, 2, 6)])
def test_offset_that_the_log_does_not_have_is_refused(tmp_path: Path, job: StreamingProgress) -> None:
    with raises(InvalidPipeline, "start-not-in-log"):
        take_over(World(tmp_path), job, *tables(4 if job.planned else 3))


def test_expired_offset_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.source.expire(0, 3)
    with raises(InvalidPipeline, "start-not-in-log"):
        take_over(world, query(3, 2))


def test_topic_that_the_query_has_not_read_is_refused(tmp_path: Path) -> None:
    with raises(InvalidPipeline, "nothing-to-adopt"):
        take_over(World(tmp_path), query(3, 2, topic="orders"))


def test_topic_that_only_the_query_has_read_is_named(tmp_path: Path) -> None:
    both = StreamingProgress("/old", "q-1", 3, {"flights": {0: 2}, "orders": {0: 9}})
    assert take_over(World(tmp_path), both).unread == ("orders",)


def test_table_as_source_has_nothing_to_adopt(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.pipeline = type(world.pipeline)(
        name="copy", source=DeltaSource("lake"), transform="a:b", sinks=[DeltaSink("out", "out")]
    )
    with raises(InvalidPipeline, "nothing-to-adopt"):
        plan_takeover(world.pipeline, {"lake": object()}, query(3, 2))  # type: ignore[dict-item]


def test_pipeline_by_intervals_is_refused(tmp_path: Path) -> None:
    with raises(InvalidPipeline, "mode-mismatch"):
        take_over(World(tmp_path, mode="interval"), query(3, 2))


# ---- a consumer group


def test_group_is_adopted(tmp_path: Path) -> None:
    world = World(tmp_path, source=KafkaSource("flights", start="latest"))
    world.source.commit_group("old", {0: 3})
    done = adopt(world, ConsumerGroup("old"))
    assert (done.adopted, done.ranges[0].partitions) == ({"group": "old"}, {0: (3, 3)})
    world.run("run-1")
    assert values(world.lake) == [3, 4]


def test_group_that_has_not_read_a_partition_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put(6, partition=1)
    world.source.commit_group("old", {0: 3})
    with raises(InvalidPipeline, "group-without-offsets"):
        adopt(world, ConsumerGroup("old"))


def test_group_that_has_read_what_is_not_there_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.source.commit_group("old", {0: 9})
    with raises(InvalidPipeline, "start-not-in-log", match="Consumer group 'old'"):
        adopt(world, ConsumerGroup("old"))
