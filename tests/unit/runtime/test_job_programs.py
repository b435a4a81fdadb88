"""The programs that spark-submit runs are files of the package, and hide no module of a project."""

from __future__ import annotations

import sys

import pytest

from onceonly.runtime import spark_job
from onceonly.runtime.spark_submit import program


@pytest.mark.parametrize("step", ["stage", "gate"])
def test_each_is_a_file_that_calls_its_step(step: str) -> None:
    assert f"from onceonly.runtime.spark_job import {step}\n" in program(step).read_text()


def test_a_transform_may_be_called_as_a_program_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python puts the folder of the file that it runs in front of everything else."""
    monkeypatch.setattr(sys, "path", [str(program("stage").parent), "/project", *sys.path])
    spark_job._hide_programs()
    assert sys.path[0] == "/project"
