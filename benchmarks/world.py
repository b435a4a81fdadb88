"""A broker with a topic of small records, and the parts to run pipelines on it in one warm session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from onceonly.checkpoint.model import Checkpoint
from onceonly.dev.services import Services
from onceonly.pipeline.definition import Pipeline
from onceonly.runtime import live_services, spark_stage
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

ROWS = 3_000_000
PARTITIONS = 4
TOPIC = "bench"


@contextmanager
def world(folder: Path, rows: int = ROWS, topics: tuple[str, ...] = ()) -> Iterator[LiveServices]:
    """A topic with that many records, and empty `topics`; ended with the block."""
    services = Services(folder / "home", port=0)
    bootstrap = services.up().bootstrap
    try:
        for topic in (TOPIC, *topics):
            create(bootstrap, topic)
        fill(bootstrap, TOPIC, rows)
        settings = replace(
            Settings.from_env(),
            home=folder / "home",
            state=str(folder / "state"),
            spool=str(folder / "spool"),
            bootstrap=bootstrap,
        )
        StateTable.make(settings.state)
        yield LiveServices(settings)
    finally:
        services.down()


def anew(parts: LiveServices, number: int) -> LiveServices:
    """With a state table of its own: each round, under another pipeline's name, reads the topic from its start."""
    state = f"{parts.settings.state}-{number}"
    StateTable.make(state)
    return LiveServices(replace(parts.settings, state=state))


def whole(parts: LiveServices, pipeline: Pipeline, owner: str = "bench") -> Checkpoint:
    """A whole checkpoint: plan, stage, commit."""
    through = live_services.open_coordinator(parts)
    planned = through.plan(pipeline, owner, lambda _: True).checkpoint
    assert planned is not None
    spark_stage.stage(parts, through, pipeline.name, planned.epoch, None)
    return through.commit(pipeline.name, planned.epoch)


def create(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(120)  # a thousand partitions take a while


def record(number: int) -> tuple[bytes, bytes]:
    """Value and key of a small record."""
    return f"value-{number:050}".encode(), str(number).encode()


def fill(bootstrap: str, topic: str, rows: int, partitions: int = PARTITIONS) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    for number in range(rows):
        while True:
            try:
                producer.produce(topic, *record(number), number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("the broker did not take all records")
