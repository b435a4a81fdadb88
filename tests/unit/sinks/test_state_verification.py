"""What a verification of a state's folder finds: every damage by its code, and nothing where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from codes import raises
from unit.lightdelta import transaction
from unit.verified_shelf import TAKEN_BACK, Codes, VerifiedShelf, parametrize

from onceonly.checkpoint.sink import Sink
from onceonly.errors import OutcomeUnknown
from onceonly.pipeline.sinks import StateSink
from onceonly.sinks.state import verification
from onceonly.sinks.state.runs import DONE, describe_files
from onceonly.sinks.state.sink import StateWriter
from onceonly.storage.folders import Folders


class Shelf(VerifiedShelf):
    """A state whose runs are written without Spark, and what is recorded of it."""

    def __init__(self, folder: Path, receipts: Path) -> None:
        super().__init__(folder, receipts)
        self.runs = list[dict[str, Any]]()

    def sink(self) -> Sink:
        return StateWriter(StateSink("lake", schema="n INT", key=["n"]), str(self.folder))

    def published(self) -> list[int]:
        return []

    def stage(self, epoch: int, *keys: int, forget: Sequence[str] = ()) -> dict[str, Any]:
        txn = transaction(epoch)
        name = f"{txn.name}/changes"
        (self.folder / name).mkdir(parents=True)
        pq.write_table(pa.table({"n": list(keys)}), self.folder / name / "part-0.parquet")
        run = {"folder": name, "rows": len(keys), **describe_files(Folders(str(self.folder)), name)}
        kept = [run for run in self.runs if run["folder"] not in forget]
        return {
            **{"kind": "state", "txn": txn.name, "schema": "n INT", "key": ["n"], "rows": len(keys)},
            **{"runs": [*kept, run], "retired": [], "forget": list(forget)},
        }

    def publish(self, epoch: int, *keys: int, forget: Sequence[str] = ()) -> None:
        handle = self.stage(epoch, *keys, forget=forget)
        self.ledger.publish(epoch, handle)
        self.runs = handle["runs"]

    def folder_of(self, epoch: int) -> Path:
        return self.folder / transaction(epoch).name

    def run_of(self, epoch: int) -> Path:
        return self.folder_of(epoch) / "changes" / "part-0.parquet"


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path / "state", tmp_path / "receipts")
    for epoch in (1, 2, 3):
        shelf.publish(epoch, epoch, 10 * epoch)
    return shelf


@pytest.mark.parametrize("deep", [False, True])
class TestHealthy:
    """Nothing is accused."""

    def test_published_runs_are_right(self, shelf: Shelf, deep: bool) -> None:
        assert shelf.right(deep) == [(1, "right"), (2, "right"), (3, "right")]
        assert shelf.wrong(deep) == []

    def test_merged_runs_are_taken_out(self, shelf: Shelf, deep: bool) -> None:
        shelf.publish(4, 4, forget=[shelf.runs[0]["folder"]])
        assert not shelf.folder_of(1).exists()
        assert shelf.right(deep)[0] == (1, "taken-out")
        assert shelf.wrong(deep) == []

    def test_rewound_runs_are_taken_out(self, shelf: Shelf, deep: bool) -> None:
        shelf.take_back()
        assert shelf.right(deep) == TAKEN_BACK

    def test_given_up_decision_is_not_accused(self, shelf: Shelf, deep: bool) -> None:
        shelf.sink().fence(shelf.stage(4, 7), 4)
        assert (shelf.wrong(deep), shelf.unknown(deep)) == ([], [])

    def test_accepted_loss_is_right(self, shelf: Shelf, deep: bool) -> None:
        shutil.rmtree(shelf.folder_of(3))
        shelf.ledger.change(3, missing=True)
        assert shelf.right(deep)[-1] == (3, "loss-accepted")

    def test_publication_that_is_not_recorded_yet_is_unknown(self, shelf: Shelf, deep: bool) -> None:
        shelf.publish(4, 7)
        shelf.ledger.published.pop()
        assert shelf.unknown(deep) == [(None, "not-recorded-yet")]
        assert shelf.wrong(deep) == []


def delete_file(shelf: Shelf) -> None:
    shelf.run_of(2).unlink()


def truncate_file(shelf: Shelf) -> None:
    shelf.run_of(2).write_bytes(shelf.run_of(2).read_bytes()[:-3])


def delete_transaction(shelf: Shelf) -> None:
    shutil.rmtree(shelf.folder_of(2))


def delete_mark(shelf: Shelf) -> None:
    (shelf.folder_of(2) / DONE).unlink()


def edit_mark(shelf: Shelf) -> None:
    (shelf.folder_of(2) / DONE).write_text('{"decision": 7}')


def delete_folder(shelf: Shelf) -> None:
    shutil.rmtree(shelf.folder)


def remove_from_state(shelf: Shelf) -> None:
    shelf.ledger.published = [one for one in shelf.ledger.published if one.epoch != 2]


def damage_handle(shelf: Shelf) -> None:
    (handle,) = [one.handle for one in shelf.ledger.published if one.epoch == 2]
    shelf.ledger.change(2, handle={**handle, "txn": "../x"})


def record_as_taken_out(shelf: Shelf) -> None:
    shelf.ledger.change(2, taken_out_by=3)


DAMAGES: list[tuple[Callable[[Shelf], None], Codes]] = [
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
def test_damage_is_named(shelf: Shelf, damage: Callable[[Shelf], None], expected: Codes, deep: bool) -> None:
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


def test_storage_that_does_not_answer_accuses_nobody(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    open_files = verification.arrow_file_system
    monkeypatch.setattr(
        verification, "arrow_file_system", lambda uri: (SilentStorage(open_files(uri)[0]), open_files(uri)[1])
    )
    with raises(OutcomeUnknown, "no-answer"):
        shelf.wrong(deep=True)


def test_corrupted_run_is_found_by_reading_it(shelf: Shelf) -> None:
    content = bytearray(shelf.run_of(2).read_bytes())
    content[4:30] = bytes(26)
    shelf.run_of(2).write_bytes(bytes(content))
    assert shelf.wrong() == []
    assert shelf.wrong(deep=True) == [(2, "file-unreadable")]
