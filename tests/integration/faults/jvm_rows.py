"""Rows on their way to Spark's JVM, which writes them to Kafka: a Python worker passes them on, and may stop there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onceonly.sinks.kafka.job import Job

Rows = Any  # an iterator of record batches


def until_written(job: Job) -> Callable[[], None]:
    """Return what waits, on a worker, until the JVM has begun to write the rows that this worker has passed on.

    It is sent to workers, which do not know this module.
    """
    brokers, folder = job.target.config["bootstrap.servers"], job.folder
    ids = job.ids.unique_prefix if job.ids else ""

    def wait() -> None:
        import gc
        import io
        import os
        import time

        from pyspark import TaskContext

        from onceonly.kafka.transactions import Transactions

        for stream in gc.get_objects():
            if isinstance(stream, io.BufferedWriter) and not stream.closed:
                stream.flush()  # towards the JVM, which else gets rows when there are many
        context = TaskContext.get()
        part = context.partitionId() if context else 0
        deadline = time.monotonic() + 60

        def has_begun() -> bool:
            if not ids:
                names = os.listdir(folder) if os.path.isdir(folder) else []
                return any(name.startswith(f"{part}-") for name in names)
            with Transactions({"bootstrap_servers": brokers.split(",")}) as known:
                return bool(known.list_open(f"{ids}-{part}-.*"))

        while not has_begun():
            assert time.monotonic() < deadline, "the JVM has not begun to write"
            time.sleep(0.05)

    return wait
