"""A process that runs the example's shop and what is behind it until nothing is left, or a fault hits it at a point.

Arguments: FOLDER SPARK SUFFIX MOST FAULT POINT. The fault 'dies' is a SIGKILL of its group; 'stops' a SIGSTOP, after
which it goes on when it is woken up; 'lists' prints every point that it reaches. POINT is such a name, or '-'.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from itertools import count

from integration.faults.points import around, around_rows
from integration.projects.shop import pipelines

from onceonly.filesystems.folders import Folders
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.definition import Pipeline
from onceonly.runtime import factory, owners
from onceonly.settings import Settings
from onceonly.sinks.delta import entry, merge, sink
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sinks.state.sink import StateWriter

FAULT, POINT = sys.argv[5:7]
met = Counter[str]()
running = ""


def reach(point: str) -> None:
    point = f"{running} {point}"
    met[point] += 1
    name = f"{point} {met[point]}"  # several sinks reach the same one
    if FAULT == "lists":
        print(f"point {name}", flush=True)
    elif name == POINT:
        print(f"{FAULT} {name}", flush=True)
        os.killpg(0, {"dies": signal.SIGKILL, "stops": signal.SIGSTOP}[FAULT])


def main() -> None:
    around_rows(reach)
    for writer in (sink.DeltaWriter, KafkaWriter, StateWriter):
        for step in [step for step in ("stage", "commit", "discard", "release") if hasattr(writer, step)]:
            around(writer, step, f"{step} of {writer.__name__}", reach)
    for kind, method in ((Transactions, "end"), (Transactions, "withdraw"), (Folders, "delete")):
        around(kind, method, method, reach)
    around(merge, "write_deltalake", "files of copies", reach)  # type: ignore[arg-type]
    around(entry, "commit", "entry", reach)  # type: ignore[arg-type]
    parts = factory.LiveParts(Settings.from_env({**os.environ, "SPARK_REMOTE": sys.argv[2]}))
    print("ready", flush=True)
    for pipeline in pipelines(sys.argv[3], int(sys.argv[4])):
        run(parts, pipeline)


def run(parts: factory.LiveParts, pipeline: Pipeline) -> None:
    """Checkpoint after checkpoint, until nothing is left."""
    global running
    running = pipeline.name
    for turn in count():
        met.clear()
        through, owner = factory.coordinator(parts), f"{owners.this_process()}-{turn}"
        planned = through.plan(pipeline, owner, owners.nobody).checkpoint
        if planned is None:
            through.recover(pipeline.name, owners.nobody)
            return
        factory.stage(parts, through, pipeline.name, planned.epoch, owner)
        print(f"{pipeline.name} epoch {through.commit(pipeline.name, planned.epoch).epoch}", flush=True)


if __name__ == "__main__":
    main()
