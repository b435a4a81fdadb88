"""A chain topic → table → table, killed on the way and processed again, on real services: both equal the truth."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from integration.faults.sampling import sampled, seconds
from integration.programs.children import output
from integration.projects.project import HOUR, START, Project, make_project, produce
from integration.readers.histories import check_values

from onceonly.statetable.table import StateTable
from onceonly.views import provenance

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.timeout(seconds(1800))]

SIDES = ("before", "after")
STEPS = [
    *("planned row", "claimed row", "stage", "staged row"),
    *("committing row", "commit", "published row", "committed row"),
]
POINTS = [
    point
    for number, step in enumerate(STEPS)
    for point in (("first", f"{SIDES[number % 2]} {step}"), ("second", f"{SIDES[1 - number % 2]} {step}"))
]
SAMPLE = [("first", "after committing row"), ("second", "after planned row"), ("second", "after commit")]
MORE = """

def shifted(batch):
    return numbers(batch).selectExpr("n + 1000 AS n", "part")


def tenfold(table):
    return table.selectExpr("n * 10 AS n")
"""
KILLED = -9
IN_AN_HOUR = 8


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str, request: pytest.FixtureRequest) -> Project:
    made = make_project(tmp_path, broker, spark_server, f"chain_{request.node.name.split('[')[0][-12:]}")
    file = tmp_path / f"transforms_{made.topic}.py"
    file.write_text(file.read_text() + MORE)
    return made


def run(
    project: Project, mode: str, which: str, point: str, said: str = "numbers", hours: list[int] | None = None
) -> str:
    child = project.child("victims/mortal_chain.py", mode, which, point, said, *map(str, hours or []))
    printed = output(child)
    assert child.returncode == (0 if point == "-" else KILLED), f"'{point}': {printed}"
    return printed


def fill(project: Project, hours: int) -> list[int]:
    numbers = list(range(hours * IN_AN_HOUR))
    times = {number: START + number // IN_AN_HOUR * HOUR + number % IN_AN_HOUR * HOUR / 10 for number in numbers}
    produce(project, numbers, times)
    return numbers


def equal(project: Project, truth: list[int]) -> None:
    """Both tables, as an independent reader finds them."""
    check_values("first", truth, project.published("first").elements())
    check_values("second", [10 * number for number in truth], project.published("second").elements())


def test_a_backfill_of_the_chain_with_kills_is_that_of_both(project: Project) -> None:
    points = sampled(POINTS, SAMPLE)
    hours = list(range(len(points) if len(points) > len(SAMPLE) else 2))
    numbers = fill(project, len(hours))
    run(project, "interval", "both", "-", hours=hours)
    equal(project, numbers)
    for place, (which, point) in enumerate(points):  # each at an hour of its own, or all at the first one
        run(project, "interval", which, point, "shifted", [hours[place] if len(hours) > 2 else 0])
    again = hours if len(hours) > 2 else [0]
    random.Random(5).shuffle(again)
    run(project, "interval", "both", "-", "shifted", again)
    equal(project, [number + 1000 * (number // IN_AN_HOUR in again) for number in numbers])


@pytest.mark.heavy
def test_a_chain_killed_at_every_step(project: Project) -> None:
    numbers = list(range(10 * (len(POINTS) + 1)))
    produce(project, numbers[-10:])
    for place, (which, point) in enumerate(POINTS):
        produce(project, numbers[10 * place : 10 * place + 10])
        if which == "second":  # it has something to read then
            run(project, "chained", "first", "-")
        run(project, "chained", which, point)
        assert max(project.published("second").values(), default=1) == 1, f"rows twice after a kill {which} {point}"
    run(project, "chained", "both", "-")
    equal(project, numbers)
    state = StateTable(project.settings.state)
    stood_on = [
        known["epoch"]
        for epoch in range(1, state.view("second").head.epoch + 1)
        for read in provenance.trace_checkpoint(state, state.view("second").require(epoch))["reads"]
        for known in read["checkpoints"]
    ]
    assert stood_on == list(range(1, state.view("first").head.epoch + 1)), "each was read once, in order"
