"""Processes that were stopped, given up and replaced, and then go on as if nothing had happened."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from codes import raises
from confluent_kafka import Producer
from integration.faults.dying import KILLED, arrived, check_truth, fill, has_stopped, nothing_is_left, stopped, wake
from integration.projects.copying import Copy, make_copy
from integration.projects.kafka_writers import by_each_writer
from integration.readers.kafka_reader import until
from patience import PATIENCE
from person import Person

from onceonly.checkpoint.model import State
from onceonly.errors import CannotPublish
from onceonly.sinks.kafka import python_writer, stage
from onceonly.sinks.kafka.job import Job
from onceonly.sinks.kafka.spool import SPOOL_SCHEMA

pytestmark = [pytest.mark.integration, by_each_writer]
Make = Callable[[str], Copy]


@pytest.fixture
def make(tmp_path: Path, broker: str, spark_server: str) -> Make:
    def make(way: str) -> Copy:
        copy = make_copy(tmp_path, broker, spark_server, f"in_{uuid.uuid4().hex[:8]}", way)
        fill(copy, range(40), 40)
        return copy

    return make


# ---- that stage


def frozen_task(copy: Copy, when: str) -> subprocess.Popen[str]:
    plain = {name: value for name, value in vars(copy).items() if name != "project"}
    task = copy.project.child("victims/zombie_kafka.py", str(copy.plan().epoch), when, json.dumps(plain))
    until(lambda: has_stopped(task), PATIENCE, when)
    return task


@pytest.mark.parametrize(
    ("when", "told"),
    [
        # into a transaction that nobody will ever commit
        pytest.param("before its first row", "staged 4 rows", marks=pytest.mark.heavy),
        ("amid its rows", "fenced by a newer instance"),
        ("after its last row", "staged 4 rows"),
    ],
)
def test_a_task_of_an_aborted_attempt_goes_on(make: Make, when: str, told: str) -> None:
    copy = make("staged")
    zombie = frozen_task(copy, when)
    copy.recover()
    assert (copy.now().state, copy.open()) == (State.ABORTED, [])
    second = copy.stage()
    ours = copy.open()
    assert (second.attempt, len(ours)) == (2, 4)
    assert told in wake(zombie)
    assert set(ours) <= set(copy.open(("Ongoing",))), "the transactions of the second attempt are as they were"
    assert arrived(copy) == {}
    copy.commit()
    copy.recover()
    check_truth(copy, range(40))
    nothing_is_left(copy)
    assert copy.replaced() == []


@pytest.mark.parametrize(
    ("way", "point"),
    [
        pytest.param("staged", "before stage", marks=pytest.mark.heavy),
        ("staged", "before staged row"),
        ("late", "before staged row"),
    ],
)
def test_a_stage_process_of_an_aborted_attempt_goes_on(make: Make, way: str, point: str) -> None:
    copy = make(way)
    zombie = stopped(copy, point)
    copy.recover()
    assert copy.now().state is State.ABORTED
    copy.stage()
    assert "Fenced" in wake(zombie)
    copy.commit()
    check_truth(copy, range(40))
    nothing_is_left(copy)
    assert len(copy.replaced()) == (way == "late")


def test_what_a_losing_task_has_left_open_is_ended_with_the_stage(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark may run a task twice, by speculation or after a fault, and takes the result of one."""
    copy, inner = make("staged"), stage.run
    row = {"topic": copy.out, "partition": 0, "key": None, "value": b"666", "timestamp": None, "headers": None}
    losing: list[str] = []

    def twice(job: Job, *arguments: Any) -> Any:
        loser = python_writer._stage_part(job, 0, [pa.RecordBatch.from_pylist([row], SPOOL_SCHEMA)])
        assert loser is not None and loser.id in copy.open()
        losing.append(loser.id)
        return inner(job, *arguments)

    monkeypatch.setattr(stage, "run", twice)
    copy.stage()
    assert len(copy.open()) == 4
    assert losing[0] not in copy.open()
    copy.commit()
    check_truth(copy, range(40))
    nothing_is_left(copy)


# ---- that commit


@pytest.mark.parametrize(
    ("way", "point"),
    [
        ("staged", "before end"),
        pytest.param("staged", "after flush", marks=pytest.mark.heavy),
        ("late", "before flush"),
        pytest.param("late", "before replaced row", marks=pytest.mark.heavy),
        ("late", "after replaced row"),
        pytest.param("late", "before end", marks=pytest.mark.heavy),
    ],
)
def test_a_committer_goes_on_when_another_has_finished(make: Make, way: str, point: str) -> None:
    copy = make(way)
    copy.stage()
    if point != "before end":
        fence(copy)
    zombie = stopped(copy, point, "commit")
    if point == "before end":
        fence(copy)
    copy.commit()
    check_truth(copy, range(40))
    assert "committed" in wake(zombie)
    check_truth(copy, range(40))
    copy.recover()
    nothing_is_left(copy)


def test_of_two_committers_only_what_is_recorded_is_ended(make: Make) -> None:
    """The first hangs before it records what it has written, the second records its own and hangs.

    The first goes on, and dies when it has ended something: were that its own, the second would publish it again.
    """
    copy = make("late")
    copy.stage()
    first = stopped(copy, "before replaced row, after end", "commit")
    second = stopped(copy, "before end", "commit")
    wake(first)
    assert first.returncode == KILLED
    assert "committed" in wake(second)
    check_truth(copy, range(40))
    nothing_is_left(copy)


def fence(copy: Copy) -> None:
    """A stranger takes over the ids of all transactions that are recorded: they are aborted."""
    for part in copy.parts():
        if part.tx:
            stranger = {"bootstrap.servers": copy.brokers, "transactional.id": part.tx.id, "log_level": 0}
            Producer(stranger).init_transactions(PATIENCE)


def give_up(copy: Copy) -> None:
    """By a person, while the spool is away."""
    spool = copy.project.folder / "home" / "spool"
    spool.rename(spool.with_name("away"))
    with raises(CannotPublish, "spool-missing"):
        copy.commit()
    Person(copy.through).give_up("copying", 1, "copy", "ann", "the spool is gone")
    spool.with_name("away").rename(spool)


def test_a_committer_goes_on_when_a_person_has_given_up(make: Make) -> None:
    copy = make("late")
    copy.stage()
    zombie = stopped(copy, "before replaced row", "commit")
    give_up(copy)
    assert copy.open() == []
    assert "was given up" in wake(zombie)
    assert (arrived(copy), copy.open()) == ({}, [])


def test_what_a_committer_opens_after_it_was_given_up_is_swept(make: Make) -> None:
    copy = make("late")
    copy.stage()
    zombie = stopped(copy, "before commit, before replaced row", "commit")
    give_up(copy)
    wake(zombie)
    assert (zombie.returncode, len(copy.open())) == (KILLED, 4)
    copy.recover()
    assert (arrived(copy), copy.open()) == ({}, [])
