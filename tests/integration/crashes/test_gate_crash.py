"""Killed at each side of the verdict, on real Kafka, Spark and Delta: what follows is right, whoever goes on."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

import pytest
from integration.programs.children import output
from integration.projects.project import Project, make_project, produce

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.runtime import live_services
from onceonly.runtime.owners import is_never_alive

pytestmark = [pytest.mark.integration, pytest.mark.crash]

POINTS = ["before verdict row", "after verdict row"]
KILLED = -9


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str) -> Project:
    return make_project(tmp_path, broker, spark_server, f"gate_crash_{uuid.uuid4().hex[:8]}")


@pytest.mark.parametrize(
    ("most", "on_fail"),
    [pytest.param(4, "abort", id="aborted"), pytest.param(4, "hold", id="held", marks=pytest.mark.heavy)],
)
def test_what_failed_is_never_published(project: Project, most: int, on_fail: str) -> None:
    project.set_gate(max_rows=most, on_fail=on_fail)
    produce(project, range(5))
    for point in POINTS if on_fail == "abort" else POINTS[1:]:
        settled = die_and_recover(project, point)
        assert settled.state is (State.STAGED if on_fail == "hold" else State.ABORTED)
        assert not project.published()


def test_what_passed_is_published_once(project: Project) -> None:
    project.set_gate(max_rows=5)
    for number, point in enumerate(POINTS):
        produce(project, range(5 * number, 5 * number + 5))
        assert die_and_recover(project, point).state is State.COMMITTED
        assert project.published() == Counter(range(5 * number + 5))


def die_and_recover(project: Project, point: str) -> Checkpoint:
    before = project.published()
    printed = output(child := project.child("victims/mortal.py", "chained", point))
    assert child.returncode == KILLED, f"'{point}' was not reached: {printed}"
    assert project.published() == before
    through = live_services.open_coordinator(project.parts)
    through.recover("numbers_chained", is_never_alive)
    now = through.state_table.view("numbers_chained").latest
    assert now is not None
    assert now.verdict is not None
    assert (now.verdict["by"] == "recovery") == (point == POINTS[0]), "the first verdict stays"
    return now
