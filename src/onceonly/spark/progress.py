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
            done = tasks = bytes_read = 0
            for stage in stages:
                done += stage.num_completed_tasks
                tasks += stage.num_tasks
                bytes_read += stage.num_bytes_read
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
            stages = _list_active_stages(tracker)
            if stages:
                done = tasks = running = 0
                for stage in stages:
                    done += stage.numCompletedTasks
                    tasks += stage.numTasks
                    running += stage.numActiveTasks
                say(f"  Spark: {done} of {tasks} tasks done, {running} running")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        block_ended.set()
        watcher.join()


def _list_active_stages(tracker: Any) -> list[Any]:
    """Return what the tracker knows of each running stage."""
    stages = []
    for stage_id in tracker.getActiveStageIds():
        stage = tracker.getStageInfo(stage_id)
        if stage:  # one that has ended since has none
            stages.append(stage)
    return stages
