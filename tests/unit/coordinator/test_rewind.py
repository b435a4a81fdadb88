"""Going back to an earlier checkpoint: what came after is taken back, and the pipeline goes on from there."""

from types import SimpleNamespace

import pytest
from codes import raises
from person import Person
from unit.world import World, values

from onceonly.checkpoint.model import State
from onceonly.coordinator.stage import find_state_before
from onceonly.errors import Fenced, InvalidPipeline, OutcomeUnknown
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, StateSink
from onceonly.pipeline.sources import KafkaSource

TOTALS = StateSink("totals", schema="n INT", key=["n"])


@pytest.fixture
def world(tmp_path) -> World:
    """Four checkpoints: five records, then one each."""
    world = World(tmp_path, sinks=[DeltaSink("lake", "lake"), TOTALS])
    for number in range(4):
        if number:
            world.put(10 * number)
        world.run(f"run-{number}")
    return world


def rewind(world: World, epoch: int):
    return Person(world.coordinator).rewind("flights", epoch, "me", "wrong prices")


def test_later_rows_are_taken_back_and_read_again(world):
    assert [cp.epoch for cp in world.coordinator.list_undone("flights", 2)] == [4, 3]
    done = rewind(world, 2)
    assert (done.epoch, done.state, done.rewinds_to, done.reason) == (5, State.COMMITTED, 2, "wrong prices")
    assert values(world.lake) == [0, 1, 2, 3, 4, 10]
    world.put(40)
    again = world.run("run-5")
    assert again.ranges[0].partitions == {0: (6, 9)}
    assert values(world.lake) == [0, 1, 2, 3, 4, 10, 20, 30, 40]


def test_state_is_as_it_was(world):
    rewind(world, 2)
    world.plan("run-5")
    assert find_state_before(world.state.view("flights"), world.now(6)) == world.now(5).handles["totals"]


def test_going_back_again_takes_back_what_is_in_force(world):
    rewind(world, 3)
    world.run("run-6")
    assert [cp.epoch for cp in world.coordinator.list_undone("flights", 1)] == [6, 3, 2]
    assert [cp.epoch for cp in world.coordinator.list_undone("flights", 5)] == [6]
    with raises(InvalidPipeline, "epoch-not-in-force", match="cannot go back to epoch 4"):
        rewind(world, 4)
    rewind(world, 1)
    assert values(world.lake) == [0, 1, 2, 3, 4]
    world.run("run-8")
    assert values(world.lake) == [0, 1, 2, 3, 4, 10, 20, 30]


def test_what_was_aborted_before_it_is_never_staged_again(world):
    """The stage task of the run that was aborted is cleared: its offsets are among those that are read again."""
    world.put(40)
    world.plan("run-5")
    world.abort(5)
    rewind(world, 2)
    world.run("run-6")
    with raises(Fenced, "ownership-lost", match="It is aborted, and epoch 7 has continued without it"):
        world.stage(5, "run-5")
    assert values(world.lake) == [0, 1, 2, 3, 4, 10, 20, 30, 40]
    assert world.state.view("flights").open == []


def test_a_crash_in_the_middle_is_finished_by_recovery(world):
    world.lake.fail("commit", "after")
    with pytest.raises(OutcomeUnknown):
        rewind(world, 2)
    assert world.now(5).state is State.COMMITTING
    assert [cp.state for cp in world.recover()] == [State.COMMITTED]
    assert values(world.lake) == [0, 1, 2, 3, 4, 10]


def test_there_is_nothing_to_go_back_to(world):
    with raises(InvalidPipeline, "nothing-to-rewind") as refused:
        rewind(world, 4)
    assert "Nothing was committed after epoch 4" in refused.value.why
    for never in (0, 9):
        with pytest.raises(InvalidPipeline):
            rewind(world, never)
    assert world.state.view("flights").head.epoch == 4


def test_nothing_may_be_open(world):
    world.put(40)
    world.plan("run-5")
    with pytest.raises(InvalidPipeline) as refused:
        rewind(world, 2)
    assert "epoch 5 is planned" in refused.value.why


def test_a_sink_that_cannot_stops_it_before_anything_is_written(world, monkeypatch):
    monkeypatch.setattr(world.parts.__class__, "sink", lambda parts, pipeline, name: SimpleNamespace(name=name))
    with raises(InvalidPipeline, "rows-not-retractable"):
        rewind(world, 2)
    assert world.events()[-1] == "committed"


def test_intervals_are_not_rewound(tmp_path):
    from unit.world import minutes

    world = World(tmp_path, mode="interval", sinks=[DeltaSink("lake", "lake")])
    world.run("run-1", minutes(0, 2))
    world.run("run-2", minutes(2, 4))
    with pytest.raises(InvalidPipeline) as refused:
        rewind(world, 1)
    assert "--reprocess" in refused.value.why


def test_a_sink_that_the_pipeline_has_no_more_stops_it(world):
    world.pipeline = Pipeline(
        name="flights", source=KafkaSource("flights"), transform="a:b", sinks=[DeltaSink("other", "other")]
    )
    world.put(40)
    world.run("run-5")
    with pytest.raises(InvalidPipeline) as refused:
        rewind(world, 2)
    assert "is no longer in the pipeline" in refused.value.why
