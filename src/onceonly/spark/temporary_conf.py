"""Settings of a session that hold for one write or read alone: a session may be somebody else's, and have others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# Parquet's own type for times. Spark's default, INT96, is nanoseconds to other readers, who read 9999-12-31 as 2262;
# in sessions set to LEGACY, days before 1582 would be those of another calendar.
PARQUET_TIMES = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
# Delta refuses versions older than the retention of deleted files, also if nothing was deleted. Files that are missing
# are an error of their own.
OLD_VERSIONS = {"spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false"}


@contextmanager
def temporary_conf(spark: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Set the session as given while the block runs; what was set before is set again, and what was not is unset."""
    previous_values = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in previous_values.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
