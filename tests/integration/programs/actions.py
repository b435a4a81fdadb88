"""What people do to a project's table, and to its latest checkpoint, while a DAG runs."""

from __future__ import annotations

import os
from pathlib import Path

from deltalake import DeltaTable
from integration.projects.project import Project
from person import Person

from onceonly.checkpoint.model import Checkpoint
from onceonly.runtime import live_services

NAME = "numbers_chained"


def act(project: Project, action: str) -> None:
    ACTIONS[action](project)


def shown(project: Project) -> tuple[str, bool, str | None]:
    """The latest checkpoint's state, whether it is approved, and the code of what it is refused for."""
    latest = _latest(project)
    return latest.state.value, bool(latest.approved), (latest.refused or {}).get("code")


def _vacuum(project: Project) -> None:
    """Everything that is no part of the table: also what is staged."""
    DeltaTable(str(_table(project))).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def _take_away(project: Project) -> None:
    os.rename(_table(project), _table(project).with_name("away"))


def _bring_back(project: Project) -> None:
    os.rename(_table(project).with_name("away"), _table(project))


def _approve(project: Project) -> None:
    Person(live_services.open_coordinator(project.parts)).approve(NAME, _latest(project).epoch, "ann", "a quiet day")


def _table(project: Project) -> Path:
    return project.folder / "home" / "lake" / "chained"


def _latest(project: Project) -> Checkpoint:
    latest = live_services.open_coordinator(project.parts).state_table.view(NAME).latest
    assert latest is not None
    return latest


ACTIONS = {"vacuum": _vacuum, "take_away": _take_away, "bring_back": _bring_back, "approve": _approve}
