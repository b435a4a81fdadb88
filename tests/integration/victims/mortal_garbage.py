"""A process that runs checkpoints of a topic with garbage, and SIGKILLs its own group at its n-th durable step.

Arguments: FOLDER SPARK OUT NUMBER. With the number 0 it runs until nothing is left. OUT: the topic of dead letters, or
'-' for a table. Run by test_garbage_crash.py.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count

from integration.faults.points import around, around_rows
from integration.projects.checkpoints import run_next
from integration.projects.garbage import Garbage
from integration.projects.project import Project

from onceonly.kafka.transactions import Transactions
from onceonly.runtime import live_services, owners
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.kafka.sink import KafkaWriter

NUMBER = int(sys.argv[4])
number = count(1)


def reach(point: str) -> None:
    if next(number) == NUMBER:
        print(f"dies {point}", flush=True)
        os.killpg(0, signal.SIGKILL)


def main() -> None:
    around_rows(reach)
    for sink in (DeltaWriter, KafkaWriter):
        for step in ("stage", "commit", "discard"):
            around(sink, step, f"{step} of {sink.__name__}", reach)
    around(Transactions, "end", "end", reach)
    out = sys.argv[3]
    garbage = Garbage(Project.found(*sys.argv[1:3]), None if out == "-" else out)
    while once(garbage):
        pass


def once(garbage: Garbage) -> bool:
    """Whether there was something to do."""
    parts = garbage.project.parts
    done = run_next(parts, garbage.pipeline(max_records=300))
    if done is None:
        live_services.open_coordinator(parts).recover("orders", owners.is_never_alive)
        return False
    print(f"epoch {done.epoch}", flush=True)
    return True


if __name__ == "__main__":
    main()
