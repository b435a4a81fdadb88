"""What a state sink finds out before the decision, and how it recognises its folder. Without Spark."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import Answer, Publication
from onceonly.errors import (
    ActionNeeded,
    CannotPublish,
    Fenced,
    NotCommitted,
    OutcomeUnknown,
    StageAgain,
    StateBehind,
    TargetWentBack,
)
from onceonly.pipeline.sinks import StateSink
from onceonly.sinks.state.runs import DONE, describe_files
from onceonly.sinks.state.sink import StateWriter
from onceonly.storage import folders
from onceonly.testing.fakes import FakeReceipts

CONFIG = StateSink("totals", schema="page STRING, views BIGINT", key=["page"])
ANOTHER = 1001  # user
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")


def transaction(epoch: int, attempt: int = 1) -> Transaction:
    return Transaction("0" * 32, "pages", "totals", epoch, attempt, f"nonce{epoch}{attempt}")


class Memory:
    """One state, whose runs are not of Parquet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.last: Publication | None = None
        self.before: Handle | None = None

    @property
    def sink(self) -> StateWriter:
        return StateWriter(CONFIG, str(self.root))

    def stage(self, epoch: int, attempt: int = 1) -> Handle:
        name = f"{transaction(epoch, attempt).name}/changes"
        folder = self.root / name
        folder.mkdir(parents=True)
        (folder / "_SUCCESS").touch()
        (folder / f"part-{epoch}.parquet").write_text("row" * epoch)
        run = {"folder": name, "rows": 1, **describe_files(folders.Folders(str(self.root)), name)}
        runs = [*(self.before["runs"] if self.before else []), run]
        of_state = {"schema": CONFIG.schema, "key": ["page"], "retired": [], "forget": []}
        return {"kind": "state", "txn": transaction(epoch, attempt).name, **of_state, "runs": runs, "rows": 1}

    def rehearse(self, handle: Handle) -> Handle:
        return self.sink.rehearse(handle, 9, self.last)

    def commit(self, handle: Handle, decision: int) -> Outcome:
        return self.sink.commit(handle, decision, FakeReceipts(Path("unused")), self.last)

    def publish(self, epoch: int) -> Handle:
        return self.record(epoch, self.stage(epoch))

    def record(self, epoch: int, handle: Handle) -> Handle:
        outcome = self.commit(handle, epoch)
        self.last = Publication(epoch, epoch, json.loads(json.dumps(outcome.proof)))
        self.before = handle
        return handle

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))


