"""Where reading of a topic ends for good: at offsets, or at a time whose offsets are pinned once they are found."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from unit.world import NOON, World, values

from onceonly.checkpoint.model import State
from onceonly.checkpoint.offsets import TopicRange
from onceonly.cli.run import _nothing_to_do
from onceonly.coordinator.plan import Planned
from onceonly.errors import Busy, InvalidPipeline, SourceLost
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services
from onceonly.testing.fakes import FakeSource
from onceonly.views.summary import Summary

END_WORDS = "no new data: the end of the source is reached, and nothing more is to be read"


def minute(number: float) -> datetime:
    return NOON + timedelta(minutes=number)


def world_until(folder: Path, end: Any, **source: Any) -> World:
    """Its topic holds the records 0 to 4, at these minutes after noon."""
    return World(folder, source=KafkaSource("flights", end=end, **source))


def plan(world: World, owner: str) -> Planned:
    return world.coordinator.plan(world.pipeline, owner, lambda checkpoint: False)


def lag(world: World, epoch: int) -> tuple[int | None, int]:
    done = world.now(epoch)
    measured = live_services.measure_lag(world.parts, Summary("flights", done, done, ()))  # type: ignore[arg-type]
    return measured.records, measured.blocked_records


def change_source(world: World, **options: Any) -> None:
    world.pipeline = replace(world.pipeline, source=replace(world.pipeline.source, **options))


@pytest.mark.parametrize(
    ("end", "read"),
    [
        ({0: 3}, [0, 1, 2]),
        ({0: 0}, []),
        (minute(3), [0, 1, 2]),
        (minute(2.5).isoformat(), [0, 1, 2]),
    ],
)
def test_nothing_is_read_beyond_the_end(tmp_path: Path, end: Any, read: list[int]) -> None:
    world = world_until(tmp_path, end)
    if read:
        world.run("run-1")
    world.put(5, 6)
    planned = plan(world, "run-2")
    assert (planned.checkpoint, planned.is_at_end) == (None, True)
    assert _nothing_to_do(planned) == ("no_new_data", END_WORDS)
    assert values(world.lake) == read


def test_capped_checkpoints_stop_at_the_end(tmp_path: Path) -> None:
    world = world_until(tmp_path, {0: 3}, max_records=2)
    world.run("run-1")
    assert not plan(world, "run-2").is_at_end
    world.run("run-2")
    assert plan(world, "run-3").is_at_end
    assert values(world.lake) == [0, 1, 2]


def test_end_that_is_not_written_yet_is_waited_for(tmp_path: Path) -> None:
    world = world_until(tmp_path, {0: 7})
    world.run("run-1")
    planned = plan(world, "run-2")
    assert (planned.checkpoint, planned.is_at_end) == (None, False)
    world.put(5, 6, 7)
    world.run("run-2")
    assert values(world.lake) == list(range(7))
    assert plan(world, "run-3").is_at_end


def test_late_end_is_pinned_without_rows(tmp_path: Path) -> None:
    """All before it was read when the record comes that shows it. It expires, and the end stays where it was."""
    world = world_until(tmp_path, minute(5))
    world.run("run-1")
    assert not plan(world, "run-2").is_at_end
    world.put(6, 7)
    pinned = plan(world, "run-2").checkpoint
    assert pinned is not None
    (range_,) = pinned.ranges
    assert (pinned.state, range_.partitions, range_.limits) == (State.COMMITTED, {0: (5, 5)}, {0: 5})
    said = _nothing_to_do(Planned(pinned, True))
    assert said == (
        "no_new_data",
        "epoch 2 records where the source ends (flights {0: 5}): no records before that are left to read",
    )
    world.put(8)
    world.source.expire(0, 7)
    assert plan(world, "run-3").is_at_end
    assert values(world.lake) == [0, 1, 2, 3, 4]


def test_pinned_end_outlives_what_has_shown_it(tmp_path: Path) -> None:
    world = world_until(tmp_path, minute(3), max_records=2)
    world.run("run-1")
    assert world.now(1).ranges[0].limits == {0: 3}
    world.put(0, 1)  # dated before the end, behind it
    world.run("run-2")
    world.source.expire(0, 5)
    assert plan(world, "run-3").is_at_end
    assert values(world.lake) == [0, 1, 2]


def test_records_before_the_end_that_expired_are_missed(tmp_path: Path) -> None:
    world = world_until(tmp_path, {0: 4}, max_records=2)
    world.run("run-1")
    world.source.expire(0, 3)
    with raises(SourceLost, "records-expired"):
        world.plan("run-2")


@pytest.mark.parametrize("question", ["log", "offsets_at"])
def test_record_that_arrives_during_a_plan_lies_behind_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """Whichever is asked first, the log's extent or where the end lies: what is dated later is in no range."""
    world = world_until(tmp_path, minute(6))
    source, arrived = type(world.source), []
    ask = getattr(source, question)

    def arrive(self: Any, *arguments: Any) -> Any:
        answer = ask(self, *arguments)
        if not arrived:
            arrived.append(world.put(5, 7))
        return answer

    with monkeypatch.context() as arriving:
        arriving.setattr(source, question, arrive)
        world.run("run-1")
    assert world.now(1).ranges[0].partitions == {0: (0, 5)}
    world.run("run-2")
    assert values(world.lake) == [0, 1, 2, 3, 4, 5]
    assert plan(world, "run-3").is_at_end


