"""A process that runs a pipeline from a topic to a folder and another one behind that folder, and dies in one of them.

Arguments: FOLDER SPARK WHICH POINT. It SIGKILLs its own group at the point, in the pipeline WHICH ('first', 'second');
with the point '-' it runs until nothing is left. Run by test_file_crash.py.
"""

from __future__ import annotations

import os
import signal
import sys

from integration.faults.points import around, around_rows
from integration.projects.checkpoints import ran
from integration.projects.project import Project

from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import FileSink
from onceonly.pipeline.sources import FileSource, KafkaSource
from onceonly.sinks.files import manifest
from onceonly.sinks.files.sink import FileWriter
from onceonly.sources.files import FileReader

WHICH, POINT = sys.argv[3:5]
RUNS = {"now": ""}


def reach(point: str) -> None:
    if point == POINT and RUNS["now"] == WHICH:
        os.killpg(0, signal.SIGKILL)


def first(project: Project) -> Pipeline:
    return Pipeline(
        name="first",
        source=KafkaSource(topic=project.topic, max_records=10),
        transform=f"transforms_{project.topic}:numbers",
        sinks=[FileSink("numbers", path="lake/numbers", format="json", partition_by=["part"])],
    )


def second() -> Pipeline:
    return Pipeline(
        name="second",
        source=FileSource("lake/numbers", max_decisions=2),
        transform="of_files:tens",
        sinks=[FileSink("tens", path="lake/tens")],
    )


def main() -> None:
    around_rows(reach)
    for method in ("stage", "commit"):
        around(FileWriter, method, method, reach)
    for method in ("add_mark", "read", "verify"):
        around(FileReader, method, method, reach)
    around(manifest, "write", "manifest", reach)  # type: ignore[arg-type]
    project = Project.found(*sys.argv[1:3])
    pipelines = [first(project), second()]
    for pipeline in pipelines:
        RUNS["now"] = pipeline.name
        while ran(project.parts, pipeline) and pipeline.name != WHICH:
            pass


if __name__ == "__main__":
    main()
