"""Tasks of Spark that wait amid their rows, until a test lets them go on.

Those that write to Kafka hold an open transaction then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from integration.faults.jvm_rows import until_written
from integration.readers.kafka_reader import until
from patience import PATIENCE

from onceonly.sinks.kafka import jvm_writer, python_writer

STEP = 50  # rows that are passed on before it waits


@dataclass(frozen=True)
class Task:
    """An attempt of a task that has passed its first rows on."""

    part: int
    attempt: int
    pid: int  # of its Python process
    executor: int  # the JVM's pid


@dataclass(frozen=True)
class Held:
    """The tasks that have come as far as that."""

    folder: Path

    def tasks(self) -> list[Task]:
        return [Task(**json.loads(file.read_text())) for file in sorted(self.folder.glob("task-*.json"))]

    def wait(self, tasks: int) -> list[Task]:
        return list(until(lambda: found if len(found := self.tasks()) >= tasks else None, PATIENCE, "tasks that wait"))

    def release(self, part: int | None = None) -> None:
        """The tasks of one partition, or all."""
        (self.folder / ("go" if part is None else f"go-{part}")).touch()


@contextmanager
def holding(folder: Path, again: Sequence[int] = ()) -> Iterator[Held]:
    """In stages of this process, wherever their tasks run: those that write to Kafka wait. `again`: see `waiting`."""
    folder.mkdir()
    held = Held(folder)
    by_python, by_jvm = python_writer._stage_part, jvm_writer.run
    slowly = waiting(folder, again)  # made here: it is sent to workers whole, while a name of this module is not there

    def stage_part(job: Any, part: int, batches: Any) -> Any:
        return by_python(job, part, slowly(batches))

    def run(job: Any, rows: Any, settings: Any) -> Any:
        return by_jvm(job, rows.mapInArrow(waiting(folder, again, until_written(job)), rows.schema), settings)

    try:
        with patch.object(python_writer, "_stage_part", stage_part), patch.object(jvm_writer, "run", run):
            yield held
    finally:
        held.release()


def waiting(
    folder: Path, again: Sequence[int] = (), before: Callable[[], None] = lambda: None
) -> Callable[[Any], Iterator[Any]]:
    """Passes batches on, and waits after the first rows. It is sent to workers, which do not know this module.

    Only the first attempt of a task waits: a retry or a speculative copy does not.

    Args:
        again: partitions whose later attempts wait, too.
        before: what is called before a task waits.
    """
    place, step = str(folder), STEP

    def wait() -> None:
        import json
        import os
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            return
        with open(f"/proc/{os.getppid()}/stat") as stat:
            jvm = int(stat.read().rpartition(")")[2].split()[1])
        part, attempt, pid = context.partitionId(), context.attemptNumber(), os.getpid()
        report = f"{place}/task-{part}-{attempt}-{pid}.json"
        with open(f"{report}.new", "w") as file:
            json.dump({"part": part, "attempt": attempt, "pid": pid, "executor": jvm}, file)
        os.rename(f"{report}.new", report)
        waits = part in again or not attempt
        while waits and not any(os.path.exists(f"{place}/{go}") for go in ("go", f"go-{part}")):
            time.sleep(0.01)

    def slowly(batches: Any) -> Iterator[Any]:
        waited = False
        for batch in batches:
            for begin in range(0, batch.num_rows, step):
                yield batch.slice(begin, step)
                if not waited:
                    before()
                    wait()
                waited = True

    return slowly
