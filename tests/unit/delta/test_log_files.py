"""What is listed of a long log: what its last log checkpoint names, if that is to be believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceonly.delta import log_files
from onceonly.storage import objects
from onceonly.storage.objects import Objects

ENTRIES = 20


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of several pages, with a log checkpoint."""
    for module in (log_files, objects):
        monkeypatch.setattr(module, "PAGE", 5)
    (tmp_path / log_files.LOG_FOLDER).mkdir()
    for version in range(ENTRIES):
        (tmp_path / log_files.entry_path(version)).write_text("{}")
    (tmp_path / log_files.checkpoint_path(10)).write_text("PAR1")
    return tmp_path


def list_names(table: Path) -> set[str]:
    return {file.name for file in log_files.list_recent(Objects(str(table)))}


def all_names(table: Path) -> set[str]:
    return {path.name for path in (table / log_files.LOG_FOLDER).iterdir()}


def write_last_checkpoint(table: Path, version: int) -> None:
    (table / log_files.LAST_CHECKPOINT).write_text(json.dumps({"version": version, "size": 1}))


def test_what_was_written_since_the_last_log_checkpoint_is_list_names(table: Path) -> None:
    write_last_checkpoint(table, 10)
    assert {Path(log_files.entry_path(version)).name for version in range(10, ENTRIES)} < list_names(table)
    assert Path(log_files.entry_path(9)).name not in list_names(table)


def test_where_nothing_tells_of_a_log_checkpoint_all_is_list_names(table: Path) -> None:
    assert list_names(table) == all_names(table)


@pytest.mark.parametrize("version", [ENTRIES + 5, 12, 9], ids=["behind the log", "no log checkpoint", "another one"])
def test_a_wrong_last_checkpoint_file_is_ignored(table: Path, version: int) -> None:
    """The log was restored to an earlier version, and that object was not."""
    write_last_checkpoint(table, version)
    assert list_names(table) == all_names(table)
