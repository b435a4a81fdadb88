"""Progress lines while a Spark job runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from onceonly.counts import format_bytes

IS_OVER = ("COMPLETE", "FAILED", "SKIPPED")  # states of Spark's stages
LINE_SECONDS = 10.0  # between two lines
Say = Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """What Spark has done so far. None: Spark does not say, as a Connect server, or has not begun.

    Args:
        records: that its stages have read; those that are read again, as of a batch that was kept, count again.
        rows: that it has written to files.
        is_counted: False: it is known only when the stage ends, as through Spark Connect.
    """

    records: int | None = None
    rows: int | None = None
    tasks: int = 0
    tasks_done: int = 0
    is_counted: bool = True


class WorkCounter:
    """Counts what the stages of a session do, from the first one that it sees at work.

    Source: Spark's `AppStatusStore`, from which its own page and REST API are served; its classes are not public.
    """

    def __init__(self, session: Any) -> None:
        self._store: Any = None
        if not _is_connect(session):
            self._store = session.sparkContext._jsc.sc().statusStore()
        self._work_by_stage: dict[int, Work] = {}
        self._next_stage: int | None = None  # the first one that is not over

    def count(self) -> Work:
        """Return the work of all stages so far."""
        if self._store is None:
            return Work(is_counted=False)
        try:
            self._look()
        except Exception:  # of whatever version Spark is: this is for people
            return Work()
        stages = self._work_by_stage.values()
        return Work(
            sum(stage.records or 0 for stage in stages),
            sum(stage.rows or 0 for stage in stages),
            sum(stage.tasks for stage in stages),
            sum(stage.tasks_done for stage in stages),
        )

    def _look(self) -> None:
        active = self._store.activeStages()
        active_ids = [active.apply(index).stageId() for index in range(active.size())]
        if self._next_stage is None and active_ids:
            self._next_stage = min(active_ids)
        seen_ids = [*active_ids, *self._work_by_stage]
        if self._next_stage is None or not seen_ids:
            return
        for stage_id in range(self._next_stage, max(seen_ids) + 1):
            stage = self._store.lastStageAttempt(stage_id)
            self._work_by_stage[stage_id] = Work(
                stage.inputRecords(), stage.outputRecords(), stage.numTasks(), stage.numCompleteTasks()
            )
            if stage_id == self._next_stage and stage.status().toString() in IS_OVER:
                self._next_stage += 1


def _is_connect(session: Any) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect")


@contextmanager
def report_progress(session: Any, say: Say) -> Iterator[None]:
    """Call `say` with a line every few seconds while the block runs jobs on `session`: tasks, and bytes if known."""
    if _is_connect(session):
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
