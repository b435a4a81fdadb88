"""Merging the small files of a table on an object store: every row stays, once. Here the store is a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from unit.statetable.test_state_contract import pin, through_delta_rs

from onceonly.statetable import compaction, location
from onceonly.statetable import table as state
from onceonly.statetable.table import StateTable
from onceonly.storage.objects import Objects

pytestmark = pytest.mark.slow

MERGES = 3


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateTable:
    through_delta_rs(monkeypatch)
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 3)
    return StateTable.make(str(tmp_path / "state"))


@pytest.fixture
def no_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*_: Any) -> None:
        raise AssertionError("delta-rs merges")

    monkeypatch.setattr(compaction, "_merge_files", other)


def folder(stored: StateTable) -> str:
    return location.table_folder(stored.uri, "flights")


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
    log = Path(folder(stored), "_delta_log")
    return max(int(path.name[:20]) for path in log.glob(f"{'[0-9]' * 20}.checkpoint.parquet"))


def test_a_full_file_is_not_merged_again(
    stored: StateTable, no_other_way: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FULL_FILE_BYTES", 1)
    for number in range(1, MERGES + 1):
        pin(stored, 5)
        stored.tidy(stored.view("flights"))
        assert len(DeltaTable(folder(stored)).file_uris()) == number
    check(stored, 5 * MERGES)


def test_after_the_commit_of_another_program_delta_rs_merges(stored: StateTable) -> None:
    pin(stored, 5)
    DeltaTable(folder(stored)).optimize.compact()
    pin(stored, 5)
    assert not compaction.merge_on_store(stored._log("flights"))  # type: ignore[arg-type]
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


def test_a_log_checkpoint_of_which_another_program_has_written_a_part_is_passed_over(
    stored: StateTable, no_other_way: None
) -> None:
    merged(stored)
    pin(stored, 5)
    part = f"_delta_log/{11:020}.checkpoint.0000000001.0000000002.parquet"
    Path(folder(stored), part).write_bytes(b"PAR1")
    other = StateTable(stored.uri)
    other.tidy(other.view("flights"))
    check(stored, 10)
    assert len(DeltaTable(folder(stored)).file_uris()) == 1
    assert merged_at(stored) == 12


@pytest.mark.parametrize("kept", [slice(1, None), slice(None, -1), slice(0)])
def test_a_merged_file_that_lacks_a_row_is_left_alone(
    stored: StateTable, monkeypatch: pytest.MonkeyPatch, kept: slice
) -> None:
    pin(stored, 5)
    stored.tidy(stored.view("flights"))
    pin(stored, 5)
    real = compaction._read_file
    monkeypatch.setattr(compaction, "_read_file", lambda log, path: real(log, path)[kept])
    assert not compaction.merge_on_store(stored._log("flights"))  # type: ignore[arg-type]
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
            patched.setattr(compaction, "_make_checkpoint", dies)
            stored.tidy(stored.view("flights"))
        check(stored, 5 * number + 5)
    pin(stored, 5)
    stored.tidy(stored.view("flights"))
    check(stored, 5 * times + 5)
    assert len(DeltaTable(folder(stored)).file_uris()) == 1


def test_read_file_which_the_entries_do_not_tell_are_in_the_files_that_they_name(
    stored: StateTable, no_other_way: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry of one row does not hold it."""
    pin(stored, 5)
    real = compaction._since_merge
    with monkeypatch.context() as patched:
        patched.setattr(compaction, "_since_merge", lambda found: [e for e in real(found) if e.version != 1])
        assert compaction.merge_on_store(stored._log("flights"))  # type: ignore[arg-type]
    check(stored, 5)
    assert len(DeltaTable(folder(stored)).file_uris()) == 1


def test_rows_that_are_nowhere_are_left_to_delta_rs(stored: StateTable, monkeypatch: pytest.MonkeyPatch) -> None:
    pin(stored, 5)
    stored.tidy(stored.view("flights"))
    pin(stored, 5)
    monkeypatch.setattr(compaction, "list_files", lambda table: [])
    assert not compaction.merge_on_store(stored._log("flights"))  # type: ignore[arg-type]
    check(stored, 10)


