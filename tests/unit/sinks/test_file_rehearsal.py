"""What a file sink finds out before the decision, and how it recognises its target. On a real disk, without Spark."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from unit.lightfiles import LightFiles

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import Answer, Publication
from onceonly.errors import (
    ActionNeeded,
    CannotPublish,
    Fenced,
    InvalidPipeline,
    NotCommitted,
    OnceonlyError,
    OutcomeUnknown,
    StageAgain,
    StateBehind,
    TargetWentBack,
)
from onceonly.sinks.files.handle import staging_of
from onceonly.storage import local
from onceonly.storage.local import LocalFiles
from onceonly.storage.own_paths import MANIFESTS, OwnPath
from onceonly.testing.fakes import FakeReceipts

STATE = "0123456789abcdef0123456789abcdef"
SPARK, AIRFLOW = 1001, 1002  # users
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")


def transaction(epoch: int = 1, attempt: int = 1, state: str = STATE) -> Transaction:
    return Transaction(state, "flights", "lake", epoch, attempt, f"nonce{epoch}{attempt}")


class Lake:
    """A target, its sink, and what the state table would have recorded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last: Publication | None = None

    @property
    def sink(self) -> LightFiles:
        return LightFiles(self.folder)

    @property
    def staging(self) -> Path:
        return Path(staging_of(str(self.folder)))

    def stage(self, epoch: int = 1, attempt: int = 1, **more: Any) -> Handle:
        return {**self.sink.stage(transaction(epoch, attempt), [{"value": epoch}]), **more}

    def rehearse(self, handle: Handle, decision: int = 2) -> Handle:
        return self.sink.rehearse(handle, decision, self.last)

    def commit(self, handle: Handle, decision: int) -> Outcome:
        return self.sink.commit(handle, decision, FakeReceipts(self.folder.parent / "receipts"), self.last)

    def publish(self, epoch: int, decision: int | None = None, **more: Any) -> Handle:
        handle = self.stage(epoch, **more)
        outcome = self.commit(handle, decision or epoch)
        self.last = Publication(epoch, decision or epoch, json.loads(json.dumps(outcome.proof)))
        self.sink.release(transaction(epoch))
        return handle

    def manifest(self, epoch: int) -> Path:
        return self.folder / MANIFESTS / f"flights-lake-{epoch:06d}-{STATE[:8]}.manifest"

    def names(self) -> list[str]:
        """Everything in the target, hidden or not."""
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "volume" / "lake")


@pytest.fixture
def published(lake: Lake) -> Lake:
    """With one checkpoint that is published, and one that is staged."""
    lake.folder.parent.mkdir()
    lake.publish(1)
    return lake


# ---- the rehearsal


def test_rehearsal_writes_nothing_that_counts(published: Lake) -> None:
    handle, before = published.stage(2), published.names()
    assert published.rehearse(handle) == handle
    assert published.names() == before
    assert [trace.decision for trace in published.sink.traces("flights")] == [1]
    published.commit(handle, 2)
    assert published.sink.values() == [1, 2]


def test_rehearsal_of_the_first_checkpoint_makes_no_target(lake: Lake) -> None:
    lake.folder.parent.mkdir()
    lake.rehearse(lake.stage(1), 1)
    assert not lake.folder.exists()


def staged_file(lake: Lake, handle: Handle) -> Path:
    return Path(handle["folder"], handle["files"][0]["staged"])


def remove_file(lake: Lake, handle: Handle) -> None:
    staged_file(lake, handle).unlink()


def truncate_file(lake: Lake, handle: Handle) -> None:
    staged_file(lake, handle).write_text("")


def change_file(lake: Lake, handle: Handle) -> None:
    file = staged_file(lake, handle)
    file.write_text(file.read_text().replace("2", "3"))


def put_folder(lake: Lake, handle: Handle) -> None:
    staged_file(lake, handle).unlink()
    staged_file(lake, handle).mkdir()


