"""A pipeline behind the folder of another one, both killed at every durable step: rows are those of the topic, once.

Files of others lie in the folder between them all the while.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from integration.faults.sampling import sampled, seconds, steps
from integration.programs.children import output
from integration.projects.project import Project, make_project, produce
from integration.readers.histories import check_values

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.timeout(seconds(900))]

OF_BOTH = [
    "planned row",
    "stage",
    "staged row",
    "committing row",
    "commit",
    "manifest",
    "published row",
    "committed row",
]
OF_SECOND = [*OF_BOTH, "add_mark", "verify", "read"]
POINTS = [
    *(f"first {side} {step}" for step in OF_BOTH for side in ("before", "after")),
    *(f"second {side} {step}" for step in OF_SECOND for side in ("before", "after")),
]
SAMPLE = [
    *("first after planned row", "first before stage", "first after staged row", "first after committing row"),
    *("first before manifest", "first after commit", "first before published row", "first before committed row"),
    *("second after add_mark", "second after planned row", "second after verify", "second before read"),
    *("second after stage", "second before staged row", "second after committing row", "second after manifest"),
    *("second before commit", "second after published row", "second before committed row"),
]
KILLED = -9
TRANSFORM = """
def tens(numbers):
    return numbers.selectExpr("n * 10 AS n", "part")
"""


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str, request: pytest.FixtureRequest) -> Project:
    (tmp_path / "of_files.py").write_text(TRANSFORM)
    made = make_project(tmp_path, broker, spark_server, f"file_crash_{request.node.name.rpartition('_')[2]}")
    place = tmp_path / "home" / "lake" / "numbers"
    (place / "_onceonly").mkdir(parents=True)
    (place / "part=1").mkdir()
    for name in ("theirs.jsonl", "part=1/theirs.jsonl", "_onceonly/theirs.manifest"):
        (place / name).write_text('{"n": -1}\n')
    return made


def between(project: Project) -> Counter[int]:
    """As a plain reader of the folder finds them."""
    files = (project.folder / "home" / "lake" / "numbers").rglob("first-*.jsonl")
    return Counter(json.loads(line)["n"] for file in files for line in file.read_text().splitlines())


def behind(project: Project) -> Counter[int]:
    files = (project.folder / "home" / "lake" / "tens").rglob("*.parquet")
    return Counter(n for file in files for n in pq.read_table(file)["n"].to_pylist())


def die(project: Project, point: str) -> None:
    which, _, where = point.partition(" ")
    child = project.child("victims/mortal_files.py", which, where)
    printed = output(child)
    assert child.returncode == KILLED, f"'{point}' was not reached: {printed}"
    assert set(between(project).values()) | set(behind(project).values()) <= {1}


def finish(project: Project, numbers: range) -> None:
    child = project.child("victims/mortal_files.py", "neither", "-")
    printed = output(child)
    assert child.returncode == 0, printed
    check_values("between", numbers, between(project).elements())
    check_values("behind", [10 * n for n in numbers], behind(project).elements())


def test_the_sample_meets_every_step() -> None:
    without_which = {point.partition(" ")[2] for point in SAMPLE}
    assert steps(without_which) == steps(point.partition(" ")[2] for point in POINTS)
    assert set(SAMPLE) <= set(POINTS)


def test_rows_arrive_once_behind_a_folder_after_a_kill_of_both(project: Project) -> None:
    produce(project, range(20))
    die(project, "first before manifest")
    die(project, "second before commit")
    finish(project, range(20))


@pytest.mark.heavy
def test_rows_arrive_once_behind_a_folder_wherever_it_dies(project: Project) -> None:
    points = sampled(POINTS, SAMPLE)
    numbers = range(0)
    for point in points:
        produce(project, range(numbers.stop, numbers.stop + 10))
        numbers = range(numbers.stop + 10)
        die(project, point)
    finish(project, numbers)
