"""A process that runs a pipeline from a topic to a table and another one behind that table, and dies in the second.

Arguments: FOLDER SPARK POINT. It SIGKILLs its own group at the point; with the point '-' it runs until nothing is left.
Run by test_table_crash.py.
"""

from __future__ import annotations

import os
import signal
import sys

from integration.faults.points import around, around_rows
from integration.projects.checkpoints import ran
from integration.projects.project import Project

from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import DeltaSource
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sources.delta import DeltaReader

POINT = sys.argv[3]
REACHED = {"second": False}  # whether the second pipeline runs


def reach(point: str) -> None:
    if point == POINT and REACHED["second"]:
        os.killpg(0, signal.SIGKILL)


def behind(table: str) -> Pipeline:
    return Pipeline(
        name="behind",
        source=DeltaSource(f"lake/{table}", max_versions=2),
        transform="of_table:tens",
        sinks=[DeltaSink("tens", path="lake/tens")],
    )


def main() -> None:
    around_rows(reach)
    for place, method in (
        (DeltaWriter, "stage"),
        (DeltaWriter, "commit"),
        (DeltaReader, "add_mark"),
        (DeltaReader, "read"),
    ):
        around(place, method, method, reach)
    project = Project.found(*sys.argv[1:3])
    first, second = project.pipeline(most=10), behind("chained")
    REACHED["second"] = False
    while ran(project.parts, first) and POINT == "-":
        pass
    REACHED["second"] = True
    while ran(project.parts, second) and POINT == "-":
        pass


if __name__ == "__main__":
    main()
