"""The jar by which Spark's JVM reads topics, writes to them and checks text: compiled from src/java, in the package.

`onceonly jars fetch` puts it beside Spark's other jars. Its version is a digest of its sources, and a session whose
jar has another one is refused: what it does is not known.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from weakref import WeakKeyDictionary

from onceonly.errors import InvalidPipeline
from onceonly.storage.durability import sync

JAR_NAME = "onceonly-jvm.jar"
PACKAGED = Path(__file__).parent / "jars" / JAR_NAME
VERSION = "onceonly/kafka/version"  # in the jar
VERSION_CLASS = "onceonly.kafka.Version"


@cache
def packaged_version() -> str | None:
    """Return the version of the jar in this package; None: it has none, as in a checkout that was not set up."""
    return _read_version(PACKAGED)


def is_installed(folder: Path) -> bool:
    """Return whether the folder of Spark's jars has this package's jar, or the package has none."""
    version = packaged_version()
    return version is None or _read_version(folder / JAR_NAME) == version


def install(folder: Path) -> None:
    """Put the jar into the folder of Spark's jars. A JVM that has an earlier one open keeps it."""
    with NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file, PACKAGED.open("rb") as source:
        shutil.copyfileobj(source, file)
    os.chmod(file.name, 0o644)
    sync(Path(file.name))
    os.replace(file.name, folder / JAR_NAME)


def is_in_session(spark: Any) -> bool:
    """Return whether the session's Spark has the jar.

    Raises:
        InvalidPipeline: it has one of another version.
    """
    expected = packaged_version()
    if expected is None:
        return False
    version = _ask_version(spark)
    if version is None or version == expected:
        return version is not None
    raise InvalidPipeline(
        f"Spark has another version of {JAR_NAME} than this package.",
        f"It has {version}, and the package {expected}.",
        "Put the package's jar beside Spark's others: onceonly jars fetch. Then start Spark again. Nothing was staged.",
        code="jvm-jar-differs",
    )


_versions: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()  # of sessions that were asked


def _ask_version(spark: Any) -> str | None:
    """Return the version of the session's jar; None: its driver or an executor has none."""
    if spark not in _versions:
        try:
            _versions[spark] = spark.sql(f"SELECT reflect('{VERSION_CLASS}', 'get')").head()[0]
        except Exception as error:
            if VERSION_CLASS not in str(error):
                raise
            _versions[spark] = None
    return _versions[spark]


def _read_version(jar: Path) -> str | None:
    try:
        with zipfile.ZipFile(jar) as file:
            return file.read(VERSION).decode("ascii")
    except (OSError, zipfile.BadZipFile, KeyError):
        return None