def remove_transaction(lake: Lake, handle: Handle) -> None:
    shutil.rmtree(lake.staging / handle["txn"])


def remove_staging(lake: Lake, handle: Handle) -> None:
    shutil.rmtree(lake.staging)


@pytest.mark.parametrize(
    "change", [remove_file, truncate_file, change_file, put_folder, remove_transaction, remove_staging]
)
def test_changed_staged_files_are_staged_again(published: Lake, change: Callable[[Lake, Handle], None]) -> None:
    handle = published.stage(2)
    change(published, handle)
    with pytest.raises(StageAgain) as refused:
        published.rehearse(handle)
    assert refused.value.code == "staged-files-missing"


@pytest.mark.parametrize("is_rehearsed", [True, False])
@pytest.mark.parametrize("change", [remove_file, truncate_file, change_file, put_folder])
def test_commit_publishes_no_changed_file(
    published: Lake, change: Callable[[Lake, Handle], None], is_rehearsed: bool
) -> None:
    """By the object that has rehearsed it, or by another process."""
    handle, sink = published.stage(2), published.sink
    if is_rehearsed:
        sink.rehearse(handle, 2, published.last)
    change(published, handle)
    with pytest.raises(OutcomeUnknown):
        sink.commit(handle, 2, FakeReceipts(Path("unused")), published.last)
    assert published.sink.values() == [1]


