"""A whole checkpoint, Kafka → Delta, against a plain Spark append of the same rows without any guarantee."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from benchmarks.ratio import Ratio, alternate
from benchmarks.world import ROWS, TOPIC, anew, whole, world
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.factory import LiveParts


def shape(batch):  # type: ignore[no-untyped-def]
    """The transform of both sides."""
    return batch.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value", "partition", "offset")


def checkpoint(folder: Path, rows: int = ROWS, rounds: int = 5) -> Ratio:
    """Both sides in one warm session, from the same topic, into a table of their own."""
    with world(folder, rows) as parts:
        name = f"a whole checkpoint of {rows:,} rows, Kafka → Delta, against a plain Spark append"
        numbers = count(1)
        return alternate(name, lambda: ours(parts, next(numbers)), lambda: _plain(parts), 1.05, rounds)


def ours(parts: LiveParts, number: int) -> None:
    """A whole checkpoint, with a state table of that number."""
    sinks = [DeltaSink("out", path="lake/ours")]
    source, transform = KafkaSource(TOPIC), "benchmarks.checkpoint:shape"
    whole(anew(parts, number), Pipeline(name=f"bench_{number}", source=source, transform=transform, sinks=sinks))


def _plain(parts: LiveParts) -> None:
    options = {"kafka.bootstrap.servers": parts.settings.brokers(None), "subscribe": TOPIC}
    rows = parts.spark().read.format("kafka").options(**options).load()
    shape(rows).write.format("delta").mode("append").save(parts.settings.locate("lake/plain"))
