"""How a whole checkpoint grows with its rows, and with the partitions that it reads and the transactions it ends."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from statistics import median

from benchmarks.figures import plain
from benchmarks.results import Result, Row
from benchmarks.world import TOPIC, anew, create, fill, world
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import factory
from onceonly.runtime.factory import LiveParts
from onceonly.runtime.owners import this_process

ROWS = (250_000, 1_000_000, 2_000_000, 4_000_000)
PARTITIONS = (1, 10, 100, 400)
SMALL = 40_000  # rows of each of those topics
ROUNDS = 3
STEPS = ("plan", "stage", "commit")
KINDS = {"Kafka → Delta": "benchmarks.checkpoint:shape", "Kafka → Kafka": "benchmarks.kafka_sink:copy"}
A_BILLION = 1_000_000_000


def growth(folder: Path) -> Result:
    """Rows: one topic, of which a checkpoint takes the first so many."""
    took: dict[tuple[str, int], list[float]] = {}
    with world(folder, ROWS[-1], ("out",)) as parts:
        numbers = count(1)
        for round_ in range(ROUNDS + 1):
            for kind in KINDS:
                for rows in ROWS if round_ else ROWS[:1]:  # the first round warms up
                    source = KafkaSource(TOPIC, max_records=rows)
                    steps = _steps(anew(parts, next(numbers)), _pipeline(f"g{next(numbers)}", kind, source))
                    took.setdefault((kind, rows), []).append(sum(steps.values()))
    points = [Row("one checkpoint", "s", took[kind, rows][-ROUNDS:], kind, x=rows) for kind in KINDS for rows in ROWS]
    notes = [_per_day(kind, [median(took[kind, rows][-ROUNDS:]) for rows in ROWS]) for kind in KINDS]
    how = "A whole checkpoint (plan, stage, commit) in a warm session, by the number of its small records."
    return Result("Growth: rows", how, points, x="records", notes=notes)


def partitions(folder: Path) -> Result:
    """Partitions: as many rows in each topic; a Spark task, and a transaction, for each partition."""
    took: dict[tuple[str, int], list[float]] = {}
    with world(folder, 1, ("out",)) as parts:
        for number in PARTITIONS:
            create(parts.settings.brokers(None), f"in-{number}", number)
            fill(parts.settings.brokers(None), f"in-{number}", SMALL, number)
        numbers = count(1)
        for round_ in range(ROUNDS + 1):
            for number in PARTITIONS if round_ else PARTITIONS[1:2]:
                pipeline = _pipeline(f"p{next(numbers)}", "Kafka → Kafka", KafkaSource(f"in-{number}"))
                for step, seconds in _steps(anew(parts, next(numbers)), pipeline).items():
                    took.setdefault((step, number), []).append(seconds)
    points = [Row("one checkpoint", "s", took[step, n][-ROUNDS:], step, x=n) for step in STEPS for n in PARTITIONS]
    middle = {key: median(runs[-ROUNDS:]) for key, runs in took.items()}
    return Result(
        "Growth: partitions and transactions",
        f"Kafka → Kafka, {SMALL:,} small records in as many partitions; each is a Spark task and a transaction.",
        points,
        x="partitions, and as many transactions",
        notes=[_of_many(step, *(middle[step, number] for number in PARTITIONS[-2:])) for step in STEPS],
    )


def _pipeline(name: str, kind: str, source: KafkaSource) -> Pipeline:
    kafka = kind == "Kafka → Kafka"
    sink = KafkaSink(name="out", topic="out") if kafka else DeltaSink("out", path="lake/growth")
    return Pipeline(name=name, source=source, transform=KINDS[kind], sinks=[sink])


def _steps(parts: LiveParts, pipeline: Pipeline) -> dict[str, float]:
    """Seconds of each."""
    through, times = factory.coordinator(parts), [time.perf_counter()]
    planned = through.plan(pipeline, this_process(), lambda _: True).checkpoint
    assert planned is not None
    times.append(time.perf_counter())
    factory.stage(parts, through, pipeline.name, planned.epoch, None)
    times.append(time.perf_counter())
    through.commit(pipeline.name, planned.epoch)
    times.append(time.perf_counter())
    return {step: end - start for step, start, end in zip(STEPS, times, times[1:], strict=False)}


def _per_day(kind: str, seconds: list[float]) -> str:
    """The arithmetic to a billion rows a day, in 24 checkpoints."""
    slope = (seconds[-1] - seconds[1]) / (ROWS[-1] - ROWS[1])
    fixed = max(seconds[-1] - slope * ROWS[-1], 0.0)
    minutes = (fixed * 24 + slope * A_BILLION) / 60
    return (
        f"{kind}: {plain(1 / slope)} records a second beyond {plain(fixed)} s that every checkpoint takes (slope from "
        f"{ROWS[1]:,} to {ROWS[-1]:,}). A billion a day in 24 checkpoints take {plain(minutes / 24)} min of each hour."
    )


def _of_many(step: str, fewer: float, more: float) -> str:
    """The arithmetic to 10,000 partitions, by the last slope."""
    slope = (more - fewer) / (PARTITIONS[-1] - PARTITIONS[-2])
    seconds = more + slope * (10_000 - PARTITIONS[-1])
    return f"{step}: {plain(1000 * slope)} ms for each further partition, so about {plain(seconds)} s for 10,000."
