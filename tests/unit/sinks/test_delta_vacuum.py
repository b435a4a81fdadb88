"""A VACUUM of the target that runs while a checkpoint is committed: the real list of one, made before the commit."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from unit.lightdelta import LightDelta, LightMerge, LightReplace, transaction
from unit.world import World

from onceonly.checkpoint.model import State
from onceonly.errors import CannotPublish, OutcomeUnknown, StageAgain
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta import rehearsal
from onceonly.sinks.delta.handle import DeltaHandle

pytestmark = pytest.mark.slow

DAYS, HOURS = 24 * 3600, 3600
WAYS: dict[str, Any] = {
    "append": LightDelta,
    "merge": LightMerge,
    "replace": LightReplace,
}


@pytest.fixture(params=WAYS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LightDelta:
    made: LightDelta = WAYS[request.param](tmp_path / "lake")
    return made


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A pipeline of a real Delta table and a fake sink, whose checkpoint is staged."""
    world = World(tmp_path, sinks=[DeltaSink("lake", "lake"), DeltaSink("files", "files")])
    fake, produce = world.parts.sink, world.parts.produce
    delta = tmp_path / "delta"

    def sink(pipeline: Any, name: str) -> Any:
        return LightDelta(delta) if name == "lake" else fake(pipeline, name)

    def rows(checkpoint: Any) -> Any:
        produced = produce(checkpoint)
        return {**produced, "lake": [row["value"] for row in produced["lake"]]}

    world.parts.sink, world.parts.produce = sink, rows  # type: ignore[method-assign]
    world.plan()
    world.stage()
    return world


def age(lake: LightDelta, handle: Any, seconds: float) -> None:
    """As if the staged files had been written that long ago."""
    written = time.time() - seconds
    for path in Path(lake.uri, handle["folder"]).rglob("*"):
        os.utime(path, (written, written))


def listed_by_vacuum(lake: LightDelta) -> list[Path]:
    """What a VACUUM that begins now is going to delete."""
    return [Path(lake.uri, path) for path in DeltaTable(lake.uri).vacuum(dry_run=True, full=True)]


def delete(paths: list[Path]) -> None:
    assert any(path.suffix == ".parquet" for path in paths)
    for path in paths:
        path.unlink(missing_ok=True)


def staged_files(lake: LightDelta, handle: Any) -> list[Path]:
    return list(Path(lake.uri, DeltaHandle.parse(lake.name, handle).rows_folder).glob("**/*.parquet"))


# ---- its list was made before the decision


def test_running_vacuum_takes_nothing_published(lake: LightDelta) -> None:
    first = lake.stage(transaction(1), [1, 2, 3])
    lake.commit(lake.rehearse(first, 1), 1, None)  # type: ignore[arg-type]
    handle = lake.stage(transaction(2), [4, 5, 6])
    age(lake, handle, 8 * DAYS)
    doomed = listed_by_vacuum(lake)
    rehearsed = lake.rehearse(handle, 2)
    lake.commit(rehearsed, 2, None)  # type: ignore[arg-type]
    delete(doomed)
    assert lake.numbers() == [1, 2, 3, 4, 5, 6]


