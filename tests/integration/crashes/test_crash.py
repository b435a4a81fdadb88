"""Killed at every durable step, on real Kafka, Spark and Delta: the table equals the truth.

A chain of processes, each SIGKILLed with its whole group at another point, each finding what the one before left.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from integration.faults.sampling import sampled, seconds, steps
from integration.programs.children import output
from integration.projects.project import HOUR, START, Project, make_project, produce
from integration.readers.histories import Watch, check_values

from onceonly.statetable.table import StateTable

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.timeout(seconds(900))]

# in an order in which each point is reached: a discard is met only after a process died with a claim
POINTS = [
    *(f"{side} {step}" for step in ["planned row"] for side in ("before", "after")),
    *(f"{side} {step}" for step in ["aborting row", "aborted row", "claimed row"] for side in ("before", "after")),
    *(f"{side} {step}" for step in ["discard", "stage", "staged row"] for side in ("before", "after")),
    *(f"{side} {step}" for step in ["committing row", "commit", "published row"] for side in ("before", "after")),
    *(f"{side} committed row" for side in ("before", "after")),
]
# each step is met in one mode or the other, and each in an order in which it is reached
SAMPLE = {
    "chained": [
        *("after planned row", "before aborted row", "after claimed row", "before discard", "after stage"),
        *("after committing row", "before published row"),
    ],
    "interval": [
        *("before claimed row", "after aborting row", "before stage", "after discard", "after staged row"),
        *("before commit", "after committed row"),
    ],
}
KILLED = -9


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str, request: pytest.FixtureRequest) -> Project:
    return make_project(tmp_path, broker, spark_server, f"crash_{request.node.callspec.params['mode']}")


def test_the_sample_meets_every_step() -> None:
    sample = [point for points in SAMPLE.values() for point in points]
    assert steps(sample) == steps(POINTS)
    assert set(sample) <= set(POINTS)


@pytest.mark.parametrize("mode", ["chained", pytest.param("interval", marks=pytest.mark.heavy)])
def test_rows_arrive_once_wherever_it_dies(project: Project, mode: str) -> None:
    points = sampled(POINTS, SAMPLE[mode])
    hours = len(points)
    numbers = list(range(hours * 8))
    produce(project, numbers, {number: START + number // 8 * HOUR + (number % 8) * HOUR / 10 for number in numbers})
    state, table = project.settings.state, str(project.folder / "home" / "lake" / mode)
    watch = Watch(state, f"numbers_{mode}", project.topic, "numbers").of_table(table).sent(numbers)
    for place, point in enumerate(points):
        child = project.child("victims/mortal.py", mode, point, *([str(place)] if mode == "interval" else []))
        printed = output(child)
        assert child.returncode == KILLED, f"'{point}' was not reached: {printed}"
        assert max(project.published(mode).values(), default=0) <= 1, f"rows twice after a kill {point}"
        watch.look()
    finish(project, mode, hours)
    watch.end()
    check_values("numbers", numbers, project.published(mode).elements())
    kept = {handle["folder"] for handle in handles(project, mode)}
    assert set(project.staged_folders(mode)) == kept, "only what was published is left"


def finish(project: Project, mode: str, hours: int) -> None:
    """Everything that is left, in a process that lives: the intervals in any order."""
    order = [str(number) for number in range(hours)]
    random.Random(7).shuffle(order)
    child = project.child("victims/mortal.py", mode, "-", *(order if mode == "interval" else []))
    printed = output(child)
    assert child.returncode == 0, printed


def handles(project: Project, mode: str) -> list[dict[str, str]]:
    view = StateTable(project.settings.state).view(f"numbers_{mode}")
    checkpoints = [view.checkpoint(epoch) for epoch in range(1, view.head.epoch + 1)]
    return [dict(handle) for checkpoint in checkpoints if checkpoint for handle in checkpoint.handles.values()]
