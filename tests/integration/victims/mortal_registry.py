"""A process that runs checkpoints of registered records, and SIGKILLs its own group at a named point.

Arguments: FOLDER SPARK POINT. With the point '-' it runs until nothing is left. Run by test_registry_crash.py.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from integration.faults.points import around, around_rows
from integration.projects.checkpoints import run_next
from integration.projects.project import Project

from onceonly.kafka.registry.client import Registry
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sources.kafka import KafkaReader

POINT = sys.argv[3]
PLACES: list[tuple[Any, str, str]] = [
    (KafkaReader, "schemas", "schemas"),
    (Registry, "register", "register"),
    (KafkaWriter, "stage", "stage"),
    (KafkaWriter, "commit", "commit"),
    (DeltaWriter, "commit", "commit to Delta"),
]


def reach(point: str) -> None:
    if point == POINT:
        os.killpg(0, signal.SIGKILL)


def pipeline(project: Project) -> Pipeline:
    topic = project.topic
    return Pipeline(
        name="orders",
        source=KafkaSource(
            topic_pattern=f"{topic}(-.*)?", format="avro", registry="registry", subject="shop.Order", max_records=10
        ),
        transform=f"transforms_{topic}:copies_of_orders",
        sinks=[
            DeltaSink("orders", path="lake/orders"),
            KafkaSink(
                name="copies", topic=f"copies_{topic}", format="json", schema="copy.json", key_format="avro",
                key_schema="key.avsc", registry="registry", register=True,
            ),
        ],
    )  # fmt: skip


def main() -> None:
    around_rows(reach)
    for place, method, name in PLACES:
        around(place, method, name, reach)
    project = Project.found(*sys.argv[1:3])
    while once(project):  # what an earlier process left may come first, and does not pass every point
        pass


def once(project: Project) -> bool:
    """Whether there was something to do."""
    done = run_next(project.parts, pipeline(project))
    if done:
        print(f"epoch {done.epoch} {done.state.value}")
    return done is not None


if __name__ == "__main__":
    main()
