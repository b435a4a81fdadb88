"""Tasks of Spark that write to Kafka and wait amid their rows, until a test lets them go on.

Each holds an open transaction then. Only the first attempt of a task waits: a retry or a speculative copy does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from integration.kafka_reader import until
from patience import PATIENCE

from onceonly.sinks.kafka import stage

STEP = 50  # rows that are written before it waits


@dataclass(frozen=True)
class Task:
    """An attempt of a task that has begun to write."""

    part: int
    attempt: int
    pid: int  # of its Python process
    executor: int  # the JVM's pid


@dataclass(frozen=True)
class Held:
    """The tasks that have come as far as their first rows."""

    folder: Path

    def tasks(self) -> list[Task]:
        return [Task(**json.loads(file.read_text())) for file in sorted(self.folder.glob("task-*.json"))]

    def wait(self, tasks: int) -> list[Task]:
        return list(until(lambda: found if len(found := self.tasks()) >= tasks else None, PATIENCE, "tasks that wait"))

    def release(self) -> None:
        (self.folder / "go").touch()


@contextmanager
def holding(folder: Path) -> Iterator[Held]:
    """In stages of this process, wherever their tasks run."""
    folder.mkdir()
    held = Held(folder)
    try:
        with patch.object(stage, "_stage_part", _waiting(str(folder))):
            yield held
    finally:
        held.release()


def _waiting(folder: str) -> Callable[..., Any]:
    """`stage._stage_part`, self-contained: the workers do not know this module."""
    inner, step = stage._stage_part, STEP

    def stage_part(job: Any, part: int, batches: Any) -> Any:
        import os
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.attemptNumber() if context else 0
        report = f"{folder}/task-{part}-{attempt}-{os.getpid()}.json"

        def parent(pid: int) -> int:
            with open(f"/proc/{pid}/stat") as stat:
                return int(stat.read().rpartition(")")[2].split()[1])

        def wait() -> None:
            told = {"part": part, "attempt": attempt, "pid": os.getpid(), "executor": parent(os.getppid())}
            with open(f"{report}.new", "w") as file:
                file.write(str(told).replace("'", '"'))
            os.rename(f"{report}.new", report)
            while not attempt and not os.path.exists(f"{folder}/go"):
                time.sleep(0.01)

        def slowly() -> Any:
            waited = False
            for batch in batches:
                for begin in range(0, batch.num_rows, step):
                    yield batch.slice(begin, step)
                    if not waited:
                        wait()
                    waited = True

        return inner(job, part, slowly())

    return stage_part
