"""A process that runs `everything` until nothing is left, or until its n-th point, where a fault hits it.

Arguments: FOLDER SPARK FAULT NUMBER TOPIC OUT. The fault 'dies' is a SIGKILL of its group; 'stops' a SIGSTOP, after
which it goes on when it is woken up. The number 0 is never reached.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count

from integration.faults.points import around, around_rows
from integration.projects.everything import pipeline

from onceonly.filesystems.folders import Folders
from onceonly.kafka.transactions import Transactions
from onceonly.runtime import factory, owners
from onceonly.settings import Settings
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.files import moves
from onceonly.sinks.files.sink import FileWriter
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sinks.state.sink import StateWriter

number = count(1)


def reach(point: str) -> None:
    if next(number) == int(sys.argv[4]):
        print(f"{sys.argv[3]} {point}", flush=True)
        os.killpg(0, {"dies": signal.SIGKILL, "stops": signal.SIGSTOP}[sys.argv[3]])


def main() -> None:
    around_rows(reach)
    for sink in (DeltaWriter, FileWriter, KafkaWriter, StateWriter):
        for step in [step for step in ("stage", "commit", "discard", "release") if hasattr(sink, step)]:
            around(sink, step, f"{step} of {sink.__name__}", reach)
    for kind, method in ((Transactions, "end"), (Transactions, "withdraw"), (Folders, "delete")):
        around(kind, method, method, reach)
    around(moves, "_move", "move", reach)  # type: ignore[arg-type]
    around(moves, "write_manifest", "manifest", reach)  # type: ignore[arg-type]
    parts = factory.LiveParts(Settings.from_env({**os.environ, "SPARK_REMOTE": sys.argv[2]}))
    print("ready", flush=True)
    for turn in count():
        through, owner = factory.coordinator(parts), f"{owners.this_process()}-{turn}"
        planned = through.plan(pipeline(*sys.argv[5:7]), owner, owners.nobody).checkpoint
        if planned is None:
            through.recover("everything", owners.nobody)
            return
        factory.stage(parts, through, "everything", planned.epoch, owner)
        print(f"epoch {through.commit('everything', planned.epoch).epoch}", flush=True)


if __name__ == "__main__":
    main()
