"""Publishing files without Spark: committers that hang while a person gives up, handles that are forged, mounts.

Staged by hand, on a real file system.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from codes import raises
from patience import PATIENCE

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import Trace
from onceonly.checkpoint.transaction_names import manifest_path
from onceonly.errors import CannotPublish, Fenced, InvalidPipeline, OutcomeUnknown, StateBehind
from onceonly.pipeline.sinks import FileSink
from onceonly.sinks.files import manifest, moves, stage
from onceonly.sinks.files.handle import staging_of
from onceonly.sinks.files.sink import FileWriter
from onceonly.storage import manifests
from onceonly.storage.local import LocalFiles
from onceonly.storage.own_paths import OwnPath
from onceonly.testing.fakes import FakeReceipts

pytestmark = pytest.mark.slow

STATE = "0123456789abcdef0123456789abcdef"
FILES = 3


def transaction(epoch: int = 1, attempt: int = 1, pipeline: str = "flights", state: str = STATE) -> Transaction:
    return Transaction(state, pipeline, "lake", epoch, attempt, f"nonce{epoch}{attempt}")


@dataclass(frozen=True)
class Lake:
    folder: Path

    @property
    def sink(self) -> FileWriter:
        return FileWriter(FileSink("lake", "lake", "json"), str(self.folder))

    def stage(self, txn: Transaction, count: int = FILES, **more: Any) -> Handle:
        """As `FileWriter.stage` leaves it."""
        folder = Path(staging_of(str(self.folder)), txn.name, "data")
        for number in range(count):
            place = folder / f"day={number % 2}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"part-{number:05d}.jsonl").write_text(f'{{"n": {10 * txn.epoch + number}}}\n')
        files = stage.prepare_files(self.sink.config, txn, LocalFiles(), str(self.folder), str(folder), count)
        return {
            **{"kind": "files", "target": str(self.folder), "format": "json", "txn": txn.name},
            **{"folder": str(folder), "manifest": manifest_path(txn), "rows": count, "bytes": 1},
            "files": [file.to_json() for file in files],
            **more,
        }

    def commit(self, handle: Handle, decision: int = 1) -> Outcome:
        return self.sink.commit(handle, decision, FakeReceipts(self.folder.parent / "receipts"))

    def numbers(self) -> list[int]:
        """What a plain reader of the folder finds."""
        return sorted(json.loads(path.read_text())["n"] for path in self.folder.rglob("*.jsonl"))

    def listed(self) -> list[int]:
        """What a reader by manifest finds."""
        there = self.folder.is_dir()
        return sorted(json.loads(path.read_text())["n"] for path in manifests.files(self.folder)) if there else []

    def kept(self, txn: Transaction) -> list[int]:
        folder = Path(staging_of(str(self.folder)), txn.name)
        return sorted(json.loads(path.read_text())["n"] for path in folder.rglob("*.jsonl"))


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(moves, "MAX_PARALLEL_REQUESTS", 1)
    return Lake(tmp_path / "lake")


# ---- in the place of others


@pytest.mark.parametrize("lost", ["the answer", "the process"])
def test_what_is_replaced_goes_although_the_first_commit_did_not_live_to_remove_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The manifest is there: its name was given and the answer lost, or its writer died before the old files went."""
    old = lake.stage(transaction(1))
    lake.commit(old)
    new = lake.stage(transaction(2), replaces=old)
    where, what = (FileWriter, "_remove_replaced") if lost == "the process" else (manifest, "write")
    inner = getattr(where, what)

    def broken(*arguments: Any) -> Any:
        if lost == "the answer":
            inner(*arguments)
        raise OSError("broken off")

    with monkeypatch.context() as patched:
        patched.setattr(where, what, broken)
        if lost == "the process":
            with pytest.raises(OutcomeUnknown):
                lake.commit(new, 2)
        else:
            lake.commit(new, 2)
    lake.commit(new, 2)
    assert lake.numbers() == lake.listed() == [20, 21, 22]


