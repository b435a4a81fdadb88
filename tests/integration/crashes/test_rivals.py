"""Processes that act on one checkpoint at the same moment: one outcome, never two."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from integration.programs.children import output
from integration.projects.project import Project, make_project, produce

from onceonly.checkpoint.model import State
from onceonly.runtime import live_services, spark_stage

pytestmark = pytest.mark.integration
ROUNDS = 3


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str, request: pytest.FixtureRequest) -> Project:
    actions = request.node.callspec.params["actions"]
    return make_project(tmp_path, broker, spark_server, f"rivals_{len(actions)}_{actions[0]}")


def stage_next(project: Project, owner: str) -> int:
    parts = project.parts
    through = live_services.open_coordinator(parts)
    planned = through.plan(project.pipeline(most=20), owner, lambda _: True).checkpoint
    assert planned is not None
    return spark_stage.stage(parts, through, planned.pipeline, planned.epoch, None).epoch


@pytest.mark.parametrize(
    "actions",
    [
        ["commit"] * 4,
        ["recover", "commit", "abort"],
        pytest.param(["commit", "abort"], marks=pytest.mark.heavy),
        pytest.param(["abort", "abort", "recover"], marks=pytest.mark.heavy),
    ],
)
def test_one_outcome_whoever_is_first(project: Project, actions: list[str]) -> None:
    produce(project, range(20 * ROUNDS))
    for turn in range(ROUNDS):
        before = project.published()
        epoch = stage_next(project, f"run-{turn}")
        go = project.folder / f"go-{turn}"
        rivals = [project.child("programs/rival.py", action, str(go)) for action in actions]
        for rival in rivals:
            assert rival.stdout is not None
            assert rival.stdout.readline() == "ready\n"
        go.touch()
        printed = [output(rival) for rival in rivals]
        assert all(rival.returncode == 0 for rival in rivals), printed
        settle(project, epoch, before, printed)


def settle(project: Project, epoch: int, before: Counter[int], printed: list[str]) -> None:
    through = live_services.open_coordinator(project.parts)
    checkpoint = through.state_table.view("numbers_chained").checkpoint(epoch)
    assert checkpoint is not None
    gained = project.published() - before
    assert max(project.published().values(), default=0) <= 1
    if checkpoint.state is State.COMMITTED:
        assert sum(gained.values()) == checkpoint.rows, printed
        assert not any("aborted" in line for line in printed)
    else:
        assert checkpoint.state is State.ABORTED
        assert not gained, printed
        assert not any("committed" in line for line in printed)
