"""Questions about merged rows of a table on an object store are answered by a copy of its files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from unit.statetable.test_state_contract import pin, through_delta_rs

from onceonly.statetable import location, query
from onceonly.statetable import table as state
from onceonly.statetable.predicates import EVERY
from onceonly.statetable.table import StateTable
from onceonly.storage import objects


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateTable:
    through_delta_rs(monkeypatch)
    monkeypatch.setattr(query, "local_path", lambda uri: None)
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 3)
    query.query_up_to.cache_clear()
    made = StateTable.make(str(tmp_path / "state"))
    pin(made, 5)
    made.tidy(made.view("flights"))
    return made


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found, real = list[str](), query.DeltaTable

    def recorded(uri: str, *arguments: Any) -> Any:
        found.append(uri)
        return real(uri, *arguments)

    monkeypatch.setattr(query, "DeltaTable", recorded)
    return found


def history(stored: StateTable) -> list[int]:
    query.query_up_to.cache_clear()
    return [row.seq for row in StateTable(stored.uri).history("flights")]


def test_the_copy_is_asked_and_removed(stored: StateTable, monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(monkeypatch)
    assert history(stored) == [1, 2, 3, 4, 5]
    (copy,) = found
    assert copy != location.table_folder(stored.uri, "flights")
    query.query_up_to.cache_clear()
    assert not Path(copy).exists()


def test_without_the_log_checkpoint_or_with_large_files_the_table_is_asked(
    stored: StateTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, folder = opened(monkeypatch), location.table_folder(stored.uri, "flights")
    with monkeypatch.context() as patched:
        patched.setattr(query, "MAX_COPIED_BYTES", 10)
        assert history(stored) == [1, 2, 3, 4, 5]
    assert found[-1] == folder
    for checkpoint in Path(folder, "_delta_log").glob("*checkpoint*"):
        checkpoint.unlink()
    monkeypatch.setattr(objects, "_cache", objects._ObjectCache())  # of a process that has not merged
    assert history(stored) == [1, 2, 3, 4, 5]
    assert found[-1] == folder


def test_who_has_merged_asks_the_store_for_nothing_that_it_has_written(
    stored: StateTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, real = list[str](), objects.Objects.read

    def recorded(files: objects.Objects, path: str, tag: str | None = None) -> bytes:
        before = len(objects._cache._contents)
        found = real(files, path, tag)
        read.extend([path] if len(objects._cache._contents) > before else [])
        return found

    monkeypatch.setattr(objects.Objects, "read", recorded)
    query.query_up_to.cache_clear()
    assert history(stored) == [1, 2, 3, 4, 5]
    assert [path for path in read if path.endswith(".parquet")] == []


def test_a_merge_that_is_no_longer_part_of_the_log_answers_nothing(
    stored: StateTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table was restored, and others have merged other rows, as the same version."""
    folder, copy = location.table_folder(stored.uri, "flights"), tmp_path / "copy"
    pin(stored, 1)
    shutil.copytree(folder, copy)
    pin(stored, 3)
    stored.tidy(stored.view("flights"))
    ours = [row.id for row in stored.history("flights")]
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    with monkeypatch.context() as another_process:
        another_process.setattr(objects, "_cache", objects._ObjectCache())
        other = StateTable(stored.uri)
        pin(other, 3)
        other.tidy(other.view("flights"))
        theirs = [row.id for row in other.history("flights")]
    assert merged_at(folder) == [6, 11]
    assert ours[:6] == theirs[:6]
    assert ours[6:] != theirs[6:]
    for reader in (stored, StateTable(stored.uri)):
        query.query_up_to.cache_clear()
        assert [row.id for row in reader.history("flights")] == theirs


def merged_at(folder: str) -> list[int]:
    return sorted(int(path.name[:20]) for path in Path(folder, "_delta_log").glob("*.checkpoint.parquet"))


def test_files_that_were_merged_again_since_are_read_from_a_newer_version(stored: StateTable) -> None:
    seen = stored.view("flights")
    pin(stored, 5)
    stored.tidy(stored.view("flights"))
    folder = Path(location.table_folder(stored.uri, "flights"))
    newest = max(folder.glob("merged-*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    for old in set(folder.glob("*.parquet")) - {newest}:
        old.unlink()
    query.query_up_to.cache_clear()
    assert [row.seq for row in seen.rows.find(EVERY)] == [1, 2, 3, 4, 5]
