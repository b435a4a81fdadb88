"""What a client of object stores promises, on a folder: what servers do is in tests/integration."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from codes import raises

from onceonly.errors import InvalidPipeline
from onceonly.storage import objects
from onceonly.storage.logins import profile_arguments
from onceonly.storage.objects import WRITTEN, Objects


@pytest.fixture
def files(tmp_path: Path) -> Objects:
    return Objects(str(tmp_path / "store"))


def test_an_object_is_created_once(files: Objects) -> None:
    files.create("log/1.json", b"first")
    with pytest.raises(FileExistsError):
        files.create("log/1.json", b"second")
    assert files.read("log/1.json") == b"first"


def test_objects_are_listed_in_order_with_what_is_below_a_folder(files: Objects) -> None:
    for name in ("log/2.json", "log/1.json", "log/a/3.json", "logs/4.json"):
        files.write(name, name.encode())
    assert [(entry.path, entry.size) for entry in files.list_objects("log")] == [
        ("log/1.json", 10),
        ("log/2.json", 10),
        ("log/a/3.json", 12),
    ]
    assert [entry.path for entry in files.list_objects("log", after="log/1.json")] == ["log/2.json", "log/a/3.json"]
    assert sorted(files.list_folders("")) == ["log", "logs"]


def test_by_its_tag_an_object_is_read_once_and_another_content_again(files: Objects, tmp_path: Path) -> None:
    files.write("one", b"old")
    (old,) = files.list_objects()
    assert files.read("one", old.tag) == b"old"
    Objects(files.uri).write("one", b"newer")
    (new,) = files.list_objects()
    assert new.tag != old.tag
    assert [files.read("one", tag) for tag in (new.tag, None, WRITTEN)] == [b"newer"] * 3
    (tmp_path / "store" / "one").unlink()
    assert files.read("one", new.tag) == b"newer"
    with pytest.raises(FileNotFoundError):
        files.read("one")


def test_what_is_kept_in_memory_is_bounded(files: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_cache", objects._ObjectCache())
    monkeypatch.setattr(objects, "MAX_CACHE_BYTES", 100)
    for number in range(9):
        files.write(str(number), b"x" * 30)
    assert objects._cache._size <= 100
    assert len(objects._cache._contents) == 3


def test_objects_are_removed_whether_they_are_there_or_not(files: Objects) -> None:
    files.write("one", b"1")
    files.unlink(["one", "two"])
    files.unlink([])
    assert files.list_objects() == []


def test_one_that_is_missing_does_not_keep_the_others(files: Objects) -> None:
    names = [f"{number:02}" for number in range(50)]
    for name in names[::2]:
        files.write(name, b"a")
    files.unlink(names)
    assert files.list_objects() == []


def test_marks_go_after_what_is_in_the_folders_and_those_that_cannot_go_do_not_hold_it_up(
    files: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "run/_SUCCESS", "run/part", "run/b/mark"):
        files.write(f"txn/{name}", b"" if name in ("run/_SUCCESS", "run/b/mark") else b"rows")
    gone: list[str] = []
    monkeypatch.setattr(Objects, "_unmark", lambda self, path: gone.append(path))
    folder = Objects(f"{files.uri}/txn")
    folder.clear()
    assert [entry.path for entry in folder.list_objects()] == ["run/_SUCCESS", "run/b/mark"]
    assert [path.rpartition("/txn")[2] for path in gone] == ["/run/b/mark", "/run/_SUCCESS", ""]
    monkeypatch.undo()
    folder.clear()
    assert folder.list_objects() == []


def test_on_google_the_client_that_deletes_folders_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    monkeypatch.setenv("GOOGLE_OF_THIS_TEST", "no client is kept for it")
    with raises(InvalidPipeline, "package-missing") as refused:
        objects.open_arrow("gs://lake/state")
    assert "'google.cloud.storage'" in refused.value.what and "onceonly[google]" in refused.value.todo


# ---- credentials: the order is that of delta-rs


PROFILE = {"AWS_PROFILE": "lake"}
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize("env", [KEYS, {**PROFILE, **KEYS}, {**PROFILE, "AWS_ENDPOINT_URL": "http://here"}, {}])
def test_without_a_profile_that_counts_the_client_finds_credentials_itself(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profile_arguments(env) == {}


@pytest.mark.parametrize("env", [{}, {"AWS_ENDPOINT_URL": "http://here", "AWS_FORCE_CREDENTIAL_LOAD": "true"}])
def test_a_profile_needs_what_reads_profiles(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "obstore.auth.boto3", raising=False)
    with raises(InvalidPipeline, "package-missing") as refused:
        profile_arguments({**PROFILE, **env})
    assert len(str(refused.value).splitlines()) == 3


def test_the_profile_named_default_counts_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text("[default]\n")
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "obstore.auth.boto3", raising=False)
    with raises(InvalidPipeline, "package-missing"):
        profile_arguments({"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")})
