"""The JVM of Spark on this machine: its Java, the options with which it starts quickly, and classes prepared for it.

Nothing here imports PySpark.

The options go into variables that Spark's own scripts read, before the options that a user has set: those win.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.settings import Settings
from onceonly.storage.durability import sync
from onceonly.waits import wait_for

OLDEST_JAVA = 17  # that works
VARIABLES = OF_JVM, OF_LAUNCHER = "SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"
CLASS_PATH = "spark.driver.extraClassPath"
MAX_SHORT_RECORDS = 10_000  # of a short job
# The optimising compiler takes more of two processors than a short job itself. No collector is chosen: if a user's
# options choose another one, the JVM does not start.
SHORT_JOB_OPTIONS = ("-XX:TieredStopAtLevel=1",)
# Avro's decoder makes room for as much as a record says that it holds, before it looks: a broken one of twenty bytes
# would end the JVM. With these it is an error of that record.
AVRO_LIMITS = (
    "-Dorg.apache.avro.limits.bytes.maxLength=134217728",
    "-Dorg.apache.avro.limits.string.maxLength=134217728",
    "-Dorg.apache.avro.limits.collectionItems.maxLength=16777216",
)
OF_EXECUTORS = "spark.executor.defaultJavaOptions"  # which come before the options that a user has set
ARCHIVE_PATTERN = "spark-*.jsa"
LOCK = "preparing.lock"
HOME_SUFFIX = ".home"  # of the file beside an archive that names its Spark
QUIET = "-Xlog:cds*=off"  # else the JVM would print why it does not take one
MAX_OUTPUT = 2000  # characters that are shown of a failed training's output, from its end


# ---- what is installed


def spark_home() -> Path:
    """Return the folder of Spark in the installed PySpark: its commands and jars.

    Raises:
        InvalidPipeline: PySpark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InvalidPipeline(
            "Spark cannot be used in this environment.",
            "Not installed: pyspark.",
            "Install it: pip install 'onceonly[spark]'. Nothing was started.",
            code="pyspark-missing",
        )
    return Path(spec.origin).parent


def java_command() -> str | None:
    """Return the java of JAVA_HOME, else the one on the path; None: there is none."""
    java_home = os.environ.get("JAVA_HOME")
    return shutil.which(f"{java_home}/bin/java" if java_home else "java")