# ---- files that no entry names any more


def an_hour_passes(uri: str) -> None:
    """Since all that the log of that table tells of."""
    log, ago = Objects(f"{uri}/_delta_log"), 3600 * 1000
    for name in [entry.path for entry in log.list_objects()]:
        if name.endswith(".parquet"):
            table = pq.read_table(pa.BufferReader(log.read(name)))
            removes = [
                gone and {**gone, "deletionTimestamp": gone["deletionTimestamp"] - ago}
                for gone in table["remove"].to_pylist()
            ]
            at = table.schema.get_field_index("remove")
            out = pa.BufferOutputStream()
            pq.write_table(table.set_column(at, "remove", pa.array(removes, table.schema.field(at).type)), out)
            log.write(name, out.getvalue().to_pybytes())
        elif name.endswith(".json"):
            actions = [json.loads(line) for line in log.read(name).splitlines()]
            for each in actions:
                if "remove" in each:
                    each["remove"]["deletionTimestamp"] -= ago
            log.write(name, "".join(json.dumps(action) + "\n" for action in actions).encode())


def there(stored: StateTable) -> set[str]:
    return {path.name for path in Path(folder(stored)).glob("*.parquet")}


def named(stored: StateTable) -> set[str]:
    return {uri.rpartition("/")[2] for uri in DeltaTable(folder(stored)).file_uris()}


def merged(stored: StateTable) -> set[str]:
    """After five more rows; what that merge has taken out."""
    pin(stored, 5)
    before = named(stored)
    stored.tidy(stored.view("flights"))
    return before - named(stored)


@pytest.mark.parametrize("where", ["store", "store, after another program", "disk"])
def test_what_was_merged_an_hour_ago_is_deleted_by_the_next_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where != "disk":
        through_delta_rs(monkeypatch)
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 3)
    stored = StateTable.make(str(tmp_path / "state"))
    old = merged(stored)
    assert len(old) == 5
    recent = merged(stored)
    assert there(stored) == named(stored) | old | recent
    an_hour_passes(folder(stored))
    if "another" in where:
        DeltaTable(folder(stored)).alter.set_table_properties({"delta.checkpointInterval": "1000"})
    last = merged(stored)
    assert there(stored) == named(stored) | last
    check(stored, 15)


def test_a_file_that_no_entry_has_named_stays(stored: StateTable) -> None:
    """A stopped process may be about to name it."""
    merged(stored)
    an_hour_passes(folder(stored))
    about = Path(folder(stored), f"{'a' * 32}.parquet")
    about.write_bytes(b"rows")
    os.utime(about, (0, 0))
    merged(stored)
    assert about.exists()


@pytest.mark.parametrize("step", ["_make_checkpoint", "write"])
def test_what_a_killed_process_would_have_deleted_is_deleted_by_the_next(
    stored: StateTable, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It dies before it has deleted anything, or before the log checkpoint that forgets the names is there."""

    def dies(*_: Any) -> None:
        raise OSError("killed")

    merged(stored)
    an_hour_passes(folder(stored))
    pin(stored, 5)
    with monkeypatch.context() as patched, pytest.warns(RuntimeWarning, match="was not compacted"):
        if step == "write":
            patched.setattr(compaction, "_write_checkpoint", dies)
        else:
            patched.setattr(compaction, step, dies)
        stored.tidy(stored.view("flights"))
    check(stored, 10)
    an_hour_passes(folder(stored))
    last = merged(stored)
    assert there(stored) == named(stored) | last
    check(stored, 15)


def test_a_store_that_lets_nothing_be_deleted_gets_its_log_checkpoint(
    stored: StateTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any) -> None:
        raise PermissionError("AccessDenied")

    merged(stored)
    an_hour_passes(folder(stored))
    monkeypatch.setattr(Objects, "unlink", denied)
    pin(stored, 5)
    with pytest.warns(RuntimeWarning, match="AccessDenied"):
        stored.tidy(stored.view("flights"))
    assert merged_at(stored) == DeltaTable(folder(stored)).version()
    check(stored, 10)
