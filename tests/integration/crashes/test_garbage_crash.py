"""A topic with 1 % garbage, and processes that are killed at random durable steps: every record is in exactly one of
table and dead letters, as independent readers find it, against what was produced.
"""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest
from integration.faults.sampling import seconds
from integration.programs.children import output
from integration.projects.garbage import Garbage

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.timeout(seconds(1800))]
KILLED = -9
POINTS = 40  # durable steps of one checkpoint, with what an earlier one has left


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("topic", 1),
        pytest.param("table", 12, marks=pytest.mark.heavy),
        pytest.param("topic", 12, marks=pytest.mark.heavy),
    ],
)
def test_every_record_is_in_exactly_one_place(
    tmp_path: Path, broker: str, spark_server: str, kind: str, kills: int
) -> None:
    name, chance = uuid.uuid4().hex[:8], random.Random(2016)
    out = f"dead_{name}" if kind == "topic" else None
    garbage = Garbage.make(tmp_path, broker, spark_server, f"garbage_{name}", out)
    garbage.produce(range(900))
    produced, met = 900, list[str]()
    while len(met) < kills:
        died = garbage.project.child("victims/mortal_garbage.py", out or "-", str(chance.randint(5, POINTS)))
        printed = output(died)
        assert died.returncode in (0, KILLED), printed
        met += [line for line in printed.splitlines() if line.startswith("dies ")]
        if died.returncode == 0:  # it has outlived all there was to do
            garbage.produce(range(produced, produced + 600))
            produced += 600
    last = garbage.project.child("victims/mortal_garbage.py", out or "-", "0")
    printed = output(last)
    assert last.returncode == 0, printed
    print(*met, f"{produced} records", sep="\n")
    garbage.check_truth(range(produced))
