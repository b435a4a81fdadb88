"""A process that runs checkpoints of changes which are merged, and SIGKILLs its own group at a named point.

Arguments: FOLDER SPARK POINT. With the point '-' it runs until nothing is left. Run by test_merge_crash.py.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from integration.faults.points import around, around_rows
from integration.projects.checkpoints import run_next
from integration.projects.project import Project

from onceonly.delta import commits
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, Merge
from onceonly.pipeline.sources import KafkaSource
from onceonly.sinks.delta import merge, sink

POINT = sys.argv[3]
PLACES: list[tuple[Any, str, str]] = [
    (sink.DeltaWriter, "stage", "stage"),
    (sink.DeltaWriter, "commit", "commit"),
    (merge, "_search", "search"),
    (merge, "_write", "copies"),
    (merge, "write_deltalake", "files of copies"),
    (commits, "commit_entry", "entry"),
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
    done = run_next(project.parts, pipeline(project))
    if done:
        print(f"epoch {done.epoch} {done.state.value}: {dict(done.published['merged'])}")
    return done is not None


if __name__ == "__main__":
    main()
