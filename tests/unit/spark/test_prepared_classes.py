"""The archive of prepared classes: named for what it fits, made once, and never in the way."""

from __future__ import annotations

import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from patience import PATIENCE

from onceonly.errors import NotCommitted
from onceonly.settings import Settings
from onceonly.spark import jvm

pytestmark = pytest.mark.slow


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "one.jar").write_bytes(b"1")
    return tmp_path


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A training that takes no Spark; where it has put the archives."""
    drafts: list[Path] = []

    def train(jars: Path, draft: Path) -> None:
        drafts.append(draft)
        draft.write_bytes(b"classes")

    monkeypatch.setattr(jvm, "_train", train)
    return drafts


def settings(jars: Path) -> Settings:
    return replace(Settings.from_env({"ONCEONLY_PROJECT": str(jars)}), jars_folder=jars)


def test_without_an_archive_everything_is_as_spark_has_it(jars: Path) -> None:
    assert jvm.archive_options(jars) == []
    assert jvm.environment(jars, env={})["SPARK_SUBMIT_OPTS"] == " ".join(jvm.AVRO_LIMITS)
    assert jvm.class_path(settings(jars)) == {}


def test_an_archive_is_used_with_the_jars_that_it_was_made_for(jars: Path, trained: list[Path]) -> None:
    assert jvm.make_archive(jars)
    there = jvm.find_archive(jars)
    assert there and there.read_bytes() == b"classes"
    assert f"-XX:SharedArchiveFile={there}" in jvm.archive_options(jars)
    assert jvm.class_path(settings(jars)) == {jvm.CLASS_PATH: str(jars / "spark" / "one.jar")}


@pytest.mark.parametrize("change", ["another size", "another time", "one more"])
def test_other_jars_take_another_archive(jars: Path, trained: list[Path], change: str) -> None:
    jvm.make_archive(jars)
    old = jvm.find_archive(jars)
    jar = jars / "spark" / "one.jar"
    if change == "another size":
        jar.write_bytes(b"12")
    elif change == "another time":
        os.utime(jar, ns=(1, 1))
    else:
        jar.with_name("two.jar").write_bytes(b"2")
    assert jvm.find_archive(jars) is None
    assert jvm.make_archive(jars)
    new = jvm.find_archive(jars)
    assert old and new and old != new and not old.exists()


def test_another_java_takes_another_archive(jars: Path, trained: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    jvm.make_archive(jars)
    java = jars / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(jars / "jdk"))
    assert jvm.find_archive(jars) is None
    monkeypatch.setattr(jvm, "java_command", lambda: None)
    assert jvm.find_archive(jars) is None
    assert not jvm.make_archive(jars)


def test_other_environments_keep_their_archives(
    jars: Path, trained: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of one user and version, each with a Spark of its own; what is left of one that is gone makes room."""
    archives = {}
    for name in ("one", "two"):
        home = jars / name
        (home / "jars").mkdir(parents=True)
        (home / "jars" / "spark-core.jar").write_bytes(name.encode())
        monkeypatch.setattr(jvm, "spark_home", lambda home=home: home)
        assert jvm.make_archive(jars)
        archives[name] = jvm.find_archive(jars)
    assert archives["one"] and archives["two"] and archives["one"].exists()
    shutil.rmtree(jars / "one")
    (jars / "spark" / "one.jar").write_bytes(b"another")
    assert jvm.make_archive(jars)
    left = jvm.find_archive(jars)
    assert left and list(jars.glob("*.jsa")) == [left] and len(list(jars.glob(f"*{jvm.HOME_SUFFIX}"))) == 1


def test_it_is_made_once_by_two_at_the_same_time(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, both, trainings = threading.Event(), threading.Event(), []

    def train(jars: Path, draft: Path) -> None:
        trainings.append(draft)
        begun.set()
        assert both.wait(PATIENCE)
        draft.write_bytes(b"classes")

    monkeypatch.setattr(jvm, "_train", train)
    made: list[bool] = []
    first, second = (threading.Thread(target=lambda: made.append(jvm.make_archive(jars))) for _ in range(2))
    first.start()
    assert begun.wait(PATIENCE)
    second.start()
    while not waits_for_lock(jars / jvm.LOCK):
        assert second.is_alive()
        time.sleep(0.01)
    both.set()
    for process in (first, second):
        process.join(PATIENCE)
    assert sorted(made) == [False, True] and len(trainings) == 1


def waits_for_lock(lock: Path) -> bool:
    """Linux shows who waits; elsewhere there is nothing to wait for."""
    locks, inode = Path("/proc/locks"), lock.stat().st_ino
    lines = locks.read_text().splitlines() if locks.exists() else [f"-> :{inode} "]
    return any("->" in line and f":{inode} " in line for line in lines)


@pytest.mark.parametrize("content", [b"class", b"classes and more", b""])
def test_a_copy_that_is_not_whole_is_passed_over(jars: Path, trained: list[Path], content: bytes) -> None:
    """The JVM would not: it dies of an archive that is cut off."""
    jvm.make_archive(jars)
    there = jvm.find_archive(jars)
    assert there
    there.write_bytes(content)
    assert jvm.find_archive(jars) is None and jvm.archive_options(jars) == []
    assert jvm.make_archive(jars)
    assert jvm.find_archive(jars) == there


@pytest.mark.parametrize("dies", [True, False])
def test_what_was_not_finished_is_never_used(jars: Path, monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    def train(jars: Path, draft: Path) -> None:
        draft.write_bytes(b"half of the cl")
        assert jvm.find_archive(jars) is None
        raise KeyboardInterrupt if dies else NotCommitted("no.")

    monkeypatch.setattr(jvm, "_train", train)
    with pytest.raises(KeyboardInterrupt if dies else NotCommitted):
        jvm.make_archive(jars)
    assert jvm.find_archive(jars) is None
    assert {path.name for path in jars.iterdir()} == {"spark", jvm.LOCK}


def test_options_of_the_user_come_last_and_win(jars: Path, trained: list[Path]) -> None:
    jvm.make_archive(jars)
    given = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=4 -Dx=y"}
    options = jvm.environment(jars, records=1, env=given)["SPARK_SUBMIT_OPTS"].split()
    assert options[-2:] == ["-XX:TieredStopAtLevel=4", "-Dx=y"]
    assert "-XX:TieredStopAtLevel=1" in options


@pytest.mark.parametrize(
    ("records", "short"), [(None, False), (jvm.MAX_SHORT_RECORDS, True), (jvm.MAX_SHORT_RECORDS + 1, False)]
)
def test_only_a_job_that_is_known_to_be_short_is_not_optimised(jars: Path, records: int | None, short: bool) -> None:
    assert ("TieredStopAtLevel" in jvm.environment(jars, records, env={})["SPARK_SUBMIT_OPTS"]) == short


def test_a_class_path_of_the_user_stays(jars: Path, trained: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    jvm.make_archive(jars)
    monkeypatch.setenv("SPARK_CONF_DIR", str(jars))
    (jars / "spark-defaults.conf").write_text("# spark.driver.extraClassPath /comment\n")
    assert jvm.class_path(settings(jars))
    (jars / "spark-defaults.conf").write_text("spark.driver.extraClassPath /opt/lib/*\n")
    assert jvm.class_path(settings(jars)) == {}
