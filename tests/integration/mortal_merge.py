"""A process that runs checkpoints of changes which are merged, and SIGKILLs its own group at a named point.

Arguments: FOLDER SPARK POINT. With the point '-' it runs until nothing is left. Run by test_merge_crash.py.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from integration.points import around, around_rows
from integration.project import Project

from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.merge import Merge
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import factory, owners
from onceonly.sinks.delta import merge, sink

POINT = sys.argv[3]
PLACES: list[tuple[Any, str, str]] = [
    (sink.DeltaWriter, "stage", "stage"),
    (sink.DeltaWriter, "commit", "commit"),
    (merge, "_search", "search"),
    (merge, "_write", "copies"),
    (merge, "write_deltalake", "files of copies"),
    (sink, "_commit_files", "entry"),
]


def reach(point: str) -> None:
    if point == POINT:
        os.killpg(0, signal.SIGKILL)


def pipeline(project: Project) -> Pipeline:
    changes = Merge(keys=["key"], order_by=["at"], deletes="gone")
    return Pipeline(
        name="merged",
        source=KafkaSource(topic=project.topic, max_records=10),
        transform=f"transforms_{project.topic}:changes",
        sinks=[DeltaSink("merged", path="lake/merged", merge=changes)],
    )


def main() -> None:
    around_rows(reach)
    for place, method, name in PLACES:
        around(place, method, name, reach)
    project = Project.found(*sys.argv[1:3])
    while once(project) and POINT == "-":
        pass


def once(project: Project) -> bool:
    """Whether there was something to do."""
    parts = project.parts
    through, owner = factory.coordinator(parts), f"{owners.this_process()} {os.urandom(4).hex()}"
    planned = through.plan(pipeline(project), owner, owners.nobody).checkpoint
    if planned is None or planned.state.settled:
        return False
    factory.stage(parts, through, planned.pipeline, planned.epoch, owner)
    done = through.commit(planned.pipeline, planned.epoch)
    print(f"epoch {done.epoch} {done.state.value}: {dict(done.published['merged'])}")
    return True


if __name__ == "__main__":
    main()
