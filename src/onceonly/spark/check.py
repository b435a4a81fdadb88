"""Checks of Spark before a stage starts it: PySpark, Java, the jars, and whether a server answers."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import SplitResult, urlsplit

from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings
from onceonly.spark import jars, jvm
from onceonly.waits import wait_for

PORTS = {"sc": 15002, "spark": 7077}
CONNECT_SECONDS = 5.0  # for a server to accept a connection
UNWRITTEN = "Nothing was written."


def notes(settings: Settings, env: Mapping[str, str] = os.environ) -> list[str]:
    """Return notes of what is there, for people.

    Raises:
        InvalidPipeline: something is not; its text has why it is needed, and how to get it.
    """
    lines = [f"pyspark {_require_pyspark()}"]
    if settings.spark_remote:
        refuse_connect()
        lines.append(check_server(settings.spark_remote, "SPARK_REMOTE"))
    else:
        lines += [_check_java(), _check_jars(settings, env)]
    return lines


def _require_pyspark() -> str:
    """Return the version of the installed PySpark. Raises InvalidPipeline: there is none, or it is not supported."""
    try:
        pyspark_version = version("pyspark")
    except PackageNotFoundError:
        raise InvalidPipeline(
            "pyspark is not installed.",
            "Rows are staged by Spark.",
            f"pip install 'onceonly[spark]'. {UNWRITTEN}",
            code="pyspark-missing",
        ) from None
    if not pyspark_version.startswith(tuple(f"{series}." for series in jars.series())):
        raise InvalidPipeline(
            f"pyspark {pyspark_version} is not supported.",
            f"Onceonly and its jars support Spark {', '.join(jars.series())}.",
            f"pip install 'onceonly[spark]'. {UNWRITTEN}",
            code="pyspark-unsupported",
        )
    return pyspark_version


def refuse_connect() -> None:
    """Refuse a PySpark that is too old for a Connect server. Raises InvalidPipeline."""
    pyspark_version = _require_pyspark()
    if pyspark_version.startswith("3."):
        raise InvalidPipeline(
            f"Spark Connect cannot be used with pyspark {pyspark_version}.",
            "Before Spark 4, its client cannot count rows while it writes them, and cannot be interrupted.",
            f"Name a master (local[*], spark://…) instead of the server, or install PySpark 4. {UNWRITTEN}",
            code="pyspark-unsupported",
        )


def _check_java() -> str:
    command = jvm.java_command()
    if command is None:
        raise _java_error("Java is missing.")
    number = jvm.java_version(command)
    if number < jvm.OLDEST_JAVA:
        raise _java_error(f"{command} is Java {number}.")
    return f"Java {number}: {command}"


def _java_error(what: str) -> InvalidPipeline:
    return InvalidPipeline(
        what,
        f"Spark runs on this machine, because SPARK_REMOTE names no server, and needs Java {jvm.OLDEST_JAVA} or newer.",
        f"Install it, set JAVA_HOME, or set SPARK_REMOTE. {UNWRITTEN}",
        code="java-missing",
    )


def _check_jars(settings: Settings, env: Mapping[str, str]) -> str:
    missing_files = [jar.file for jar in jars.list_missing(settings.jars, "spark")]
    if not missing_files:
        return f"Spark's jars: {settings.jars / 'spark'}"
    if not settings.spark_jars() and jvm.has_default_with("spark.jars", env):
        return "Spark's jars: those in its spark-defaults.conf"
    raise InvalidPipeline(
        f"jars of Spark are missing in {settings.jars / 'spark'}: {', '.join(missing_files)}.",
        "Without them Spark cannot read Kafka or write Delta, and its spark-defaults.conf names no others.",
        f"onceonly jars fetch; or set spark.jars.packages to what `onceonly jars packages` prints. {UNWRITTEN}",
        code="jar-missing",
    )


def hide_login(address: str) -> str:
    """Return the address of a master or server without the token that it may hold."""
    url = urlsplit(address)
    return f"{url.scheme}://{url.netloc.partition('@')[2] or url.netloc}"


def check_server(address: str, variable: str) -> str:
    """Return a note that something accepts connections there; of several masters, that one of them does.

    Raises:
        InvalidPipeline: nothing does.
    """
    public_address = hide_login(address)
    scheme, _, places = public_address.partition("://")
    try:
        with wait_for(f"Spark at {public_address}"):
            _require_listener([urlsplit(f"{scheme}://{place}") for place in places.split(",")])
    except OSError as error:
        raise InvalidPipeline(
            f"no Spark answers at {public_address}.",
            f"{variable} names it: {error}.",
            "Start it (a Connect server on this machine: onceonly services up --spark), or name another. " + UNWRITTEN,
            code="spark-unreachable",
        ) from error
    return f"Spark answers at {public_address}"


def _require_listener(urls: Sequence[SplitResult]) -> None:
    """Connect to the first that accepts it. Raises OSError: none does; it is that of the last one."""
    for number, url in enumerate(urls, 1):
        try:
            place = (url.hostname or "", url.port or PORTS.get(url.scheme, 0))
            return socket.create_connection(place, CONNECT_SECONDS).close()
        except OSError:
            if number == len(urls):
                raise
