"""Killed at every durable step, stopped in the middle, on a real broker: a plain consumer finds the truth, in order."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from integration.faults.dying import (
    KILLED,
    arrived,
    check_truth,
    die,
    fill,
    kill_session,
    live,
    nothing_is_left,
    start,
    stopped,
)
from integration.faults.sampling import sampled, seconds, steps
from integration.programs.children import output
from integration.projects.copying import Copy, make_copy
from integration.projects.kafka_writers import by_each_writer
from integration.readers.histories import Watch
from patience import PATIENCE

from onceonly.checkpoint.model import State
from onceonly.dev.services import machine

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.timeout(seconds(900)), by_each_writer]
KILLS = int(os.environ.get("ONCEONLY_STORM_KILLS", sampled("8", "2")))  # of each way; 50 make a storm of it
Make = Callable[..., Copy]

both_ways = pytest.mark.parametrize("way", ["staged", "late"])


@pytest.fixture
def make(tmp_path: Path, broker: str, spark_server: str) -> Make:
    """make(way, hours, an_hour) -> a pipeline whose source holds so many numbers, checkpoint by checkpoint."""

    def make(way: str, hours: int = 1, an_hour: int = 40, **more: Any) -> Copy:
        copy = make_copy(tmp_path, broker, spark_server, f"in_{uuid.uuid4().hex[:8]}", way, **more)
        copy = replace(copy, most=an_hour) if way == "staged" else replace(copy, hours=hours)
        fill(copy, range(hours * an_hour), an_hour)
        return copy

    return make


# ---- killed


def test_after_everything_was_killed_another_process_publishes(make: Make) -> None:
    """The whole Spark application, JVM and Python workers, dies between stage and commit."""
    copy = make("staged", an_hour=4000)
    (copy.project.folder / ".jars").symlink_to(machine.jars("spark").parent)
    own_spark = replace(copy, project=replace(copy.project, spark=""))
    kill_session(stopped(own_spark, "after staged row"))
    assert (copy.now().state, len(copy.open()), arrived(copy)) == (State.STAGED, 4, {})
    live(copy, "recover")
    check_truth(copy, range(4000))
    nothing_is_left(copy)


# each is reached by the process that finds what the one before has left
ABORTING = ["before delete", "after delete", "before aborted row"]
ENDING = ["before end", "after end", "before published row", "after published row", "after committed row"]
POINTS = {
    "staged": [
        *("worker after produce", "worker after flush", "before fence", "after fence", "worker after close", *ABORTING),
        *("after stage", "after staged row", "after committing row", *ENDING, "before release", "after release"),
    ],
    "late": [
        *("worker after spool", "worker after close", *ABORTING, "after staged row", "after committing row"),
        *("before flush", "after flush", "before replaced row", "after replaced row", *ENDING),
    ],
}
SAMPLE = {
    "staged": [
        *("worker after produce", "worker after flush", "after fence", "worker after close", "before delete"),
        *("after stage", "after committing row", "after published row", "after release"),
    ],
    "late": [
        *("worker after spool", "after delete", "before aborted row", "after staged row", "before flush"),
        *("after replaced row", "after end", "after committed row"),
    ],
}
DECISIONS = sampled(8, 4)  # more than are taken on the way through these points


def test_the_sample_meets_every_step() -> None:
    taken, all_ = (steps(point for way in points.values() for point in way) for points in (SAMPLE, POINTS))
    assert taken == all_
    assert all(set(SAMPLE[way]) <= set(POINTS[way]) for way in POINTS)


@both_ways
def test_rows_arrive_once_wherever_it_dies(make: Make, way: str) -> None:
    points = sampled(POINTS, SAMPLE)[way]
    copy = make(way, hours=DECISIONS, an_hour=8)
    for point in points:
        die(copy, point)
    live(copy)
    copy.recover()
    check_truth(copy, range(DECISIONS * 8))
    nothing_is_left(copy)


@both_ways
def test_few_rows_arrive_once_wherever_the_process_dies_that_writes_them(make: Make, way: str) -> None:
    points = [point for point in sampled(POINTS, SAMPLE)[way] if point.startswith("worker")]
    copy = make(way, hours=2, an_hour=8, few=True)
    for point in points:
        die(copy, point)
    live(copy)
    copy.recover()
    check_truth(copy, range(16))
    nothing_is_left(copy)


@pytest.mark.parametrize("way", ["staged", pytest.param("late", marks=pytest.mark.heavy)])
@pytest.mark.parametrize("seed", [2013])
def test_a_storm_of_kills(make: Make, way: str, seed: int) -> None:
    copy = make(way, hours=KILLS, an_hour=8)
    chance = random.Random(f"{way} {seed}")
    steps = ("spool", "close", "produce", "flush") if way == "staged" else ("spool", "close")
    worker = [f"worker {side} {step}" for side in ("before", "after") for step in steps]
    settings = copy.project.settings
    watch = Watch(settings.state, "copying", copy.project.topic, "copy").of_topic(copy.brokers, copy.out)
    watch.sent(range(KILLS * 8))
    for turn in range(KILLS):
        point = chance.choice(worker) if chance.random() < 0.25 else str(chance.randint(1, 40))
        child = start(copy, point)
        printed = output(child, 2 * PATIENCE + 5 * KILLS)  # it may run to the end
        if child.returncode == 0:
            break
        assert child.returncode == KILLED, f"kill {turn} at {point}: {printed}"
        watch.look()
    live(copy, seconds=2 * PATIENCE + 10 * KILLS)  # all that is left
    copy.recover()
    check_truth(copy, range(KILLS * 8))
    watch.end()
    nothing_is_left(copy)
