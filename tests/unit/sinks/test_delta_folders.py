"""Staged folders of a Delta table: found while they are somebody's, told by a mark when they are settled, and gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable
from unit.lightdelta import LightDelta, LightMerge, LightParts, transaction

from onceonly.checkpoint.model import Checkpoint, Transaction
from onceonly.coordinator.coordinator import Coordinator
from onceonly.delta import log_files, table_files, txn_identifiers
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.sinks.delta import staged_folders
from onceonly.statetable.rows import Rows
from onceonly.statetable.table import StateTable
from onceonly.statetable.view import View
from onceonly.storage.objects import Objects
from onceonly.testing.fakes import FakeParts

pytestmark = pytest.mark.slow

NEVER: Any = None
PREFIX = transaction().prefix


@pytest.fixture
def lake(tmp_path: Path) -> LightDelta:
    return LightDelta(tmp_path / "lake")


def publish(lake: LightDelta, epoch: int, *numbers: int) -> Path:
    handle = lake.stage(transaction(epoch), numbers)
    lake.commit(handle, epoch, NEVER)
    return Path(lake.uri) / handle["folder"]


def compact_and_vacuum(lake: LightDelta, everything: bool) -> None:
    DeltaTable(lake.uri).optimize.compact()
    DeltaTable(lake.uri).vacuum(0, dry_run=False, enforce_retention_duration=False, full=everything)


def test_what_is_settled_has_no_log_of_its_own_and_is_not_found_again(lake: LightDelta) -> None:
    folder = publish(lake, 1, 1, 2)
    assert lake.leftovers(PREFIX) == [transaction(1)]
    for _ in range(2):
        lake.release(transaction(1))
        assert lake.leftovers(PREFIX) == []
    assert sorted(path.suffix for path in folder.iterdir() if path.name != staged_folders.MARK) == [".parquet"]
    assert lake.numbers() == [1, 2]


@pytest.mark.parametrize("everything", [False, True])
def test_when_a_vacuum_has_taken_the_rows_the_folder_goes_too(lake: LightDelta, everything: bool) -> None:
    folders = [publish(lake, epoch, epoch) for epoch in (1, 2)]
    for epoch in (1, 2):
        lake.release(transaction(epoch))
    compact_and_vacuum(lake, everything)
    assert sorted(lake.leftovers(PREFIX), key=lambda txn: txn.epoch) == [transaction(1), transaction(2)]
    for epoch in (1, 2):
        lake.release(transaction(epoch))
    assert not any(folder.exists() for folder in folders)
    assert lake.numbers() == [1, 2]


def test_a_release_that_died_half_way_is_finished(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = publish(lake, 1, 1)
    (folder / staged_folders.MARK).touch()  # it died before the log went
    assert lake.leftovers(PREFIX) == [transaction(1)]
    lake.release(transaction(1))
    assert not (folder / "_delta_log").exists()
    (folder / staged_folders.MARK).unlink()  # as a VACUUM in delta-rs may do
    assert lake.leftovers(PREFIX) == [transaction(1)]
    lake.release(transaction(1))
    assert lake.leftovers(PREFIX) == []
    assert lake.numbers() == [1]


@pytest.mark.parametrize("last_first", [False, True], ids=["in order", "last first"])
@pytest.mark.parametrize("on_store", [False, True], ids=["disk", "store"])
def test_a_release_may_die_at_each_log_that_a_merge_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_store: bool, last_first: bool
) -> None:
    """A store deletes objects in whatever order."""
    lake, left = LightMerge(tmp_path / "lake"), [0]
    if on_store:
        monkeypatch.setattr(staged_folders, "local_path", lambda uri: None)

    def dies(real: Callable[..., Any]) -> Callable[..., Any]:
        def deleting(to: Any, what: Any) -> None:
            for each in list(what)[:: -1 if last_first else 1] if isinstance(what, list) else [what]:
                left[0] -= 1
                if left[0] < 0:
                    raise OSError("killed")
                real(to, [each] if isinstance(what, list) else each)

        return deleting

    monkeypatch.setattr(Objects, "unlink", dies(Objects.unlink))
    monkeypatch.setattr(staged_folders, "_delete", dies(staged_folders._delete))
    publish(lake, 1, 1, 2)
    for epoch in range(2, 9):
        folder, left[0] = publish(lake, epoch, 1), epoch - 2
        try:
            lake.release(transaction(epoch))
        except OSError:
            assert lake.is_leftover(transaction(epoch))
            left[0] = 100
            lake.release(transaction(epoch))
        assert not list(
            folder.rglob(log_files.LOG_FOLDER) if not on_store else folder.rglob(f"{log_files.LOG_FOLDER}/*")
        )
        assert not lake.is_leftover(transaction(epoch))
    assert left[0] > 0, "the last ones came to the end"


def test_rows_that_a_process_wrote_after_its_folder_was_deleted_are_found(lake: LightDelta) -> None:
    lake.stage(transaction(1), [1])
    lake.discard(transaction(1), None)
    late = Path(lake.uri) / (txn_identifiers.STAGED_PREFIX + transaction(1).name) / "part-0.parquet"
    late.parent.mkdir()
    late.touch()
    assert lake.leftovers(PREFIX) == [transaction(1)]
    lake.discard(transaction(1), None)
    assert not late.parent.exists()


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("compacted", [False, True])
def test_an_abort_never_deletes_what_the_target_refers_to(lake: LightDelta, settled: bool, compacted: bool) -> None:
    """Whatever a state table that was restored says of it."""
    folders = [publish(lake, epoch, epoch) for epoch in (1, 2)]
    if settled:
        lake.release(transaction(1))
    if compacted:
        DeltaTable(lake.uri).optimize.compact()
    if settled or not compacted:
        lake.discard(transaction(1), None)
        assert any(folders[0].glob("*.parquet"))
    assert lake.numbers() == [1, 2]


def test_an_empty_folder_is_found_and_deleted(lake: LightDelta) -> None:
    publish(lake, 1, 1)
    empty = Path(lake.uri) / (txn_identifiers.STAGED_PREFIX + transaction(2).name)
    empty.mkdir()
    assert transaction(2) in lake.leftovers(PREFIX)
    lake.discard(transaction(2), None)
    assert not empty.exists()


def test_where_no_folder_is_the_table_is_not_opened(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(lake, 1, 1)
    lake.release(transaction(1))
    monkeypatch.setattr(table_files, "open_table", lambda uri: pytest.fail("opened"))
    lake.discard(transaction(2), None)
    lake.release(transaction(2))
    assert lake.leftovers(PREFIX) == []
    assert not (Path(lake.uri) / (txn_identifiers.STAGED_PREFIX + transaction(2).name)).exists()


def test_it_is_the_same_through_the_storage_layer_of_the_table(lake: LightDelta, monkeypatch: Any) -> None:
    """As on an object store, where there are no empty folders."""
    handler = table_files.DeltaStorageHandler
    monkeypatch.setattr(table_files, "open_folder", lambda uri: pafs.PyFileSystem(handler(uri)))
    folder = publish(lake, 1, 1)
    lake.stage(transaction(2), [2])
    assert len(lake.leftovers(PREFIX)) == 2
    for _ in range(2):
        lake.release(transaction(1))
        lake.discard(transaction(2), None)
    aborted = Path(lake.uri) / (txn_identifiers.STAGED_PREFIX + transaction(2).name)
    assert [path for path in aborted.rglob("*") if path.is_file()] == []
    shutil.rmtree(aborted)
    assert lake.leftovers(PREFIX) == []
    assert (folder / staged_folders.MARK).exists()
    assert list((folder / "_delta_log").glob("*")) == []
    assert lake.numbers() == [1]


# ---- a sweep


@pytest.fixture
def through(tmp_path: Path) -> tuple[Coordinator, Pipeline, FakeParts]:
    fakes = FakeParts(tmp_path / "parts")
    pipeline = Pipeline(name="p", source=KafkaSource("t"), transform="a.b:c", sinks=[DeltaSink("lake", path="lake")])
    parts: Any = LightParts(tmp_path, fakes)
    return Coordinator(StateTable.make(str(tmp_path / "state")), parts), pipeline, fakes


def run(through: tuple[Coordinator, Pipeline, FakeParts], number: int) -> Checkpoint:
    coordinator, pipeline, fakes = through
    fakes.sources(pipeline)["t"].append(0, (datetime(2020, 1, 1, tzinfo=UTC), number))
    planned = coordinator.plan(pipeline, f"run {number}", lambda cp: True).checkpoint
    assert planned is not None
    coordinator.stage("p", planned.epoch, lambda cp: {"lake": [number]})
    return coordinator.commit("p", planned.epoch)


def test_a_sweep_asks_the_state_table_for_nothing_that_is_settled(
    through: tuple[Coordinator, Pipeline, FakeParts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        run(through, number)
    asked: list[int] = []
    read: list[int] = []
    ask, load = View.checkpoint, Rows.checkpoints
    monkeypatch.setattr(View, "checkpoint", lambda view, epoch: (asked.append(epoch), ask(view, epoch))[1])
    monkeypatch.setattr(Rows, "checkpoints", lambda rows, epochs: (read.extend(epochs), load(rows, epochs))[1])
    assert through[0].sweep("p") == []
    assert (set(asked), read) == ({4}, [4])  # the last one, which every view reads when it is opened

    lake = LightDelta(tmp_path / "lake")
    compact_and_vacuum(lake, everything=False)
    assert sorted(txn.epoch for txn in through[0].sweep("p") if isinstance(txn, Transaction)) == [1, 2, 3, 4]
    assert list((tmp_path / "lake").glob("staged-*")) == []
    assert (through[0].sweep("p"), lake.numbers()) == ([], [0, 1, 2, 3])


def test_folders_of_an_older_version_are_settled_by_one_sweep(
    through: tuple[Coordinator, Pipeline, FakeParts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(LightDelta, "release", lambda self, txn: None)
        for number in range(2):
            run(through, number)
    assert len(through[0].sweep("p")) == 2
    assert through[0].sweep("p") == []
    assert LightDelta(tmp_path / "lake").numbers() == [0, 1]
