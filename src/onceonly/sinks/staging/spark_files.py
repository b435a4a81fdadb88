"""Writes files into a staged folder, with Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from onceonly.filesystems.paths import local_path, spark_uri

NO_OPTIONS: Mapping[str, Any] = {}
CLOUD = "org.apache.spark.internal.io.cloud"
PROTOCOL = ("spark.sql.sources.commitProtocolClass", f"{CLOUD}.PathOutputCommitProtocol")
# S3 has no rename. Spark's usual committer would copy each file twice, and a task that was given up could still copy
# its files beside those of the one that took its place. S3A's own completes uploads: of each task, those of one try.
MAGIC = {
    "fs.s3a.committer.name": "magic",
    "mapreduce.outputcommitter.factory.scheme.s3a": "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory",
    "spark.sql.parquet.output.committer.class": f"{CLOUD}.BindingParquetOutputCommitter",
}


def write(
    rows: Any, folder: str, format: str = "parquet", options: Mapping[str, Any] = NO_OPTIONS, by: Sequence[str] = ()
) -> int:
    """Write all rows in one job, replacing the content of the folder; returns the number of rows.

    Args:
        by: columns that become partition folders.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen, place = Observation(uuid.uuid4().hex), uri(folder)
    writer = rows.observe(seen, F.count(F.lit(1)).alias("rows")).write.mode("overwrite").format(format)
    with _without_renames(rows.sparkSession, place) as more:
        writer.options(**options, **more).partitionBy(*by).save(place)
    return int(seen.get["rows"])


def uri(folder: str) -> str:
    """The folder's URI for Spark, independent of Spark's default file system."""
    local = local_path(folder)
    return f"file://{local}" if local else spark_uri(folder)


@contextmanager
def _without_renames(spark: Any, place: str) -> Iterator[Mapping[str, str]]:
    """The options of a write to S3, while Spark commits its files as S3 can do it."""
    if not place.startswith("s3a://"):
        yield NO_OPTIONS
        return
    name, ours = PROTOCOL
    before = spark.conf.get(name, None)
    spark.conf.set(name, ours)
    try:
        yield MAGIC
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)