@pytest.fixture
def memory() -> Iterator[Memory]:
    """With two published checkpoints; other users may reach it."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        made = Memory(Path(folder, "volume", "state"))
        made.root.parent.mkdir()
        made.publish(1)
        made.publish(2)
        yield made


def run_file(memory: Memory, epoch: int) -> Path:
    return memory.root / transaction(epoch).name / "changes" / f"part-{epoch}.parquet"


def test_rehearsal_marks_nothing(memory: Memory) -> None:
    handle, before = memory.stage(3), memory.names()
    assert memory.rehearse(handle) == handle
    assert sorted({*memory.names()} - {*before}) == []
    assert memory.sink.leftovers(transaction(3).prefix) == [transaction(3)]
    memory.commit(handle, 3)


@pytest.mark.parametrize("change", ["removed", "truncated", "added to", "folder removed"])
def test_changed_staged_run_is_staged_again(memory: Memory, change: str) -> None:
    handle = memory.stage(3)
    spoil(run_file(memory, 3), change)
    with pytest.raises(StageAgain) as refused:
        memory.rehearse(handle)
    assert refused.value.code == "staged-files-missing"


@pytest.mark.parametrize("change", ["removed", "truncated", "added to", "folder removed"])
def test_changed_earlier_run_waits_for_a_person(memory: Memory, change: str) -> None:
    """It cannot be staged again."""
    handle = memory.stage(3)
    spoil(run_file(memory, 1), change)
    with pytest.raises(ActionNeeded) as refused:
        memory.rehearse(handle)
    assert refused.value.code == "state-run-missing"


@pytest.mark.parametrize("epoch", [1, 3])
def test_commit_marks_no_changed_run(memory: Memory, epoch: int) -> None:
    handle = memory.rehearse(memory.stage(3))
    spoil(run_file(memory, epoch), "truncated")
    with pytest.raises(CannotPublish) as refused:
        memory.commit(handle, 3)
    assert refused.value.code == "state-run-missing"
    assert not (memory.root / transaction(3).name / DONE).exists()


def spoil(file: Path, change: str) -> None:
    match change:
        case "removed":
            file.unlink()
        case "truncated":
            file.write_text("r")
        case "added to":
            file.with_name("part-9.parquet").write_text("more")
        case _:
            shutil.rmtree(file.parent.parent)


def test_missing_volume_is_no_reason_to_abort(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "state")
    handle = memory.stage(1)
    shutil.rmtree(memory.root)
    with pytest.raises(ActionNeeded) as refused:
        memory.rehearse(handle)
    assert refused.value.code == "target-missing"


def test_published_transaction_passes(memory: Memory) -> None:
    handle = memory.stage(3)
    memory.commit(handle, 3)
    shutil.rmtree(memory.root / transaction(2).name)
    assert memory.rehearse(handle) == handle


def test_other_outcomes_are_told(memory: Memory) -> None:
    handle, another = memory.stage(3), memory.stage(3, attempt=2)
    memory.commit(another, 3)
    with pytest.raises(StateBehind):
        memory.rehearse(handle)
    given_up = memory.stage(4)
    memory.sink.fence(given_up, 4)
    with pytest.raises(Fenced):
        memory.rehearse(given_up)


def test_storage_that_fails_is_no_answer(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = memory.stage(3)

    def silent(self: folders.Folders, name: str) -> dict[str, int]:
        raise OSError("storage does not answer")

    monkeypatch.setattr(folders.Folders, "list_files", silent)
    for act in (memory.rehearse, lambda handle: memory.commit(handle, 3)):
        with pytest.raises((NotCommitted, OutcomeUnknown)) as unknown:
            act(handle)
        assert not isinstance(unknown.value, ActionNeeded | StageAgain | CannotPublish)
        assert unknown.value.code == "no-answer"


@needs_root
@pytest.mark.parametrize("epoch", [1, 3])
def test_folders_of_another_user_are_found(memory: Memory, epoch: int) -> None:
    """The mark is written into the staged folder, and a folder that is forgotten is deleted."""
    handle = {**memory.stage(3), "forget": [transaction(1).name]}
    handle["runs"] = handle["runs"][1:]
    shutil.chown(memory.root, ANOTHER, ANOTHER)
    for path in memory.root.rglob("*"):
        shutil.chown(path, ANOTHER, ANOTHER)
    os.chown(memory.root / transaction(epoch).name, 0, 0)
    os.setegid(ANOTHER)
    os.seteuid(ANOTHER)
    try:
        with pytest.raises(ActionNeeded) as refused:
            memory.rehearse(handle)
    finally:
        os.seteuid(0)
        os.setegid(0)
    assert refused.value.code == "target-not-writable"


# ---- whether the folder has what was published to it


def test_folder_with_its_last_run_is_the_same(memory: Memory, tmp_path: Path) -> None:
    assert memory.sink.compare(memory.last).answer is Answer.SAME
    (tmp_path / "link").symlink_to(memory.root)
    assert Memory(tmp_path / "link").sink.compare(memory.last).answer is Answer.SAME
    assert Memory(tmp_path / "other").sink.compare(memory.last).answer is Answer.ELSEWHERE


def test_restored_copy_went_back(memory: Memory, tmp_path: Path) -> None:
    shutil.copytree(memory.root, tmp_path / "copy")
    memory.publish(3)
    handle = memory.stage(4)
    shutil.rmtree(memory.root)
    shutil.copytree(tmp_path / "copy", memory.root)
    found = memory.sink.compare(memory.last)
    assert (found.answer, found.decision) == (Answer.WENT_BACK, 2)
    refuse_both(memory, handle)


def test_damaged_last_run_went_back(memory: Memory) -> None:
    handle = memory.stage(3)
    run_file(memory, 2).write_text("r")
    found = memory.sink.compare(memory.last)
    assert (found.answer, found.decision) == (Answer.WENT_BACK, 1)
    refuse_both(memory, handle)


def test_empty_mount_point_went_back(memory: Memory) -> None:
    handle, volume = memory.stage(3), memory.root.parent
    shutil.move(volume, volume.with_name("unmounted"))
    volume.mkdir()
    found = memory.sink.compare(memory.last)
    assert (found.answer, found.decision) == (Answer.WENT_BACK, 0)
    refuse_both(memory, handle)
    assert memory.sink.find_current_publication(memory.last) is None
    assert list(volume.iterdir()) == []
    volume.rmdir()
    shutil.move(volume.with_name("unmounted"), volume)
    memory.commit(memory.rehearse(handle), 3)


def test_nothing_is_given_up_without_its_folder(memory: Memory) -> None:
    handle = memory.stage(3)
    memory.root.rename(memory.root.with_name("away"))
    with pytest.raises(OutcomeUnknown) as unknown:
        memory.sink.fence(handle, 3)
    assert unknown.value.code == "target-missing"


def refuse_both(memory: Memory, handle: Handle) -> None:
    acts: tuple[Callable[[Handle], Any], ...] = (memory.rehearse, lambda handle: memory.commit(handle, 4))
    for act in acts:
        with pytest.raises(TargetWentBack) as refused:
            act(handle)
        assert refused.value.code == "target-went-back"
    assert [path for path in memory.root.rglob(DONE) if handle["txn"] in str(path)] == []


@pytest.mark.parametrize("to", [1, 0])
def test_rewind_may_be_repeated(memory: Memory, to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first try has deleted the last published run, and died before that was recorded."""
    held = {1: {**memory.before, "runs": memory.before["runs"][:1], "txn": transaction(1).name}}.get(to)
    olds = [memory.before] if held else [memory.before, {**memory.before, "txn": transaction(1).name}]
    back = memory.sink.retraction(transaction(3, attempt=0), olds, held)
    memory.commit(back, 3)
    assert not run_file(memory, 2).exists()
    memory.record(3, back)
    assert memory.sink.compare(memory.last).answer is Answer.SAME
    memory.commit(memory.rehearse(memory.stage(4)), 4)


