"""Flights into every kind of sink, by a process that SIGKILLs its group at a named point.

Arguments: TOPIC OUT. In the environment: MATRIX_POINT. Run by the matrix in each cell's environment.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from integration.faults.points import around
from integration.projects import everything

from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import KafkaSink
from onceonly.runtime import live_services, owners, spark_stage
from onceonly.settings import Settings
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.kafka.sink import KafkaWriter

# Staged, with open transactions; published in the table, and not in the topic.
POINTS = ("after stage of KafkaWriter", "after commit of DeltaWriter")
RECORDS = 2_000
NAME = "matrix"
ONCE = "MATRIX_ONCE"  # the folder of points at which one process dies


def pipeline(topic: str, out: str) -> Pipeline:
    """The pipeline of the storm, for brokers that know no pool of transactional ids, too."""
    whole = everything.pipeline(topic, out)
    (source,) = whole.sources
    sinks = [replace(sink, ids="unique") if isinstance(sink, KafkaSink) else sink for sink in whole.sinks]
    return replace(whole, name=NAME, source=replace(source, max_records=RECORDS), sinks=sinks)


def at_event(*_: object) -> None:
    """Named by ONCEONLY_NOTIFY where another process stages or commits: so it is mortal before it opens its sinks."""
    mortal()


@cache
def mortal() -> None:
    """From here on, this process dies where MATRIX_POINT says, or MATRIX_ONCE."""

    def reach(point: str) -> None:
        if point == os.environ.get("MATRIX_POINT"):
            print(f"dies {point}", flush=True)
            os.killpg(0, signal.SIGKILL)
        if ONCE in os.environ and taken(Path(os.environ[ONCE], point)):
            os.kill(os.getpid(), signal.SIGKILL)  # not the group: the scheduler's, or the worker's

    for sink in (DeltaWriter, KafkaWriter):
        for step in ("stage", "commit"):
            around(sink, step, f"{step} of {sink.__name__}", reach)


def taken(file: Path) -> bool:
    """Whether it was there; of several processes, one has taken it."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def main() -> None:
    mortal()
    parts: Any = live_services.LiveServices(Settings.from_env())
    for turn in count():
        through, owner = live_services.open_coordinator(parts), f"{owners.process_owner()}-{turn}"
        planned = through.plan(pipeline(*sys.argv[1:3]), owner, owners.is_never_alive).checkpoint
        if planned is None:
            through.recover(NAME, owners.is_never_alive)
            return
        spark_stage.stage(parts, through, NAME, planned.epoch, owner)
        print(f"epoch {through.commit(NAME, planned.epoch).epoch}", flush=True)


if __name__ == "__main__":
    main()
