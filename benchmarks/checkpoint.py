"""A whole checkpoint, Kafka → Delta, against Spark without any guarantee, and against Structured Streaming."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path

from benchmarks import peers
from benchmarks.goals import DEFAULT, TUNED
from benchmarks.ratio import against, alternate
from benchmarks.results import Result
from benchmarks.world import ROWS, TOPIC, anew, whole, world
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.live_services import LiveServices

STREAMING = "Structured Streaming, tuned"


def shape(batch):  # type: ignore[no-untyped-def]
    """The transform of all sides."""
    return batch.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value", "partition", "offset")


def checkpoint(folder: Path, rows: int = ROWS, rounds: int = 7) -> Result:
    """All sides in one warm session, from the same topic, into a table of their own."""
    with world(folder, rows) as parts:
        numbers = count(1)
        sides = {
            "Onceonly": lambda: ours(parts, next(numbers)),
            DEFAULT: lambda: _append(parts, {}),
            TUNED: lambda: _append(parts, peers.READ),
            STREAMING: lambda: _stream(parts, next(numbers)),
        }
        measured = against(alternate(sides, rounds, warm=2))
    return Result(
        "Kafka to Delta",
        f"A whole checkpoint (plan, stage, commit) of {rows:,} small records, beside a plain Spark append of the same "
        "rows without any guarantee, and beside a Structured Streaming query (`availableNow`, with its checkpoint).",
        measured,
        settings=peers.READING | {STREAMING: peers.SPARK | peers.READ | {"trigger": "availableNow"}},
    )


def ours(parts: LiveServices, number: int) -> None:
    """A whole checkpoint, with a state table of that number."""
    sinks = [DeltaSink("out", path="lake/ours")]
    source, transform = KafkaSource(TOPIC), "benchmarks.checkpoint:shape"
    whole(anew(parts, number), Pipeline(name=f"bench_{number}", source=source, transform=transform, sinks=sinks))


def _append(parts: LiveServices, more: Mapping[str, str]) -> None:
    shape(peers.read(parts, more)).write.format("delta").mode("append").save(parts.settings.locate("lake/plain"))


def _stream(parts: LiveServices, number: int) -> None:
    """A query with a checkpoint of its own, so it reads the topic from its start."""
    options = {**peers.source(parts), **peers.READ, "startingOffsets": "earliest"}
    rows = shape(parts.spark().readStream.format("kafka").options(**options).load())
    place = parts.settings.locate(f"lake/streaming-{number}")
    query = rows.writeStream.format("delta").option("checkpointLocation", f"{place}-checkpoint")
    query.trigger(availableNow=True).start(parts.settings.locate("lake/streamed")).awaitTermination()
