"""A whole checkpoint, Kafka → Parquet files, against Spark's plain append; and what a second sink adds."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path

from benchmarks import peers
from benchmarks.checkpoint import shape
from benchmarks.goals import DEFAULT, TUNED
from benchmarks.ratio import against, alternate
from benchmarks.results import Result
from benchmarks.world import ROWS, TOPIC, anew, whole, world
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import FileSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.live_services import LiveServices


def files(folder: Path, rows: int = ROWS, rounds: int = 7) -> Result:
    """All sides in one warm session, from the same topic, into a folder of their own."""
    with world(folder, rows) as parts:
        numbers = count(1)
        sides = {
            "Onceonly": lambda: _ours(parts, next(numbers), "one"),
            DEFAULT: lambda: _plain(parts, {}),
            TUNED: lambda: _plain(parts, peers.READ),
        }
        measured = against(alternate(sides, rounds, warm=2))
    how = f"A whole checkpoint of {rows:,} small records, beside a plain Spark append of the same rows."
    return Result("Kafka to Parquet files", how, measured, settings=peers.READING)


def second_sink(folder: Path, rows: int = ROWS, rounds: int = 7) -> Result:
    """One pipeline with two sinks against two pipelines, each of which reads the topic."""
    with world(folder, rows) as parts:
        numbers = count(1)

        def both() -> None:
            _ours(parts, next(numbers), "one", "two")

        def apart() -> None:
            for sink in ("one", "two"):
                _ours(parts, next(numbers), sink)

        measured = against(alternate({"one checkpoint": both, "two pipelines": apart}, rounds, warm=2))
    how = (
        f"One checkpoint of {rows:,} small records with two file sinks, beside two pipelines that each read the topic."
    )
    return Result("A second sink", how, measured)


def _ours(parts: LiveServices, number: int, *names: str) -> None:
    sinks = [FileSink(name, path=f"lake/{name}") for name in names]
    source, transform = KafkaSource(TOPIC), "benchmarks.checkpoint:shape"
    whole(anew(parts, number), Pipeline(name=f"bench_{number}", source=source, transform=transform, sinks=sinks))


def _plain(parts: LiveServices, more: Mapping[str, str]) -> None:
    place = f"file://{parts.settings.locate('lake/plain')}"
    shape(peers.read(parts, more)).write.mode("append").parquet(place)
