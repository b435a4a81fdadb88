"""Settings of the peers: their defaults, and what their own guides recommend for throughput.

Sources: Spark's "Structured Streaming + Kafka Integration Guide" passes `kafka.*` to the client; Confluent's "Optimize
Kafka clients for throughput" names fetch.min.bytes, batch.size, linger.ms; Flink's "Kafka SQL connector" passes
`properties.*`, and its "Tuning Checkpoints" and "Execution configuration" name object reuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.goals import DEFAULT, TUNED
from benchmarks.world import TOPIC
from onceonly.runtime.live_services import LiveServices
from onceonly.spark import topics

FETCH = {"max.poll.records": "10000", "fetch.min.bytes": "100000", "max.partition.fetch.bytes": "8388608"}
PRODUCE = {"batch.size": "200000", "linger.ms": "50", "buffer.memory": "134217728"}
INTERFACE = "spark.sql.sources.useV1SourceList", "avro,csv,json,kafka,orc,parquet,text"
READ = {f"kafka.{key}": value for key, value in topics.CONSUMER_OPTIONS.items()}  # ours: faster than the guides'
WRITE = {f"kafka.{key}": value for key, value in PRODUCE.items()}
OURS = {
    **{f"{key} (JVM consumer)": value for key, value in topics.CONSUMER_OPTIONS.items()},
    "linger.ms, batch.size, buffer.memory (JVM producer)": "50, 100000, 4194304",
    "enable.idempotence, acks": "true, all",
    "fsync of what is staged and decided": "yes",
}
SPARK = {"master": "local[*], warm session", "spark.databricks.delta.snapshotPartitions": "2"}
READING = {"Onceonly": OURS, DEFAULT: SPARK | {"kafka.*": "default"}, TUNED: SPARK | READ}
WRITING = {"Onceonly": OURS, DEFAULT: SPARK | {"kafka.*": "default"}, TUNED: SPARK | READ | WRITE}


@contextmanager
def by_default(parts: LiveServices) -> Iterator[None]:
    """Spark's connector by the interface that Spark chooses, not by ours."""
    spark, name = parts.spark(), INTERFACE[0]
    before = spark.conf.get(name)
    spark.conf.set(*INTERFACE)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def read(parts: LiveServices, more: Mapping[str, str]) -> Any:
    """The topic, by Spark's own batch source."""
    with by_default(parts):
        return parts.spark().read.format("kafka").options(**source(parts), **more).load()


def source(parts: LiveServices) -> dict[str, str]:
    return {"kafka.bootstrap.servers": parts.settings.brokers(None), "subscribe": TOPIC}
