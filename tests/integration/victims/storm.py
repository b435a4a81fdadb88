"""What the programs of the storms have in common: checkpoint after checkpoint, and a fault at one of their points."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from itertools import count

from integration.faults.points import Reach, around, around_rows

from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.definition import Pipeline
from onceonly.runtime import live_services, owners, spark_stage
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings
from onceonly.storage.folders import Folders

STEPS = ("stage", "commit", "discard", "release")


def hit(fault: str, point: str) -> None:
    """Tell it; then die, or stop until woken up."""
    print(f"{fault} {point}", flush=True)
    os.killpg(0, {"dies": signal.SIGKILL, "stops": signal.SIGSTOP}[fault])


def around_all(reach: Reach, *writers: type) -> None:
    """Points around each row of the state table, each step of these writers, and what takes something back."""
    around_rows(reach)
    for writer in writers:
        for step in [step for step in STEPS if hasattr(writer, step)]:
            around(writer, step, f"{step} of {writer.__name__}", reach)
    for kind, method in ((Transactions, "end"), (Transactions, "withdraw"), (Folders, "delete")):
        around(kind, method, method, reach)


def ready() -> LiveServices:
    """With the Spark that the second argument of the process names."""
    parts = LiveServices(Settings.from_env({**os.environ, "SPARK_REMOTE": sys.argv[2]}))
    print("ready", flush=True)
    return parts


def run(parts: LiveServices, pipeline: Pipeline, begins: Callable[[], None] = lambda: None) -> None:
    """Checkpoint after checkpoint, until nothing is left, and what others have left is settled."""
    for turn in count():
        begins()
        through, owner = live_services.open_coordinator(parts), f"{owners.process_owner()}-{turn}"
        planned = through.plan(pipeline, owner, owners.is_never_alive).checkpoint
        if planned is None:
            through.recover(pipeline.name, owners.is_never_alive)
            return
        spark_stage.stage(parts, through, pipeline.name, planned.epoch, owner)
        print(f"{pipeline.name} epoch {through.commit(pipeline.name, planned.epoch).epoch}", flush=True)
