"""A Spark session: a Spark Connect server where one is named, else in this process (or as spark-submit set it up)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession

from onceonly.settings import Settings
from onceonly.sparkconf import REDACTION, conf


def session(settings: Settings, more: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """The process's session, started if need be.

    Args:
        more: settings of a session that is started here, such as spark.master.
    """
    if settings.spark_remote:
        from onceonly.spark.connect import bound

        remote: Any = SparkSession.builder.remote(settings.spark_remote)
        connected: SparkSession = remote.getOrCreate()
        bound(connected.client)
        connected.conf.set("spark.sql.session.timeZone", "UTC")
        _redact(connected)
        return connected
    builder: Any = SparkSession.builder
    if not os.environ.get("SPARK_ENV_LOADED"):  # spark-submit was given all of this already
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        for key, value in ({"spark.ui.enabled": "false"} | conf(settings) | dict(more)).items():
            builder = builder.config(key, value)
    classic: SparkSession = builder.getOrCreate()
    return classic


def _redact(session: SparkSession) -> None:
    """On a server that somebody else has configured: beside what it redacts by itself."""
    for key, ours in REDACTION.items():
        theirs = session.conf.get(key, "") or ""
        if ours not in theirs:
            session.conf.set(key, f"{theirs}|{ours}" if theirs else ours)
