"""What can be known of Spark before a stage starts it: PySpark, Java, the jars, and whether a server answers."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import unquote, urlsplit

from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings
from onceonly.spark import jars, java, jvm

PORTS = {"sc": 15002, "spark": 7077}
PATIENCE = 5.0  # seconds for a server to accept a connection
CONNECTION = "AIRFLOW_CONN_SPARK"
UNWRITTEN = "Nothing was written."


def notes(settings: Settings, env: Mapping[str, str] = os.environ) -> list[str]:
    """What is there, for people.

    Raises:
        InvalidPipeline: what is not, why it is needed, and how to get it.
    """
    found = [f"pyspark {_pyspark()}"]
    if settings.spark_remote:
        refuse_connect()
        found.append(_answers(settings.spark_remote, "SPARK_REMOTE"))
    else:
        found += [_java(), _jars(settings, env)]
    return [*found, *_of_airflow(env.get(CONNECTION, "").strip())]


def _pyspark() -> str:
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        raise InvalidPipeline(
            "pyspark is not installed.", "Rows are staged by Spark.", f"pip install 'onceonly[spark]'. {UNWRITTEN}"
        ) from None
    if not found.startswith(tuple(f"{series}." for series in jars.series())):
        raise InvalidPipeline(
            f"pyspark {found} is not supported.",
            f"Onceonly and its jars support Spark {', '.join(jars.series())}.",
            f"pip install 'onceonly[spark]'. {UNWRITTEN}",
        )
    return found


def refuse_connect() -> None:
    """Raises InvalidPipeline: the installed PySpark is too old for a Connect server."""
    if (found := _pyspark()).startswith("3."):
        raise InvalidPipeline(
            f"Spark Connect cannot be used with pyspark {found}.",
            "Before Spark 4, its client cannot count rows while it writes them, and cannot be interrupted.",
            f"Name a master (local[*], spark://…) instead of the server, or install PySpark 4. {UNWRITTEN}",
        )


def _java() -> str:
    found = java.command()
    if found is None or (number := java.version(found)) < java.OLDEST:
        what = "Java is missing." if found is None else f"{found} is Java {number}."
        raise InvalidPipeline(
            what,
            f"Spark runs on this machine, because SPARK_REMOTE names no server, and needs Java {java.OLDEST} or newer.",
            f"Install it, set JAVA_HOME, or set SPARK_REMOTE. {UNWRITTEN}",
        )
    return f"Java {number}: {found}"


def _jars(settings: Settings, env: Mapping[str, str]) -> str:
    missing = [jar.file for jar in jars.missing(settings.jars, "spark")]
    if not missing:
        return f"Spark's jars: {settings.jars / 'spark'}"
    if not settings.spark_jars() and any("spark.jars" in line for line in jvm.defaults(env)):
        return "Spark's jars: those in its spark-defaults.conf"
    raise InvalidPipeline(
        f"jars of Spark are missing in {settings.jars / 'spark'}: {', '.join(missing)}.",
        "Without them Spark cannot read Kafka or write Delta, and its spark-defaults.conf names no others.",
        f"onceonly jars fetch; or ONCEONLY_JARS; or spark.jars.packages of `onceonly jars packages`. {UNWRITTEN}",
    )


def _of_airflow(connection: str) -> list[str]:
    """The connection `spark` of Airflow, where the environment has it: a master or a Connect server."""
    if not connection:
        return []
    try:
        address = _address(connection)
    except (ValueError, TypeError, AttributeError):
        raise InvalidPipeline(
            "the Airflow connection 'spark' cannot be read.",
            f"{CONNECTION} holds neither a connection's JSON nor its URI.",
            f'Write {{"conn_type": "spark", "host": "spark://…", "port": 7077}}. {UNWRITTEN}',
        ) from None
    return [_answers(address, CONNECTION)] if urlsplit(address).scheme in PORTS else []


def _address(connection: str) -> str:
    if connection.startswith("{"):
        data = json.loads(connection)
        host, port = data.get("host") or "", data.get("port")
    else:
        parts = urlsplit(connection)
        host, port = unquote(parts.hostname or ""), parts.port
    return f"{host}:{port}" if port else str(host)


def _answers(address: str, variable: str) -> str:
    """That something accepts connections there; a token, which an address may hold, is not shown."""
    there = urlsplit(address)
    shown = f"{there.scheme}://{there.netloc.partition('@')[2] or there.netloc}"
    first = shown.split(",")[0]
    host, port = urlsplit(first).hostname or "", urlsplit(first).port or PORTS.get(there.scheme, 0)
    try:
        socket.create_connection((host, port), PATIENCE).close()
    except OSError as error:
        raise InvalidPipeline(
            f"no Spark answers at {shown}.",
            f"{variable} names it: {error}.",
            "Start it (a Connect server on this machine: onceonly services up --spark), or name another. " + UNWRITTEN,
        ) from error
    return f"Spark answers at {shown}"
