"""The workers of a probe in the tasks of the project's Spark, where sinks write: as threads, some in each task.

The tasks run at the same time, and meet by Spark's barrier. They reach the storage as the Python workers do that write
a sink's rows: with the login of this process, which travels with their function.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from onceonly.errors import NotCommitted
from onceonly.probe.findings import shorten
from onceonly.probe.trials import Answer
from onceonly.probe.workers import Job, run_threads
from onceonly.storage import logins

DYNAMIC_ALLOCATION = "spark.dynamicAllocation.enabled"
RESULT_DDL, TIMES_DDL = "result string", "host string, began double, ended double"
TASK_SECONDS = 1.0  # of tasks that only show how many run at the same time
TASK_END_SECONDS = 4.0  # Spark gives Python two seconds before it kills it (spark.python.task.killTimeout)


@dataclass(frozen=True)
class Crew:
    """How many tasks run, and how many workers are in each."""

    tasks: int
    threads: int

    @property
    def workers(self) -> int:
        return self.tasks * self.threads


def plan_crew(session: Any, workers: int) -> Crew:
    """Return a crew of that many workers or a few more, in as many tasks as run at the same time.

    Where Spark ends and starts executors as it likes, it runs no tasks that meet: then it is one task.
    """
    if session.conf.get(DYNAMIC_ALLOCATION, "false") == "true":
        return Crew(1, workers)
    rows = session.range(0, workers, 1, workers).mapInArrow(_note_times, TIMES_DDL).collect()
    tasks = max(1, min(count_simultaneous([(row["host"], row["began"], row["ended"]) for row in rows]), workers))
    return Crew(tasks, -(-workers // tasks))


def count_simultaneous(tasks: Sequence[tuple[str, float, float]]) -> int:
    """Return how many tasks have run at the same time.

    Args:
        tasks: host, beginning and end of each; clocks of two hosts are not compared.
    """
    total = 0
    for host in {task[0] for task in tasks}:
        times = [(began, ended) for name, began, ended in tasks if name == host]
        total += max(sum(began <= moment < ended for began, ended in times) for moment, _ in times)
    return total


def _note_times(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    began = time.time()
    time.sleep(TASK_SECONDS)
    yield pa.RecordBatch.from_pydict({"host": [socket.gethostname()], "began": [began], "ended": [time.time()]})


def run_tasks(session: Any, job: Job, crew: Crew) -> dict[str, Any]:
    """Run all workers, and return what the first one does.

    Raises:
        NotCommitted: Spark has failed, or has no place for all tasks at the same time.
    """
    rows = session.range(0, crew.tasks, 1, crew.tasks)
    task = _make_task(job, crew, logins.executor_variables(job.uri))
    with _interrupt_on_error(session):
        results = rows.mapInArrow(task, RESULT_DDL, barrier=crew.tasks > 1).collect()
    result: dict[str, Any] = json.loads(results[0]["result"])
    return result


@contextmanager
def _interrupt_on_error(session: Any) -> Iterator[None]:
    """End the tasks if the block fails, also by Ctrl-C: they would write into a folder that is being removed."""
    try:
        yield
    except BaseException as error:
        with suppress(Exception):  # a server that is gone runs no tasks
            _interrupt(session)
            time.sleep(TASK_END_SECONDS)
        if not isinstance(error, Exception):
            raise
        raise NotCommitted(
            "the probe was not completed.",
            f"Spark: {shorten(str(error))}",
            "Look at Spark's log, or repeat it with fewer --workers.",
            code="probe-not-completed",
        ) from error


def _interrupt(session: Any) -> None:
    """End all that this session runs; it is this process's alone."""
    if hasattr(session, "interruptAll"):
        session.interruptAll()
    else:  # in this process, before Spark 4
        session.sparkContext.cancelAllJobs()


def _make_task(
    job: Job, crew: Crew, login: Mapping[str, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import BarrierTaskContext

        for _ in batches:
            pass
        logins.AWS.use_variables(login)  # this worker may have done other work before
        if crew.tasks == 1:
            yield _make_batch(run_threads(job, 0, crew.threads))
            return
        context = BarrierTaskContext.get()
        number = context.partitionId()

        def relay(answers: list[Answer]) -> Sequence[Answer]:
            all_answers: list[Answer] = []
            for text in context.allGather(json.dumps(answers)):
                all_answers += json.loads(text)
            return all_answers

        result = run_threads(job, number * crew.threads, crew.threads, relay)
        if number == 0:
            yield _make_batch(result)

    return run


def _make_batch(result: Mapping[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"result": [json.dumps(result)]})
