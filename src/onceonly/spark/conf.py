"""Settings of Spark sessions: of every one that Onceonly uses, and for one read or write. Nothing here imports Spark.

A session may be somebody else's. What only one read or write needs is set for that long: `temporary_conf`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from onceonly.settings import Settings
from onceonly.spark import jvm, stores

# The options of a Kafka connection are part of a query plan, which explain, the event log and the UI show.
# Redacted: private keys, and the rest of the line after `LoginModule required` and `….password`.
REDACTION = {
    "spark.sql.redaction.options.regex": r"(?i)url|jaas|keystore[.]key",
    "spark.sql.redaction.string.regex": r"(?i)LoginModule\s+required[^\n]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\w+/=\\\s:,-]*"
    r'|[.]password"?\s*(?:value:|->|=|:)[^\n]*',
}
TOKEN_FILE = "services/spark/token"  # of the embedded Connect server, below ONCEONLY_HOME; mode 600
# Variables that select a Connect server, and take precedence over a master.
ELSEWHERE = {"SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"}
READING = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),  # of 10,000 records; an array has 2 GiB at most
    # Spark's default without kafka: by the newer interface, records with headers take a fifth less CPU
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
}
# Each read has a consumer group of its own, so nobody uses a consumer again that Spark keeps after it, with the records
# that it has fetched beyond the range: 8 MiB each (topics.CONSUMER_OPTIONS), for five minutes, by default.
IDLE_CONSUMERS = {
    f"spark.kafka.consumer.{cache}.{setting}": "1s"
    for cache in ("cache", "fetchedData.cache")
    for setting in ("timeout", "evictorThreadRunInterval")
}
CONF = {
    **REDACTION,
    **IDLE_CONSUMERS,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # staged tables have small logs; the default is 50 tasks each
    **READING,
}
# Parquet's own type for times. Spark's default, INT96, is nanoseconds to other readers, who read 9999-12-31 as 2262;
# in sessions set to LEGACY, days before 1582 would be those of another calendar.
PARQUET_TIMES = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
# Delta refuses versions older than the retention of deleted files, also if nothing was deleted. Files that are missing
# are an error of their own.
OLD_VERSIONS = {"spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false"}


def stay_here() -> None:
    """Make this process use a Spark master, and no Connect server that its environment names."""
    for name in ELSEWHERE:
        os.environ.pop(name, None)


def conf(settings: Settings) -> dict[str, str]:
    """Return settings for a session that Onceonly starts itself, in this process or by spark-submit."""
    output = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    warehouse = {"spark.sql.warehouse.dir": str(settings.home / "warehouse")}
    spark_conf = CONF | output | warehouse | jvm.executor_options() | stores.conf(settings.jars)
    jars = settings.spark_jars()
    if jars:
        spark_conf["spark.jars"] = ",".join(jars)
    return spark_conf


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
