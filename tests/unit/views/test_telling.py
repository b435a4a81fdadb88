"""What a task's log says of each step."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from person import Person
from unit.world import World

from onceonly.checkpoint.model import Event, Row
from onceonly.coordinator.coordinator import Coordinator
from onceonly.pipeline.gate import Gate
from onceonly.views import descriptions


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_each_step_is_one_line_and_each_staged_sink_another(world):
    told: list[str] = []
    through = Coordinator(
        world.state, world.parts, lambda cp, row: told.extend(descriptions.describe_transition(cp, row))
    )
    through.plan(world.pipeline, "run-1", world.alive)
    through.stage("flights", 1, world.parts.produce)
    through.commit("flights", 1)
    worker = world.now(1).claims[1].worker
    assert told[:3] == [
        "flights epoch 1: planned, 5 offsets of topic flights",
        f"flights epoch 1: claimed, attempt 1 by {worker}",
        "flights epoch 1: staged, attempt 1",
    ]
    assert told[5] == "flights epoch 1: committing, decision 1"
    assert set(told[6:8]) == {"flights epoch 1: published lake", "flights epoch 1: published files"}
    assert told[8:] == ["flights epoch 1: committed"]


@pytest.mark.parametrize(
    ("handle", "words"),
    [
        ({"rows": 4500, "bytes": 1_234_567, "files": 3}, "4,500 rows, 1.2 MB, 3 files"),
        ({"rows": 2, "bytes": 80, "parts": [{"tx": {"id": "a"}}, {"tx": None}]}, "2 rows, 80 B, 1 open transaction"),
        ({"rows": 0, "files": []}, "0 rows, 0 files"),
        ({}, "rows not counted"),
    ],
)
def test_amounts_are_in_words(handle, words):
    assert descriptions.describe_staged_rows(handle) == words


def test_the_gate_and_who_overrules_it_are_heard(tmp_path):
    world, told = World(tmp_path, gate=Gate(min_rows={"lake": 9}, on_fail="hold")), list[str]()
    through = Coordinator(
        world.state, world.parts, lambda cp, row: told.extend(descriptions.describe_transition(cp, row))
    )
    world.plan()
    world.stage()
    world.parts.inspector(world.pipeline).find("critical")
    through.gate("flights", 1, "run-1")
    Person(through).approve("flights", 1, "ann", "a known gap")
    assert [told[0], told[2]] == [
        "flights epoch 1: verdict, failed, attempt 1",
        "flights epoch 1: approved by ann, a known gap",
    ]
    assert "epoch 1 is held" in told[1] and "onceonly approve flights 1" in told[1]


def test_a_person_who_aborts_is_heard(world):
    world.plan()
    told: list[str] = []
    Coordinator(world.state, world.parts, lambda cp, row: told.extend(descriptions.describe_transition(cp, row))).abort(
        "flights", 1, f"bad rows, {datetime(2013, 1, 1, tzinfo=UTC):%d.%m.}"
    )
    assert told == ["flights epoch 1: aborting, bad rows, 01.01.", "flights epoch 1: aborted"]


def test_handle_that_is_replaced_is_no_row_that_is_replaced(world):
    checkpoint = world.plan("run-1")
    row = Row("flights", 4, checkpoint.epoch, Event.REPLACED, 1, sink="late")
    resolved = replace(row, body={"verdict": "published"})
    assert list(descriptions.describe_transition(checkpoint, row)) == ["flights epoch 1: new transaction for late"]
    assert list(descriptions.describe_transition(checkpoint, resolved)) == ["flights epoch 1: resolved late"]
