"""What is deleted of a staged folder is told by the log entries since it was staged; else by the list of all files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from codes import raises
from deltalake import DeltaTable, write_deltalake
from unit.lightdelta import LightDelta, transaction

from onceonly.delta import log_files, log_summary, table_files, txn_identifiers
from onceonly.errors import CannotPublish, OutcomeUnknown
from onceonly.sinks.delta import staged_folders, staged_table

pytestmark = pytest.mark.slow

NEVER: Any = None


@pytest.fixture
def lake(tmp_path: Path) -> LightDelta:
    """A table with a few versions."""
    lake = LightDelta(tmp_path / "lake")
    for epoch in (1, 2):
        lake.commit(lake.stage(transaction(epoch), [epoch]), epoch, NEVER)
        lake.release(transaction(epoch))
    return lake


def folder(lake: LightDelta, epoch: int) -> Path:
    return Path(lake.uri) / (txn_identifiers.STAGED_PREFIX + transaction(epoch).name)


def entry(lake: LightDelta, version: int) -> Path:
    return Path(lake.uri) / log_files.entry_path(version)


def raised(error: Exception) -> Any:
    raise error


def others_write(lake: LightDelta, *numbers: int) -> None:
    write_deltalake(lake.uri, pa.table({"n": list(numbers)}), mode="append")


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where the list of files is read."""
    monkeypatch.setattr(table_files, "list_active_files", lambda table: pytest.fail("the list of all files was read"))


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables whose list of files was read."""
    read, real = list[str](), table_files.list_active_files
    monkeypatch.setattr(table_files, "list_active_files", lambda table: (read.append(table.table_uri), real(table))[1])
    return read


@pytest.mark.usefixtures("unopened")
@pytest.mark.parametrize("checkpoint", [False, True])
def test_an_abort_reads_no_list_whatever_others_have_written(lake: LightDelta, checkpoint: bool) -> None:
    lake.stage(transaction(3), [3])
    others_write(lake, 8)
    lake.commit(lake.stage(transaction(4), [4]), 3, NEVER)
    if checkpoint:
        DeltaTable(lake.uri).create_checkpoint()
    lake.discard(transaction(3), None)
    assert not folder(lake, 3).exists()
    assert lake.numbers() == [1, 2, 4, 8]


@pytest.mark.usefixtures("unopened")
@pytest.mark.parametrize("compacted", [False, True])
def test_what_the_table_refers_to_or_did_is_kept(lake: LightDelta, compacted: bool) -> None:
    lake.commit(lake.stage(transaction(3), [3]), 3, NEVER)
    if compacted:
        DeltaTable(lake.uri).optimize.compact()
    lake.discard(transaction(3), None)
    assert any(folder(lake, 3).glob("*.parquet"))
    assert lake.numbers() == [1, 2, 3]


def test_a_folder_without_rows_is_deleted_without_a_look(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    """A VACUUM has taken them, or they were never written."""
    lake.stage(transaction(3), [3])
    for file in folder(lake, 3).glob("*.parquet"):
        file.unlink()
    monkeypatch.setattr(staged_folders, "has_reference", lambda *_: pytest.fail("looked"))
    lake.discard(transaction(3), None)
    assert not folder(lake, 3).exists()


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("lost", ["an entry since", "the entry before", "its own log", "what an older version wrote"])
def test_where_entries_do_not_tell_the_list_does(
    lake: LightDelta, lost: str, published: bool, listed: list[str]
) -> None:
    handle = lake.stage(transaction(3), [3])
    if published:
        lake.commit(handle, 3, NEVER)
    others_write(lake, 8)
    if lost == "its own log":
        shutil.rmtree(folder(lake, 3) / log_files.LOG_FOLDER)
    elif lost == "what an older version wrote":
        own = folder(lake, 3) / log_files.entry_path(0)
        own.write_text("\n".join(line for line in own.read_text().splitlines() if "commitInfo" not in line))
    else:
        DeltaTable(lake.uri).create_checkpoint()
        entry(lake, 3 if lost == "an entry since" else 2).unlink()
    lake.discard(transaction(3), None)
    assert listed
    assert folder(lake, 3).exists() is published
    assert lake.numbers() == ([1, 2, 3, 8] if published else [1, 2, 8])


def test_of_a_table_that_was_restored_the_entries_do_not_tell(lake: LightDelta, listed: list[str]) -> None:
    """Published at a version that its folder takes for one from before: the table's log was an older copy by then."""
    copy = Path(lake.uri).with_name("copy")
    shutil.copytree(Path(lake.uri) / log_files.LOG_FOLDER, copy)
    others_write(lake, 7)
    handle = lake.stage(transaction(3), [3])  # at version 3
    shutil.rmtree(Path(lake.uri) / log_files.LOG_FOLDER)
    shutil.move(copy, Path(lake.uri) / log_files.LOG_FOLDER)
    lake.commit(handle, 3, NEVER)  # as version 3
    others_write(lake, 8)
    lake.discard(transaction(3), None)
    assert listed
    assert lake.numbers() == [1, 2, 3, 8]


