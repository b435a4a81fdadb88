"""A broker has lost the end of a topic, which has grown again since: nobody passes over what was written meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from person import Person
from unit.world import World, minutes, values

from onceonly.checkpoint.model import State
from onceonly.checkpoint.offsets import LOG_REPLACED
from onceonly.coordinator.skip import Skip
from onceonly.errors import SourceLost

CUT = 3  # of the first checkpoint's five records, two are lost


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Records 0 to 4 are published."""
    made = World(tmp_path)
    made.run("run-1")
    return made


def lose_end(world: World) -> None:
    """Two records of the first checkpoint are lost, and seven others written: the log is longer than before."""
    world.source.lose(0, CUT)
    world.put(*range(20, 27))


def test_plan_refuses_a_replaced_end(world: World) -> None:
    lose_end(world)
    with pytest.raises(SourceLost) as error:
        world.plan("run-2")
    assert error.value.code == LOG_REPLACED
    assert world.events()[-1] == "committed"


def test_plan_refuses_it_without_new_records(world: World) -> None:
    world.source.lose(0, CUT)
    world.put(20, 21)
    with pytest.raises(SourceLost) as error:
        world.plan("run-2")
    assert error.value.code == LOG_REPLACED


def test_stage_refuses_what_was_replaced_since_plan(world: World) -> None:
    world.put(5, 6)
    world.plan("run-2")
    world.source.lose(0, 6)
    world.put(20, 21)
    with pytest.raises(SourceLost) as error:
        world.stage(2)
    assert error.value.code == LOG_REPLACED


def test_stage_refuses_what_was_replaced_while_it_read(world: World) -> None:
    world.put(5, 6)
    world.plan("run-2")

    def produce(checkpoint: object) -> object:
        rows = world.parts.produce(checkpoint)
        world.source.lose(0, 6)
        world.put(20, 21)
        return rows

    with pytest.raises(SourceLost) as error:
        world.coordinator.stage("flights", 2, produce)
    assert error.value.code == LOG_REPLACED
    assert values(world.lake) == [0, 1, 2, 3, 4]


def test_interval_behind_a_replaced_end_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, mode="interval")
    world.put(*range(5, 15))
    world.run("run-1", minutes(0, 10))
    world.source.lose(0, 8)
    world.put(*range(10, 30))
    with pytest.raises(SourceLost) as error:
        world.plan("run-2", minutes(10, 20))
    assert error.value.code == LOG_REPLACED


def test_highest_neighbour_decides_in_every_partition(tmp_path: Path) -> None:
    """The neighbours end at the same offset of partition 0, and partition 1 was replaced above the lower one."""
    world = World(tmp_path, mode="interval")
    world.put(2, 12, 14, 25, partition=1)
    world.run("run-1", minutes(10, 20))
    world.run("run-2", minutes(0, 10))
    world.source.lose(1, 2)
    world.put(15, 26, 27, partition=1)
    with pytest.raises(SourceLost) as error:
        world.plan("run-3", minutes(20, 30))
    assert error.value.code == LOG_REPLACED


def test_rewind_below_the_cut_reads_it_again(world: World) -> None:
    world.put(5, 6)
    world.run("run-2")
    world.source.lose(0, 5)
    world.put(20, 21, 22)
    with pytest.raises(SourceLost):
        world.plan("run-3")
    Person(world.coordinator).rewind("flights", 1, "ann", "the broker lost its disk")
    world.run("run-3")
    assert values(world.lake) == [0, 1, 2, 3, 4, 20, 21, 22]


def test_rewind_above_the_cut_does_not_help(world: World) -> None:
    world.put(5, 6)
    world.run("run-2")
    lose_end(world)
    Person(world.coordinator).rewind("flights", 1, "ann", "a try")
    with pytest.raises(SourceLost):
        world.plan("run-3")


def test_skipped_offsets_accept_the_new_log(world: World) -> None:
    lose_end(world)
    end = world.source.log().partitions[0][1]
    Person(world.coordinator).skip_offsets("flights", Skip("flights", 0, end, "ann", "the broker lost its disk"))
    world.put(30)
    done = world.run("run-2")
    assert (done.state, done.ranges[0].partitions) == (State.COMMITTED, {0: (end, end + 1)})
    assert values(world.lake) == [0, 1, 2, 3, 4, 30]


def test_skip_in_one_partition_does_not_accept_another(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put(10, 11, partition=1)
    world.run("run-1")
    for partition in (0, 1):
        world.source.lose(partition, 1)
        world.put(*range(20, 27), partition=partition)
    end = world.source.log().partitions[1][1]
    Person(world.coordinator).skip_offsets("flights", Skip("flights", 1, end, "ann", "the broker lost its disk"))
    with pytest.raises(SourceLost):
        world.plan("run-2")