@pytest.mark.parametrize("when", ["after the listing", "amid the listing"])
def test_a_reader_by_manifest_finds_the_one_or_the_other(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Amid: a listing has gone past the place of the new manifest, and comes to that of the old one when it is gone."""
    old = lake.stage(transaction(1))
    lake.commit(old)
    new, listing = lake.stage(transaction(2), replaces=old), os.listdir

    def list_while_overtaken(folder: Path) -> list[str]:
        monkeypatch.setattr(os, "listdir", listing)
        names = listing(folder) if when == "after the listing" else []
        lake.commit(new, 2)
        return names

    monkeypatch.setattr(os, "listdir", list_while_overtaken)
    assert [path.name[:19] for path in manifests.files(lake.folder)] == ["flights-lake-000002"] * FILES


@pytest.mark.parametrize("number", range(FILES + 1))
def test_a_committer_that_hung_brings_nothing_back_that_was_replaced(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    old = lake.stage(transaction(1))
    new = lake.stage(transaction(2), replaces=old)

    def meanwhile() -> None:
        monkeypatch.setattr(os, "link", link)
        lake.commit(old)  # what it has staged is not cleared away: its process dies before
        lake.commit(new, 2)

    link = os.link
    at_call(number, os, "link", meanwhile, monkeypatch)
    with suppress(CannotPublish, OutcomeUnknown):  # hung in front of the manifest, it puts one that is replaced already
        lake.commit(old)
    assert lake.numbers() == lake.listed() == [20, 21, 22]


# ---- given up while a committer hangs


def at_call(number: int, of: Any, name: str, do: Callable[[], Any], patch: pytest.MonkeyPatch) -> None:
    """The process hangs in front of that call, and `do` happens meanwhile."""
    inner, calls = getattr(of, name), iter(range(10**9))

    def hanging(*arguments: Any, **more: Any) -> Any:
        if next(calls) == number:
            do()
        return inner(*arguments, **more)

    patch.setattr(of, name, hanging)


STEPS = [
    *(("link", number) for number in range(FILES + 1)),  # the last one is the manifest's
    *(("fsync", number) for number in range(FILES + 4)),
]


@pytest.mark.parametrize(("step", "number"), STEPS)
def test_given_up_while_a_committer_hangs(lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str, number: int) -> None:
    txn = transaction()
    handle, said = lake.stage(txn), []
    with monkeypatch.context() as patch:
        at_call(number, os, step, lambda: said.append(lake.sink.fence(handle, 1)), patch)
        with raises(Fenced, "sink-given-up") as fenced:
            lake.commit(handle)
    assert said == [None]
    assert "--give-up lake" in fenced.value.todo
    assert (lake.numbers(), lake.listed()) == ([], [])
    assert lake.kept(txn) == [10, 11, 12]
    assert lake.sink.fence(handle, 1) is None
    with pytest.raises(Fenced):
        lake.commit(handle)
    assert lake.sink.evidence(handle)[0].endswith("it was given up")


@pytest.mark.parametrize("number", range(FILES))
def test_a_link_that_was_under_way_when_it_was_given_up_is_taken_back(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The kernel had found the staged file already, and makes its final name when all is renamed and looked at."""
    txn = transaction()
    handle, link, calls = lake.stage(txn), os.link, iter(range(10**9))

    def slow(old: str, new: str) -> None:
        if next(calls) != number:
            return link(old, new)
        file = os.open(old, os.O_RDONLY)
        assert lake.sink.fence(handle, 1) is None
        return link(f"/proc/self/fd/{file}", new, follow_symlinks=True)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", slow)
        with pytest.raises(Fenced):
            lake.commit(handle)
    assert (lake.numbers(), lake.listed(), lake.kept(txn)) == ([], [], [10, 11, 12])


@pytest.mark.parametrize(("of", "name"), [(LocalFiles, "rename_folder"), (moves, "_move_back")])
def test_giving_up_breaks_off_and_the_next_commit_ends_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, of: Any, name: str
) -> None:
    txn = transaction()
    handle = lake.stage(txn)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", _breaks_off(os.link, after=2))
        with pytest.raises(OutcomeUnknown):
            lake.commit(handle)
    assert len(lake.numbers()) == 2
    with monkeypatch.context() as patch:
        patch.setattr(of, name, _breaks_off(getattr(of, name), after=0))
        with pytest.raises(OutcomeUnknown):
            lake.sink.fence(handle, 1)
    with pytest.raises(Fenced):
        lake.commit(handle)
    assert (lake.numbers(), lake.listed(), lake.kept(txn)) == ([], [], [10, 11, 12])


