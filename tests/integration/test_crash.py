"""Killed at every durable step, on real Kafka, Spark and Delta: the table equals the truth.

A chain of processes, each SIGKILLed with its whole group at another point, each finding what the one before left.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from integration.project import HOUR, START, Project, make_project, output, produce

from onceonly.state import StateTable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

# in an order in which each point is reached: an abort is met only after a process died with a claim
POINTS = [
    *(f"{side} {step}" for step in ["planned row"] for side in ("before", "after")),
    *(f"{side} {step}" for step in ["aborting row", "aborted row", "claimed row"] for side in ("before", "after")),
    *(f"{side} {step}" for step in ["abort", "stage", "staged row"] for side in ("before", "after")),
    *(f"{side} {step}" for step in ["committing row", "commit", "published row"] for side in ("before", "after")),
    *(f"{side} committed row" for side in ("before", "after")),
]
KILLED = -9


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str, request: pytest.FixtureRequest) -> Project:
    return make_project(tmp_path, broker, spark_server, f"crash_{request.node.callspec.params['mode']}")


@pytest.mark.parametrize("mode", ["chained", "interval"])
def test_rows_arrive_once_wherever_it_dies(project: Project, mode: str) -> None:
    hours = len(POINTS)
    numbers = list(range(hours * 8))
    produce(project, numbers, {number: START + number // 8 * HOUR + (number % 8) * HOUR / 10 for number in numbers})
    for place, point in enumerate(POINTS):
        child = project.child("mortal.py", mode, point, *([str(place)] if mode == "interval" else []))
        printed = output(child)
        assert child.returncode == KILLED, f"'{point}' was not reached: {printed}"
        assert max(project.published(mode).values(), default=0) <= 1, f"rows twice after a kill {point}"
    finish(project, mode, hours)
    assert project.published(mode) == Counter(numbers)
    kept = {handle["folder"] for handle in handles(project, mode)}
    assert set(project.staged_folders(mode)) == kept, "only what was published is left"


def finish(project: Project, mode: str, hours: int) -> None:
    """Everything that is left, in processes that live: the intervals in any order."""
    order = [str(number) for number in range(hours)]
    random.Random(7).shuffle(order)
    while True:
        child = project.child("mortal.py", mode, "-", *(order if mode == "interval" else []))
        printed = output(child, 600)
        assert child.returncode == 0, printed
        if mode == "interval" or "nothing to do" in printed:
            return


def handles(project: Project, mode: str) -> list[dict[str, str]]:
    view = StateTable(project.settings.state).view(f"numbers_{mode}")
    checkpoints = [view.checkpoint(epoch) for epoch in range(1, view.head.epoch + 1)]
    return [dict(handle) for checkpoint in checkpoints if checkpoint for handle in checkpoint.handles.values()]
