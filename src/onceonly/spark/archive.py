"""Spark's classes, prepared: an archive that the JVM maps into its memory, in place of loading 20,000 classes.

The archive fits one Java and one list of jars, which its name tells. The JVM compares them once more, and starts
without the archive if they differ.
Source: JEP 350, "Dynamic CDS Archives".
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from onceonly.errors import NotCommitted
from onceonly.spark import installation
from onceonly.spark.installation import spark_home
from onceonly.storage.durability import sync

PATTERN = "spark-*.jsa"
LOCK = "preparing.lock"
QUIET = "-Xlog:cds*=off"  # else the JVM would print why it does not take one
MAX_OUTPUT = 2000  # characters that are shown of a failed training's output, from its end


def options(jars: Path) -> list[str]:
    """Return the JVM's options; none without an archive."""
    archive = find(jars)
    if archive is None:
        return []
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", QUIET]


def find(jars: Path) -> Path | None:
    """Find the archive for this machine's Java, this Spark and these jars, where there is one."""
    key = key_of(jars)
    if key is None:
        return None
    for file in jars.absolute().glob(f"spark-{key}-*.jsa"):
        if _is_whole(file):
            return file
    return None


def make(jars: Path) -> bool:
    """Make the archive of `<jars>/spark`, which takes a minute; False if it is there, or the jars are not.

    Of two processes, the second waits for the first.

    Raises:
        NotCommitted: Spark could not be started for it. Everything works without it.
    """
    with _hold_lock(jars):
        key = key_of(jars)
        if key is None or find(jars) or not list((jars / "spark").glob("*.jar")):
            return False
        with TemporaryDirectory(prefix="preparing-", dir=jars) as folder:
            draft = Path(folder) / "draft.jsa"
            _train(jars, draft)
            sync(draft)
            archive = draft.replace(jars.absolute() / f"spark-{key}-{draft.stat().st_size}.jsa")
        _delete_others(archive)
        return True


def _is_whole(file: Path) -> bool:
    """Return whether the file is as large as its name says: of one that is cut off, the JVM dies."""
    with suppress(OSError, ValueError):
        return file.stat().st_size == int(file.stem.rpartition("-")[2])
    return False


def key_of(jars: Path) -> str | None:
    """Return a digest of whatever the JVM compares: other jars, or another Java, have another one.

    None without a Java, and for a folder with a blank in its name: Spark's scripts split options there.
    """
    command = installation.java_command()
    if command is None or " " in str(jars.absolute()):
        return None
    runtime = Path(command).resolve().parents[1]
    parts = [runtime / "release", runtime / "lib" / "modules"]
    parts += sorted((spark_home() / "jars").glob("*.jar")) + sorted((jars / "spark").glob("*.jar"))
    identities = "\n".join(map(_identity, parts))
    return hashlib.sha256(identities.encode()).hexdigest()[:16]


def _identity(file: Path) -> str:
    try:
        status = file.stat()
    except OSError:
        return f"{file} -"
    return f"{file.resolve()} {status.st_size} {int(status.st_mtime)}"  # a container image keeps whole seconds


def _train(jars: Path, draft: Path) -> None:
    """Run a Spark that does a little of everything, and at its end writes down the classes that it has loaded."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    env |= {"ONCEONLY_JARS": str(jars), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-m", "onceonly.spark.training", str(draft)]
    process = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if process.returncode or not draft.is_file():
        raise NotCommitted(
            "Spark's classes could not be prepared.",
            process.stdout[-MAX_OUTPUT:].strip() or "The JVM wrote no archive.",
            "Spark starts without them, in twice the time. To try again: onceonly jars fetch.",
            code="spark-classes-not-prepared",
        )


def _delete_others(archive: Path) -> None:
    """Delete all other archives. A JVM that has one of them mapped keeps it."""
    for other in archive.parent.glob(PATTERN):
        if other != archive:
            other.unlink(missing_ok=True)


@contextmanager
def _hold_lock(jars: Path) -> Iterator[None]:
    """Hold a lock that one process at a time has."""
    jars.mkdir(parents=True, exist_ok=True)
    with (jars / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
