"""Files that Spark writes into a staged folder."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from onceonly.filesystems.paths import local_path

NO_OPTIONS: Mapping[str, Any] = {}


def write(
    rows: Any, folder: str, format: str = "parquet", options: Mapping[str, Any] = NO_OPTIONS, by: Sequence[str] = ()
) -> int:
    """All rows in one job, in place of what the folder holds; returns how many there were.

    Args:
        by: columns that become folders.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen = Observation(uuid.uuid4().hex)
    writer = rows.observe(seen, F.count(F.lit(1)).alias("rows")).write.mode("overwrite").format(format)
    writer.options(**options).partitionBy(*by).save(uri(folder))
    return int(seen.get["rows"])


def uri(folder: str) -> str:
    """A folder's path or URI as Spark reads it, whatever its default file system is."""
    local = local_path(folder)
    return f"file://{local}" if local else folder.replace("s3://", "s3a://", 1)
