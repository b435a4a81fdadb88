"""What a verification of a folder of files finds: every damage by its code, and nothing where there is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from unit.lightfiles import LightFiles
from unit.shelves import TAKEN_BACK, Codes, FileShelf, parametrize

pytestmark = pytest.mark.slow

ALL_RIGHT = [(1, "right"), (2, "right"), (3, "right")]


@pytest.fixture
def shelf(tmp_path: Path) -> FileShelf:
    shelf = FileShelf(tmp_path / "lake", tmp_path / "receipts")
    shelf.publish(1, 1, 2)
    shelf.publish(2, 3, 4)
    shelf.publish(3, 5, 6)
    return shelf


@pytest.mark.parametrize("deep", [False, True])
class TestHealthy:
    """Nothing is accused."""

    def test_published_files_are_right(self, shelf: FileShelf, deep: bool) -> None:
        assert shelf.right(deep) == ALL_RIGHT
        assert shelf.wrong(deep) == []

    def test_replaced_files_are_taken_out(self, shelf: FileShelf, deep: bool) -> None:
        shelf.publish(4, 30, replaces=shelf.handle_of(2))
        shelf.ledger.change(2, taken_out_by=4)
        expected = [(1, "right"), (2, "taken-out"), (3, "right"), (4, "right")]
        assert (shelf.right(deep), shelf.wrong(deep)) == (expected, [])

    def test_rewound_files_are_taken_out(self, shelf: FileShelf, deep: bool) -> None:
        shelf.take_back()
        assert shelf.right(deep) == TAKEN_BACK

    def test_given_up_decision_is_not_accused(self, shelf: FileShelf, deep: bool) -> None:
        shelf.sink().fence(shelf.stage(4, 7), 4)
        assert (shelf.wrong(deep), shelf.unknown(deep)) == ([], [])

    def test_files_of_others_are_not_accused(self, shelf: FileShelf, deep: bool) -> None:
        (shelf.folder / "notes.jsonl").write_text('{"value": 99}\n')
        other = LightFiles(shelf.folder)
        other.name = "lake"
        assert (shelf.wrong(deep), shelf.unknown(deep)) == ([], [])

    def test_accepted_loss_is_right(self, shelf: FileShelf, deep: bool) -> None:
        shelf.manifest_of(3).unlink()
        shelf.file_of(3).unlink()
        shelf.ledger.change(3, missing=True)
        assert shelf.right(deep)[-1] == (3, "loss-accepted")
        assert shelf.wrong(deep) == []

    def test_publication_that_is_not_recorded_yet_is_unknown(self, shelf: FileShelf, deep: bool) -> None:
        shelf.publish(4, 7)
        shelf.ledger.published.pop()
        assert {code for _, code in shelf.unknown(deep)} == {"not-recorded-yet"}
        assert shelf.wrong(deep) == []


def delete_file(shelf: FileShelf) -> None:
    shelf.file_of(2).unlink()


def truncate_file(shelf: FileShelf) -> None:
    shelf.file_of(2).write_text('{"value": 3}\n')


def delete_folder(shelf: FileShelf) -> None:
    shutil.rmtree(shelf.folder)


def delete_manifest(shelf: FileShelf) -> None:
    shelf.manifest_of(2).unlink()


def edit_manifest(shelf: FileShelf) -> None:
    content = json.loads(shelf.manifest_of(2).read_text())
    shelf.manifest_of(2).write_text(json.dumps({**content, "rows": 5}))


def empty_manifest(shelf: FileShelf) -> None:
    shelf.manifest_of(2).write_text("")


def exchange_manifests(shelf: FileShelf) -> None:
    shelf.manifest_of(2).write_bytes(shelf.manifest_of(1).read_bytes())


def copy_file(shelf: FileShelf) -> None:
    shutil.copy(shelf.file_of(2), shelf.folder / "copy.jsonl")


def add_file_with_own_name(shelf: FileShelf) -> None:
    name = shelf.file_of(2).name.replace("-00000.", "-00009.")
    shutil.copy(shelf.file_of(2), shelf.folder / name)


def remove_from_state(shelf: FileShelf) -> None:
    shelf.ledger.published = [one for one in shelf.ledger.published if one.epoch != 2]


def edit_rows_in_state(shelf: FileShelf) -> None:
    shelf.ledger.change(2, handle={**shelf.handle_of(2), "rows": 9})


def edit_file_in_state(shelf: FileShelf) -> None:
    handle = shelf.handle_of(2)
    shelf.ledger.change(2, handle={**handle, "files": []})


def damage_handle(shelf: FileShelf) -> None:
    shelf.ledger.change(2, handle={**shelf.handle_of(2), "manifest": "../x"})


def record_as_taken_out(shelf: FileShelf) -> None:
    shelf.ledger.change(2, taken_out_by=3)


def record_as_lost(shelf: FileShelf) -> None:
    shelf.ledger.change(2, missing=True)


DAMAGES: list[tuple[Callable[[FileShelf], None], Codes]] = [
    (delete_file, [(2, "file-missing")]),
    (truncate_file, [(2, "file-size")]),
    (delete_folder, [(1, "target-missing"), (2, "target-missing"), (3, "target-missing")]),
    (delete_manifest, [(2, "commit-missing")]),
    (edit_manifest, [(2, "commit-changed")]),
    (empty_manifest, [(2, "commit-changed")]),
    (exchange_manifests, [(2, "commit-changed")]),
    (copy_file, [(None, "rows-twice")]),
    (add_file_with_own_name, [(None, "file-unpublished")]),
    (remove_from_state, [(None, "commit-unrecorded")]),
    (edit_rows_in_state, [(2, "row-count")]),
    (edit_file_in_state, [(None, "file-unpublished"), (2, "record-differs")]),
    (damage_handle, [(None, "commit-unrecorded"), (2, "record-damaged")]),
    (record_as_taken_out, [(2, "not-taken-out")]),
    (record_as_lost, [(2, "loss-is-back")]),
]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(**parametrize(DAMAGES))
def test_damage_is_named(shelf: FileShelf, damage: Callable[[FileShelf], None], expected: Codes, deep: bool) -> None:
    damage(shelf)
    assert shelf.wrong(deep) == expected


def test_other_bytes_are_found_by_reading_them(shelf: FileShelf) -> None:
    content = shelf.file_of(2).read_text()
    shelf.file_of(2).write_text(content.replace("3", "8"))
    assert shelf.wrong() == []
    assert shelf.wrong(deep=True) == [(2, "file-changed")]
