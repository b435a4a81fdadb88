"""The jars beside PySpark: what is there is seen, and what is fetched takes the place of nothing else."""

from __future__ import annotations

import json
import threading
import time
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner
from codes import raises
from patience import PATIENCE
from unit.spark.test_prepared_classes import waits_for_lock

from onceonly import settings
from onceonly.cli import main
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.settings import Settings
from onceonly.spark import jars, jvm, jvm_jar

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
    assert names(tmp_path / "spark") == {*OURS, jvm_jar.JAR_NAME}
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
    assert names(tmp_path / "spark") == {
        *OURS,
        jvm_jar.JAR_NAME,
        "hadoop-aws-3.5.0.jar",
        "kafka-clients-extra-1.jar",
    }


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


def test_jars_belong_to_user_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever folder one stands in; a project's own folder and ONCEONLY_JARS come first."""
    monkeypatch.undo()
    monkeypatch.setattr(settings, "find_checkout", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folders = set()
    for project in ("one", "two"):
        (tmp_path / project).mkdir()
        monkeypatch.chdir(tmp_path / project)
        folders.add(Settings.from_env({}).jars)
    assert folders == {tmp_path / "cache" / "onceonly" / "jars" / f"{version('onceonly')}-spark-{installed()}"}
    (tmp_path / "two" / ".jars").mkdir()
    assert Settings.from_env({}).jars == tmp_path / "two" / ".jars"
    assert Settings.from_env({"ONCEONLY_JARS": "/somewhere"}).jars == Path("/somewhere")


def installed() -> str:
    return ".".join(version("pyspark").split(".")[:2])


def test_checkout_s_jars_serve_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "checkout"
    monkeypatch.setattr(settings, "find_checkout", lambda: checkout)
    cached = Settings.from_env({"ONCEONLY_PROJECT": str(tmp_path)}).jars
    (checkout / ".jars").mkdir(parents=True)
    assert cached != Settings.from_env({"ONCEONLY_PROJECT": str(tmp_path)}).jars == checkout / ".jars"


def test_several_processes_fetch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ivy would damage its cache: one at a time runs it, and whoever has waited finds everything there."""
    runs: list[list[str]] = []

    def retrieve(base: Path, folders: list[str], into: Path, settings: Path) -> None:
        runs.append(folders)
        while len(runs) == 1 and not waits_for_lock(base / "cache" / jars.LOCK):  # the second waits, or is here, too
            assert first.is_alive()
            time.sleep(0.01)
        for folder in folders:
            put(into / jars._conf(folder), *(jar.file for jar in jars.list_jars(folder)))

    monkeypatch.setattr(jars, "_retrieve", retrieve)
    fetched: list[list[str]] = []
    first, second = (threading.Thread(target=lambda: fetched.append(jars.fetch(tmp_path, ["spark"]))) for _ in range(2))
    first.start()
    while not runs:
        assert first.is_alive()
        time.sleep(0.01)
    second.start()
    for thread in (first, second):
        thread.join(PATIENCE)
    assert (runs, sorted(fetched)) == ([["spark"]], [[], ["spark"]])
    assert jars.list_missing(tmp_path, "spark") == []


def test_command_shows_folder_and_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEONLY_JARS", str(tmp_path))
    put(tmp_path / "spark", *OURS[1:])
    put(tmp_path / "broker", *(jar.file for jar in jars.list_jars("broker")))
    shown = CliRunner().invoke(main, ["jars"])
    assert shown.exit_code == 0 and f"{tmp_path} (ONCEONLY_JARS names it)" in shown.stdout
    lines = {line.split()[0]: line for line in shown.stdout.splitlines()[1:]}
    assert f"1 of {len(OURS)} jars are missing: onceonly jars fetch spark" in lines["spark"]
    assert "complete" in lines["broker"]
    assert "optional, for Spark on tables and folders in s3://; to fetch it: onceonly jars fetch s3" in lines["s3"]
    for name in ("azure", "google", "hdfs"):
        assert "optional, for " in lines[name] and lines[name].endswith(f"onceonly jars fetch {name}")
    assert "onceonly jars prepare" in lines["Spark's"]
    told = json.loads(CliRunner().invoke(main, ["jars", "--json"]).stdout)
    assert (told["folder"], told["prepared"]) == (str(tmp_path), None)
    sets = {jar_set["name"]: jar_set for jar_set in told["sets"]}
    assert sets["spark"]["missing"] == OURS[:1] and sets["spark"]["optional_for"] is None
    assert sets["s3"]["optional_for"] == "Spark on tables and folders in s3://"


def test_fetch_waits_for_no_prepared_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retrieved: list[list[str]]
) -> None:
    """It says what they would bring, and the command; `prepare` needs the jars."""
    monkeypatch.setenv("ONCEONLY_JARS", str(tmp_path))
    monkeypatch.setattr(jvm, "_train", lambda *_: pytest.fail("nobody asked for it"))
    refused = CliRunner().invoke(main, ["jars", "prepare", "--json"])
    assert (refused.exit_code, json.loads(refused.stdout)["code"]) == (2, "jar-missing")
    fetched = CliRunner().invoke(main, ["jars", "fetch"])
    assert fetched.exit_code == 0 and fetched.stdout.rstrip().endswith("onceonly jars prepare")
    monkeypatch.setattr(jvm, "_train", lambda jars, draft: draft.write_bytes(b"classes"))
    assert json.loads(CliRunner().invoke(main, ["jars", "prepare", "--json"]).stdout)["prepared"]
    assert "onceonly jars prepare" not in CliRunner().invoke(main, ["jars", "fetch"]).stdout