def test_more_entries_than_the_list_is_long_are_not_read(
    lake: LightDelta, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_folders, "MAX_ENTRIES_SEARCHED", 1)
    lake.stage(transaction(3), [3])
    for number in (8, 9):
        others_write(lake, number)
    lake.discard(transaction(3), None)
    assert listed and not folder(lake, 3).exists()


def test_storage_that_does_not_answer_deletes_nothing(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError("storage does not answer")

    lake.stage(transaction(3), [3])
    monkeypatch.setattr(staged_folders, "_list_versions_since", broken)
    monkeypatch.setattr(table_files, "open_table", broken)
    with pytest.raises(OSError, match="does not answer"):
        lake.discard(transaction(3), None)
    assert folder(lake, 3).exists()


def test_a_staged_table_can_be_read_as_before(lake: LightDelta) -> None:
    handle = lake.stage(transaction(3), [3])
    assert DeltaTable(f"{lake.uri}/{handle['folder']}").to_pyarrow_table()["n"].to_pylist() == [3]
    first = json.loads((folder(lake, 3) / log_files.entry_path(0)).read_text().splitlines()[0])
    assert first["commitInfo"][staged_table.TARGET_VERSION_KEY]["version"] == 2


# ---- what is published already


def test_a_second_commit_looks_at_the_log_alone(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lake.stage(transaction(3), [3])
    lake.commit(handle, 3, NEVER)
    monkeypatch.setattr(table_files, "open_table", lambda uri: pytest.fail("opened"))
    assert lake.commit(handle, 3, NEVER).already
    assert [trace.decision for trace in lake.traces("flights")] == [3]


@pytest.mark.parametrize("broken", [False, True])
def test_a_first_commit_opens_the_table_once(lake: LightDelta, broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its log alone can be read or not."""
    handle = lake.stage(transaction(3), [3])
    opened, real = list[str](), table_files.open_table
    monkeypatch.setattr(table_files, "open_table", lambda uri: (opened.append(uri), real(uri))[1])
    if broken:
        monkeypatch.setattr(log_summary, "read", lambda uri: raised(OutcomeUnknown("not known")))
    assert not lake.commit(handle, 3, NEVER).already
    assert len(opened) == 1
    assert lake.numbers() == [1, 2, 3]


def test_evidence_of_another_table_in_its_place_does_not_count(lake: LightDelta) -> None:
    handle = lake.stage(transaction(3), [3])
    lake.commit(handle, 3, NEVER)
    path = entry(lake, 0)
    path.write_text(path.read_text().replace(handle["table_id"], "0" * 8 + handle["table_id"][8:]))
    with raises(CannotPublish, "target-recreated"):
        lake.commit(handle, 3, NEVER)


@pytest.mark.usefixtures("unopened")
def test_it_is_the_same_through_the_storage_layer_of_the_table(lake: LightDelta, monkeypatch: Any) -> None:
    """As on an object store."""
    handler = table_files.DeltaStorageHandler
    monkeypatch.setattr(table_files, "open_folder", lambda uri: pafs.PyFileSystem(handler(uri)))
    lake.stage(transaction(3), [3])
    handle = lake.stage(transaction(4), [4])
    lake.commit(handle, 3, NEVER)
    DeltaTable(lake.uri).create_checkpoint()
    others_write(lake, 8)
    lake.discard(transaction(3), None)
    assert [path for path in folder(lake, 3).rglob("*") if path.is_file()] == []
    monkeypatch.setattr(table_files, "open_table", lambda uri: pytest.fail("opened"))
    assert lake.commit(handle, 3, NEVER).already
    lake.discard(transaction(4), handle)
    assert lake.numbers() == [1, 2, 4, 8]
