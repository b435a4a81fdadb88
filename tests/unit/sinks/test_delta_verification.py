"""What a verification of a Delta table finds: every damage by its code, and nothing where there is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from codes import raises
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.transaction import AddAction
from unit.lightdelta import LightDelta, LightMerge, LightReplace, transaction
from unit.shelves import TAKEN_BACK, Codes, DeltaShelf, parametrize

from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.verification import Judgement
from onceonly.errors import OutcomeUnknown
from onceonly.sinks.delta import file_check

pytestmark = pytest.mark.slow

COLUMN = "published_by"


@pytest.fixture
def shelf(tmp_path: Path) -> DeltaShelf:
    shelf = DeltaShelf(tmp_path / "lake", tmp_path / "receipts")
    shelf.publish(1, 1, 2)
    shelf.publish(2, 3, 4)
    shelf.publish(3, 5, 6)
    return shelf


@pytest.fixture
def named(tmp_path: Path) -> DeltaShelf:
    make = lambda folder: LightDelta(folder, checkpoint_column=COLUMN)  # noqa: E731
    shelf = DeltaShelf(tmp_path / "named", tmp_path / "receipts", make)
    shelf.publish(1, 1, 2)
    shelf.publish(2, 3, 4)
    shelf.publish(3, 5, 6)
    return shelf


ALL_RIGHT = [(1, "right"), (2, "right"), (3, "right")]


class TestHealthy:
    """Nothing is accused."""

    @pytest.mark.parametrize("deep", [False, True])
    def test_appended_rows_are_right(self, shelf: DeltaShelf, deep: bool) -> None:
        assert (shelf.right(deep), shelf.wrong(deep), shelf.unknown(deep)) == (ALL_RIGHT, [], [])

    @pytest.mark.parametrize("deep", [False, True])
    def test_optimize_keeps_rows(self, shelf: DeltaShelf, deep: bool) -> None:
        shelf.table.optimize.compact()
        shelf.publish(4, 7)
        shelf.table.optimize.compact()
        assert (shelf.right(deep), shelf.wrong(deep)) == ([*ALL_RIGHT, (4, "right")], [])

    def test_optimize_and_vacuum_keep_rows(self, shelf: DeltaShelf) -> None:
        shelf.table.optimize.compact()
        shelf.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        assert shelf.right(deep=True) == ALL_RIGHT

    @pytest.mark.parametrize("deep", [False, True])
    def test_foreign_appends_are_not_accused(self, shelf: DeltaShelf, deep: bool) -> None:
        write_deltalake(shelf.folder, pa.table({"n": pa.array([5, 6], pa.int64())}), mode="append")
        app = CommitProperties(app_transactions=[Transaction("theirs", 3)])
        write_deltalake(shelf.folder, pa.table({"n": [7]}), mode="append", commit_properties=app)
        shelf.table.optimize.compact()
        assert (shelf.right(deep), shelf.wrong(deep), shelf.unknown(deep)) == (ALL_RIGHT, [], [])

    def test_empty_checkpoint_is_right(self, shelf: DeltaShelf) -> None:
        shelf.publish(4)
        assert shelf.right() == [*ALL_RIGHT, (4, "right")]

    @pytest.mark.parametrize("deep", [False, True])
    def test_replaced_rows_are_taken_out(self, shelf: DeltaShelf, deep: bool) -> None:
        shelf.replace(4, 2, 30)
        shelf.publish(5, 9)
        expected = [(1, "right"), (2, "taken-out"), (3, "right"), (4, "right"), (5, "right")]
        assert (shelf.right(deep), shelf.wrong(deep)) == (expected, [])

    @pytest.mark.parametrize("deep", [False, True])
    def test_rows_replaced_behind_an_optimize_are_taken_out(self, named: DeltaShelf, deep: bool) -> None:
        named.table.optimize.compact()
        named.replace(4, 2, 30)
        expected = [(1, "right"), (2, "taken-out"), (3, "right"), (4, "right")]
        assert (named.right(deep), named.wrong(deep), named.unknown(deep)) == (expected, [], [])

    def test_rows_of_others_that_a_replacement_has_copied_are_not_accused(self, named: DeltaShelf) -> None:
        rows = pa.table({"n": pa.array([90], pa.int64()), COLUMN: pa.array([None], pa.string())})
        write_deltalake(named.folder, rows, mode="append")
        named.table.optimize.compact()
        for old in (1, 2, 3):
            named.replace(old + 3, old, 10 * old)
        assert (named.wrong(deep=True), named.unknown(deep=True)) == ([], [])

    def test_rewound_rows_are_taken_out(self, shelf: DeltaShelf) -> None:
        shelf.take_back()
        assert shelf.right() == TAKEN_BACK

    def test_given_up_decision_is_not_accused(self, shelf: DeltaShelf) -> None:
        handle = shelf.sink().stage(transaction(4), [7])
        shelf.sink().fence(handle, 4)
        assert shelf.wrong() == []
        assert shelf.unknown() == []
        shelf.ledger.publish(5, shelf.sink().stage(transaction(5), [8]), decision=5)
        assert shelf.right() == [*ALL_RIGHT, (5, "right")]

    def test_repeated_commit_is_right(self, shelf: DeltaShelf) -> None:
        handle = shelf.ledger.published[-1].handle
        outcome = shelf.ledger.committer.commit(handle, 3, shelf.ledger.last)
        shelf.ledger.change(3, already=True, publication=shelf.ledger.published[-1].publication)
        assert outcome.already
        assert shelf.right() == ALL_RIGHT

    @pytest.mark.parametrize("deep", [False, True])
    def test_replaced_partitions_are_right(self, tmp_path: Path, deep: bool) -> None:
        shelf = DeltaShelf(tmp_path / "days", tmp_path / "receipts", LightReplace)
        shelf.publish(1, 1, 2)
        shelf.publish(2, 2, 3)
        shelf.publish(3, 2)
        shelf.publish(4, 3)
        assert shelf.right(deep) == [(1, "overwritten"), (2, "overwritten"), (3, "right"), (4, "right")]
        assert shelf.published() == [1, 2, 3]

    @pytest.mark.parametrize("deep", [False, True])
    def test_merged_rows_are_right(self, tmp_path: Path, deep: bool) -> None:
        shelf = DeltaShelf(tmp_path / "merged", tmp_path / "receipts", LightMerge)
        shelf.publish(1, 1, 2)
        shelf.publish(2, 2, 3)
        shelf.publish(3, (2, 1, "older", ""), (4, 3, "", ""))
        shelf.table.optimize.compact()
        shelf.publish(4, 1, 2, 3, 4)
        assert shelf.right(deep) == [*ALL_RIGHT, (4, "right")]
        assert shelf.wrong(deep) == []

    def test_accepted_loss_is_right(self, shelf: DeltaShelf) -> None:
        shelf.entry(3).unlink()
        shelf.ledger.change(3, missing=True)
        assert shelf.right() == [(1, "right"), (2, "right"), (3, "loss-accepted")]
        assert shelf.wrong() == []

    def test_restore_that_was_taken_back_is_right(self, shelf: DeltaShelf) -> None:
        shelf.table.restore(2)
        shelf.table.restore(3)
        assert (shelf.right(deep=True), shelf.wrong(deep=True)) == (ALL_RIGHT, [])

    def test_log_checkpoint_takes_the_place_of_entries(self, shelf: DeltaShelf) -> None:
        shelf.table.create_checkpoint()
        for version in range(3):
            shelf.entry(version).unlink()
        shelf.publish(4, 7)
        assert shelf.right(deep=True) == [*ALL_RIGHT, (4, "right")]


class TestExpired:
    """What the log no longer shows is neither right nor wrong."""

    def test_moved_rows_without_history_are_unknown(self, shelf: DeltaShelf) -> None:
        shelf.table.optimize.compact()
        shelf.table.create_checkpoint()
        for version in range(4):
            shelf.entry(version).unlink()
        shelf.publish(4, 7)
        gone = [(1, "history-gone"), (2, "history-gone"), (3, "history-gone")]
        assert (shelf.right(), shelf.wrong(), shelf.unknown()) == ([(4, "right")], [], gone)

    def test_rows_named_by_a_column_are_counted_without_history(self, named: DeltaShelf) -> None:
        named.table.optimize.compact()
        named.table.create_checkpoint()
        for version in range(4):
            named.entry(version).unlink()
        assert [epoch for epoch, _ in named.unknown(deep=True)] == [1, 2, 3]
        assert named.wrong(deep=True) == []

    def test_commit_that_is_not_recorded_yet_is_unknown(self, shelf: DeltaShelf) -> None:
        shelf.publish(4, 7)
        shelf.ledger.published.pop()
        assert shelf.unknown() == [(None, "not-recorded-yet")]
        assert (shelf.right(), shelf.wrong()) == (ALL_RIGHT, [])

    def test_table_at_another_place_is_unknown(self, shelf: DeltaShelf, tmp_path: Path) -> None:
        other = DeltaShelf(tmp_path / "other", tmp_path / "receipts")
        other.publish(1, 1)
        other.ledger.published = shelf.ledger.published
        assert [code for _, code in other.unknown()] == ["elsewhere"] * 3


def delete_file(shelf: DeltaShelf) -> None:
    shelf.file_of(2).unlink()


def truncate_file(shelf: DeltaShelf) -> None:
    shelf.file_of(2).write_bytes(shelf.file_of(2).read_bytes()[:-20])


def delete_row(shelf: DeltaShelf) -> None:
    shelf.table.delete("n = 3")


def delete_all_rows(shelf: DeltaShelf) -> None:
    shelf.table.delete("n in (3, 4)")


def update_row(shelf: DeltaShelf) -> None:
    shelf.table.update(updates={"n": "33"}, predicate="n = 3")


def merge_row(shelf: DeltaShelf) -> None:
    rows = pa.table({"n": pa.array([3], pa.int64())})
    merge = shelf.table.merge(rows, "t.n = s.n", source_alias="s", target_alias="t")
    merge.when_matched_update(updates={"n": "s.n + 100"}).execute()


def overwrite(shelf: DeltaShelf) -> None:
    write_deltalake(shelf.folder, pa.table({"n": pa.array([9], pa.int64())}), mode="overwrite")


def restore(shelf: DeltaShelf) -> None:
    shelf.table.restore(2)


def recreate(shelf: DeltaShelf) -> None:
    schema = shelf.table.schema()
    shutil.rmtree(shelf.folder)
    DeltaTable.create(str(shelf.folder), schema)


def drop(shelf: DeltaShelf) -> None:
    shutil.rmtree(shelf.folder)


def go_back(shelf: DeltaShelf) -> None:
    shelf.entry(3).unlink()


def write_another_entry(shelf: DeltaShelf) -> None:
    """The log ended early, and has grown again."""
    shelf.entry(3).unlink()
    write_deltalake(shelf.folder, pa.table({"n": pa.array([9], pa.int64())}), mode="append")


def break_log(shelf: DeltaShelf) -> None:
    shelf.entry(2).unlink()


def rewrite_app_id(shelf: DeltaShelf) -> None:
    def edit(actions: list[dict[str, Any]]) -> None:
        for action in actions:
            if "txn" in action:
                action["txn"]["appId"] = "onceonly/nobody/flights/lake"

    shelf.edit_entry(2, edit)


def remove_add(shelf: DeltaShelf) -> None:
    shelf.edit_entry(2, lambda actions: actions.remove(next(action for action in actions if "add" in action)))


def add_copy(shelf: DeltaShelf) -> None:
    file = shelf.file_of(2)
    shutil.copy(file, shelf.folder / "part-copy.parquet")
    shelf.append_entry({"add": {**shelf.add_of(2), "path": "part-copy.parquet", "dataChange": True}})


def add_again(shelf: DeltaShelf) -> None:
    """The file that an OPTIMIZE has rewritten, beside what holds its rows now."""
    shelf.table.optimize.compact()
    shelf.append_entry({"add": {**shelf.add_of(2), "dataChange": True}})


def add_by_another_spelling(shelf: DeltaShelf) -> None:
    add = shelf.add_of(2)
    shelf.append_entry({"add": {**add, "path": f"./{add['path']}", "dataChange": True}})


def add_leftover(shelf: DeltaShelf) -> None:
    """A file that an aborted attempt has staged."""
    handle = shelf.sink().stage(transaction(4), [7])
    staged = next((shelf.folder / handle["folder"]).glob("*.parquet"))
    path = str(staged.relative_to(shelf.folder))
    shelf.table.create_write_transaction(
        [AddAction(path, staged.stat().st_size, {}, 0, True, json.dumps({"numRecords": 1}))],
        "append",
        shelf.table.schema(),
    )


def lose_rows_in_rewrite(shelf: DeltaShelf) -> None:
    pq.write_table(pa.table({"n": pa.array([3], pa.int64())}), shelf.folder / "part-compact.parquet")
    add = {**shelf.add_of(2), "path": "part-compact.parquet", "stats": json.dumps({"numRecords": 1})}
    add["size"] = (shelf.folder / "part-compact.parquet").stat().st_size
    remove = {"path": shelf.add_of(2)["path"], "dataChange": False, "deletionTimestamp": 1}
    shelf.append_entry({"remove": remove}, {"add": {**add, "dataChange": False}})


def remove_silently(shelf: DeltaShelf) -> None:
    shelf.append_entry({"remove": {"path": shelf.add_of(2)["path"], "dataChange": True, "deletionTimestamp": 1}})


def edit_rows_in_state(shelf: DeltaShelf) -> None:
    (handle,) = [one.handle for one in shelf.ledger.published if one.epoch == 2]
    shelf.ledger.change(2, handle={**handle, "rows": 3})


def edit_files_in_state(shelf: DeltaShelf) -> None:
    (handle,) = [one.handle for one in shelf.ledger.published if one.epoch == 2]
    shelf.ledger.change(2, handle={**handle, "files": 3})


def edit_folder_in_state(shelf: DeltaShelf) -> None:
    (handle,) = [one.handle for one in shelf.ledger.published if one.epoch == 2]
    shelf.ledger.change(2, handle={**handle, "folder": f"staged-{transaction(2, attempt=7).name}"})


def damage_handle(shelf: DeltaShelf) -> None:
    (handle,) = [one.handle for one in shelf.ledger.published if one.epoch == 2]
    shelf.ledger.change(2, handle={**handle, "folder": "../elsewhere"})


def remove_from_state(shelf: DeltaShelf) -> None:
    shelf.ledger.published = [one for one in shelf.ledger.published if one.epoch != 2]


def record_as_taken_out(shelf: DeltaShelf) -> None:
    shelf.ledger.change(2, taken_out_by=3)


def record_as_lost(shelf: DeltaShelf) -> None:
    shelf.ledger.change(2, missing=True)


DAMAGES: list[tuple[Callable[[DeltaShelf], None], Codes]] = [
    (delete_file, [(2, "file-missing")]),
    (truncate_file, [(2, "file-size")]),
    (delete_row, [(2, "rows-deleted")]),
    (delete_all_rows, [(2, "rows-deleted")]),
    (update_row, [(2, "rows-changed")]),
    (merge_row, [(2, "rows-changed")]),
    (overwrite, [(1, "rows-overwritten"), (2, "rows-overwritten"), (3, "rows-overwritten")]),
    (restore, [(3, "table-restored")]),
    (recreate, [(1, "target-replaced"), (2, "target-replaced"), (3, "target-replaced")]),
    (drop, [(1, "target-missing"), (2, "target-missing"), (3, "target-missing")]),
    (go_back, [(None, "evidence-behind"), (3, "target-went-back")]),
    (write_another_entry, [(None, "evidence-behind"), (3, "commit-changed")]),
    (break_log, [(None, "target-unreadable")]),
    (rewrite_app_id, [(None, "file-unpublished"), (2, "commit-changed")]),
    (remove_add, [(2, "commit-changed")]),
    (add_copy, [(None, "rows-twice")]),
    (add_again, [(2, "rows-twice")]),
    (add_by_another_spelling, [(None, "rows-twice")]),
    (add_leftover, [(None, "file-unpublished")]),
    (lose_rows_in_rewrite, [(2, "rows-lost-in-rewrite")]),
    (remove_silently, [(2, "rows-removed")]),
    (edit_rows_in_state, [(2, "row-count")]),
    (edit_files_in_state, [(2, "record-differs")]),
    (edit_folder_in_state, [(None, "commit-unrecorded"), (None, "file-unpublished"), (2, "commit-missing")]),
    (damage_handle, [(None, "commit-unrecorded"), (None, "file-unpublished"), (2, "record-damaged")]),
    (remove_from_state, [(None, "commit-unrecorded"), (None, "file-unpublished")]),
    (record_as_taken_out, [(2, "not-taken-out")]),
    (record_as_lost, [(2, "loss-is-back")]),
]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(**parametrize(DAMAGES))
def test_damage_is_named(shelf: DeltaShelf, damage: Callable[[DeltaShelf], None], expected: Codes, deep: bool) -> None:
    damage(shelf)
    assert shelf.wrong(deep) == expected


def test_storage_that_does_not_answer_makes_no_file_another(shelf: DeltaShelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> str:
        raise OSError(110, "Connection timed out")

    add_copy(shelf)
    monkeypatch.setattr(file_check, "read_digest", fail)
    with raises(OutcomeUnknown, "table-unreadable"):
        shelf.wrong()


def test_commit_is_named_with_version_and_time(shelf: DeltaShelf) -> None:
    delete_row(shelf)
    (finding,) = [one for one in shelf.ledger.verify() if one.judgement is Judgement.WRONG]
    assert finding.code is FindingCode.ROWS_DELETED
    assert "version 4 (DELETE, 20" in finding.why
    assert " UTC, by delta-rs" in finding.why


def test_deletion_in_a_shared_file_is_named_once(shelf: DeltaShelf) -> None:
    shelf.table.optimize.compact()
    delete_row(shelf)
    assert shelf.wrong() == [(None, "rows-deleted")]
    assert [code for _, code in shelf.unknown()] == ["rows-in-doubt"] * 3


def test_column_tells_whose_row_was_deleted(named: DeltaShelf) -> None:
    named.table.optimize.compact()
    delete_row(named)
    assert named.wrong(deep=True) == [(None, "rows-deleted"), (2, "rows-deleted")]
    assert named.right(deep=True) == [(1, "right"), (3, "right")]


def test_deletion_of_rows_of_others_is_not_accused(shelf: DeltaShelf) -> None:
    write_deltalake(shelf.folder, pa.table({"n": pa.array([90], pa.int64())}), mode="append")
    shelf.table.delete("n = 90")
    assert (shelf.right(), shelf.wrong()) == (ALL_RIGHT, [])
    write_deltalake(shelf.folder, pa.table({"n": pa.array([91], pa.int64())}), mode="append")
    shelf.table.optimize.compact()
    shelf.table.delete("n = 91")
    assert shelf.wrong() == []
    assert {code for _, code in shelf.unknown()} == {"rows-in-doubt"}


def test_corrupted_file_is_found_by_reading_it(shelf: DeltaShelf) -> None:
    file = shelf.file_of(2)
    content = bytearray(file.read_bytes())
    content[4:40] = bytes(36)
    file.write_bytes(bytes(content))
    assert shelf.wrong() == []
    assert shelf.wrong(deep=True) == [(2, "file-unreadable")]


def test_exchanged_file_is_found_by_reading_it(shelf: DeltaShelf) -> None:
    file = shelf.file_of(2)
    size = file.stat().st_size
    pq.write_table(pa.table({"n": pa.array([3], pa.int64())}), file, compression="none")
    content = file.read_bytes()
    if len(content) > size:
        pytest.skip("the smallest file with one row is larger than the published one")
    file.write_bytes(content[:4] + bytes(size - len(content)) + content[4:])
    assert shelf.wrong() == []
    assert [code for _, code in shelf.wrong(deep=True)][:1] in (["row-count"], ["file-unreadable"])
