"""A Spark session: on a Spark Connect server if one is set, else in this process (or as spark-submit set it up)."""

from __future__ import annotations

import logging
import os
import pwd
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from onceonly import redaction
from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings
from onceonly.spark import check, jvm
from onceonly.spark.conf import READING, REDACTION, conf
from onceonly.waits import wait_for


def session(
    settings: Settings, more: Mapping[str, str] = MappingProxyType({}), records: int | None = None
) -> SparkSession:
    """Return the process's session, started if necessary.

    Args:
        more: settings of a session that is started here, such as spark.master.
        records: how many it is started for, where that is known.
    Raises:
        InvalidPipeline: the server refused the token; or Spark would run in this process, whose user has no name.
    """
    silence_query_contexts()
    if settings.spark_remote:
        check.refuse_connect()
        from onceonly.spark import connect

        connected: SparkSession = connect.open_session(settings.spark_remote, settings.home)
        with (
            wait_for(connect.name_server(settings.spark_remote)),
            connect.explain_refused_token(settings.spark_remote, connected.client),
        ):
            for key, value in READING.items():
                connected.conf.set(key, value)
        _redact(connected)
        return connected
    _check_user()
    if not os.environ.get("SPARK_REMOTE"):
        os.environ.pop("SPARK_REMOTE", None)  # PySpark takes an empty one for the address of a server
    builder: Any = SparkSession.builder
    spark_conf = {} if os.environ.get("SPARK_ENV_LOADED") else _local_conf(settings, more)  # spark-submit got all of it
    with _jvm_environment(settings, records), wait_for("Spark to start in this process"):
        if redaction.secret(spark_conf):
            _start_jvm(redaction.public(spark_conf))
        for key, value in spark_conf.items():
            builder = builder.config(key, value)
        classic: SparkSession = builder.getOrCreate()
    return classic


def _local_conf(settings: Settings, more: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session in this process, and let its workers use this Python."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    own_conf = {"spark.ui.enabled": "false"} | conf(settings) | dict(more)
    return own_conf if _is_started() else jvm.class_path(settings) | own_conf


def _is_started() -> bool:
    """Return whether this process has its JVM: what that starts with is found by a look at every jar."""
    return SparkContext._active_spark_context is not None


@contextmanager
def _jvm_environment(settings: Settings, records: int | None) -> Iterator[None]:
    """Set the variables that a JVM which starts in the block is to find, and what is started later is not."""
    if _is_started():
        yield
        return
    previous_values = {name: os.environ.get(name) for name in jvm.VARIABLES}
    os.environ.update(jvm.environment(settings.jars, records))
    try:
        yield
    finally:
        for name, value in previous_values.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def silence_query_contexts() -> None:
    """Keep PySpark from writing an error of a column to stderr as kilobytes of JSON.

    The error is raised as well, and explained there.
    """
    try:
        from pyspark.logger import PySparkLogger
    except ModuleNotFoundError:  # before Spark 4, which began with it
        return
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def _check_user() -> None:
    """Refuse a user without a name: Hadoop's login, which every JVM of Spark runs, needs one."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError as error:
        raise InvalidPipeline(
            "Spark cannot run in this process.",
            f"User id {os.getuid()} has no name on this machine, and Hadoop's login needs one.",
            "Add the user to /etc/passwd when the container starts, or use a Spark Connect server (SPARK_REMOTE, or "
            "sc://… as the host of the Airflow connection). Nothing was published.",
            code="user-without-name",
        ) from error


def _start_jvm(public_conf: Mapping[str, str]) -> None:
    """Start the JVM without the secret settings, which would be arguments of its process.

    PySpark sends settings that are added later over its socket.
    """
    context: Any = SparkContext
    context._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(public_conf.items())))


def _redact(session: SparkSession) -> None:
    """Add our redaction to that of a server which somebody else has configured."""
    for key, pattern in REDACTION.items():
        server_pattern = session.conf.get(key, "") or ""
        if pattern not in server_pattern:
            session.conf.set(key, f"{server_pattern}|{pattern}" if server_pattern else pattern)
