"""Offsets that a person leaves out: recorded, and the next checkpoint joins them without a gap."""

from __future__ import annotations

from pathlib import Path

import pytest
from codes import raises
from person import Person
from unit.chain import MORE, Chain
from unit.world import World, minutes, values

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.coordinator.skip import Skip
from onceonly.errors import CannotPublish, Fenced, InvalidPipeline, OnceonlyError, SourceLost
from onceonly.pipeline.sinks import DeltaSink, StateSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.testing.fakes import FakeSource
from onceonly.views import descriptions, queries


def skip(world: World, to: int, partition: int = 0, topic: str = "flights", reason: str = "damaged") -> Checkpoint:
    return Person(world.coordinator).skip_offsets("flights", Skip(topic, partition, to, "ann", reason))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Records 0 to 4 are published, and 5 to 9 are in the topic."""
    made = World(tmp_path)
    made.run("run-1")
    made.put(*range(5, 10))
    return made


def test_the_next_checkpoint_goes_on_behind_it(world: World) -> None:
    left_out = skip(world, 7)
    assert (left_out.state, left_out.skipped, left_out.owner) == (State.COMMITTED, "damaged", "ann")
    assert left_out.ranges[0].partitions == {0: (5, 7)}
    goes_on = world.run("run-2")
    assert goes_on.ranges[0].partitions == {0: (7, 10)}
    assert values(world.lake) == [0, 1, 2, 3, 4, 7, 8, 9]


def test_it_is_shown_with_who_and_why(world: World) -> None:
    left_out = skip(world, 7)
    said = descriptions.describe_coverage(left_out)
    assert said == "leaves out 'flights' partition 0 from 5 to 7 (skipped by ann: damaged)"
    told = queries.to_json(left_out)
    assert (told["skipped"], told["rows"], told["owner"]) == ("damaged", 0, "ann")


def test_told_twice_it_is_recorded_once(world: World) -> None:
    assert skip(world, 7) == skip(world, 7, reason="again")
    assert skip(world, 9).epoch == 3


def test_what_an_aborted_checkpoint_pinned_of_other_partitions_is_still_read(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put(10, 11, partition=1)
    world.plan("run-1")
    late = world.coordinator._stager.claim("flights", 1, None).require(1)
    world.abort()
    left_out = skip(world, 3)
    assert left_out.ranges[0].partitions == {0: (0, 3), 1: (0, 0)}
    assert world.run("run-1").ranges[0].partitions == {0: (3, 5), 1: (0, 2)}
    assert sorted(values(world.lake)) == [3, 4, 10, 11]
    with pytest.raises(Fenced):
        world.stage(1)
    assert late.epoch == 1


def test_what_expired_before_it_was_read_can_be_left_out(world: World) -> None:
    world.source.expire(0, 8)
    with pytest.raises(SourceLost):
        world.plan("run-2")
    skip(world, 8)
    world.run("run-2")
    assert values(world.lake) == [0, 1, 2, 3, 4, 8, 9]


def test_several_topics_stay_where_they_are(tmp_path: Path) -> None:
    world = World(tmp_path, source=[KafkaSource("flights"), KafkaSource("trains")])
    world.parts.sources(world.pipeline)["trains"].append(0, *[(minutes(0, 1).start, 50 + n) for n in range(3)])
    world.run("run-1")
    world.put(5, 6)
    skipped = skip(world, 6)
    assert {r.topic: r.partitions for r in skipped.ranges} == {"flights": {0: (5, 6)}, "trains": {0: (3, 3)}}


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        ({"to": 5}, "offset-outside-log", "It continues at offset 5, and the log ends at 10"),
        ({"to": 3}, "offset-outside-log", "It continues at offset 5"),
        ({"to": 11}, "offset-outside-log", "the log ends at 10"),
        ({"to": 7, "partition": 4}, "no-such-partition", r"The topic has the partitions \[0\]"),
        ({"to": 7, "topic": "trains"}, "no-such-topic", "It reads topic 'flights', and nothing called 'trains'"),
    ],
)
def test_what_is_not_ahead_in_the_log_is_refused(world: World, given: dict, code: str, why: str) -> None:
    before = world.events()
    with raises(InvalidPipeline, code, match=why):
        skip(world, **given)
    assert world.events() == before


def test_nothing_is_left_out_while_something_is_unsettled(world: World) -> None:
    world.plan("run-2")
    refused_while(world, "planned")
    world.stage(2)
    refused_while(world, "staged")
    world.lake.fail("commit", "doubt")
    with pytest.raises(CannotPublish):
        world.commit(2)
    refused_while(world, "committing")


def refused_while(world: World, state: str) -> None:
    before = world.events()
    with raises(InvalidPipeline, "checkpoint-open", match=f"Epoch 2 is {state}"):
        skip(world, 7)
    assert world.events() == before


def test_a_plan_that_comes_first_keeps_its_range(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look of `skip` and its row."""
    log = FakeSource.log

    def planned_meanwhile(source: FakeSource):
        monkeypatch.setattr(FakeSource, "log", log)
        world.plan("run-2")
        return log(source)

    monkeypatch.setattr(FakeSource, "log", planned_meanwhile)
    with raises(InvalidPipeline, "seen-outdated", match="epoch 2 planned by run-2"):
        skip(world, 7)


def test_a_topic_that_was_created_again_is_not_the_same(world: World) -> None:
    world.source.recreate()
    with pytest.raises(SourceLost):
        skip(world, 7)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"mode": "interval"}, "mode-mismatch"),
        ({"sinks": [DeltaSink("lake", "lake"), StateSink("s", "k INT", ["k"])]}, "pipeline-keeps-state"),
    ],
)
def test_a_pipeline_by_intervals_or_with_state_is_refused(tmp_path: Path, code: str, changes: dict) -> None:
    world = World(tmp_path, **changes)
    interval = minutes(0, 3) if "mode" in changes else None
    world.plan("run-1", interval)
    world.stage(1)
    world.commit(1)
    with raises(OnceonlyError, code, match=r"It runs by intervals|It keeps state"):
        skip(world, 5)


def test_nothing_can_be_left_out_before_the_first_run(tmp_path: Path) -> None:
    with raises(InvalidPipeline, "pipeline-not-run"):
        skip(World(tmp_path), 2)


def test_it_can_be_taken_back(world: World) -> None:
    """By a rewind, as what was published after it."""
    skip(world, 7)
    Person(world.coordinator).rewind("flights", 1, "ann", "they are needed after all")
    world.run("run-2")
    assert values(world.lake) == list(range(10))


def test_what_comes_after_others_leaves_out_nothing_itself(tmp_path: Path) -> None:
    """The first pipeline may, and the second one reads what there is."""
    chain = Chain(tmp_path)
    chain.put(*range(5))
    chain.run(chain.first)
    chain.put(5, 6)
    Person(chain.through).skip_offsets("first", Skip("flights", 0, 6, "ann", "damaged"))
    chain.run(chain.second)
    with raises(InvalidPipeline, "offsets-of-upstream"):
        Person(chain.through).skip_offsets("second", Skip("lake", 0, 9, "ann", "damaged"))
    chain.run(chain.first)
    chain.run(chain.second)
    assert chain.rows("out") == [number + MORE for number in (0, 1, 2, 3, 4, 6)]
