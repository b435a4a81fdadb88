"""Merging the small files of a table on an object store: every row stays, once. Here the store is a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from unit.statetable.test_state_contract import pin, through_delta_rs

from onceonly.statetable import compaction, location, store_compaction
from onceonly.statetable import table as state
from onceonly.statetable.table import StateTable

MERGES = 3


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateTable:
    through_delta_rs(monkeypatch)
    monkeypatch.setattr(state, "LONG", 3)
    return StateTable.make(str(tmp_path / "state"))


@pytest.fixture
def no_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*_: Any) -> None:
        raise AssertionError("delta-rs merges")

    monkeypatch.setattr(compaction, "_merge", other)


def folder(stored: StateTable) -> str:
    return location.folder(stored.uri, "flights")


def check(stored: StateTable, rows: int) -> None:
    """By an independent reader, by a process that knows nothing, and by this one."""
    table = DeltaTable(folder(stored)).to_pyarrow_table()
    assert sorted(table["seq"].to_pylist()) == list(range(1, rows + 1))
    for reader in (StateTable(stored.uri), stored):
        assert [row.seq for row in reader.history("flights")] == list(range(1, rows + 1))


def test_small_files_are_merged_into_one_each_time(stored: StateTable, no_other_way: None) -> None:
    for number in range(1, MERGES + 1):
        pin(stored, 5)
        stored.tidy(stored.view("flights"))
        check(stored, 5 * number)
        table = DeltaTable(folder(stored))
        assert len(table.file_uris()) == 1
        assert Path(folder(stored), "_delta_log", f"{merged_at(stored):020}.checkpoint.parquet").exists()


def merged_at(stored: StateTable) -> int:
    return max(int(path.name[:20]) for path in Path(folder(stored), "_delta_log").glob("*.checkpoint.parquet"))


def test_a_full_file_is_not_merged_again(
    stored: StateTable, no_other_way: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FULL_FILE", 1)
    for number in range(1, MERGES + 1):
        pin(stored, 5)
        stored.tidy(stored.view("flights"))
        assert len(DeltaTable(folder(stored)).file_uris()) == number
    check(stored, 5 * MERGES)


def test_after_the_commit_of_another_program_delta_rs_merges(stored: StateTable) -> None:
    pin(stored, 5)
    DeltaTable(folder(stored)).optimize.compact()
    pin(stored, 5)
    assert not store_compaction.merge(stored._log("flights"), compaction.FULL_FILE)  # type: ignore[arg-type]
    stored.tidy(stored.view("flights"))
    check(stored, 10)
    assert len(DeltaTable(folder(stored)).file_uris()) == 1


def test_what_another_program_has_set_stays(stored: StateTable) -> None:
    """A commit that touches no row: no number of a row shows that it is there."""
    pin(stored, 5)
    DeltaTable(folder(stored)).alter.set_table_properties({"delta.checkpointInterval": "1000"})
    pin(stored, 5)
    stored.tidy(stored.view("flights"))
    check(stored, 10)
    assert DeltaTable(folder(stored)).metadata().configuration["delta.checkpointInterval"] == "1000"


@pytest.mark.parametrize("kept", [slice(1, None), slice(None, -1), slice(0)])
def test_a_merged_file_that_lacks_a_row_is_left_alone(
    stored: StateTable, monkeypatch: pytest.MonkeyPatch, kept: slice
) -> None:
    pin(stored, 5)
    stored.tidy(stored.view("flights"))
    pin(stored, 5)
    real = store_compaction._rows_of
    monkeypatch.setattr(store_compaction, "_rows_of", lambda log, path: real(log, path)[kept])
    assert not store_compaction.merge(stored._log("flights"), compaction.FULL_FILE)  # type: ignore[arg-type]
    check(stored, 10)


@pytest.mark.parametrize("times", [1, 2])
def test_a_merge_that_ends_before_its_log_checkpoint_is_taken_up(
    stored: StateTable, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    def dies(*_: Any) -> None:
        raise OSError("killed")

    for number in range(times):
        pin(stored, 5)
        with monkeypatch.context() as patched, pytest.warns(RuntimeWarning, match="was not compacted"):
            patched.setattr(store_compaction, "_make_checkpoint", dies)
            stored.tidy(stored.view("flights"))
        check(stored, 5 * number + 5)
    pin(stored, 5)
    stored.tidy(stored.view("flights"))
    check(stored, 5 * times + 5)
    assert len(DeltaTable(folder(stored)).file_uris()) == 1


def test_rows_of_which_the_entries_do_not_tell_are_left_to_delta_rs(
    stored: StateTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a table that was converted from an older format, or after a merge of nothing."""
    log: Any = stored._log("flights")
    pin(stored, 5)
    real = store_compaction._since_merge
    with monkeypatch.context() as patched:
        patched.setattr(store_compaction, "_since_merge", lambda found: [e for e in real(found) if e.version != 1])
        assert not store_compaction.merge(log, compaction.FULL_FILE)
    stored.tidy(stored.view("flights"))
    pin(stored, 5)
    monkeypatch.setattr(store_compaction, "_merged_files", lambda log, entry: [])
    assert not store_compaction.merge(log, compaction.FULL_FILE)
    check(stored, 10)
