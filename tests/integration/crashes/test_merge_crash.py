"""Killed at every durable step of a merge, on real services: the table has the newest change of each key."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from deltalake import DeltaTable
from integration.faults.sampling import sampled, seconds, steps
from integration.programs.children import output
from integration.projects.project import Project, make_project, produce

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.timeout(seconds(900))]

KEYS = 7
STEPS = ["stage", "staged row", "committing row", "commit", "search", "copies", "files of copies", "entry"]
POINTS = [f"{side} {step}" for step in [*STEPS, "published row", "committed row"] for side in ("before", "after")]
SAMPLE = [
    *("before stage", "after staged row", "after committing row", "before search", "after files of copies"),
    *("before copies", "after entry", "after commit", "before published row", "after committed row"),
]
KILLED = -9


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str) -> Project:
    return make_project(tmp_path, broker, spark_server, "merge_crash")


def test_the_sample_meets_every_step() -> None:
    assert steps(SAMPLE) == steps(POINTS)
    assert set(SAMPLE) <= set(POINTS)


def rows(project: Project) -> dict[int, tuple[int, bool]]:
    """Key -> (order, whether it was deleted), as an independent reader finds it."""
    folder = project.folder / "home" / "lake" / "merged"
    if not (folder / "_delta_log").exists():
        return {}
    found = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    assert len({row["key"] for row in found}) == len(found), "a key is there more than once"
    return {row["key"]: (row["at"], row["gone"]) for row in found}


def test_each_key_has_its_newest_change_wherever_it_dies(project: Project) -> None:
    points = sampled(POINTS, SAMPLE)
    numbers = list(range(10 * (len(points) + 2)))
    random.Random(16).shuffle(numbers)
    produce(project, numbers)
    for point in points:
        before = rows(project)
        child = project.child("victims/mortal_merge.py", point)
        printed = output(child)
        assert child.returncode == KILLED, f"'{point}' was not reached: {printed}"
        after = rows(project)
        assert all(after[key] >= row for key, row in before.items()), f"an older change won after a kill {point}"
    child = project.child("victims/mortal_merge.py", "-")
    printed = output(child)
    assert child.returncode == 0, printed
    newest = {key: max(number for number in numbers if number % KEYS == key) for key in range(KEYS)}
    assert rows(project) == {key: (number, number % 5 == 0) for key, number in newest.items()}
