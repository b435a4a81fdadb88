"""Writes files into a staged folder, with Spark."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from onceonly.spark import stores
from onceonly.spark.conf import PARQUET_TIMES, temporary_conf
from onceonly.storage.paths import local_path, spark_uri

NO_OPTIONS: Mapping[str, Any] = {}


def write(
    rows: Any, folder: str, format: str = "parquet", options: Mapping[str, Any] = NO_OPTIONS, by: Sequence[str] = ()
) -> int:
    """Write all rows in one job, replacing the content of the folder; returns the number of rows.

    Args:
        by: columns that become partition folders.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    observation, folder_uri = Observation(uuid.uuid4().hex), uri(folder)
    writer = rows.observe(observation, F.count(F.lit(1)).alias("rows")).write.mode("overwrite").format(format)
    committer_options = stores.committer_options(folder_uri)  # as the store can do it
    settings = dict([stores.PROTOCOL]) if committer_options else {}
    with temporary_conf(rows.sparkSession, settings | PARQUET_TIMES):
        writer.options(**options, **committer_options).partitionBy(*by).save(folder_uri)
    return int(observation.get["rows"])


def uri(folder: str) -> str:
    """Return the folder's URI for Spark, independent of Spark's default file system."""
    local = local_path(folder)
    return f"file://{local}" if local else spark_uri(folder)
