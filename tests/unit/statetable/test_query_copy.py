"""Questions about merged rows of a table on an object store are answered by a copy of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.statetable.test_state_contract import pin, through_delta_rs

from onceonly.statetable import location, query
from onceonly.statetable import table as state
from onceonly.statetable.table import StateTable
from onceonly.statetable.where import EVERY


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateTable:
    through_delta_rs(monkeypatch)
    monkeypatch.setattr(query, "local_path", lambda uri: None)
    monkeypatch.setattr(state, "LONG", 3)
    query.of_rows_up_to.cache_clear()
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
    query.of_rows_up_to.cache_clear()
    return [row.seq for row in StateTable(stored.uri).history("flights")]


def test_the_copy_is_asked_and_removed(stored: StateTable, monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(monkeypatch)
    assert history(stored) == [1, 2, 3, 4, 5]
    (copy,) = found
    assert copy != location.folder(stored.uri, "flights")
    query.of_rows_up_to.cache_clear()
    assert not Path(copy).exists()


def test_without_the_log_checkpoint_or_with_large_files_the_table_is_asked(
    stored: StateTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, folder = opened(monkeypatch), location.folder(stored.uri, "flights")
    with monkeypatch.context() as patched:
        patched.setattr(query, "MOST", 10)
        assert history(stored) == [1, 2, 3, 4, 5]
    assert found[-1] == folder
    for checkpoint in Path(folder, "_delta_log").glob("*checkpoint*"):
        checkpoint.unlink()
    assert history(stored) == [1, 2, 3, 4, 5]
    assert found[-1] == folder


def test_files_that_were_merged_again_since_are_read_from_a_newer_version(stored: StateTable) -> None:
    seen = stored.view("flights")
    pin(stored, 5)
    stored.tidy(stored.view("flights"))
    folder = Path(location.folder(stored.uri, "flights"))
    newest = max(folder.glob("merged-*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    for old in set(folder.glob("*.parquet")) - {newest}:
        old.unlink()
    query.of_rows_up_to.cache_clear()
    assert [row.seq for row in seen.rows.find(EVERY)] == [1, 2, 3, 4, 5]
