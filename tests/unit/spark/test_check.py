"""What `onceonly check` says of Spark: each finding names what, why and what to do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from unit.spark.test_jars import OURS, put

from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings
from onceonly.spark import check, jvm


def settings(tmp_path: Path, remote: str = "") -> Settings:
    return Settings.from_env({"ONCEONLY_PROJECT": str(tmp_path), "SPARK_REMOTE": remote})


@pytest.fixture
def closed() -> int:
    """A port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def recent_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "java_command", lambda: "/usr/bin/java")
    monkeypatch.setattr(jvm, "java_version", lambda command: 21)


def test_everything_is_there(tmp_path: Path) -> None:
    put(tmp_path / ".jars" / "spark", *OURS)
    said = check.notes(settings(tmp_path), {})
    assert said[1:] == ["Java 21: /usr/bin/java", f"Spark's jars: {tmp_path}/.jars/spark"]


def test_spark_s_own_settings_may_bring_the_jars(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.jars.packages  io.delta:…\n")
    assert "spark-defaults.conf" in check.notes(settings(tmp_path), {"SPARK_CONF_DIR": str(tmp_path)})[-1]


def refused(tmp_path: Path, remote: str = "", **env: str) -> InvalidPipeline:
    with pytest.raises(InvalidPipeline) as caught:
        check.notes(settings(tmp_path, remote), env)
    assert caught.value.what and caught.value.why and caught.value.todo.endswith("Nothing was written.")
    return caught.value


def test_missing_jars_are_named(tmp_path: Path) -> None:
    put(tmp_path / ".jars" / "spark", *OURS[1:])
    found = refused(tmp_path)
    assert OURS[0] in found.what and OURS[1] not in found.what and "onceonly jars fetch" in found.todo


def test_java_is_missing_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "java_version", lambda command: 11)
    assert "is Java 11" in refused(tmp_path).what
    monkeypatch.setattr(jvm, "java_command", lambda: None)
    assert "Java is missing" in refused(tmp_path).what


@pytest.mark.parametrize(("found", "what"), [("3.4.1", "pyspark 3.4.1 is not supported"), (None, "is not installed")])
def test_pyspark_is_missing_or_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str | None, what: str
) -> None:
    def version(name: str) -> str:
        if found is None:
            raise check.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(check, "version", version)
    assert what in refused(tmp_path).what


def test_a_server_that_does_not_answer(tmp_path: Path, closed: int) -> None:
    found = refused(tmp_path, f"sc://127.0.0.1:{closed}/;token=s3cret")
    assert f"sc://127.0.0.1:{closed}." in found.what and "s3cret" not in str(found)
