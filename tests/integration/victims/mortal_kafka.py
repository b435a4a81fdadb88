"""A process that copies topic to topic and ends, or stops, at a named point: in itself or in one of Spark's workers.

Arguments: FOLDER SPARK ACTION POINT COPY. ACTION is 'run' (checkpoint after checkpoint until nothing is left), 'commit'
or 'recover'. COPY is what `Copy` takes, as JSON. POINT is one of

    '-'                      never
    'before …', 'after …'    SIGKILL to the whole group when it is reached first
    'stop before …'          SIGSTOP instead, to this process alone; a second point may follow: 'stop before …, after …'
    'worker before …'        SIGKILL to this group and to the Spark worker in which it is reached
    '17'                     SIGKILL at the 17th point, whichever that is
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

from integration.faults.jvm_rows import until_written
from integration.faults.points import around, around_rows
from integration.projects.copying import Copy
from integration.projects.project import Project

from onceonly.checkpoint.model import Checkpoint
from onceonly.kafka.transactions import Transactions
from onceonly.runtime import owners, spark_stage
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.kafka import jvm_writer, python_writer
from onceonly.sinks.kafka.producer import Output
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sinks.kafka.spool import SpoolFile
from onceonly.spark import small_batch
from onceonly.storage.folders import Folders

DRIVER: list[tuple[type, str, str]] = [  # class, method, name of the point
    (KafkaWriter, "stage", "stage"),
    (KafkaWriter, "commit", "commit"),
    (KafkaWriter, "discard", "discard"),
    (KafkaWriter, "release", "release"),
    (DeltaWriter, "commit", "commit to Delta"),
    (Transactions, "end", "end"),
    (Transactions, "fence", "fence"),
    (Output, "flush", "flush"),
    (Folders, "delete", "delete"),
]
WORKER: list[tuple[type, str, str]] = [
    (SpoolFile, "write", "spool"),
    (SpoolFile, "close", "close"),
    (Output, "write", "produce"),
    (Output, "flush", "flush"),
]
number = count(1)


def reach(point: str) -> None:
    wanted, _, later = sys.argv[4].partition(", ")
    if wanted in (point, str(next(number))):
        os.killpg(0, signal.SIGKILL)
    if wanted == f"stop {point}":
        sys.argv[4] = later
        os.kill(os.getpid(), signal.SIGSTOP)


def mortal_part(point: str, group: int) -> Callable[..., Any]:
    """`python_writer._stage_part` for Spark's workers. They serve other jobs later: nothing stays changed."""
    points, inner = WORKER, python_writer._stage_part

    def dies(kind: type, method: str, name: str) -> Callable[..., Any]:
        original = getattr(kind, method)

        def outer(*arguments: Any) -> Any:
            if point == f"worker before {name}":
                end()
            result = original(*arguments)
            if point == f"worker after {name}":
                end()
            return result

        return outer

    def end() -> None:
        with suppress(ProcessLookupError):  # another worker was first
            os.killpg(group, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def stage_part(*arguments: Any) -> Any:
        with ExitStack() as patched:
            for kind, method, name in points:
                patched.enter_context(patch.object(kind, method, dies(kind, method, name)))
            return inner(*arguments)

    return stage_part


def mortal_rows(point: str, group: int) -> Callable[..., Any]:
    """`jvm_writer.run` of which a task dies before the JVM has a row, or when it writes."""
    inner, is_early = jvm_writer.run, point.startswith("worker before")

    def end() -> None:
        with suppress(ProcessLookupError):  # another worker was first
            os.killpg(group, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def run(job: Any, rows: Any, settings: Any) -> Any:
        wait = until_written(job)

        def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
            passed = 0
            for batch in batches:
                if is_early:
                    end()
                yield batch
                passed += batch.num_rows
            if passed:
                wait()
                end()

        return inner(job, rows.mapInArrow(pass_on, rows.schema), settings)

    return run


def main() -> None:
    folder, spark, action, point, text = sys.argv[1:6]
    if point.startswith("worker"):
        python_writer._stage_part = mortal_part(point, os.getpgid(0))
        jvm_writer.run = mortal_rows(point, os.getpgid(0))
    else:
        around_rows(reach)
        for step in DRIVER:
            around(*step, reach)
    plain = json.loads(text)
    copy = Copy(Project.found(folder, spark), **plain)
    small_batch.MAX_RECORDS = copy.few_records
    print("ready", flush=True)
    match action:
        case "run":
            run(copy)
        case "commit":
            print(copy.commit().state.value)
        case "recover":
            copy.recover()


def run(copy: Copy) -> None:
    """Until no checkpoint is left to run, each as a run of its own."""
    for turn in count(1):
        owner = f"{owners.process_owner()} run {turn}"
        waiting = copy.next(owner, alive)
        if waiting is None:
            return
        spark_stage.stage(copy.project.parts, copy.through, "copying", waiting, owner)
        done = copy.commit(waiting)
        print(f"epoch {done.epoch} {done.state.value}", flush=True)


def alive(checkpoint: Checkpoint) -> bool:
    return owners.is_alive(replace(checkpoint, owners=(checkpoint.owner.split(" run ")[0],)))


if __name__ == "__main__":
    main()