def test_rewind_in_an_empty_mount_point_is_refused(memory: Memory) -> None:
    held = {**memory.before, "runs": memory.before["runs"][:1]}
    back = memory.sink.retraction(transaction(3, attempt=0), [memory.before], held)
    nothing = memory.sink.retraction(transaction(3, attempt=0), [memory.before], None)
    memory.root.rename(memory.root.with_name("away"))
    for handle in (back, nothing):
        with pytest.raises(CannotPublish):
            memory.commit(handle, 3)


def test_folder_is_accepted_as_it_is(memory: Memory) -> None:
    second = memory.last
    memory.publish(3)
    shutil.rmtree(memory.root / transaction(3).name)
    assert memory.sink.find_current_publication(memory.last) == second
    shutil.rmtree(memory.root)
    memory.root.mkdir()
    nothing = memory.sink.find_current_publication(memory.last)
    assert (nothing.epoch, nothing.decision) == (0, 0)
    assert memory.sink.compare(nothing).answer is Answer.SAME


def test_silent_folder_tells_nothing(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(self: folders.Folders, name: str) -> Any:
        raise OSError("storage does not answer")

    monkeypatch.setattr(folders.Folders, "list_files", silent)
    monkeypatch.setattr(folders.Folders, "has", silent)
    for ask in (memory.sink.compare, memory.sink.find_current_publication):
        with pytest.raises(OutcomeUnknown) as unknown:
            ask(memory.last)
        assert not isinstance(unknown.value, CannotPublish)


def test_rewind_to_a_missing_run_is_refused(memory: Memory) -> None:
    """Nothing is deleted then: what is there may be all that is left."""
    held = {**memory.before, "runs": memory.before["runs"][:1]}
    back = memory.sink.retraction(transaction(3, attempt=0), [memory.before], held)
    run_file(memory, 1).unlink()
    with pytest.raises(CannotPublish) as refused:
        memory.commit(back, 3)
    assert refused.value.code == "state-run-missing"
    assert run_file(memory, 2).exists()