def java_version(command: str) -> int:
    """Return the major version of that java; 0 where it does not tell one."""
    output = subprocess.run([command, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    match = re.search(r'version "(\d+)', output)
    return int(match[1]) if match else 0


# ---- options


def environment(jars: Path, records: int | None = None, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that a process needs which runs spark-submit.

    Args:
        records: how many the job reads, where that is known.
    """
    compiler_options = SHORT_JOB_OPTIONS if records is not None and records <= MAX_SHORT_RECORDS else ()
    return {
        OF_JVM: _prepend([*AVRO_LIMITS, *compiler_options, *archive_options(jars)], env.get(OF_JVM)),
        OF_LAUNCHER: _prepend(SHORT_JOB_OPTIONS, env.get(OF_LAUNCHER)),  # it only composes a command line
    }


def executor_options(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return options of the executors' JVMs; nothing where spark-defaults.conf has such options."""
    if OF_EXECUTORS in default_keys(env):
        return {}
    return {OF_EXECUTORS: " ".join(AVRO_LIMITS)}


def class_path(settings: Settings) -> dict[str, str]:
    """Return a setting that puts the jars on the driver's own class path: prepared classes are found there only.

    Nothing where there are no prepared classes, or where spark-defaults.conf has a class path, which this one would
    replace. `spark.jars` stays, for executors elsewhere.
    """
    jars = list_jars(settings.jars)
    if not jars or not find_archive(settings.jars) or has_default_with(CLASS_PATH):
        return {}
    return {CLASS_PATH: os.pathsep.join(jars)}


def list_jars(base: Path) -> list[str]:
    """Return the jars in the one order of a class path: another order would take other prepared classes."""
    return sorted(map(str, (base / "spark").glob("*.jar")))


def defaults(env: Mapping[str, str] = os.environ) -> list[str]:
    """Read the lines of spark-defaults.conf that set something."""
    folder = Path(env.get("SPARK_CONF_DIR") or Path(env.get("SPARK_HOME") or spark_home(), "conf"))
    file = folder / "spark-defaults.conf"
    if not file.is_file():
        return []
    lines = file.read_text(errors="replace").splitlines()
    return [line for line in lines if not line.startswith("#")]


def default_keys(env: Mapping[str, str] = os.environ) -> set[str]:
    """Return the keys that spark-defaults.conf sets: the first word of each line."""
    keys = set()
    for line in defaults(env):
        words = line.split()
        if words:
            keys.add(words[0])
    return keys


def has_default_with(text: str, env: Mapping[str, str] = os.environ) -> bool:
    """Return whether a line of spark-defaults.conf that sets something has this text in it."""
    return any(text in line for line in defaults(env))


def _prepend(options: Sequence[str], user_options: str | None) -> str:
    """Put options before those that a user has set, which win."""
    if user_options:
        options = [*options, user_options]
    return " ".join(options)


# ---- prepared classes: an archive that the JVM maps into its memory, in place of loading 20,000 classes
#
# The archive fits one Java and one list of jars, which its name tells. The JVM compares them once more, and starts
# without the archive if they differ. Source: JEP 350, "Dynamic CDS Archives".


def archive_options(jars: Path) -> list[str]:
    """Return the JVM's options; none without an archive."""
    archive = find_archive(jars)
    if archive is None:
        return []
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", QUIET]


def find_archive(jars: Path) -> Path | None:
    """Find the archive for this machine's Java, this Spark and these jars, where there is one."""
    key = archive_key(jars)
    if key is None:
        return None
    for file in jars.absolute().glob(f"spark-{key}-*.jsa"):
        if _is_whole(file):
            return file
    return None


def make_archive(jars: Path) -> bool:
    """Make the archive of `<jars>/spark`, which takes a minute; False if it is there, or the jars are not.

    Of two processes, the second waits for the first.

    Raises:
        NotCommitted: Spark could not be started for it. Everything works without it.
    """
    with hold_lock(jars / LOCK):
        key = archive_key(jars)
        if key is None or find_archive(jars) or not list((jars / "spark").glob("*.jar")):
            return False
        with TemporaryDirectory(prefix="preparing-", dir=jars) as folder:
            draft = Path(folder) / "draft.jsa"
            _train(jars, draft)
            sync(draft)
            _home_file(jars, key).write_text(str(spark_home()), "utf-8")  # first: an archive without it is deleted
            archive = draft.replace(jars.absolute() / f"spark-{key}-{draft.stat().st_size}.jsa")
        _delete_others(archive)
        return True


def _is_whole(file: Path) -> bool:
    """Return whether the file is as large as its name says: of one that is cut off, the JVM dies."""
    with suppress(OSError, ValueError):
        return file.stat().st_size == int(file.stem.rpartition("-")[2])
    return False


def archive_key(jars: Path) -> str | None:
    """Return a digest of whatever the JVM compares: other jars, or another Java, have another one.

    None without a Java, and for a folder with a blank in its name: Spark's scripts split options there.
    """
    command = java_command()
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
    env = {}
    for name, value in os.environ.items():
        if not name.startswith(("SPARK_", "PYSPARK_")):
            env[name] = value
    env |= {"ONCEONLY_JARS": str(jars), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-m", "onceonly.spark.training", str(draft)]
    with wait_for("a Spark that loads its classes"):
        process = subprocess.run(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
    if process.returncode or not draft.is_file():
        raise NotCommitted(
            "Spark's classes could not be prepared.",
            process.stdout[-MAX_OUTPUT:].strip() or "The JVM wrote no archive.",
            "Spark starts without them, a few seconds later. To try again: onceonly jars prepare.",
            code="spark-classes-not-prepared",
        )


def _delete_others(archive: Path) -> None:
    """Delete the other archives of this Spark, and of any that is gone. A JVM that has one of them mapped keeps it.

    Other environments of this user, each with a Spark of its own, keep theirs.
    """
    for other in archive.parent.glob(ARCHIVE_PATTERN):
        home_file = _home_file(archive.parent, other.stem.split("-")[1])
        if other != archive and not _is_of_another_spark(home_file):
            other.unlink(missing_ok=True)
            if home_file != _home_file(archive.parent, archive.stem.split("-")[1]):
                home_file.unlink(missing_ok=True)


def _home_file(jars: Path, key: str) -> Path:
    """Return the path of the file that names the Spark of an archive."""
    return jars / f"spark-{key}{HOME_SUFFIX}"


def _is_of_another_spark(home_file: Path) -> bool:
    try:
        home = home_file.read_text("utf-8")
    except OSError:
        return False
    return home != str(spark_home()) and Path(home).is_dir()


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold a lock, of that file, which one process at a time has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        with wait_for(f"another process, which has locked {path}"):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
