"""Options with which a JVM of Spark on this machine starts quickly: prepared classes, and for a short job no optimiser.

Nothing here imports Spark.

All of it goes into variables that Spark's own scripts read, before the options that a user has set: those win.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from onceonly.settings import Settings
from onceonly.spark import archive
from onceonly.spark.installation import spark_home

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


def environment(jars: Path, records: int | None = None, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that a process needs which runs spark-submit.

    Args:
        records: how many the job reads, where that is known.
    """
    compiler_options = SHORT_JOB_OPTIONS if records is not None and records <= MAX_SHORT_RECORDS else ()
    return {
        OF_JVM: _prepend([*AVRO_LIMITS, *compiler_options, *archive.options(jars)], env.get(OF_JVM)),
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
    if not jars or not archive.find(settings.jars) or has_default_with(CLASS_PATH):
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
