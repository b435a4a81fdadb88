"""How a whole checkpoint grows with its rows, and with the partitions that it reads and the transactions it ends."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks import peers
from benchmarks.checkpoint import shape
from benchmarks.goals import TUNED
from benchmarks.kafka_sink import copy
from benchmarks.ratio import Work, seconds
from benchmarks.results import RATIO, Result, Row
from benchmarks.world import PARTITIONS as TOPIC_PARTITIONS
from benchmarks.world import TOPIC, anew, create, fill, world
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, spark_stage
from onceonly.runtime.live_services import LiveServices
from onceonly.runtime.owners import process_owner

ROUNDS = {1_000_000: 7, 3_000_000: 5, 10_000_000: 3, 30_000_000: 1}  # by the number of rows
WARM_ROUNDS = 2  # of the fewest rows
PARTITION_ROUNDS = {1: 3, 10: 2, 100: 1, 300: 1, 1000: 1}
SMALL = 40_000  # rows of each of those topics
STEPS = ("plan", "stage", "commit")
KINDS = {"Kafka → Delta": "benchmarks.checkpoint:shape", "Kafka → Kafka": "benchmarks.kafka_sink:copy"}


def growth(folder: Path) -> Result:
    """Rows: one topic, of which each side takes the first so many."""
    took: dict[tuple[str, int], list[float]] = {}
    with world(folder, max(ROUNDS), ("out", "theirs")) as parts:
        numbers = count(1)
        for _ in range(WARM_ROUNDS):
            for work in _sides(parts, numbers, min(ROUNDS)).values():
                work()
        for round_ in range(max(ROUNDS.values())):
            for rows in [each for each, rounds in ROUNDS.items() if rounds > round_]:
                for side, work in _sides(parts, numbers, rows).items():
                    took.setdefault((side, rows), []).append(seconds(work))
    points = [Row("one checkpoint", "s", runs, side, x=rows) for (side, rows), runs in sorted(took.items())]
    how = (
        "A whole checkpoint (plan, stage, commit) in a warm session, by the number of its small records; beside it "
        "what Spark, tuned, takes for the same rows without any guarantee."
    )
    ratios = [_ratio(took, kind, rows) for kind in KINDS for rows in ROUNDS]
    return Result("Growth: rows", how, [*points, *ratios], x="records", settings=peers.WRITING)


def _ratio(took: Mapping[tuple[str, int], list[float]], kind: str, rows: int) -> Row:
    runs = zip(took[kind, rows], took[f"{kind}, {TUNED}", rows], strict=True)
    return Row(f"{kind} ÷ {TUNED}, {rows:,}", RATIO, [ours / theirs for ours, theirs in runs])


def _sides(parts: LiveServices, numbers: Iterator[int], rows: int) -> dict[str, Work]:
    found: dict[str, Work] = {}
    for kind in KINDS:
        pipeline = _pipeline(f"g{next(numbers)}", kind, KafkaSource(TOPIC, max_records=rows))
        found[kind] = partial(_steps, anew(parts, next(numbers)), pipeline)
        found[f"{kind}, {TUNED}"] = partial(_plain, parts, kind, rows)
    return found


def _plain(parts: LiveServices, kind: str, rows: int) -> None:
    """Spark alone, tuned: as many records from the start of each partition."""
    ends = json.dumps({TOPIC: {str(each): rows // TOPIC_PARTITIONS for each in range(TOPIC_PARTITIONS)}})
    read = peers.read(parts, {**peers.READ, "endingOffsets": ends})
    if kind == "Kafka → Delta":
        shape(read).write.format("delta").mode("append").save(parts.settings.locate("lake/plain"))
    else:
        options = {"kafka.bootstrap.servers": parts.settings.brokers(None), "topic": "theirs", **peers.WRITE}
        with peers.by_default(parts):
            copy(read).write.format("kafka").options(**options).mode("append").save()


def partitions(folder: Path) -> Result:
    """Partitions: as many rows in each topic; a Spark task, and a transaction, for each partition."""
    took: dict[tuple[str, int], list[float]] = {}
    with world(folder, 1, ("out",)) as parts:
        for number in PARTITION_ROUNDS:
            create(parts.settings.brokers(None), f"in-{number}", number)
            fill(parts.settings.brokers(None), f"in-{number}", SMALL, number)
        numbers = count(1)
        for round_ in range(max(PARTITION_ROUNDS.values()) + 1):
            for number in [n for n, rounds in PARTITION_ROUNDS.items() if rounds >= round_] if round_ else [10]:
                pipeline = _pipeline(f"p{next(numbers)}", "Kafka → Kafka", KafkaSource(f"in-{number}"))
                for step, took_ in _steps(anew(parts, next(numbers)), pipeline).items():
                    if round_:  # the first one warms up
                        took.setdefault((step, number), []).append(took_)
    points = [Row("one checkpoint", "s", took[step, n], step, x=n) for step in STEPS for n in PARTITION_ROUNDS]
    return Result(
        "Growth: partitions and transactions",
        f"Kafka → Kafka, {SMALL:,} small records in as many partitions; each is a Spark task and a transaction.",
        points,
        x="partitions, and as many transactions",
    )


def _pipeline(name: str, kind: str, source: KafkaSource) -> Pipeline:
    kafka = kind == "Kafka → Kafka"
    sink = KafkaSink(name="out", topic="out") if kafka else DeltaSink("out", path="lake/growth")
    return Pipeline(name=name, source=source, transform=KINDS[kind], sinks=[sink])


def _steps(parts: LiveServices, pipeline: Pipeline) -> dict[str, float]:
    """Seconds of each."""
    through, times = live_services.open_coordinator(parts), [time.perf_counter()]
    planned = through.plan(pipeline, process_owner(), lambda _: True).checkpoint
    assert planned is not None
    times.append(time.perf_counter())
    spark_stage.stage(parts, through, pipeline.name, planned.epoch, None)
    times.append(time.perf_counter())
    through.commit(pipeline.name, planned.epoch)
    times.append(time.perf_counter())
    return {step: end - start for step, start, end in zip(STEPS, times, times[1:], strict=False)}
