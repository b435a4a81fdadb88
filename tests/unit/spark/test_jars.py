"""The jars beside PySpark: what is there is seen, and what is fetched takes the place of nothing else."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from codes import raises

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.settings import Settings
from onceonly.spark import jars, jvm

ROOT = Path(__file__).parents[3]
OURS = [jar.file for jar in jars.list_jars("spark")]


def put(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        with zipfile.ZipFile(folder / name, "w") as jar:
            jar.writestr("META-INF/MANIFEST.MF", "")


@pytest.fixture
def retrieved(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A repository that has everything; what was asked of it."""
    asked: list[list[str]] = []

    def retrieve(base: Path, folders: list[str], into: Path, settings: Path) -> None:
        asked.append(folders)
        for folder in folders:
            put(into / jars._conf(folder), *(jar.file for jar in jars.list_jars(folder)))

    monkeypatch.setattr(jars, "_retrieve", retrieve)
    return asked


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_what_is_complete_is_not_fetched_again(tmp_path: Path, retrieved: list[list[str]]) -> None:
    assert jars.fetch(tmp_path) == ["spark", "broker"]
    assert names(tmp_path / "spark") == set(OURS)
    assert jars.fetch(tmp_path) == []
    assert retrieved == [["spark", "broker"]]
    assert names(tmp_path) == {"spark", "broker", "cache"}


def test_a_jar_that_is_cut_off_is_fetched_again(tmp_path: Path, retrieved: list[list[str]]) -> None:
    jars.fetch(tmp_path, ["spark"])
    (tmp_path / "spark" / OURS[0]).write_bytes(b"PK\x03\x04 and no more")
    assert [jar.file for jar in jars.list_missing(tmp_path, "spark")] == [OURS[0]]
    assert jars.fetch(tmp_path, ["spark"]) == ["spark"]
    assert jars.list_missing(tmp_path, "spark") == []


def test_another_revision_makes_way_and_other_jars_stay(tmp_path: Path, retrieved: list[list[str]]) -> None:
    put(tmp_path / "spark", "kafka-clients-3.9.0.jar", "hadoop-aws-3.5.0.jar", "kafka-clients-extra-1.jar", *OURS)
    jars.fetch(tmp_path, ["spark"])
    assert names(tmp_path / "spark") == {*OURS, "hadoop-aws-3.5.0.jar", "kafka-clients-extra-1.jar"}


def test_what_cannot_be_fetched_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise NotCommitted("no repository.", code="test-unreachable")

    put(tmp_path / "spark", "kafka-clients-3.9.0.jar")
    monkeypatch.setattr(jars, "_retrieve", fail)
    with raises(NotCommitted, "test-unreachable"):
        jars.fetch(tmp_path)
    assert names(tmp_path / "spark") == {"kafka-clients-3.9.0.jar"}
    assert names(tmp_path) == {"spark", "cache"}


def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "java_version", lambda command: 11)
    with raises(InvalidPipeline, "java-missing", match="older than Java 17"):
        jars.fetch(tmp_path, ["spark"])


def test_spark_looks_where_they_are_put(tmp_path: Path) -> None:
    """The project's own folder where there is one, as in a checkout; else below the home."""
    env = {"ONCEONLY_PROJECT": str(tmp_path)}
    assert Settings.from_env(env).jars == tmp_path / ".onceonly" / "jars"
    (tmp_path / ".jars").mkdir()
    assert Settings.from_env(env).jars == tmp_path / ".jars"
    assert Settings.from_env({**env, "ONCEONLY_JARS": "/somewhere"}).jars == Path("/somewhere")
