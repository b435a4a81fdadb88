"""A Spark session: a Spark Connect server where one is named, else in this process (or as spark-submit set it up)."""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from onceonly.settings import Settings

# what every session of ours needs, wherever Spark runs
CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # staged tables are small logs: the default is 50 tasks
    "spark.sql.session.timeZone": "UTC",
}


def session(settings: Settings) -> SparkSession:
    """The process's session, started if need be."""
    if settings.spark_remote:
        remote: Any = SparkSession.builder.remote(settings.spark_remote)
        connected: SparkSession = remote.getOrCreate()
        connected.conf.set("spark.sql.session.timeZone", "UTC")
        return connected
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    for key, value in {**CONF, **_defaults(settings)}.items():
        builder = builder.config(key, value)
    classic: SparkSession = builder.getOrCreate()
    return classic


def _defaults(settings: Settings) -> dict[str, str]:
    """For a session started here; spark-submit has said all of this already."""
    if os.environ.get("SPARK_ENV_LOADED"):
        return {}
    jars = settings.spark_jars()
    local = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    return {**local, "spark.sql.warehouse.dir": str(settings.home / "warehouse")} | (
        {"spark.jars": ",".join(jars)} if jars else {}
    )
