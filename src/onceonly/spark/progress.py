"""Progress lines while a Spark job runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from onceonly.views.formatting import size

EVERY = 10.0  # seconds between two lines
Say = Callable[[str], None]


@contextmanager
def reported(session: Any, say: Say) -> Iterator[None]:
    """Call `say` with a line every few seconds while the block runs jobs on `session`: tasks, and bytes if known."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        with _connect(session, say):
            yield
    else:
        with _classic(session.sparkContext.statusTracker(), say):
            yield


@contextmanager
def _connect(session: Any, say: Say) -> Iterator[None]:
    last = time.monotonic()

    def handle(stages: Any, inflight_tasks: int, **_: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY and stages:
            last = time.monotonic()
            done, tasks = sum(s.num_completed_tasks for s in stages), sum(s.num_tasks for s in stages)
            read = sum(s.num_bytes_read for s in stages)
            say(f"  Spark: {done} of {tasks} tasks done, {inflight_tasks} running, {size(read)} read")

    session.registerProgressHandler(handle)
    try:
        yield
    finally:
        session.removeProgressHandler(handle)


@contextmanager
def _classic(tracker: Any, say: Say) -> Iterator[None]:
    over = threading.Event()

    def watch() -> None:
        while not over.wait(EVERY):
            found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            stages = [stage for stage in found if stage]
            if stages:
                done, tasks = sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages)
                say(f"  Spark: {done} of {tasks} tasks done, {sum(s.numActiveTasks for s in stages)} running")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
