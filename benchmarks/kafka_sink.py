"""Kafka → Kafka, a whole checkpoint with its spool, against Spark's own at-least-once Kafka sink on the same topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks import flink
from benchmarks.ratio import Ratio, alternate
from benchmarks.world import ROWS, TOPIC, anew, world
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import factory
from onceonly.runtime.factory import LiveParts
from onceonly.runtime.owners import this_process
from onceonly.sinks.kafka.sink import KafkaWriter


def copy(batch):  # type: ignore[no-untyped-def]
    """The transform of both sides."""
    return batch.select("key", "value")


def kafka_sink(folder: Path, rows: int = ROWS, rounds: int = 5) -> Ratio:
    """Both sides in one warm session, to a topic of their own; prints what a commit takes as well."""
    commits: list[tuple[float, float]] = []
    with world(folder, rows, ("ours", "theirs")) as parts:
        name = f"a whole checkpoint of {rows:,} rows, Kafka → Kafka in staged mode, against Spark's Kafka sink"
        numbers = count(1)
        result = alternate(
            name, lambda: commits.append(_ours(parts, next(numbers))), lambda: _spark(parts), 1.1, rounds
        )
    whole, ends = (median(times) * 1000 for times in zip(*commits, strict=True))
    print(
        f"commit: {ends:.1f} ms per transaction to look, to end it and to see its markers; {whole:.1f} ms with the "
        f"rows of the state table and the consumer group (medians of {len(commits)} commits)"
    )
    return result


def against_flink(folder: Path, rows: int = ROWS, rounds: int = 3) -> Ratio:
    """Flink ÷ ours; our whole checkpoint (plan, stage, commit) against Flink's job without the start of its JVM."""
    flink.prepare()
    with world(folder, rows, ("ours", "theirs")) as parts:
        bootstrap, numbers, theirs, ours = parts.settings.brokers(None), count(1), [], []
        for number in range(rounds + 1):
            started = time.perf_counter()
            _ours(parts, next(numbers))
            took = time.perf_counter() - started
            flinks = flink.seconds(bootstrap, TOPIC, "theirs")
            if number:  # the first round warms our session up; Flink's JVM is new each time
                ours.append(took)
                theirs.append(flinks)
    name = f"a whole checkpoint of {rows:,} rows, Kafka → Kafka in staged mode, against Flink exactly-once"
    return Ratio(name, ours, theirs, 1 / 1.5)


def _ours(parts: LiveParts, number: int) -> tuple[float, float]:
    """Seconds of the commit, per transaction: all of it, and what the sink needs."""
    pipeline = Pipeline(
        name=f"bench_{number}",
        source=KafkaSource(TOPIC),
        transform="benchmarks.kafka_sink:copy",
        sinks=[KafkaSink(name="out", topic="ours")],
    )
    parts = anew(parts, number)
    through = factory.coordinator(parts)
    planned = through.plan(pipeline, this_process(), lambda _: True).checkpoint
    assert planned is not None
    staged = factory.stage(parts, through, pipeline.name, planned.epoch, None)
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


def _spark(parts: LiveParts) -> None:
    bootstrap = {"kafka.bootstrap.servers": parts.settings.brokers(None)}
    rows = parts.spark().read.format("kafka").options(**bootstrap, subscribe=TOPIC).load()
    copy(rows).write.format("kafka").options(**bootstrap, topic="theirs").save()
