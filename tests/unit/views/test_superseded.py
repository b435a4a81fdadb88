"""What later checkpoints have made of an earlier one's rows."""

import pytest
from person import Person
from unit.world import World, minutes

from onceonly.coordinator.reprocess import Reprocess
from onceonly.views import provenance


def told(world) -> dict[int, str]:
    epochs = range(1, world.state.view("flights").head.epoch + 1)
    found = provenance.find_superseded(world.state, [world.now(epoch) for epoch in epochs])
    return {epoch: str(each) for epoch, each in found.items()}


def test_nothing_replaces_what_only_came_later(tmp_path):
    world = World(tmp_path)
    world.run("run-1")
    world.put(7)
    world.run("run-2")
    assert told(world) == {}


def test_a_replacement_counts_once_it_is_decided_and_is_replaced_itself(tmp_path):
    world = World(tmp_path, mode="interval")
    world.put(*range(5, 20))
    world.run("run-1", minutes(0, 10))
    for number, expected in (
        (2, {1: "replaced by epoch 2"}),
        (3, {1: "replaced by epoch 2", 2: "replaced by epoch 3"}),
    ):
        world.coordinator.plan(
            world.pipeline, f"run-{number}", world.alive, minutes(0, 10), Reprocess(f"request {number}")
        )
        assert len(told(world)) == number - 2
        world.stage(number)
        assert len(told(world)) == number - 2
        world.commit(number)
        assert told(world) == expected


@pytest.mark.parametrize("to", [1, 2])
def test_a_rewind_takes_back_what_is_between(tmp_path, to):
    world = World(tmp_path)
    for run in range(3):
        world.run(f"run-{run}")
        world.put(7 + run)
    Person(world.coordinator).rewind("flights", to, "ann", "wrong rates")
    world.run("run-4")
    assert told(world) == {epoch: "rewound by epoch 4" for epoch in range(to + 1, 4)}
    assert provenance.find_superseded(world.state, [world.now(3)])[3].by == 4  # asked of one alone, too
