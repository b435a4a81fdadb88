"""Kafka to Kafka, a whole checkpoint with its spool, against Spark's own at-least-once Kafka sink on the same topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import peers
from benchmarks.goals import DEFAULT, TUNED
from benchmarks.ratio import against, alternate
from benchmarks.results import Result, Row
from benchmarks.world import ROWS, TOPIC, anew, world
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, spark_stage
from onceonly.runtime.live_services import LiveServices
from onceonly.runtime.owners import process_owner
from onceonly.sinks.kafka.sink import KafkaWriter


def copy(batch):  # type: ignore[no-untyped-def]
    """The transform of both sides."""
    return batch.select("key", "value")


def kafka_sink(folder: Path, rows: int = ROWS, rounds: int = 7) -> Result:
    """All sides in one warm session, to a topic of their own."""
    commits: list[tuple[float, float]] = []
    with world(folder, rows, ("ours", "theirs")) as parts:
        numbers = count(1)
        sides = {
            "Onceonly": lambda: commits.append(ours(parts, next(numbers))),
            DEFAULT: lambda: _spark(parts, {}, {}),
            TUNED: lambda: _spark(parts, peers.READ, peers.WRITE),
        }
        measured = against(alternate(sides, rounds, warm=2))
    whole, ends = ([1000 * each for each in times] for times in zip(*commits, strict=True))
    return Result(
        "Kafka to Kafka",
        f"A whole checkpoint (plan, stage, commit, with its spool on disk) of {rows:,} small records in staged mode, "
        "beside Spark's own Kafka sink, which delivers at least once. A commit is timed per transaction, also in the "
        "rounds that warm up.",
        [
            *measured,
            Row("a transaction: look, end, see its marker", "ms", ends),
            Row("a transaction, with the rows of the state table", "ms", whole),
        ],
        settings=peers.WRITING,
    )


def ours(parts: LiveServices, number: int, topic: str = TOPIC) -> tuple[float, float]:
    """Seconds of the commit, per transaction: all of it, and what the sink needs."""
    pipeline = Pipeline(
        name=f"bench_{number}",
        source=KafkaSource(topic),
        transform="benchmarks.kafka_sink:copy",
        sinks=[KafkaSink(name="out", topic="ours")],
    )
    parts = anew(parts, number)
    through = live_services.open_coordinator(parts)
    planned = through.plan(pipeline, process_owner(), lambda _: True).checkpoint
    assert planned is not None
    staged = spark_stage.stage(parts, through, pipeline.name, planned.epoch, None)
    sinks: list[float] = []
    with patch.object(KafkaWriter, "commit", _timed(KafkaWriter.commit, sinks)):
        started = time.perf_counter()
        through.commit(pipeline.name, planned.epoch)
        whole = time.perf_counter() - started
    transactions = len(staged.handles["out"]["parts"])
    return whole / transactions, sum(sinks) / transactions


def _timed(commit: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    def timed(*arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return commit(*arguments)
        finally:
            times.append(time.perf_counter() - started)

    return timed


def _spark(parts: LiveServices, reading: Mapping[str, str], writing: Mapping[str, str]) -> None:
    options = {"kafka.bootstrap.servers": parts.settings.brokers(None), "topic": "theirs", **writing}
    with peers.by_default(parts):
        copy(peers.read(parts, reading)).write.format("kafka").options(**options).mode("append").save()
