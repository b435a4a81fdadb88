"""Refuses to build a wheel or an sdist without the jar of src/java: it would send every row through Python."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path("src/java")
JAR = Path("src/onceonly/spark/jars/onceonly-jvm.jar")
VERSION = "onceonly/kafka/version"  # in the jar


class WriterJarHook(BuildHookInterface[Any]):
    """An editable installation comes before the jar: `make setup` compiles it with what that brings."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version != "editable" and jar_version(root / JAR) != source_version(root / SOURCES):
            raise RuntimeError(f"{JAR} is missing, or compiled from other sources than {SOURCES}. Run: make setup")


def source_version(sources: Path) -> str:
    """Return what tells these sources from others."""
    digest = hashlib.sha256()
    for file in sorted(sources.rglob("*.java")):
        digest.update(f"{file.relative_to(sources)}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def jar_version(jar: Path) -> str | None:
    """Return the version of the sources that are compiled in the jar; None: there is no whole jar."""
    try:
        with zipfile.ZipFile(jar) as archive:
            return archive.read(VERSION).decode("ascii")
    except (OSError, KeyError, zipfile.BadZipFile):
        return None
