"""The jars that Spark, and the broker and HDFS of one machine, need beside PySpark: their list, and fetching them.

`ivy.xml` beside this file names each by its full coordinates, and each series of Spark (4.2, …) has its own. They are
fetched by the Ivy that PySpark brings along, which verifies checksums; `ivysettings.xml` says from where (another
repository: `settings`).
"""

from __future__ import annotations

import re
import subprocess
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.spark import jvm, jvm_jar
from onceonly.spark.jvm import spark_home
from onceonly.waits import wait_for

HERE = Path(__file__).parent
IVY, SETTINGS = HERE / "ivy.xml", HERE / "ivysettings.xml"
SPARK = "spark-"  # and the series: its configuration in ivy.xml, of which the folder `spark` holds one
NEEDED = ("spark", "broker")  # those of a store are for what is on it, and `hdfs` for Onceonly's own tests
CLASSIFIER = "{http://ant.apache.org/ivy/maven}classifier"
PATTERN = "[conf]/[artifact]-[revision](-[classifier]).[ext]"
LOCK = "fetching.lock"
MAX_OUTPUT = 4000  # characters that are shown of Ivy's output, from its end


@dataclass(frozen=True)
class Jar:
    """One jar of ivy.xml."""

    folder: str
    org: str
    name: str
    revision: str
    classifier: str = ""

    @property
    def file(self) -> str:
        return f"{self.name}-{self.revision}{self.classifier and '-' + self.classifier}.jar"

    @property
    def coordinates(self) -> str:
        """Return the coordinates as Spark's --packages takes them."""
        return f"{self.org}:{self.name}:{self.revision}"


@cache
def series() -> tuple[str, ...]:
    """Return the series of Spark that there are jars for, the newest last."""
    numbers = []
    for conf in ElementTree.parse(IVY).iter("conf"):
        name = conf.attrib["name"]
        if name.startswith(SPARK):
            numbers.append(name.removeprefix(SPARK))
    return tuple(numbers)


def installed_series() -> str:
    """Return the series of the installed PySpark; the newest one that there are jars for, where it is none of these."""
    try:
        pyspark_series = ".".join(version("pyspark").split(".")[:2])
    except PackageNotFoundError:
        pyspark_series = ""
    return pyspark_series if pyspark_series in series() else series()[-1]


def list_jars(folder: str) -> list[Jar]:
    """Return the jars that belong into the folder of that name."""
    return _read_jars(_conf(folder), folder)


def _conf(folder: str) -> str:
    """Return the configuration in ivy.xml for a folder."""
    return f"{SPARK}{installed_series()}" if folder == "spark" else folder


def _read_jars(conf: str, folder: str) -> list[Jar]:
    """Read the jars of one configuration in ivy.xml."""
    jars = []
    for dependency in ElementTree.parse(IVY).iter("dependency"):
        attributes = dependency.attrib
        if attributes["conf"].startswith(f"{conf}->"):
            coordinates = attributes["org"], attributes["name"], attributes["rev"]
            jars.append(Jar(folder, *coordinates, _classifier(dependency)))
    return jars


def _classifier(dependency: ElementTree.Element) -> str:
    for artifact in dependency.iter("artifact"):
        return artifact.attrib.get(CLASSIFIER, "")
    return ""


def _read_jar_names(folder: str) -> set[str]:
    """Read the names of a folder's jars, for every series of Spark."""
    confs = [folder]
    if folder == "spark":
        confs = [f"{SPARK}{number}" for number in series()]
    names = set()
    for conf in confs:
        for jar in _read_jars(conf, folder):
            names.add(jar.name)
    return names


def packages() -> str:
    """Return the line for spark-submit's --packages, or spark.jars.packages."""
    return ",".join(jar.coordinates for jar in list_jars("spark"))


def list_missing(base: Path, folder: str) -> list[Jar]:
    """Return the jars of that folder below `base` that are not there, or not a whole jar."""
    return [jar for jar in list_jars(folder) if not zipfile.is_zipfile(base / folder / jar.file)]


def list_outdated(base: Path, folder: str) -> list[Path]:
    """Return files of other revisions of what is listed, and for another Spark: with two of one jar, neither works."""
    current_files = {jar.file for jar in list_jars(folder)}
    names = "|".join(rf"{re.escape(name)}-\d[\w.-]*\.jar" for name in _read_jar_names(folder))
    pattern = re.compile(names)
    outdated_files = []
    for file in (base / folder).glob("*.jar"):
        if file.name not in current_files and pattern.fullmatch(file.name):
            outdated_files.append(file)
    return sorted(outdated_files)


