"""What a stage says of itself while it runs, for the page."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import PATIENCE
from unit.world import World

from onceonly import waits
from onceonly.checkpoint.model import Checkpoint
from onceonly.runtime import job_report, stage_progress
from onceonly.runtime.stage_progress import (
    COUNTS_OF_CONNECT,
    StageProgress,
    describe_progress,
    keep_progress,
    read_progress,
)
from onceonly.spark.progress import Work, WorkCounter

NOW = datetime.now(UTC)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(stage_progress, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr(waits, "SHOWN_AFTER_SECONDS", 0.0)
    world = World(tmp_path)
    world.plan()
    world.coordinator._stager.claim("flights", 1, None)
    return world


def files(world: World) -> list[str]:
    return [path.name for path in Path(world.state.uri, "_jobs").glob("*")]


def poll_progress(world: World, checkpoint: Checkpoint) -> StageProgress:
    """Wait until it is written, by no wait that has a name of its own."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        progress = read_progress(world.state.uri, checkpoint)
        if progress:
            return progress
    pytest.fail("nothing was written")


def test_a_stage_says_what_it_waits_for_until_it_ends(world: World) -> None:
    checkpoint = world.now(1)
    assert read_progress(world.state.uri, checkpoint) is None
    rows = "the rows of sink 'lake' to be staged"
    with waits.wait_for(rows), keep_progress(world.state.uri, checkpoint, lambda: None):
        progress = poll_progress(world, checkpoint)
        assert progress.waits_for.startswith(f"waiting for {rows}, since ")
        assert (progress.total, progress.work) == (5, Work())
    assert files(world) == []
    assert read_progress(world.state.uri, checkpoint) is None


def test_storage_that_fails_ends_no_stage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(job_report, "_write", fail)
    with keep_progress(world.state.uri, world.now(1), lambda: None):
        pass


@pytest.mark.parametrize("text", ["", "{", "{}", json.dumps({"since": "yesterday"})])
def test_a_damaged_file_says_nothing(world: World, text: str) -> None:
    file = job_report.ProgressFile.of_attempt(world.state.uri, world.now(1))
    Path(file.uri).parent.mkdir(parents=True, exist_ok=True)
    Path(file.uri).write_text(text)
    assert read_progress(world.state.uri, world.now(1)) is None


def test_what_a_killed_stage_has_left_is_neither_shown_nor_kept(world: World) -> None:
    file = job_report.ProgressFile.of_attempt(world.state.uri, world.now(1))
    progress = StageProgress(NOW, NOW, "", Work(), 5)
    file.write(stage_progress._to_json(progress))
    assert read_progress(world.state.uri, world.now(1)) == progress
    world.abort()
    assert read_progress(world.state.uri, world.now(1)) is None
    os.utime(file.uri, (0, 0))
    assert job_report.sweep_reports(world.state) == [Path(file.uri).name]


@pytest.mark.parametrize(
    ("work", "total", "waits_for", "expected"),
    [
        (Work(120, 80, 12, 3), 400, "", "120 of up to 400 records read, 80 rows written, 3 of 12 tasks of Spark done"),
        (Work(900, 0, 1, 0), 400, "", "400 of up to 400 records read, 0 of 1 task of Spark done"),  # it was read twice
        (Work(9, 9), None, "", "9 records read, 9 rows written"),
        (Work(), 4_000, "waiting for Spark", "up to 4,000 records to read; waiting for Spark"),
        (Work(), None, "waiting for Spark", "waiting for Spark"),
        (Work(is_counted=False), 4_000, "", f"up to 4,000 records to read; {COUNTS_OF_CONNECT}"),
        (Work(is_counted=False), None, "waiting for rows", f"{COUNTS_OF_CONNECT}; waiting for rows"),
    ],
)
def test_people_read_how_far_it_is(work: Work, total: int | None, waits_for: str, expected: str) -> None:
    progress = StageProgress(NOW, datetime.now(UTC) - timedelta(seconds=4), waits_for, work, total)
    assert describe_progress(progress) == f"{expected} (as of 4 s ago)"


def test_nothing_to_say_is_not_said() -> None:
    assert describe_progress(StageProgress(NOW, NOW, "", Work(), None)) == ""


class Store:
    """What Spark's status store says: stages by id, (records, rows, tasks, done, state)."""

    def __init__(self) -> None:
        self.stages: dict[int, tuple[int, int, int, int, str]] = {}

    def activeStages(self) -> Any:
        active = [self._stage(number) for number, stage in self.stages.items() if stage[4] == "ACTIVE"]
        return SimpleNamespace(size=lambda: len(active), apply=active.__getitem__)

    def lastStageAttempt(self, number: int) -> Any:
        return self._stage(number)

    def _stage(self, number: int) -> Any:
        records, rows, tasks, done, state = self.stages[number]
        return SimpleNamespace(
            stageId=lambda: number,
            inputRecords=lambda: records,
            outputRecords=lambda: rows,
            numTasks=lambda: tasks,
            numCompleteTasks=lambda: done,
            status=lambda: SimpleNamespace(toString=lambda: state),
        )


def test_work_is_counted_over_all_stages_also_those_that_are_over() -> None:
    store = Store()
    spark = SimpleNamespace(statusStore=lambda: store)
    session = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: spark)))
    counter = WorkCounter(session)
    assert counter.count() == Work(0, 0, 0, 0)
    store.stages = {3: (100, 0, 4, 1, "ACTIVE")}
    assert counter.count() == Work(100, 0, 4, 1)
    store.stages = {3: (400, 0, 4, 4, "COMPLETE"), 4: (0, 0, 2, 2, "SKIPPED"), 5: (0, 50, 2, 1, "ACTIVE")}
    assert counter.count() == Work(400, 50, 8, 7)
    store.stages[5] = (0, 90, 2, 2, "COMPLETE")
    assert counter.count() == Work(400, 90, 8, 8)
    del store.stages[5]  # Spark forgets old ones
    assert counter.count() == Work(400, 90, 8, 8)


def test_session_of_a_connect_server_is_not_counted() -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    assert WorkCounter(session).count() == Work(is_counted=False)


def test_a_spark_of_another_make_is_not_counted() -> None:
    store = SimpleNamespace(activeStages=lambda: None)
    spark = SimpleNamespace(statusStore=lambda: store)
    session = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: spark)))
    assert WorkCounter(session).count() == Work()