def test_vacuum_that_gets_there_before_the_copies_is_refused(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lake.stage(transaction(1), [4, 5, 6])
    age(lake, handle, 8 * DAYS)
    doomed, are_old = listed_by_vacuum(lake), rehearsal.files_are_old
    monkeypatch.setattr(rehearsal, "files_are_old", lambda *args: are_old(*args) and not delete(doomed))
    with pytest.raises(StageAgain) as refused:
        lake.rehearse(handle, 1)
    assert refused.value.code == "staged-files-missing"


def test_vacuum_after_the_decision_takes_nothing(world: World, tmp_path: Path) -> None:
    """The decision names the copies, so that any process publishes those."""
    lake = LightDelta(tmp_path / "delta")
    age(lake, world.now().handles["lake"], 8 * DAYS)
    doomed = listed_by_vacuum(lake)
    world.files.fail("commit", "before")
    with pytest.raises(OutcomeUnknown):
        world.commit()
    assert "copied" in world.now().handles["lake"]
    delete(doomed)
    assert world.recover()[0].state is State.COMMITTED
    assert lake.numbers() == [0, 1, 2, 3, 4]


def test_files_that_vacuum_has_taken_are_staged_again(world: World, tmp_path: Path) -> None:
    lake = LightDelta(tmp_path / "delta")
    age(lake, world.now().handles["lake"], 8 * DAYS)
    delete(listed_by_vacuum(lake))
    with pytest.raises(StageAgain):
        world.commit()
    assert world.now().decision is None
    world.plan()
    world.stage()
    world.commit()
    assert lake.numbers() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("is_store", [False, True], ids=["disk", "object store"])
def test_files_that_grow_old_after_the_decision_are_copied(
    lake: LightDelta, monkeypatch: pytest.MonkeyPatch, is_store: bool
) -> None:
    """The target did not answer for days, and no rehearsal comes again."""
    if is_store:
        monkeypatch.setattr("onceonly.sinks.delta.sink.local_path", lambda uri: None)
    rehearsed = lake.rehearse(lake.stage(transaction(1), [4, 5, 6]), 1)
    age(lake, rehearsed, 8 * DAYS)
    doomed, later = listed_by_vacuum(lake), type(lake)(Path(lake.uri))
    assert not later.commit(rehearsed, 1, None).already  # type: ignore[arg-type]
    delete(doomed)
    assert lake.numbers() == [4, 5, 6]
    assert later.commit(rehearsed, 1, None).already  # type: ignore[arg-type]


# ---- what vanishes after the decision all the same


def test_file_that_vanishes_after_the_decision_is_named(lake: LightDelta) -> None:
    rehearsed = lake.rehearse(lake.stage(transaction(1), [4, 5, 6]), 1)
    vanished = staged_files(lake, rehearsed)[0]
    vanished.unlink()
    with pytest.raises(CannotPublish) as refused:
        lake.commit(rehearsed, 1, None)  # type: ignore[arg-type]
    assert refused.value.code == "staged-files-missing"
    assert vanished.name in refused.value.why
    assert "lacks 3 rows" in refused.value.todo


# ---- how old is too old


@pytest.mark.parametrize(
    ("retention", "age_in_seconds", "is_old"),
    [
        (None, 5.9 * DAYS, False),
        (None, 6.1 * DAYS, True),
        ("interval 30 days", 28 * DAYS, False),
        ("interval 30 days", 29.1 * DAYS, True),
        ("interval 1 week", 6.1 * DAYS, True),
        ("interval 2 days", 0.9 * DAYS, False),
        ("interval 2 days", 1.1 * DAYS, True),
        ("interval 1 day", 11 * HOURS, False),
        ("interval 1 day", 13 * HOURS, True),
        ("interval 1 hour", 0.6 * HOURS, True),
        ("whatever", 6.1 * DAYS, True),
    ],
)
def test_retention_less_a_day_is_safe(
    tmp_path: Path, retention: str | None, age_in_seconds: float, is_old: bool
) -> None:
    lake = LightDelta(tmp_path / "lake")
    handle = lake.stage(transaction(1), [1])
    if retention:
        DeltaTable(lake.uri).alter.set_table_properties({rehearsal.RETENTION: retention}, raise_if_not_exists=False)
    age(lake, handle, age_in_seconds)
    assert ("copied" in lake.rehearse(handle, 1)) == is_old


def test_retention_of_two_days_begins_the_day(tmp_path: Path) -> None:
    """From there on it is a day, below it a half: the two meet."""
    assert rehearsal._safe_age("interval 2 days") == timedelta(days=1)
    assert rehearsal._safe_age("interval 47 hours") == timedelta(hours=23.5)