def fetch(base: Path, folders: Sequence[str] = NEEDED, settings: Path = SETTINGS) -> list[str]:
    """Fetch what is missing below `base`, and return the folders that were not complete.

    Other jars in a folder stay, but for other revisions of those that are listed. Downloads are kept in `<base>/cache`.
    Of two processes, the second waits for the first.

    Raises:
        InvalidPipeline: PySpark or Java is missing, or too old.
        NotCommitted: a jar cannot be had, or the folder cannot be written; what was there is still there.
    """
    if all(_is_complete(base, folder) for folder in folders):
        return []
    _check_writable(base)
    with jvm.hold_lock(base / "cache" / LOCK):  # Ivy's cache is not made for several processes
        incomplete = [folder for folder in folders if not _is_complete(base, folder)]
        unfetched = [folder for folder in incomplete if not _is_fetched(base, folder)]
        if unfetched:
            with TemporaryDirectory(prefix="arriving-", dir=base) as download:
                _retrieve(base, unfetched, Path(download), settings)
                for folder in unfetched:
                    _move_jars(Path(download) / _conf(folder), base / folder)
        for folder in incomplete:  # after all have arrived: an error above leaves what was there
            _delete_outdated(base, folder)
        if not jvm_jar.is_installed(base / "spark") and "spark" in incomplete:
            jvm_jar.install(base / "spark")
    return incomplete


def _is_complete(base: Path, folder: str) -> bool:
    return _is_fetched(base, folder) and (folder != "spark" or jvm_jar.is_installed(base / folder))


def _is_fetched(base: Path, folder: str) -> bool:
    return not list_missing(base, folder) and not list_outdated(base, folder)


def ivy_jar() -> Path:
    """Return the Ivy inside the installed PySpark, found without importing it.

    Raises:
        InvalidPipeline: PySpark is not installed.
    """
    return next(spark_home().glob("jars/ivy-*.jar"))


def _move_jars(source: Path, into: Path) -> None:
    into.mkdir(exist_ok=True)
    for jar in source.glob("*.jar"):
        jar.replace(into / jar.name)


def _delete_outdated(base: Path, folder: str) -> None:
    for file in list_outdated(base, folder):
        file.unlink(missing_ok=True)


def _check_writable(base: Path) -> None:
    """Create the folders for jars and downloads. Raises NotCommitted: they cannot be written."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        (base / "cache").mkdir(exist_ok=True)
        (base / "cache" / LOCK).touch()
    except OSError as error:
        raise NotCommitted(
            f"no jar can be written to {base}.",
            f"{error}",
            "Set ONCEONLY_JARS to a folder that this user can write to. Nothing was fetched.",
            code="folder-not-writable",
        ) from error


def _retrieve(base: Path, folders: list[str], into: Path, settings: Path) -> None:
    cache = base / "cache"
    command = [_require_java(), f"-Divy.default.ivy.user.dir={cache}", "-jar", str(ivy_jar()), "-cache", str(cache)]
    command += ["-settings", str(settings), "-ivy", str(IVY)]
    command += ["-confs", *map(_conf, folders), "-retrieve", f"{into}/{PATTERN}"]
    with wait_for(f"jars from the Maven repository of {settings.name}: {', '.join(folders)}"):
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if process.returncode:
        raise NotCommitted(
            f"the jars of {IVY} cannot be fetched.",
            process.stdout[-MAX_OUTPUT:].strip(),
            "Behind a proxy or with a mirror: JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=…, or --settings ivysettings.xml. "
            "It is safe to repeat.",
            code="jars-not-fetched",
        )


def _require_java() -> str:
    """Return the command of this machine's Java. Raises InvalidPipeline: there is none, or it is too old."""
    command = jvm.java_command()
    if command is None or jvm.java_version(command) < jvm.OLDEST_JAVA:
        problem = "Java is missing" if command is None else f"{command} is older than Java {jvm.OLDEST_JAVA}"
        raise InvalidPipeline(
            f"{problem}.",
            f"The jars are fetched by a Java program, and Spark and Kafka need Java {jvm.OLDEST_JAVA} or newer.",
            "Install it, or set JAVA_HOME. Nothing was fetched.",
            code="java-missing",
        )
    return command
