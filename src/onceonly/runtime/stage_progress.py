"""How far a stage is: a file beside the state table, which the stage keeps fresh and the page shows.

It is for people alone: nothing is decided by it, and a stage does not fail because it cannot be written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from onceonly import waits
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import KAFKA
from onceonly.counts import count
from onceonly.runtime.job_report import ProgressFile
from onceonly.spark.progress import Work, WorkCounter
from onceonly.views import formatting

WRITE_SECONDS = 3.0  # between two writes
COUNTS_OF_CONNECT = "through Spark Connect, counts come when the stage ends"


@dataclass(frozen=True)
class StageProgress:
    """What a stage says of itself.

    Args:
        since: when it has begun to read.
        at: when this was written.
        waits_for: as `waits.describe` writes it; empty: nothing that takes long.
        total: the records that it reads at most; None: that is not known.
    """

    since: datetime
    at: datetime
    waits_for: str
    work: Work
    total: int | None


@contextmanager
def keep_progress(state: str, checkpoint: Checkpoint, open_session: Callable[[], Any]) -> Iterator[None]:
    """Write how far the stage of a claimed checkpoint is while the block runs, then delete the file.

    Args:
        state: the address of the state table.
        open_session: returns Spark's session; None until it is there.
    """
    file = ProgressFile.of_attempt(state, checkpoint)
    since, block_ended = datetime.now(UTC), threading.Event()

    def watch() -> None:
        counter: WorkCounter | None = None
        while not block_ended.wait(WRITE_SECONDS):
            session = open_session()
            if counter is None and session is not None:
                counter = WorkCounter(session)
            work = counter.count() if counter else Work()
            open_waits = waits.list_open(waits.SHOWN_AFTER_SECONDS)
            waits_for = waits.describe(open_waits) if open_waits else ""
            with suppress(Exception):  # whatever the storage says: the stage goes on
                file.write(
                    _to_json(StageProgress(since, datetime.now(UTC), waits_for, work, _count_records(checkpoint)))
                )

    watcher = threading.Thread(target=watch, name="onceonly-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        block_ended.set()
        watcher.join()
        with suppress(Exception):
            file.delete()


def read_progress(state: str, checkpoint: Checkpoint) -> StageProgress | None:
    """Return how far the stage of a checkpoint is; None: no stage is at work, or it has not said anything."""
    if checkpoint.state is not State.PLANNED or checkpoint.live_nonce is None:
        return None
    with suppress(Exception):  # it is being written, of another version, or not there
        return _from_json(ProgressFile.of_attempt(state, checkpoint).read())
    return None


def describe_progress(progress: StageProgress) -> str:
    """Return '120,000 of up to 400,000 records read, 3 of 12 tasks of Spark done; waiting for …, as of 2 s ago'."""
    parts, work = [], progress.work
    if work.records is not None:
        total = f" of up to {progress.total:,}" if progress.total else ""
        parts.append(f"{min(work.records, progress.total or work.records):,}{total} records read")
    elif progress.total:
        parts.append(f"up to {count(progress.total, 'record')} to read")
    if work.rows:
        parts.append(f"{count(work.rows, 'row')} written")
    if work.tasks:
        parts.append(f"{work.tasks_done:,} of {count(work.tasks, 'task')} of Spark done")
    text = ", ".join(parts)
    if not work.is_counted:
        text = "; ".join(filter(None, (text, COUNTS_OF_CONNECT)))
    if progress.waits_for:
        text = f"{text}; {progress.waits_for}" if text else progress.waits_for
    return f"{text} (as of {formatting.age(progress.at)} ago)" if text else ""


def _count_records(checkpoint: Checkpoint) -> int | None:
    """Return how many records it reads at most; None where it reads versions of tables or decisions of folders."""
    if any(range_.kind != KAFKA for range_ in checkpoint.ranges):
        return None
    return sum(range_.offset_count for range_ in checkpoint.ranges)


def _to_json(progress: StageProgress) -> dict[str, Any]:
    return {**asdict(progress), "since": progress.since.isoformat(), "at": progress.at.isoformat()}


def _from_json(data: dict[str, Any]) -> StageProgress:
    since, at = datetime.fromisoformat(data["since"]), datetime.fromisoformat(data["at"])
    return StageProgress(since, at, str(data["waits_for"]), Work(**data["work"]), data["total"])
