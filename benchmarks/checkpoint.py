"""A whole checkpoint, Kafka → Delta, against a plain Spark append of the same rows without any guarantee."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

from benchmarks.ratio import Ratio, alternate
from onceonly import wiring
from onceonly.liveness import this_process
from onceonly.pipeline import DeltaSink, KafkaSource, Pipeline
from onceonly.services import Services
from onceonly.settings import Settings
from onceonly.wiring import LiveParts

ROWS = 3_000_000
PARTITIONS = 4
TOPIC = "bench"


def shape(batch):  # type: ignore[no-untyped-def]
    """The transform of both sides."""
    return batch.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value", "partition", "offset")


def checkpoint(folder: Path, rows: int = ROWS, rounds: int = 5) -> Ratio:
    """Both sides in one warm session, from the same topic, into a table of their own."""
    services = Services(folder / "home", port=_free_port())
    bootstrap = services.up().bootstrap
    try:
        _fill(bootstrap, rows)
        settings = replace(Settings.from_env(), home=folder / "home", state=str(folder / "state"), bootstrap=bootstrap)
        parts = LiveParts(settings)
        name = f"a whole checkpoint of {rows:,} rows, Kafka → Delta, against a plain Spark append"
        numbers = count(1)
        return alternate(
            name, lambda: _ours(parts, next(numbers)), lambda: _plain(parts, bootstrap, folder), 1.05, rounds
        )
    finally:
        services.down()


def _ours(parts: LiveParts, number: int) -> None:
    """Each round is a pipeline of its own, so that it reads the topic from its start."""
    pipeline = Pipeline(
        name=f"bench_{number}",
        source=KafkaSource(TOPIC),
        transform="benchmarks.checkpoint:shape",
        sinks=[DeltaSink("out", path="lake/ours")],
    )
    through = wiring.coordinator(parts)
    planned = through.plan(pipeline, this_process(), lambda _: True).checkpoint
    assert planned is not None
    wiring.stage(parts, through, pipeline.name, planned.epoch, None)
    through.commit(pipeline.name, planned.epoch)


def _plain(parts: LiveParts, bootstrap: str, folder: Path) -> None:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC}
    rows = parts.spark().read.format("kafka").options(**options).load()
    shape(rows).write.format("delta").mode("append").save(str(folder / "home" / "lake" / "plain"))


def _fill(bootstrap: str, rows: int) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        done.result()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    for number in range(rows):
        while True:
            try:
                producer.produce(TOPIC, f"value-{number:050}".encode(), str(number).encode(), number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
            print(f"\r{number:,} records", end="", file=sys.stderr)
    if producer.flush(120):
        raise RuntimeError("the broker did not take all records")
    print(f"\r{rows:,} records", file=sys.stderr)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
