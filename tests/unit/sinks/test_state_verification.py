"""What a verification of a state's folder finds: every damage by its code, and nothing where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from unit.shelves import TAKEN_BACK, Codes, StateShelf, parametrize

from onceonly.errors import OutcomeUnknown
from onceonly.sinks.state import verification
from onceonly.sinks.state.runs import DONE


@pytest.fixture
def shelf(tmp_path: Path) -> StateShelf:
    shelf = StateShelf(tmp_path / "state", tmp_path / "receipts")
    for epoch in (1, 2, 3):
        shelf.publish(epoch, epoch, 10 * epoch)
    return shelf


@pytest.mark.parametrize("deep", [False, True])
class TestHealthy:
    """Nothing is accused."""

    def test_published_runs_are_right(self, shelf: StateShelf, deep: bool) -> None:
        assert shelf.right(deep) == [(1, "right"), (2, "right"), (3, "right")]
        assert shelf.wrong(deep) == []

    def test_merged_runs_are_taken_out(self, shelf: StateShelf, deep: bool) -> None:
        shelf.publish(4, 4, forget=[shelf.runs[0]["folder"]])
        assert not shelf.folder_of(1).exists()
        assert shelf.right(deep)[0] == (1, "taken-out")
        assert shelf.wrong(deep) == []

    def test_rewound_runs_are_taken_out(self, shelf: StateShelf, deep: bool) -> None:
        shelf.take_back()
        assert shelf.right(deep) == TAKEN_BACK

    def test_given_up_decision_is_not_accused(self, shelf: StateShelf, deep: bool) -> None:
        shelf.sink().fence(shelf.stage(4, 7), 4)
        assert (shelf.wrong(deep), shelf.unknown(deep)) == ([], [])

    def test_accepted_loss_is_right(self, shelf: StateShelf, deep: bool) -> None:
        shutil.rmtree(shelf.folder_of(3))
        shelf.ledger.change(3, missing=True)
        assert shelf.right(deep)[-1] == (3, "loss-accepted")

    def test_publication_that_is_not_recorded_yet_is_unknown(self, shelf: StateShelf, deep: bool) -> None:
        shelf.publish(4, 7)
        shelf.ledger.published.pop()
        assert shelf.unknown(deep) == [(None, "not-recorded-yet")]
        assert shelf.wrong(deep) == []


def delete_file(shelf: StateShelf) -> None:
    shelf.run_of(2).unlink()


def truncate_file(shelf: StateShelf) -> None:
    shelf.run_of(2).write_bytes(shelf.run_of(2).read_bytes()[:-3])


def delete_transaction(shelf: StateShelf) -> None:
    shutil.rmtree(shelf.folder_of(2))


def delete_mark(shelf: StateShelf) -> None:
    (shelf.folder_of(2) / DONE).unlink()


def edit_mark(shelf: StateShelf) -> None:
    (shelf.folder_of(2) / DONE).write_text('{"decision": 7}')


def delete_folder(shelf: StateShelf) -> None:
    shutil.rmtree(shelf.folder)


def remove_from_state(shelf: StateShelf) -> None:
    shelf.ledger.published = [one for one in shelf.ledger.published if one.epoch != 2]


def damage_handle(shelf: StateShelf) -> None:
    (handle,) = [one.handle for one in shelf.ledger.published if one.epoch == 2]
    shelf.ledger.change(2, handle={**handle, "txn": "../x"})


def record_as_taken_out(shelf: StateShelf) -> None:
    shelf.ledger.change(2, taken_out_by=3)


DAMAGES: list[tuple[Callable[[StateShelf], None], Codes]] = [
    (delete_file, [(2, "file-missing")]),
    (truncate_file, [(2, "file-changed")]),
    (delete_transaction, [(2, "file-missing"), (2, "file-missing")]),
    (delete_mark, [(2, "commit-missing")]),
    (edit_mark, [(2, "commit-changed")]),
    (delete_folder, [(1, "target-missing"), (2, "target-missing"), (3, "target-missing")]),
    (remove_from_state, [(None, "commit-unrecorded")]),
    (damage_handle, [(None, "commit-unrecorded"), (2, "record-damaged")]),
    (record_as_taken_out, [(2, "not-taken-out")]),
]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(**parametrize(DAMAGES))
def test_damage_is_named(shelf: StateShelf, damage: Callable[[StateShelf], None], expected: Codes, deep: bool) -> None:
    damage(shelf)
    assert shelf.wrong(deep) == expected


class SilentStorage:
    """A file system that no longer gives what it lists."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def open_input_file(self, path: str) -> Any:
        raise OSError(110, "Connection timed out")

    open_input_stream = open_input_file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def test_storage_that_does_not_answer_accuses_nobody(shelf: StateShelf, monkeypatch: pytest.MonkeyPatch) -> None:
    open_files = verification.arrow_file_system
    monkeypatch.setattr(
        verification, "arrow_file_system", lambda uri: (SilentStorage(open_files(uri)[0]), open_files(uri)[1])
    )
    with raises(OutcomeUnknown, "no-answer"):
        shelf.wrong(deep=True)


def test_corrupted_run_is_found_by_reading_it(shelf: StateShelf) -> None:
    content = bytearray(shelf.run_of(2).read_bytes())
    content[4:30] = bytes(26)
    shelf.run_of(2).write_bytes(bytes(content))
    assert shelf.wrong() == []
    assert shelf.wrong(deep=True) == [(2, "file-unreadable")]
