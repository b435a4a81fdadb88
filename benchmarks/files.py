"""A whole checkpoint, Kafka → Parquet files, against Spark's plain append; and what a second sink adds."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from benchmarks.checkpoint import shape
from benchmarks.ratio import Ratio, alternate
from benchmarks.world import ROWS, TOPIC, anew, whole, world
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import FileSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.factory import LiveParts


def files(folder: Path, rows: int = ROWS, rounds: int = 5) -> Ratio:
    """Both sides in one warm session, from the same topic, into a folder of their own."""
    with world(folder, rows) as parts:
        name = f"a whole checkpoint of {rows:,} rows, Kafka → Parquet files, against a plain Spark append"
        numbers = count(1)
        return alternate(name, lambda: _ours(parts, next(numbers), "one"), lambda: _plain(parts), 1.05, rounds)


def second_sink(folder: Path, rows: int = ROWS, rounds: int = 3) -> Ratio:
    """One pipeline with two sinks against two pipelines, each of which reads the topic."""
    with world(folder, rows) as parts:
        name = f"two sinks of one checkpoint of {rows:,} rows, against two pipelines"
        numbers = count(1)

        def both() -> None:
            _ours(parts, next(numbers), "one", "two")

        def apart() -> None:
            for sink in ("one", "two"):
                _ours(parts, next(numbers), sink)

        return alternate(name, both, apart, 1.0, rounds)


def _ours(parts: LiveParts, number: int, *names: str) -> None:
    sinks = [FileSink(name, path=f"lake/{name}") for name in names]
    source, transform = KafkaSource(TOPIC), "benchmarks.checkpoint:shape"
    whole(anew(parts, number), Pipeline(name=f"bench_{number}", source=source, transform=transform, sinks=sinks))


def _plain(parts: LiveParts) -> None:
    options = {"kafka.bootstrap.servers": parts.settings.brokers(None), "subscribe": TOPIC}
    rows = parts.spark().read.format("kafka").options(**options).load()
    shape(rows).write.mode("append").parquet(f"file://{parts.settings.locate('lake/plain')}")
