"""A process that runs the example's shop and what is behind it until nothing is left, or a fault hits it at a point.

Arguments: FOLDER SPARK SUFFIX MOST FAULT POINT. The fault 'dies' is a SIGKILL of its group; 'stops' a SIGSTOP, after
which it goes on when it is woken up; 'lists' prints every point that it reaches. POINT is such a name, or '-'.
"""

from __future__ import annotations

import sys
from collections import Counter

from integration.faults.points import around
from integration.projects.shop import pipelines
from integration.victims import storm

from onceonly.delta import commits
from onceonly.sinks.delta import merge, sink
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sinks.state.sink import StateWriter

FAULT, POINT = sys.argv[5:7]
met = Counter[str]()  # in this checkpoint
running = ""


def reach(point: str) -> None:
    point = f"{running} {point}"
    met[point] += 1
    name = f"{point} {met[point]}"  # several sinks reach the same one
    if FAULT == "lists":
        print(f"point {name}", flush=True)
    elif name == POINT:
        storm.hit(FAULT, name)


def main() -> None:
    global running
    storm.around_all(reach, sink.DeltaWriter, KafkaWriter, StateWriter)
    around(merge, "write_deltalake", "files of copies", reach)  # type: ignore[arg-type]
    around(commits, "commit_entry", "entry", reach)  # type: ignore[arg-type]
    parts = storm.ready()
    for pipeline in pipelines(sys.argv[3], int(sys.argv[4])):
        running = pipeline.name
        storm.run(parts, pipeline, met.clear)


if __name__ == "__main__":
    main()
