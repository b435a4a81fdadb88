"""The jar by which Spark's JVM writes to Kafka: of these sources, installed whole, known by its version."""

from __future__ import annotations

import runpy
import zipfile
from pathlib import Path

import pytest

from onceonly.spark import jvm_jar

ROOT = Path(__file__).parents[3]


def write_jar(path: Path, version: str) -> None:
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr(jvm_jar.VERSION, version)


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    jar = tmp_path / "package" / jvm_jar.JAR_NAME
    jar.parent.mkdir()
    write_jar(jar, "1234")
    monkeypatch.setattr(jvm_jar, "PACKAGED", jar)
    monkeypatch.setattr(jvm_jar, "packaged_version", jvm_jar.packaged_version.__wrapped__)
    return jar


def test_packaged_jar_is_of_these_sources() -> None:
    hook = runpy.run_path(str(ROOT / "tools" / "build_hook.py"))
    assert jvm_jar.packaged_version() == hook["source_version"](ROOT / "src" / "java")


def test_it_is_installed_once_and_whole(packaged: Path, tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    folder.mkdir()
    assert not jvm_jar.is_installed(folder)
    jvm_jar.install(folder)
    assert jvm_jar.is_installed(folder)
    assert [file.name for file in folder.iterdir()] == [jvm_jar.JAR_NAME]
    assert (folder / jvm_jar.JAR_NAME).read_bytes() == packaged.read_bytes()
    assert (folder / jvm_jar.JAR_NAME).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off"])
def test_a_damaged_jar_is_replaced(packaged: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / jvm_jar.JAR_NAME).write_bytes(content)
    assert not jvm_jar.is_installed(tmp_path)
    jvm_jar.install(tmp_path)
    assert jvm_jar.is_installed(tmp_path)


def test_one_of_another_version_is_replaced(packaged: Path, tmp_path: Path) -> None:
    write_jar(tmp_path / jvm_jar.JAR_NAME, "5678")
    assert not jvm_jar.is_installed(tmp_path)


def test_without_a_jar_in_the_package_nothing_is_to_install(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged.unlink()
    assert jvm_jar.packaged_version() is None
    assert jvm_jar.is_installed(tmp_path)
