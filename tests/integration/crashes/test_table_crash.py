"""A pipeline behind the table of another one, killed at every durable step: its rows are those of the topic, once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from integration.faults.sampling import sampled, seconds, steps
from integration.programs.children import output
from integration.projects.project import Project, make_project, produce

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.timeout(seconds(900))]

STEPS = ["add_mark", "planned row", "read", "stage", "staged row", "committing row", "commit", "published row"]
POINTS = [f"{side} {step}" for step in [*STEPS, "committed row"] for side in ("before", "after")]
SAMPLE = [
    *("after add_mark", "after planned row", "before read", "after stage", "before staged row", "after committing row"),
    *("before commit", "after published row", "before committed row"),
]
KILLED = -9
TRANSFORM = """
def tens(numbers):
    return numbers.selectExpr("n * 10 AS n", "part")
"""


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str) -> Project:
    (tmp_path / "of_table.py").write_text(TRANSFORM)
    return make_project(tmp_path, broker, spark_server, "table_crash")


def behind(project: Project) -> Counter[int]:
    folder = project.folder / "home" / "lake" / "tens"
    if not (folder / "_delta_log").exists():
        return Counter()
    return Counter(DeltaTable(str(folder)).to_pyarrow_table()["n"].to_pylist())


def test_the_sample_meets_every_step() -> None:
    assert steps(SAMPLE) == steps(POINTS)
    assert set(SAMPLE) <= set(POINTS)


@pytest.mark.heavy
def test_rows_arrive_once_behind_a_table_wherever_it_dies(project: Project) -> None:
    points = sampled(POINTS, SAMPLE)
    numbers = range(10 * (len(points) + 2))
    produce(project, numbers)
    for point in points:
        child = project.child("victims/mortal_tables.py", point)
        printed = output(child)
        assert child.returncode == KILLED, f"'{point}' was not reached: {printed}"
        assert set(behind(project).values()) <= {1}
    child = project.child("victims/mortal_tables.py", "-")
    printed = output(child)
    assert child.returncode == 0, printed
    assert project.published() == Counter(numbers)
    assert behind(project) == Counter(10 * n for n in numbers)
