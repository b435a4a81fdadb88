"""The jars that Spark, and the broker and HDFS of one machine, need beside PySpark: which, and where to get them.

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
from onceonly.spark import java
from onceonly.spark.home import spark_home

HERE = Path(__file__).parent
IVY, SETTINGS = HERE / "ivy.xml", HERE / "ivysettings.xml"
SPARK = "spark-"  # and the series: its configuration in ivy.xml, of which the folder `spark` holds one
NEEDED = ("spark", "broker")  # those of a store are for what is on it, and `hdfs` for Onceonly's own tests
CLASSIFIER = "{http://ant.apache.org/ivy/maven}classifier"
PATTERN = "[conf]/[artifact]-[revision](-[classifier]).[ext]"


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
        """As Spark's --packages takes it."""
        return f"{self.org}:{self.name}:{self.revision}"


@cache
def series() -> tuple[str, ...]:
    """The series of Spark that there are jars for, the newest last."""
    names = [conf.attrib["name"] for conf in ElementTree.parse(IVY).iter("conf")]
    return tuple(name.removeprefix(SPARK) for name in names if name.startswith(SPARK))


def installed() -> str:
    """The series of the installed PySpark; the newest one that there are jars for, where it is none of these."""
    try:
        found = ".".join(version("pyspark").split(".")[:2])
    except PackageNotFoundError:
        found = ""
    return found if found in series() else series()[-1]


def listed(folder: str) -> list[Jar]:
    """What belongs into the folder of that name."""
    return _of(_conf(folder), folder)


def _conf(folder: str) -> str:
    return f"{SPARK}{installed()}" if folder == "spark" else folder


def _of(conf: str, folder: str) -> list[Jar]:
    found = [each for each in ElementTree.parse(IVY).iter("dependency") if each.attrib["conf"].startswith(f"{conf}->")]
    return [Jar(folder, a["org"], a["name"], a["rev"], _classifier(each)) for each in found for a in (each.attrib,)]


def _classifier(dependency: ElementTree.Element) -> str:
    return next((each.attrib.get(CLASSIFIER, "") for each in dependency.iter("artifact")), "")


def _names(folder: str) -> set[str]:
    """The names of the jars of a folder, for every series of Spark."""
    confs = [f"{SPARK}{each}" for each in series()] if folder == "spark" else [folder]
    return {jar.name for conf in confs for jar in _of(conf, folder)}


def packages() -> str:
    """The line for spark-submit's --packages, or spark.jars.packages."""
    return ",".join(jar.coordinates for jar in listed("spark"))


def missing(base: Path, folder: str) -> list[Jar]:
    """What of that folder below `base` is not there, or not a whole jar."""
    return [jar for jar in listed(folder) if not zipfile.is_zipfile(base / folder / jar.file)]


def outdated(base: Path, folder: str) -> list[Path]:
    """Other revisions of what is listed, and what is for another Spark: with two of one jar, neither works."""
    ours = {jar.file for jar in listed(folder)}
    names = re.compile("|".join(rf"{re.escape(name)}-\d[\w.-]*\.jar" for name in _names(folder)))
    files = (base / folder).glob("*.jar")
    return sorted(file for file in files if file.name not in ours and names.fullmatch(file.name))


def fetch(base: Path, folders: Sequence[str] = NEEDED, settings: Path = SETTINGS) -> list[str]:
    """Bring what is missing below `base`; returns the folders that were not complete.

    Other jars in a folder stay, but for other revisions of those that are listed. Downloads are kept in `<base>/cache`.

    Raises:
        InvalidPipeline: PySpark or Java is missing, or too old.
        NotCommitted: a jar cannot be had, or the folder cannot be written; what was there is still there.
    """
    wanted = [folder for folder in folders if missing(base, folder) or outdated(base, folder)]
    if wanted:
        _check_writable(base)
        with TemporaryDirectory(prefix="arriving-", dir=base) as arriving:
            _retrieve(base, wanted, Path(arriving), settings)
            for folder in wanted:
                _move(Path(arriving) / _conf(folder), base / folder)
    for folder in wanted:
        _delete_outdated(base, folder)
    return wanted


def ivy_jar() -> Path:
    """The Ivy inside the installed PySpark, found without importing it.

    Raises:
        InvalidPipeline: PySpark is not installed.
    """
    return next(spark_home().glob("jars/ivy-*.jar"))


def _move(arrived: Path, into: Path) -> None:
    into.mkdir(exist_ok=True)
    for jar in arrived.glob("*.jar"):
        jar.replace(into / jar.name)


def _delete_outdated(base: Path, folder: str) -> None:
    for file in outdated(base, folder):
        file.unlink(missing_ok=True)


def _check_writable(base: Path) -> None:
    try:
        base.mkdir(parents=True, exist_ok=True)
        (base / "cache").mkdir(exist_ok=True)
    except OSError as error:
        raise NotCommitted(
            f"no jar can be written to {base}.",
            f"{error}",
            "Set ONCEONLY_JARS to a folder that this user can write to. Nothing was fetched.",
        ) from error


def _retrieve(base: Path, folders: list[str], into: Path, settings: Path) -> None:
    cache = base / "cache"
    command = [_java(), f"-Divy.default.ivy.user.dir={cache}", "-jar", str(ivy_jar()), "-cache", str(cache)]
    command += ["-settings", str(settings), "-ivy", str(IVY)]
    command += ["-confs", *map(_conf, folders), "-retrieve", f"{into}/{PATTERN}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise NotCommitted(
            f"the jars of {IVY} cannot be fetched.",
            done.stdout[-4000:],
            "Behind a proxy or with a mirror: JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=…, or --settings ivysettings.xml. "
            "It is safe to repeat.",
        )


def _java() -> str:
    found = java.command()
    if found is None or java.version(found) < java.OLDEST:
        said = "Java is missing" if found is None else f"{found} is older than Java {java.OLDEST}"
        raise InvalidPipeline(
            f"{said}.",
            f"The jars are fetched by a Java program, and Spark and Kafka need Java {java.OLDEST} or newer.",
            "Install it, or set JAVA_HOME. Nothing was fetched.",
        )
    return found