def test_rehearsed_files_are_read_once(published: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    handle, sink = published.stage(2), published.sink
    sink.rehearse(handle, 2, published.last)
    monkeypatch.setattr(LocalFiles, "read_fingerprint", None)
    sink.commit(handle, 2, FakeReceipts(Path("unused")), published.last)
    assert published.sink.values() == [1, 2]


def take_name(lake: Lake, handle: Handle) -> None:
    (lake.folder / handle["files"][0]["final"]).write_text("of another")


def take_name_by_folder(lake: Lake, handle: Handle) -> None:
    (lake.folder / handle["files"][0]["final"]).mkdir()


def take_manifest(lake: Lake, handle: Handle) -> None:
    (lake.folder / handle["manifest"]).write_text("{}")


@pytest.mark.parametrize("change", [take_name, take_name_by_folder, take_manifest])
def test_taken_names_wait_for_a_person(published: Lake, change: Callable[[Lake, Handle], None]) -> None:
    handle = published.stage(2)
    change(published, handle)
    with pytest.raises(ActionNeeded) as refused:
        published.rehearse(handle)
    assert refused.value.code == "name-taken"


def test_missing_volume_is_no_reason_to_abort(lake: Lake) -> None:
    lake.folder.parent.mkdir()
    handle = lake.stage(1)
    shutil.move(lake.folder.parent, lake.folder.parent.with_name("unmounted"))
    lake.folder.parent.mkdir()
    with pytest.raises(ActionNeeded) as refused:
        lake.rehearse(handle, 1)
    assert refused.value.code == "target-missing"
    assert list(lake.folder.parent.iterdir()) == []


def test_a_table_in_place_of_the_target_is_refused(published: Lake) -> None:
    handle = published.stage(2)
    (published.folder / "_delta_log").mkdir()
    with pytest.raises(ActionNeeded) as refused:
        published.rehearse(handle)
    assert refused.value.code == "target-unsuitable"


def test_published_transaction_passes(published: Lake) -> None:
    handle = published.stage(2)
    published.commit(handle, 2)
    shutil.rmtree(published.staging)
    published.manifest(1).unlink()  # not even its last publication has to be there
    assert published.rehearse(handle) == handle


def test_other_transactions_of_the_epoch_are_told(published: Lake) -> None:
    handle, other = published.stage(2), published.stage(2, attempt=2)
    published.commit(other, 2)
    with pytest.raises(StateBehind):
        published.rehearse(handle)
    given_up = published.stage(3)
    published.sink.fence(given_up, 3)
    with pytest.raises(Fenced):
        published.rehearse(given_up)


def test_moved_files_pass(published: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = published.stage(2)
    final = published.folder / handle["files"][0]["final"]
    os.rename(staged_file(published, handle), final)
    assert published.rehearse(handle) == handle


def test_replaced_rows_need_their_manifest(published: Lake) -> None:
    old = published.publish(2)
    published.publish(3)
    handle = published.stage(4, replaces=old)
    assert published.rehearse(handle, 4) == handle
    published.manifest(2).unlink()
    with pytest.raises(ActionNeeded) as refused:
        published.rehearse(handle, 4)
    assert refused.value.code == "replaced-files-missing"


def test_storage_that_fails_is_no_answer(published: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = published.stage(2)
    monkeypatch.setattr(os, "link", _failing(errno.EIO))
    with pytest.raises(NotCommitted) as silent:
        published.rehearse(handle)
    assert not isinstance(silent.value, ActionNeeded | StageAgain)
    assert silent.value.code == "no-answer"


LASTING = {
    errno.EROFS: "target-read-only",
    errno.ENOSPC: "target-full",
    errno.EDQUOT: "target-full",
    errno.EXDEV: "target-on-another-device",
    errno.ENAMETOOLONG: "name-too-long",
    errno.EMLINK: "too-many-links",
}


@pytest.mark.parametrize(("number", "code"), LASTING.items())
def test_lasting_errors_wait_for_a_person(
    published: Lake, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    handle = published.stage(2)
    monkeypatch.setattr(os, "link", _failing(number))
    with pytest.raises(ActionNeeded) as refused:
        published.rehearse(handle)
    assert refused.value.code == code
    with pytest.raises(CannotPublish) as after:
        published.commit(handle, 2)
    assert after.value.code == code


def _failing(number: int) -> Callable[[str, str], None]:
    def link(old: str, new: str) -> None:
        raise OSError(number, os.strerror(number), str(old), None, str(new))

    return link


# ---- the place of the names


def partitioned(lake: Lake, epoch: int) -> Handle:
    """Staged, with its file in a partition folder."""
    handle = lake.stage(epoch)
    [file] = handle["files"]
    data = Path(handle["folder"])
    (data / "day=1").mkdir()
    os.rename(data / file["staged"], data / "day=1" / file["staged"])
    moved = {**file, "staged": f"day=1/{file['staged']}", "final": f"day=1/{file['final']}"}
    return {**handle, "files": [moved]}


def test_partition_folder_on_another_device_is_found(
    published: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where somebody has put a link to another disk in place of a partition."""
    handle = partitioned(published, 2)
    (published.folder / "day=1").mkdir()
    link = os.link

    def of_devices(old: str, new: str) -> None:
        _failing(errno.EXDEV)(old, new) if f"{published.folder}/day=1/" in str(new) else link(old, new)

    monkeypatch.setattr(os, "link", of_devices)
    with pytest.raises(ActionNeeded) as refused:
        published.rehearse(handle)
    assert refused.value.code == "target-on-another-device"


def test_killed_rehearsal_leaves_nothing_after_the_release(published: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = partitioned(published, 2)
    (published.folder / "day=1").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "remove", lambda self, file: None)  # as if it was killed before
        published.rehearse(handle)
    probes = [name for name in published.names() if handle["txn"] in name]
    assert [Path(name).name[0] for name in probes] == ["."] * 2  # readers ignore such names
    assert {str(Path(name).parent) for name in probes} == {"day=1", MANIFESTS}
    published.commit(published.rehearse(handle), 2)
    published.sink.release(transaction(2))
    assert [name for name in published.names() if handle["txn"] in name] == []


def test_killed_rehearsal_leaves_nothing_after_an_abort(published: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    handle, before = partitioned(published, 2), published.names()
    (published.folder / "day=1").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "remove", lambda self, file: None)
        published.rehearse(handle)
    published.sink.discard(transaction(2), None)
    assert published.names() == before
    assert not published.staging.exists()


# ---- files of another user


def as_user(user: int, act: Callable[[], object]) -> OnceonlyError | None:
    """What that user meets."""
    before = os.getgroups()
    os.setgroups([])
    os.setegid(user)
    os.seteuid(user)
    try:
        act()
    except OnceonlyError as error:
        return error
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)
    return None


def give(path: Path, files: int, folders: int, mode: int = 0o644) -> None:
    os.chown(path, folders, folders)
    for root, names, others in os.walk(path):
        for name in names:
            os.chown(f"{root}/{name}", folders, folders)
        for name in others:
            os.chown(f"{root}/{name}", files, files)
            os.chmod(f"{root}/{name}", mode)


@pytest.fixture
def shared() -> Iterator[Lake]:
    """A lake on a volume of Airflow's user, which others may reach: not in pytest's own folder, which is root's."""
    with TemporaryDirectory() as volume:
        os.chmod(volume, 0o755)
        os.chown(volume, AIRFLOW, AIRFLOW)
        yield Lake(Path(volume, "lake"))


@needs_root
@pytest.mark.parametrize(("files", "folders"), [(SPARK, AIRFLOW), (SPARK, SPARK), (AIRFLOW, SPARK)])
def test_files_of_another_user_are_found_before_the_decision(shared: Lake, files: int, folders: int) -> None:
    """Spark's executors wrote the files, or their folders. What may not be linked may be read."""
    handle = shared.stage(1)
    give(shared.staging, files, folders)
    os.chown(shared.staging, AIRFLOW, AIRFLOW)
    os.chown(shared.staging / handle["txn"], AIRFLOW, AIRFLOW)
    refused = as_user(AIRFLOW, lambda: shared.rehearse(handle, 1))
    assert isinstance(refused, ActionNeeded)
    assert refused.code == "files-of-another-user"
    assert "umask" in refused.todo
    assert str(SPARK) in refused.why
    after = as_user(AIRFLOW, lambda: shared.commit(handle, 1))
    assert isinstance(after, CannotPublish)
    assert after.code in ("files-of-another-user", "target-not-writable")
    give(shared.staging, AIRFLOW, AIRFLOW)
    assert as_user(AIRFLOW, lambda: shared.rehearse(handle, 1)) is None


@needs_root
def test_files_of_another_user_are_found_while_staging(shared: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = LocalFiles.make_durable

    def written_by_spark(self: LocalFiles, folder: str) -> None:
        inner(self, folder)
        os.seteuid(0)
        give(Path(folder), SPARK, AIRFLOW)
        os.seteuid(AIRFLOW)

    monkeypatch.setattr(LocalFiles, "make_durable", written_by_spark)
    refused = as_user(AIRFLOW, lambda: shared.stage(1))
    assert isinstance(refused, InvalidPipeline)
    assert refused.code == "files-of-another-user"


@needs_root
@pytest.mark.parametrize("place", ["", MANIFESTS, "day=1"])
def test_folders_of_another_user_are_found(shared: Lake, place: str) -> None:
    shared.publish(1)
    (shared.folder / "day=1").mkdir()
    handle = partitioned(shared, 2) if place else shared.stage(2)
    give(shared.folder.parent, AIRFLOW, AIRFLOW)
    os.chown(shared.folder / place, SPARK, SPARK)
    refused = as_user(AIRFLOW, lambda: shared.rehearse(handle))
    assert isinstance(refused, ActionNeeded)
    assert refused.code == "target-not-writable"


@needs_root
def test_replaced_files_that_cannot_be_removed_are_found(shared: Lake) -> None:
    """The folder has the sticky bit, as /tmp."""
    old = shared.publish(1)
    handle = shared.stage(2, replaces=old)
    give(shared.folder.parent, AIRFLOW, AIRFLOW)
    os.chown(shared.folder, SPARK, SPARK)
    os.chmod(shared.folder, 0o1777)
    assert as_user(AIRFLOW, lambda: shared.rehearse(handle)) is None
    os.chown(shared.folder / old["files"][0]["final"], SPARK, SPARK)
    refused = as_user(AIRFLOW, lambda: shared.rehearse(handle))
    assert isinstance(refused, ActionNeeded)
    assert refused.code == "target-not-writable"


# ---- whether the target has what was published to it


def restore_copy(lake: Lake, copy: Path) -> None:
    shutil.rmtree(lake.folder)
    shutil.copytree(copy, lake.folder)


def test_target_with_its_last_publication_is_the_same(published: Lake) -> None:
    published.publish(2)
    assert published.sink.compare(published.last).answer is Answer.SAME
    assert published.sink.compare(Publication(1, 1, {**published.last.proof, **proof_of(published, 1)})).answer is (
        Answer.SAME
    )


def proof_of(lake: Lake, epoch: int) -> dict[str, str]:
    import hashlib

    path = lake.manifest(epoch)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"manifest": str(path.relative_to(lake.folder)), "sha256": digest}


def test_proof_is_the_digest_of_the_file(published: Lake) -> None:
    proof = published.last.proof
    assert proof == {"target": str(published.folder), **proof_of(published, 1)}


def test_restored_copy_went_back(published: Lake, tmp_path: Path) -> None:
    shutil.copytree(published.folder, tmp_path / "copy")
    published.publish(2)
    published.publish(3)
    handle, last = published.stage(4), published.last
    restore_copy(published, tmp_path / "copy")
    history = published.sink.compare(last)
    assert (history.answer, history.decision) == (Answer.WENT_BACK, 1)
    for act in (published.rehearse, lambda handle: published.commit(handle, 4)):
        with pytest.raises(TargetWentBack) as refused:
            act(handle)
        assert refused.value.code == "target-went-back"
    assert published.sink.values() == [1]


def test_target_that_came_back_is_the_same(published: Lake, tmp_path: Path) -> None:
    published.publish(2)
    shutil.copytree(published.folder, tmp_path / "newest")
    handle = published.stage(3)
    shutil.rmtree(published.folder)
    with pytest.raises(TargetWentBack):
        published.rehearse(handle)
    shutil.copytree(tmp_path / "newest", published.folder)
    published.commit(published.rehearse(handle), 3)
    assert published.sink.values() == [1, 2, 3]


def test_manifest_with_other_content_went_back(published: Lake) -> None:
    content = json.loads(published.manifest(1).read_text())
    published.manifest(1).write_text(json.dumps({**content, "at": "2000-01-01T00:00:00+00:00"}))
    history = published.sink.compare(published.last)
    assert (history.answer, history.decision) == (Answer.WENT_BACK, 0)
    assert "other content" in history.why


def test_empty_mount_point_is_not_published_to(published: Lake) -> None:
    handle = published.stage(2)
    volume = published.folder.parent
    shutil.move(volume, volume.with_name("unmounted"))
    volume.mkdir()
    history = published.sink.compare(published.last)
    assert (history.answer, history.decision) == (Answer.WENT_BACK, 0)
    for act in (published.rehearse, lambda handle: published.commit(handle, 2)):
        with pytest.raises(TargetWentBack):
            act(handle)
    assert list(volume.iterdir()) == []
    volume.rmdir()
    shutil.move(volume.with_name("unmounted"), volume)
    published.commit(published.rehearse(handle), 2)
    assert published.sink.values() == [1, 2]


def test_nothing_is_given_up_in_an_empty_mount_point(published: Lake) -> None:
    """Whoever hangs in a commit could still publish, once the volume is mounted again."""
    handle, volume = published.stage(2), published.folder.parent
    shutil.move(volume, volume.with_name("unmounted"))
    volume.mkdir()
    with pytest.raises(OutcomeUnknown) as unknown:
        published.sink.fence(handle, 2)
    assert unknown.value.code == "target-missing"
    assert list(volume.iterdir()) == []
    published.folder.mkdir()  # by a person, who knows that it is lost
    assert published.sink.fence(handle, 2) is None


def test_volume_that_goes_amid_a_commit_gets_no_new_target(published: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there when it was compared."""
    handle, inner = published.stage(2), LightFiles.compare

    def then_unmounted(self: LightFiles, last: Publication) -> Any:
        history = inner(self, last)
        shutil.move(published.folder, published.folder.with_name("away"))
        return history

    monkeypatch.setattr(LightFiles, "compare", then_unmounted)
    with pytest.raises(OutcomeUnknown):
        published.commit(handle, 2)
    assert not published.folder.exists()


@pytest.mark.parametrize("how", ["replaces", "retracts"])
def test_replaced_manifest_is_no_target_that_went_back(
    published: Lake, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its commit died after it had removed what it replaces, and before that was recorded."""
    old = published.publish(2)
    last = published.last
    if how == "replaces":
        handle = published.stage(3, replaces=old)
    else:
        handle = published.sink.retraction(transaction(3, attempt=0), [old], None)
    published.commit(handle, 3)
    assert not published.manifest(2).exists()
    assert published.sink.compare(last).answer is Answer.SAME
    assert published.commit(handle, 3).already
    published.manifest(3).unlink()
    assert published.sink.compare(last).answer is Answer.WENT_BACK


def test_folder_by_another_path_is_the_same(published: Lake, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(published.folder.parent)
    elsewhere = Lake(tmp_path / "link" / "lake")
    assert elsewhere.sink.compare(published.last).answer is Answer.SAME
    published.manifest(1).unlink()
    assert elsewhere.sink.compare(published.last).answer is Answer.WENT_BACK


def test_another_folder_is_elsewhere(published: Lake, tmp_path: Path) -> None:
    other = Lake(tmp_path / "other")
    other.last = published.last
    assert other.sink.compare(published.last).answer is Answer.ELSEWHERE
    handle = other.stage(2)
    other.commit(other.rehearse(handle), 2)  # its first checkpoint may make its target
    assert other.sink.values() == [2]


def test_target_that_is_silent_tells_nothing(published: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(self: LocalFiles, path: str) -> str:
        raise OSError(errno.ESTALE, "stale file handle")

    monkeypatch.setattr(LocalFiles, "read", silent)
    for ask in (published.sink.compare, published.sink.find_current_publication):
        with pytest.raises(OutcomeUnknown) as unknown:
            ask(published.last)
        assert not isinstance(unknown.value, CannotPublish)


# ---- a person accepts the target as it is


def test_target_is_accepted_as_it_is(published: Lake, tmp_path: Path) -> None:
    shutil.copytree(published.folder, tmp_path / "copy")
    first = published.last
    published.publish(2)
    restore_copy(published, tmp_path / "copy")
    assert published.sink.find_current_publication(published.last) == first
    published.last = published.sink.find_current_publication(published.last)
    published.commit(published.rehearse(published.stage(3)), 3)
    assert published.sink.values() == [1, 3]


def test_empty_folder_is_accepted_as_it_is(published: Lake) -> None:
    last = published.last
    shutil.rmtree(published.folder)
    assert published.sink.find_current_publication(last) is None
    published.folder.mkdir()
    published.last = published.sink.find_current_publication(last)
    assert (published.last.epoch, published.last.decision) == (0, 0)
    handle = published.stage(2)
    published.commit(published.rehearse(handle), 2)
    assert published.sink.values() == [2]
    shutil.rmtree(published.folder)
    with pytest.raises(TargetWentBack):
        published.rehearse(published.stage(3))


# ---- trials by two at once


def test_two_who_try_one_name_disturb_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on, target = LocalFiles(), tmp_path / "lake"
    target.mkdir()
    folder = OwnPath(str(tmp_path / ".lake.staged"), transaction().name)
    on.begin(folder)
    (target / f".{folder.name}").touch()  # of one that was killed
    on.check_names(folder, [], str(target), "text")
    assert list(target.iterdir()) == []
    assert [path.name for path in Path(folder.path).iterdir()] == []
    assert local.TRIES > 1
