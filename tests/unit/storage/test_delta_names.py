"""What is listed of a long log: what its last log checkpoint names, if that is to be believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceonly.storage import delta_names, objects
from onceonly.storage.objects import Objects

ENTRIES = 20


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of several pages, with a log checkpoint."""
    for module in (delta_names, objects):
        monkeypatch.setattr(module, "PAGE", 5)
    (tmp_path / delta_names.LOG).mkdir()
    for version in range(ENTRIES):
        (tmp_path / delta_names.entry(version)).write_text("{}")
    (tmp_path / delta_names.checkpoint(10)).write_text("PAR1")
    return tmp_path


def listed(table: Path) -> set[str]:
    return {each.name for each in delta_names.recent(Objects(str(table)))}


def whole(table: Path) -> set[str]:
    return {path.name for path in (table / delta_names.LOG).iterdir()}


def says(table: Path, version: int) -> None:
    (table / delta_names.LAST).write_text(json.dumps({"version": version, "size": 1}))


def test_what_was_written_since_the_last_log_checkpoint_is_listed(table: Path) -> None:
    says(table, 10)
    assert {Path(delta_names.entry(version)).name for version in range(10, ENTRIES)} < listed(table)
    assert Path(delta_names.entry(9)).name not in listed(table)


def test_where_nothing_tells_of_a_log_checkpoint_all_is_listed(table: Path) -> None:
    assert listed(table) == whole(table)


@pytest.mark.parametrize("version", [ENTRIES + 5, 12, 9], ids=["behind the log", "no log checkpoint", "another one"])
def test_what_tells_of_a_log_checkpoint_that_is_not_there_does_not_count(table: Path, version: int) -> None:
    """The log was restored to an earlier version, and that object was not."""
    says(table, version)
    assert listed(table) == whole(table)