def test_each_partition_has_an_end_of_its_own(tmp_path: Path) -> None:
    world = world_until(tmp_path, minute(3))
    world.put(1, 2, partition=1)
    world.run("run-1")
    assert world.now(1).ranges[0].limits == {0: 3}
    assert not plan(world, "run-2").is_at_end
    world.put(2, 9, partition=1)
    world.put(2)  # behind the end of its partition
    world.run("run-2")
    assert world.now(2).ranges[0].partitions == {0: (3, 3), 1: (2, 3)}
    assert world.now(2).ranges[0].limits == {0: 3, 1: 3}
    assert plan(world, "run-3").is_at_end


def test_open_transaction_behind_the_end_holds_up_nothing(tmp_path: Path) -> None:
    world = world_until(tmp_path, {0: 5})
    world.run("run-1")
    world.put(5, 6, 7)
    world.source.hold(0, 5)
    assert plan(world, "run-2").is_at_end
    assert lag(world, 1) == (0, 0)


def test_open_transaction_before_the_end_is_busy(tmp_path: Path) -> None:
    world = world_until(tmp_path, {0: 7})
    world.run("run-1")
    world.put(5, 6, 7)
    world.source.hold(0, 5)
    with raises(Busy, "open-transaction"):
        plan(world, "run-2")


@pytest.mark.parametrize("end", [{0: 3}, minute(3)])
def test_lag_counts_up_to_the_end(tmp_path: Path, end: Any) -> None:
    world = world_until(tmp_path, end, max_records=2)
    world.run("run-1")
    assert lag(world, 1) == (1, 0)
    world.run("run-2")
    assert lag(world, 2) == (0, 0)


def test_end_may_be_moved(tmp_path: Path) -> None:
    world = world_until(tmp_path, minute(2))
    world.run("run-1")
    change_source(world, end=minute(4).isoformat())
    world.run("run-2")
    assert values(world.lake) == [0, 1, 2, 3]
    change_source(world, end={"0": 2})
    assert plan(world, "run-3").is_at_end
    change_source(world, end=None)
    world.run("run-3")
    assert values(world.lake) == [0, 1, 2, 3, 4]
    assert world.now(3).ranges[0].limits == {}


def test_one_of_two_sources_ends(tmp_path: Path) -> None:
    world = World(tmp_path, source=[KafkaSource("flights", end={0: 3}), KafkaSource("planes")])
    planes = FakeSource("planes", world.parts.folder)
    planes.append(0, (NOON, 100))
    world.run("run-1")
    assert not plan(world, "run-2").is_at_end
    planes.append(0, (NOON, 101))
    world.run("run-2")
    assert sorted(values(world.lake)) == [0, 1, 2, 100, 101]


def test_parallel_plans_pin_one_end(tmp_path: Path) -> None:
    world = world_until(tmp_path, minute(5))
    world.run("run-1")
    world.put(6)
    first = plan(world, "run-2").checkpoint
    assert plan(world, "run-2").checkpoint == first
    assert plan(world, "run-3").is_at_end
    assert world.state.view("flights").head.epoch == 2


@pytest.mark.parametrize("end", [{0: 3, 1: 2}, {1: 3}])
def test_partitions_without_an_end_are_refused(tmp_path: Path, end: Any) -> None:
    world = world_until(tmp_path, end)
    with raises(InvalidPipeline, "end-partitions-differ", match=r"the topic has \[0\]"):
        world.plan("run-1")
    assert world.now() is None


def test_partition_that_is_added_needs_an_end(tmp_path: Path) -> None:
    world = world_until(tmp_path, {0: 3})
    world.run("run-1")
    world.put(1, partition=1)
    with raises(InvalidPipeline, "end-partitions-differ"):
        world.plan("run-2")
    change_source(world, end={"0": 3, "1": 0})
    assert plan(world, "run-2").is_at_end


@pytest.mark.parametrize(
    "end", ["latest", "earliest", "yesterday", "2013-01-01T12:00:00", {}, {0: -1}, {"a": 1}, {0: 1.5}, {0: True}, 7]
)
def test_what_is_no_place_in_a_topic_is_refused(end: Any) -> None:
    with raises(InvalidPipeline, "option-invalid"):
        KafkaSource("flights", end=end)


def test_end_before_the_start_is_refused() -> None:
    for start, end in (({0: 4, 1: 2}, {0: 3, 1: 9}), (minute(2), minute(1))):
        with raises(InvalidPipeline, "options-conflict"):
            KafkaSource("flights", start=start, end=end)
    assert KafkaSource("flights", start={0: 4}, end={0: 4}).ends == {"0": 4}


def test_offsets_of_many_topics_are_refused() -> None:
    with raises(InvalidPipeline, "options-conflict"):
        KafkaSource(topic_pattern="flights-.*", end={0: 1})


def test_interval_has_no_other_end(tmp_path: Path) -> None:
    with raises(InvalidPipeline, "options-conflict"):
        World(tmp_path, mode="interval", source=KafkaSource("flights", end=minute(3)))


def test_round_trip(tmp_path: Path) -> None:
    for end in (minute(3), {0: 2, 11: 3}):
        made = world_until(tmp_path, end).pipeline
        assert Pipeline.from_json(made.to_json()) == made
    assert "end" not in world_until(tmp_path, None).pipeline.to_json()["source"]
    plain, limited = TopicRange("t", "id", {0: (0, 2)}), TopicRange("t", "id", {0: (0, 2)}, limits={0: 2})
    assert "limits" not in plain.to_json()
    assert TopicRange.from_json(limited.to_json()) == limited
    assert TopicRange.from_json(plain.to_json()) == plain
