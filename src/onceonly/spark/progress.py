"""Progress lines while a Spark job runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from onceonly.counts import format_bytes

LINE_SECONDS = 10.0  # between two lines
Say = Callable[[str], None]


@contextmanager
def report_progress(session: Any, say: Say) -> Iterator[None]:
    """Call `say` with a line every few seconds while the block runs jobs on `session`: tasks, and bytes if known."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        with _report_connect(session, say):
            yield
    else:
        with _report_classic(session.sparkContext.statusTracker(), say):
            yield


@contextmanager
def _report_connect(session: Any, say: Say) -> Iterator[None]:
    last = time.monotonic()

    def handle(stages: Any, inflight_tasks: int, **_: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_SECONDS and stages:
            last = time.monotonic()
            done = sum(stage.num_completed_tasks for stage in stages)
            tasks = sum(stage.num_tasks for stage in stages)
            bytes_read = sum(stage.num_bytes_read for stage in stages)
            say(f"  Spark: {done} of {tasks} tasks done, {inflight_tasks} running, {format_bytes(bytes_read)} read")

    session.registerProgressHandler(handle)
    try:
        yield
    finally:
        session.removeProgressHandler(handle)


@contextmanager
def _report_classic(tracker: Any, say: Say) -> Iterator[None]:
    block_ended = threading.Event()

    def watch() -> None:
        while not block_ended.wait(LINE_SECONDS):
            infos = [tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds()]
            stages = [info for info in infos if info]  # a stage that has ended has none
            if stages:
                done = sum(stage.numCompletedTasks for stage in stages)
                tasks = sum(stage.numTasks for stage in stages)
                running = sum(stage.numActiveTasks for stage in stages)
                say(f"  Spark: {done} of {tasks} tasks done, {running} running")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        block_ended.set()
        watcher.join()