@pytest.mark.parametrize("moved", range(FILES + 1))
def test_given_up_after_a_committer_died(lake: Lake, monkeypatch: pytest.MonkeyPatch, moved: int) -> None:
    txn = transaction()
    handle = lake.stage(txn)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", _breaks_off(os.link, after=moved))
        with pytest.raises(OutcomeUnknown):
            lake.commit(handle)
    assert len(lake.numbers()) == moved
    assert lake.sink.fence(handle, 1) is None
    assert (lake.numbers(), lake.listed(), lake.kept(txn)) == ([], [], [10, 11, 12])


def test_given_up_after_a_committer_died_between_the_two_steps_of_a_move(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the file has its staged name and its final one."""
    txn = transaction()
    handle = lake.stage(txn)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "remove", _breaks_off(LocalFiles.remove, after=0))
        with pytest.raises(OutcomeUnknown):
            lake.commit(handle)
    assert len(lake.numbers()) == FILES
    assert lake.sink.fence(handle, 1) is None
    assert (lake.numbers(), lake.kept(txn)) == ([], [10, 11, 12])


def _breaks_off(inner: Any, after: int) -> Any:
    calls = iter(range(10**9))

    def broken(*arguments: Any, **more: Any) -> Any:
        if next(calls) >= after:
            raise OSError(errno.EIO, "storage does not answer")
        return inner(*arguments, **more)

    return broken


def test_what_was_published_cannot_be_given_up(lake: Lake) -> None:
    handle = lake.stage(transaction())
    lake.commit(handle)
    for _ in range(2):
        assert lake.sink.fence(handle, 1) == Outcome(already=True, detail={"rows": FILES})
    assert lake.numbers() == lake.listed() == [10, 11, 12]


def test_published_while_a_person_gives_up(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lake.stage(transaction())
    with monkeypatch.context() as patch:
        at_call(0, os, "link", lambda: lake.commit(handle), patch)  # in front of the manifest that says "given up"
        assert lake.sink.fence(handle, 1) == Outcome(already=True, detail={"rows": FILES})
    assert lake.numbers() == lake.listed() == [10, 11, 12]


def test_what_is_given_up_takes_nobodys_place(lake: Lake) -> None:
    old = lake.stage(transaction(1))
    lake.commit(old)
    new = lake.stage(transaction(2), replaces=old)
    assert lake.sink.fence(new, 2) is None
    assert lake.numbers() == lake.listed() == [10, 11, 12]
    lake.sink.check_replace(old)
    with raises(InvalidPipeline, "replaced-files-missing"):
        lake.sink.check_replace(new)


def test_what_is_gone_can_be_given_up(lake: Lake) -> None:
    handle = lake.stage(transaction())
    lake.sink.discard(transaction(), None)
    with raises(CannotPublish, "staged-files-missing"):
        lake.commit(handle)
    assert lake.sink.fence(handle, 1) is None


def test_a_rewind_can_be_given_up_and_leaves_nothing(lake: Lake) -> None:
    old = lake.stage(transaction(1))
    lake.commit(old)
    lake.sink.release(transaction(1))
    back = lake.sink.retraction(transaction(2), [old], None)
    assert lake.sink.fence(back, 2) is None
    with pytest.raises(Fenced):
        lake.commit(back, 2)
    assert lake.numbers() == lake.listed() == [10, 11, 12]
    assert not Path(staging_of(str(lake.folder))).exists()


def test_somebody_elses_file_of_our_name_stays_when_we_give_up(lake: Lake) -> None:
    handle = lake.stage(transaction())
    theirs = lake.folder / handle["files"][1]["final"]
    theirs.parent.mkdir(parents=True)
    theirs.write_text('{"n": 99}\n')
    with raises(CannotPublish, "name-taken"):
        lake.commit(handle)
    assert lake.sink.fence(handle, 1) is None
    assert lake.numbers() == [99]
    assert lake.kept(transaction()) == [10, 11, 12]


# ---- the state table was restored from an older copy


def test_another_transaction_has_published_the_same_epoch(lake: Lake) -> None:
    first, again = lake.stage(transaction(attempt=1)), lake.stage(transaction(attempt=2))
    lake.commit(first)
    with raises(StateBehind, "state-behind") as behind:
        lake.commit(again)
    assert "onceonly state forward FILE.py:NAME --decision" in behind.value.todo
    assert lake.numbers() == lake.listed() == [10, 11, 12]
    assert lake.sink.fence(again, 1) is None
    assert lake.numbers() == lake.listed() == [10, 11, 12]
    assert lake.kept(transaction(attempt=2)) == [10, 11, 12]


def test_the_target_shows_the_last_decision_of_each_state_table(lake: Lake) -> None:
    assert lake.sink.traces("flights") == []
    other = "f" * 32
    for decision, epoch in enumerate((3, 1, 2, *range(4, 14)), 1):
        lake.commit(lake.stage(transaction(epoch), 1), decision)
    lake.commit(lake.stage(transaction(1, state=other), 1), 1)
    lake.sink.fence(lake.stage(transaction(2, state=other), 1), 2)
    lake.commit(lake.stage(transaction(99, pipeline="flights_by_day"), 1), 99)
    found = sorted(lake.sink.traces("flights"), key=lambda trace: trace.decision)
    where = f"folder {lake.folder}"
    assert found == [Trace(other, 2, where), Trace(STATE, 13, where)]


def test_only_a_few_manifests_are_read_for_it(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for epoch in range(1, 13):
        lake.commit(lake.stage(transaction(epoch), 1), epoch)
    (lake.folder / "_onceonly" / "flights-lake-000099-01234567.manifest").write_text("theirs")
    read: list[str] = []
    inner = LocalFiles.read
    monkeypatch.setattr(LocalFiles, "read", lambda self, path: read.append(path) or inner(self, path))
    assert [trace.decision for trace in lake.sink.traces("flights")] == [12]
    assert len(read) == 8


def test_a_manifest_of_before_has_no_decision(lake: Lake) -> None:
    handle = lake.stage(transaction())
    lake.commit(handle)
    manifest = lake.folder / handle["manifest"]
    content = json.loads(manifest.read_text())
    del content["decision"]
    manifest.write_text(json.dumps(content))
    assert lake.commit(handle).already
    assert lake.sink.traces("flights") == [Trace(STATE, 0, f"folder {lake.folder}")]


def _write_with_folders(on: LocalFiles, path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


@pytest.mark.parametrize("as_hdfs", [False, True])
def test_a_committer_that_comes_after_everything_writes_no_manifest(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, as_hdfs: bool
) -> None:
    """It hung when its files were moved; another published, and the interval was processed again since."""
    if as_hdfs:  # where a new file brings its folders along
        monkeypatch.setattr(LocalFiles, "write", _write_with_folders)
    old = lake.stage(transaction(1))

    def meanwhile() -> None:
        lake.commit(old)
        lake.sink.release(transaction(1))
        lake.commit(lake.stage(transaction(2), replaces=old), 2)

    with monkeypatch.context() as patch:
        at_call(0, manifest, "write", meanwhile, patch)
        with pytest.raises(OutcomeUnknown):
            lake.commit(old)
    assert lake.numbers() == lake.listed() == [20, 21, 22]


@pytest.mark.parametrize("content", ["theirs", '["theirs"]', "{}", '{"txn": 1}', transaction(2).name])
def test_what_is_no_manifest_of_ours_stops_the_commit_and_the_fence(lake: Lake, content: str) -> None:
    handle = lake.stage(transaction())
    manifest = lake.folder / handle["manifest"]
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"txn": content, "files": []}) if content.startswith(STATE) else content)
    for act in (lake.commit, lambda handle: lake.sink.fence(handle, 1)):
        with raises(CannotPublish, "name-taken") as refused:
            act(handle)
        assert str(manifest) in refused.value.why
    assert "is not a manifest of Onceonly" in lake.sink.evidence(handle)[0]
    assert lake.sink.traces("flights") == []
    assert lake.numbers() == []
    manifest.unlink()
    assert lake.commit(handle).already is False


# ---- handles that are damaged or forged

UP = "../victim"
STEM = "flights-lake-000001-01234567"


def forged_files(**changes: str) -> Callable[[dict[str, Any]], None]:
    return lambda handle: handle["files"][0].update(changes)


def of_another_sink(handle: dict[str, Any]) -> None:
    """In itself it is whole."""
    other = Transaction.parse(transaction().name.replace("lake", "other"))
    assert other is not None
    folder = f"{staging_of(handle['target'])}/{other.name}/data"
    handle.update(txn=other.name, manifest=manifest_path(other), folder=folder, files=[])


def forged_old(**changes: Any) -> Callable[[dict[str, Any]], None]:
    old = {"manifest": "_onceonly/flights-lake-000000-01234567.manifest", "files": []}
    return lambda handle: handle.update(replaces={**old, **changes})


FORGED: list[Callable[[dict[str, Any]], Any]] = [
    lambda handle: handle.update(txn="../victim"),
    lambda handle: handle.update(txn=transaction(pipeline="other").name),
    lambda handle: handle.update(txn=transaction().name.replace("lake", "other")),
    of_another_sink,
    lambda handle: handle.update(manifest=UP),
    lambda handle: handle.update(manifest="_onceonly/one.manifest"),
    lambda handle: handle.update(folder=handle["folder"].replace("/data", "/../../victim")),
    lambda handle: handle.update(folder="/victim"),
    lambda handle: handle.update(files=[{}]),
    lambda handle: handle.update(files=None),
    lambda handle: handle.pop("rows"),
    forged_files(final=UP),
    forged_files(final=f"../{STEM}-00000.jsonl"),
    forged_files(final=f"/{STEM}-00000.jsonl"),
    forged_files(final="theirs.jsonl"),
    forged_files(final="flights-lake-000002-01234567-00000.jsonl"),
    forged_files(final=f"_hidden/{STEM}-00000.jsonl"),
    forged_files(staged=UP),
    forged_files(staged="/victim"),
    forged_old(manifest=UP),
    forged_old(manifest="_onceonly/other-lake-000000-01234567.manifest"),
    forged_old(manifest="flights-lake-000000-01234567-00000.jsonl"),
    forged_old(files=[{"final": "../../victim/keep"}]),
    forged_old(files=[{"final": "theirs.jsonl"}]),
    forged_old(files=[{"final": "other-lake-000000-01234567-00000.jsonl"}]),
]


@pytest.mark.parametrize("forge", FORGED)
def test_a_forged_handle_touches_nothing(lake: Lake, tmp_path: Path, forge: Callable[[dict[str, Any]], Any]) -> None:
    handle = dict(lake.stage(transaction()))
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "keep").write_text("kept")
    forge(handle)
    before = sorted(tmp_path.rglob("*"))
    fence = lambda forged: lake.sink.fence(forged, 1)  # noqa: E731
    for act in (lake.commit, fence, lake.sink.evidence, lake.sink.check_replace, lake.sink.read_staged):
        with raises((CannotPublish, InvalidPipeline), "handle-damaged"):
            act(handle)
    assert sorted(tmp_path.rglob("*")) == before


def test_another_target_is_refused_and_the_same_by_another_name_is_not(lake: Lake, tmp_path: Path) -> None:
    handle = lake.stage(transaction())
    (tmp_path / "elsewhere").mkdir()
    elsewhere = FileWriter(lake.sink.config, str(tmp_path / "elsewhere" / "lake"))
    for _ in range(2):
        with raises(CannotPublish, "target-changed") as refused:
            elsewhere.commit(handle, 1, FakeReceipts(tmp_path / "receipts"))
        assert "ONCEONLY_HOME" in refused.value.todo
        (tmp_path / "elsewhere" / "lake").mkdir(exist_ok=True)
    os.symlink(tmp_path, tmp_path / "mounted")
    mounted = FileWriter(lake.sink.config, f"{tmp_path}//mounted/lake")
    assert mounted.commit(handle, 1, FakeReceipts(tmp_path / "receipts")).already is False
    assert lake.numbers() == lake.listed() == [10, 11, 12]
    assert mounted.commit(handle, 1, FakeReceipts(tmp_path / "receipts")).already


# ---- what is refused before any row

NO_ROWS = SimpleNamespace(columns=["n"], schema=SimpleNamespace(fields=[]))


def test_a_target_that_no_link_reaches_from_where_its_rows_are_staged(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a bind mount is: of one device number, and os.path.ismount sees none."""
    lake.folder.mkdir()
    link = os.link

    def across(old: str, new: str) -> None:
        if new.startswith(f"{lake.folder}/"):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(old, new)

    monkeypatch.setattr(os, "link", across)
    with raises(InvalidPipeline, "target-on-another-device") as refused:
        lake.sink.stage(transaction(), NO_ROWS)
    assert "on another file system or mount" in refused.value.why
    assert "below the mount point" in refused.value.todo
    lake.sink.discard(transaction(), None)
    assert [path.name for path in lake.folder.parent.rglob("*")] == ["lake"]


MOUNTED = """
import os, subprocess, sys
from onceonly.errors import InvalidPipeline
from onceonly import FileSink
from onceonly.storage.own_paths import OwnPath
from onceonly.sinks.files.sink import FileWriter
from onceonly.storage.interface import UnsuitableTarget
from onceonly.storage.local import LocalFiles

above, name = sys.argv[1:]
os.makedirs(f"{above}/disk")
os.makedirs(f"{above}/lake")
subprocess.run(["mount", "--bind", f"{above}/disk", f"{above}/lake"], check=True)
print(os.stat(f"{above}/lake").st_dev == os.stat(above).st_dev, os.path.ismount(f"{above}/lake"))
try:
    FileWriter(FileSink("lake", "lake"), f"{above}/lake").check()
except InvalidPipeline as refused:
    print(refused.why)
try:
    LocalFiles().probe(OwnPath(f"{above}/.lake.staged", name), f"{above}/lake")
except UnsuitableTarget as unfit:
    print(unfit.why)
"""


def test_a_real_bind_mount_is_refused(tmp_path: Path) -> None:
    """In a mount namespace of its own, which ends with the process."""
    own = ["unshare", "--mount"]
    if os.getuid() or not shutil.which("unshare") or subprocess.run([*own, "true"], capture_output=True).returncode:
        pytest.skip("only root may mount, where the kernel lets it")
    command = [*own, sys.executable, "-c", MOUNTED, str(tmp_path), transaction().name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    looks, checked, tried = done.stdout.splitlines()
    assert looks == "True False"  # nothing that could be asked of the two folders tells them apart
    assert checked.startswith(f"{tmp_path}/lake is a mount point")
    assert "Invalid cross-device link" in tried


def test_the_folder_for_what_is_staged_may_go_while_another_is_made_in_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An abort removes it when nothing is in it. Refused as unfit, the other stage would not be tried again."""
    staging, mkdir = staging_of(str(lake.folder)), os.mkdir

    def made_and_removed(path: str, *mode: int) -> None:
        mkdir(path, *mode)
        if path == staging:
            monkeypatch.setattr(os, "mkdir", mkdir)
            lake.sink.discard(transaction(9), None)

    monkeypatch.setattr(os, "mkdir", made_and_removed)
    LocalFiles().probe(OwnPath(staging, transaction().name), str(lake.folder))
    assert os.listdir(staging) == [transaction().name]


def test_what_is_tried_out_leaves_nothing_in_the_target(lake: Lake) -> None:
    lake.folder.mkdir()
    staging = staging_of(str(lake.folder))
    LocalFiles().probe(OwnPath(staging, transaction().name), str(lake.folder))
    assert list(lake.folder.iterdir()) == list(Path(staging, transaction().name).iterdir()) == []
    left = lake.folder / f".{transaction().name}"
    left.touch()  # killed amid it
    lake.sink.discard(transaction(), None)
    assert not left.exists()


def test_a_mount_point_is_refused_without_writing(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    monkeypatch.setattr("onceonly.storage.local.MOUNTS", table)
    lake.sink.check()
    place = str(lake.folder).replace("lake", r"other\040lake")
    line = "36 35 98:0 /x {} rw,noatime - ext3 /dev/root rw\n"
    table.write_text(line.format("/") + line.format(place))
    lake.sink.check()
    other = FileWriter(lake.sink.config, str(lake.folder.parent / "other lake"))
    with pytest.raises(InvalidPipeline) as refused:
        other.check()
    assert "is a mount point" in refused.value.why


@pytest.mark.parametrize("name", ["_day", ".day"])
def test_a_partition_that_no_reader_would_find_is_refused(lake: Lake, name: str) -> None:
    sink = FileWriter(FileSink("lake", "lake", partition_by=["place", name]), str(lake.folder))
    rows = SimpleNamespace(columns=["n", "place", name], schema=SimpleNamespace(fields=[]))
    for act in (sink.check, lambda: sink.stage(transaction(), rows)):
        with pytest.raises(InvalidPipeline) as refused:
            act()
        assert f"['{name}']" in refused.value.why
        assert "Rename the column" in refused.value.todo
    assert list(lake.folder.parent.iterdir()) == []
