"""A pattern of topics: those that match are one cut, and those that appear later lose no record."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from codes import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from person import Person
from unit.world import NOON, World, minutes, values

from onceonly.coordinator.forward import Forward
from onceonly.errors import InvalidPipeline, SourceLost
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.testing.fakes import FakeSource

ORDERS = KafkaSource(topic_pattern="orders-.*")


def shop(folder: Any, **changes: Any) -> World:
    return World(folder, **{"source": ORDERS, "sinks": [DeltaSink("lake", "lake")], **changes})


@pytest.fixture
def world(tmp_path: Any) -> World:
    made = shop(tmp_path)
    put(made, "orders-eu", 1, 2)
    put(made, "orders-us", 10)
    return made


def topic(world: World, name: str) -> FakeSource:
    return FakeSource(name, world.parts.folder)


def put(world: World, name: str, *values: int, partition: int = 0) -> None:
    topic(world, name).append(partition, *((NOON + timedelta(minutes=v), v) for v in values))


def pinned(world: World, epoch: int) -> dict[str, dict[int, tuple[int, int]]]:
    return {range_.topic: dict(range_.partitions) for range_ in world.now(epoch).ranges}


def test_rewind_remembers_a_topic_that_appeared_later(tmp_path: Any) -> None:
    world = shop(tmp_path)
    put(world, "orders-eu", 1)
    world.run("run-1")
    put(world, "orders-us", 10, 11)
    put(world, "orders-eu", 2, partition=1)
    world.run("run-2")
    put(world, "orders-us", 12)
    world.run("run-3")
    Person(world.coordinator).rewind("flights", 2, "me", "again")
    Person(world.coordinator).rewind("flights", 1, "me", "further")
    assert pinned(world, 5) == {"orders-eu": {0: (1, 1), 1: (0, 0)}, "orders-us": {0: (0, 0)}}
    world.run("run-6")
    assert sorted(values(world.lake)) == [1, 2, 10, 11, 12]


@pytest.mark.parametrize("name", ["orders-us", "orders-eu"])
def test_records_that_expired_before_the_rewind_are_missed(tmp_path: Any, name: str) -> None:
    """Of a topic, or of a partition, that the pipeline did not know at that epoch."""
    world = shop(tmp_path)
    put(world, "orders-eu", 1)
    world.run("run-1")
    put(world, name, 10, 11, 12, partition=1)
    world.run("run-2")
    Person(world.coordinator).rewind("flights", 1, "me", "again")
    topic(world, name).expire(1, 2)
    with raises(SourceLost, "records-expired", match=f"topic '{name}' partition 1: offsets 0 to 1 no longer exist"):
        world.run("run-4")


def test_rewind_over_an_aborted_start_remembers_the_topic(tmp_path: Any) -> None:
    world = shop(tmp_path)
    put(world, "orders-eu", 1)
    world.run("run-1")
    put(world, "orders-eu", 2)
    world.run("run-2")
    put(world, "orders-us", 10, 11)
    world.plan("run-3")
    world.abort(3)
    Person(world.coordinator).rewind("flights", 1, "me", "again")
    topic(world, "orders-us").expire(0, 1)
    with raises(SourceLost, "records-expired"):
        world.run("run-5")


def test_all_that_match_are_one_cut(world: World) -> None:
    world.run("run-1")
    assert pinned(world, 1) == {"orders-eu": {0: (0, 2)}, "orders-us": {0: (0, 1)}}
    assert sorted(values(world.lake)) == [1, 2, 10]
    assert world.plan("run-2") is None


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_topic_that_appears_later_joins_at_its_earliest_record(tmp_path: Any, start: str) -> None:
    world = shop(tmp_path, source=KafkaSource(topic_pattern="orders-.*", start=start))
    put(world, "orders-eu", 1)
    world.plan("run-1")
    put(world, "orders-cn", 20, 21)
    if start == "earliest":
        world.stage(1)
        world.commit(1)
    world.run("run-2")
    assert pinned(world, 2) == {"orders-cn": {0: (0, 2)}, "orders-eu": {0: (1, 1)}}
    assert sorted(values(world.lake)) == ([1, 20, 21] if start == "earliest" else [20, 21])


def test_what_an_aborted_checkpoint_pinned_comes_first_again(world: World) -> None:
    """A topic that has appeared meanwhile waits for the next one."""
    world.plan("run-1")
    world.stage()
    world.abort()
    put(world, "orders-cn", 20)
    world.run("run-2")
    assert sorted(values(world.lake)) == [1, 2, 10]
    world.run("run-3")
    assert sorted(values(world.lake)) == [1, 2, 10, 20]


def test_partitions_that_are_added(world: World) -> None:
    world.run("run-1")
    put(world, "orders-us", 30, partition=1)
    world.run("run-2")
    assert pinned(world, 2)["orders-us"] == {0: (1, 1), 1: (0, 1)}


def test_a_topic_that_was_created_again_is_refused(world: World) -> None:
    world.run("run-1")
    topic(world, "orders-us").recreate()
    with raises(SourceLost, "source-recreated"):
        world.plan("run-2")


def test_a_topic_that_vanished_is_refused(world: World) -> None:
    world.run("run-1")
    (world.parts.folder / "orders-us.topic.json").unlink()
    with raises(SourceLost, "partition-missing", match="'orders-us' no longer has partition 0"):
        world.plan("run-2")


def test_a_maximum_is_of_all_topics_together(tmp_path: Any) -> None:
    world = shop(tmp_path, source=KafkaSource(topic_pattern="orders-.*", max_records=4))
    put(world, "orders-eu", *range(6))
    put(world, "orders-us", *range(10, 14))
    world.run("run-1")
    assert sum(range_.offset_count for range_ in world.now(1).ranges) == 4
    world.run("run-2")
    world.run("run-3")
    assert sorted(values(world.lake)) == [*range(6), *range(10, 14)]


def test_no_topic_of_that_name(tmp_path: Any) -> None:
    with raises(InvalidPipeline, "no-topic-matches"):
        shop(tmp_path).plan()


def test_a_pattern_may_become_wider_and_not_narrower(world: World) -> None:
    world.run("run-1")
    put(world, "returns-eu", 40)
    world.pipeline = Pipeline(**{**vars(world.pipeline), "source": KafkaSource(topic_pattern="(orders|returns)-.*")})
    world.run("run-2")
    assert 40 in values(world.lake)
    world.pipeline = Pipeline(**{**vars(world.pipeline), "source": KafkaSource(topic_pattern="orders-.*")})
    with raises(InvalidPipeline, "pipeline-changed"):
        world.plan("run-3")


def test_a_topic_becomes_one_of_many(tmp_path: Any) -> None:
    world = shop(tmp_path, source=KafkaSource("orders-eu"))
    put(world, "orders-eu", 1)
    world.run("run-1")
    put(world, "orders-us", 2)
    world.pipeline = Pipeline(**{**vars(world.pipeline), "source": ORDERS})
    world.run("run-2")
    assert sorted(values(world.lake)) == [1, 2]


def test_beside_another_topic(world: World) -> None:
    world.pipeline = Pipeline(**{**vars(world.pipeline), "source": [KafkaSource("flights"), ORDERS]})
    world.run("run-1")
    assert list(pinned(world, 1)) == ["flights", "orders-eu", "orders-us"]


# ---- by intervals


def test_a_topic_that_appears_after_an_interval(tmp_path: Any) -> None:
    """Its records may be older than the boundary that was pinned without it: they are not before it."""
    world = shop(tmp_path, mode="interval")
    put(world, "orders-eu", 3, 15, 25)
    world.run("run-1", minutes(0, 10))
    put(world, "orders-us", 5, 12, 25)
    world.run("run-2", minutes(10, 20))
    assert pinned(world, 2) == {"orders-eu": {0: (1, 2)}, "orders-us": {0: (0, 2)}}
    world.run("run-3", minutes(20, 30))
    assert sorted(values(world.lake)) == [3, 5, 12, 15, 25, 25]


def test_a_topic_that_appears_before_an_earlier_interval(tmp_path: Any) -> None:
    """What the later interval has not read, the one after it will; the earlier one takes none of it twice."""
    world = shop(tmp_path, mode="interval")
    put(world, "orders-eu", 3, 15, 25)
    world.run("run-2", minutes(10, 20))
    put(world, "orders-us", 5, 12, 25)
    world.run("run-1", minutes(0, 10))
    assert pinned(world, 2)["orders-us"] == {0: (0, 0)}
    world.run("run-3", minutes(20, 30))
    assert sorted(values(world.lake)) == [3, 5, 12, 15, 25, 25]


@settings(deadline=None, max_examples=12)
@given(st.permutations(range(3)), st.integers(0, 3))
def test_every_record_comes_once_whenever_a_topic_appears(
    tmp_path_factory: Any, order: list[int], appears: int
) -> None:
    """Three intervals in any order and a last one; before one of them the topic appears."""
    world = shop(tmp_path_factory.mktemp("shop"), mode="interval")
    put(world, "orders-eu", 2, 12, 22)
    for place, number in enumerate([*order, 3]):
        if appears == place:
            put(world, "orders-us", 1, 11, 21, 31)
        checkpoint = world.plan(f"run-{number}", minutes(10 * number, 10 * number + 10))
        if checkpoint and not checkpoint.state.is_settled:
            world.stage(checkpoint.epoch)
            world.commit(checkpoint.epoch)
    assert sorted(values(world.lake)) == [1, 2, 11, 12, 21, 22, 31]


def test_a_new_topic_whose_first_records_are_gone_begins_where_its_log_does(tmp_path: Any) -> None:
    world = shop(tmp_path, mode="interval")
    put(world, "orders-eu", 3, 15)
    world.run("run-1", minutes(0, 10))
    put(world, "orders-us", 5, 12)
    topic(world, "orders-us").expire(0, 1)
    world.run("run-2", minutes(10, 20))
    assert pinned(world, 2)["orders-us"] == {0: (1, 2)}


def test_an_interval_that_is_skipped_beside_a_new_topic(tmp_path: Any) -> None:
    world = shop(tmp_path, mode="interval")
    put(world, "orders-eu", 3, 15, 25)
    world.run("run-1", minutes(0, 10))
    put(world, "orders-us", 5, 12, 25)
    world.run("run-3", minutes(20, 30))
    Person(world.coordinator).skip("flights", minutes(10, 20), "ann", "a strike")
    assert pinned(world, 3) == {"orders-eu": {0: (1, 2)}, "orders-us": {0: (0, 2)}}


def test_a_skipped_interval_whose_next_one_did_not_know_the_topic(tmp_path: Any) -> None:
    world = shop(tmp_path, mode="interval")
    put(world, "orders-eu", 3, 15, 35)
    world.run("run-1", minutes(0, 10))
    world.run("run-4", minutes(30, 40))
    put(world, "orders-us", 5, 12, 25)
    topic(world, "orders-us").expire(0, 1)
    world.run("run-2", minutes(10, 20))
    Person(world.coordinator).skip("flights", minutes(20, 30), "ann", "a strike")
    assert pinned(world, 4)["orders-us"] == {0: (1, 1)}


# ---- definitions


@pytest.mark.parametrize(
    ("fields", "code", "why"),
    [
        ({"topic_pattern": "orders"}, "option-invalid", "is the name of one topic"),
        ({"topic_pattern": "("}, "option-invalid", "is not a regular expression"),
        ({"topic_pattern": "o.*", "topic": "orders"}, "options-conflict", "together with topic 'orders'"),
        ({"topic_pattern": "o.*", "start": {0: 5}}, "options-conflict", "offsets of one"),
        ({"topic_pattern": "o.*", "registry": "r", "format": "avro"}, "options-conflict", "no single subject"),
        (
            {"topic_pattern": "o.*", "registry": "r", "format": "avro", "subject": "o", "key_format": "avro"},
            "options-conflict",
            "no single s",
        ),
        ({}, "option-invalid", "topic '' is not a Kafka topic name"),
    ],
)
def test_definitions_that_do_not_fit(fields: dict[str, Any], code: str, why: str) -> None:
    with raises(InvalidPipeline, code, match=why):
        KafkaSource(**fields)


@pytest.mark.parametrize("other", [KafkaSource("orders-eu"), KafkaSource(topic_pattern="o.*")])
def test_no_topic_is_read_twice(world: World, other: KafkaSource) -> None:
    with raises(InvalidPipeline, "names-not-distinct"):
        Pipeline(**{**vars(world.pipeline), "source": [ORDERS, other]})


def test_it_does_not_read_what_it_writes(world: World) -> None:
    with raises(InvalidPipeline, "own-output-read"):
        Pipeline(**{**vars(world.pipeline), "sinks": [KafkaSink(name="late", topic="orders-late")]})


def test_it_is_stored_without_a_topic_and_read_again(world: World) -> None:
    stored = world.pipeline.to_json()
    assert "topic" not in stored["source"]
    assert Pipeline.from_json(stored).to_json() == stored
    assert "topic_pattern" not in Pipeline(**{**vars(world.pipeline), "source": KafkaSource("a")}).to_json()["source"]


def test_topics_of_kafka_itself_match_no_pattern() -> None:
    every = KafkaSource(topic_pattern=".*")
    assert [every.reads(name) for name in ("orders", "__consumer_offsets")] == [True, False]


def test_forward_names_every_topic_that_matches(world: World) -> None:
    """The state table is behind: one that it does not know may have been read, and would be read again."""
    topic(world, "orders-us").append(0, (NOON, 11))
    said = Forward(3, "me", "restored", {"orders-eu": {0: 2}})
    with raises(InvalidPipeline, "ends-incomplete"):
        Person(world.coordinator).forward(world.pipeline, said)
    Person(world.coordinator).forward(world.pipeline, replace(said, ends={"orders-eu": {0: 2}, "orders-us": {0: 1}}))
    world.run("run-1")
    assert values(world.lake) == [11]
