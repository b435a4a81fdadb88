"""A process that settles what is left, runs one checkpoint and SIGKILLs its own group at a named point.

Arguments: FOLDER SPARK MODE POINT [HOUR …]. The point '-' is never reached; a chained pipeline is then run until
nothing is left. Run by test_crash.py.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from typing import Any

from integration.faults.points import around, around_rows
from integration.projects.project import Project, hour

from onceonly.coordinator.coordinator import Alive
from onceonly.runtime import live_services, owners, spark_stage
from onceonly.sinks.delta.sink import DeltaWriter

POINT = sys.argv[4]
RUN = count(1)


def reach(point: str) -> None:
    if point == POINT:
        os.killpg(0, signal.SIGKILL)


def main() -> None:
    folder, spark, mode = sys.argv[1:4]
    around_rows(reach)
    for method in ("stage", "commit", "discard"):
        around(DeltaWriter, method, method, reach)
    project = Project.found(folder, spark)
    intervals = [hour(int(number)) for number in sys.argv[5:]] or [None]
    if (POINT, mode) == ("-", "chained"):
        while once(project, mode, None, owners.is_never_alive):
            pass
        return
    for interval in intervals:
        once(project, mode, interval, owners.is_alive)


def once(project: Project, mode: str, interval: Any, alive: Alive) -> bool:
    """Whether there was something to do."""
    parts = project.parts
    pipeline = project.pipeline(mode, most=10 if mode == "chained" else None)
    through = live_services.open_coordinator(parts)
    owner = f"{owners.process_owner()} {next(RUN)}" if alive is owners.is_never_alive else owners.process_owner()
    planned = through.plan(pipeline, owner, alive, interval).checkpoint
    if planned is None or planned.state.is_settled:
        return False
    spark_stage.stage(parts, through, pipeline.name, planned.epoch, owner)
    if pipeline.gate:
        through.gate(pipeline.name, planned.epoch, owner)
    done = through.commit(pipeline.name, planned.epoch)
    print(f"epoch {done.epoch} {done.state.value}")
    return True


if __name__ == "__main__":
    main()
