"""A committed interval processed again: a new checkpoint that takes the place of the old one, or leaves it as it is."""

from dataclasses import replace

import pytest
from codes import raises
from person import Person
from unit.world import World, minutes, values

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import Busy, CannotPublish, InvalidPipeline, OutcomeUnknown
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, KafkaSink, StateSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.testing.fakes import FakeSource

TEN = minutes(0, 10)


@pytest.fixture
def world(tmp_path) -> World:
    world = World(tmp_path, mode="interval", sinks=[DeltaSink("lake", "lake")])
    world.put(*range(5, 20))
    world.run("run-1", TEN)
    return world


def again(world: World, owner: str = "run-2", interval=TEN, time: int = 1) -> Checkpoint:
    return world.coordinator.plan(
        world.pipeline, owner, world.alive, interval, Reprocess(f"{owner}, {time}")
    ).checkpoint


def corrected(world: World, epoch: int) -> Checkpoint:
    """Stage with a transform that was mended."""

    def produce(checkpoint: Checkpoint):
        rows = world.parts.produce(checkpoint)
        return {name: [{**row, "value": row["value"] + 100} for row in all_] for name, all_ in rows.items()}

    return world.coordinator.stage("flights", epoch, produce)


def test_the_new_rows_take_the_place_of_the_old_ones_at_the_commit(world):
    other = minutes(10, 15)
    world.run("run-other", other)
    planned = again(world)
    assert (planned.epoch, planned.replaces, planned.interval) == (3, 1, TEN)
    assert planned.ranges == world.now(1).ranges
    corrected(world, 3)
    assert sorted(values(world.lake)) == list(range(15))
    assert world.commit(3).state is State.COMMITTED
    assert sorted(values(world.lake)) == [*range(10, 15), *range(100, 110)]


def test_an_abort_leaves_the_old_one_in_force(world):
    again(world)
    corrected(world, 2)
    world.abort(2)
    assert sorted(values(world.lake)) == list(range(10))
    assert world.plan("run-3", TEN).epoch == 1  # nothing to do
    resumed = again(world, "run-4")
    assert (resumed.epoch, resumed.replaces) == (2, 1)
    corrected(world, 2)
    world.commit(2)
    assert sorted(values(world.lake)) == list(range(100, 110))


def test_the_last_one_is_what_the_next_one_replaces(world):
    for number in (2, 3):
        assert again(world, f"run-{number}").replaces == number - 1
        corrected(world, number)
        world.commit(number)
    assert sorted(values(world.lake)) == list(range(100, 110))
    assert "replaces" not in world.now(3).handles["lake"]["replaces"]


def test_what_a_sink_shows_goes_although_it_was_given_up_in_between(tmp_path):
    world = World(tmp_path, mode="interval")
    world.put(*range(5, 20))
    world.run("run-1", TEN)
    again(world, "run-2")
    corrected(world, 2)
    world.files.fail("commit", "refused", "refused")
    with pytest.raises(CannotPublish):
        world.commit(2)
    Person(world.coordinator).give_up("flights", 2, "files", "ann", "it refuses")
    assert sorted(values(world.files)) == list(range(10)), "those of the first run"
    again(world, "run-3")
    corrected(world, 3)
    world.commit(3)
    assert sorted(values(world.files)) == sorted(values(world.lake)) == list(range(100, 110))


def test_a_task_that_asks_twice_replaces_once(world):
    again(world)
    corrected(world, 2)
    world.commit(2)
    assert again(world).epoch == 2
    assert again(world, "run-3").epoch == 3


def test_a_task_that_asks_twice_replaces_once_although_others_have_replaced_it_since(world):
    for number in (2, 3):
        again(world, f"run-{number}")
        corrected(world, number)
        world.commit(number)
    late = again(world, "run-2")
    assert (late.epoch, late.state) == (3, State.COMMITTED)


def test_a_definition_that_changed_meanwhile_is_looked_at_anew(world):
    """Its first try was aborted; the sink that has the old rows is not named any more, or the topic is another."""
    again(world)
    world.abort(2)
    old = world.pipeline
    world.pipeline = replace(old, sinks=[DeltaSink("other", "other")])
    with raises(InvalidPipeline, "sink-removed"):
        again(world)
    FakeSource("trains", world.parts.folder).append(0, None)
    world.pipeline = replace(old, source=KafkaSource("trains"))
    with raises(InvalidPipeline, "pipeline-changed"):
        again(world)
    assert world.now(2).state is State.ABORTED


def test_a_run_that_is_cleared_asks_anew(world):
    for time in (1, 2, 3):
        assert again(world, time=time).epoch == time + 1
        world.abort(time + 1)  # its first try fails, and the next one of the same request goes on from there
        corrected(world, again(world, time=time).epoch)
        world.commit(time + 1)
        assert again(world, time=time).epoch == time + 1
    assert sorted(values(world.lake)) == list(range(100, 110))


def test_a_request_that_takes_over_an_aborted_one_replaces_once(world):
    again(world, time=1)
    world.abort(2)
    corrected(world, again(world, time=2).epoch)
    world.commit(2)
    assert again(world, time=2).epoch == 2


def test_another_topic_does_not_take_the_place_of_this_one(world):
    FakeSource("trains", world.parts.folder).append(0, None)
    world.pipeline = replace(world.pipeline, source=KafkaSource("trains"))
    with raises(InvalidPipeline, "pipeline-changed"):
        again(world)
    assert world.now(2) is None


def test_two_runs_at_once_do_not_both_replace(world):
    again(world)
    with pytest.raises(Busy):
        again(world, "run-3")
    with pytest.raises(Busy):
        world.plan("run-4", TEN)


def test_a_crash_after_the_publish_is_finished_by_recovery(world):
    again(world)
    corrected(world, 2)
    world.lake.fail("commit", "after")
    with pytest.raises(OutcomeUnknown):
        world.commit(2)
    world.ended.add("run-2")
    assert [cp.state for cp in world.recover()] == [State.COMMITTED]
    assert sorted(values(world.lake)) == list(range(100, 110))


def test_an_interval_that_never_ran_or_is_empty_is_as_without(world):
    assert again(world, interval=minutes(10, 15)).replaces is None
    empty = again(world, "run-3", minutes(30, 40))
    assert empty.state is State.COMMITTED
    assert again(world, "run-4", minutes(30, 40)).epoch == empty.epoch


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mode": "chained"}, "starts where the last one ended"),
        ({"sinks": [DeltaSink("lake", "lake"), StateSink("s", "n INT", ["n"])]}, "continues from its state"),
        ({"sinks": [DeltaSink("other", "other")]}, "stay beside those of the new one"),
    ],
)
def test_what_cannot_be_replaced_is_refused(world, changes, why):
    world.pipeline = Pipeline(**{**vars(world.pipeline), **changes})
    with pytest.raises(InvalidPipeline) as refused:
        again(world, interval=None if "mode" in changes else TEN)
    assert why in refused.value.why
    assert world.state.view("flights").head.epoch == 1


def test_a_sink_says_by_itself_that_it_cannot(tmp_path):
    from onceonly.checkpoint.sink import require_replaceable
    from onceonly.kafka.connection import KafkaConnection
    from onceonly.sinks.kafka.sink import KafkaWriter

    config = KafkaSink(name="late", topic="late")
    writer = KafkaWriter(config, KafkaConnection.plaintext("127.0.0.1:1"), True, str(tmp_path), tmp_path)
    with raises(InvalidPipeline, "rows-not-retractable"):
        require_replaceable(writer)
