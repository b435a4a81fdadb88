"""A process that was stopped wakes up late: others have shortened the log, or published the rows.

In a log that was shortened, the name of the entry that it makes is free again, and nobody reads an entry of that name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from deltalake import DeltaTable
from unit.lightdelta import LightDelta, LightMerge, transaction

from onceonly.checkpoint.model import Handle
from onceonly.delta import commits, log_files
from onceonly.errors import OutcomeUnknown
from onceonly.sinks.delta import sink, staged_table
from onceonly.storage.objects import Objects

OTHERS = 5
DAY = 24 * 3600.0


@pytest.fixture(params=["append on a store", "append", "merge"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LightDelta:
    if request.param == "append on a store":
        monkeypatch.setattr(sink, "local_path", lambda uri: None)
    return (LightMerge if request.param == "merge" else LightDelta)(tmp_path / "lake")


def shortened(lake: LightDelta) -> None:
    """Others write, make a log checkpoint, and remove the entries before it, as any writer does in time."""
    for number in range(OTHERS):
        target = DeltaTable(lake.uri)
        target.create_write_transaction([], "append", target.schema())
        assert DeltaTable(lake.uri).version() == target.version() + 1, number
    table = DeltaTable(lake.uri)
    table.create_checkpoint()
    for version in range(table.version()):
        (Path(lake.uri) / log_files.entry_path(version)).unlink()


def stops(lake: LightDelta, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Once, just before the entry is made."""
    slept = [0.0]
    monkeypatch.setattr(sink, "now", lambda: slept[0])

    def before(real: Callable[..., Any]) -> Callable[..., Any]:
        def stopped(*given: Any, **named: Any) -> Any:
            if not slept[0]:
                slept[0] = seconds
                shortened(lake)
            return real(*given, **named)

        return stopped

    monkeypatch.setattr(commits, "commit_entry", before(commits.commit_entry))
    monkeypatch.setattr(Objects, "create", before(Objects.create))


def commit(lake: LightDelta, handle: Handle) -> Any:
    return lake.commit(handle, 1, None)  # type: ignore[arg-type]


def test_an_entry_that_came_too_late_is_not_taken_for_published(
    lake: LightDelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = lake.stage(transaction(), [1, 2])
    stops(lake, monkeypatch, DAY)
    with raises(OutcomeUnknown, "commit-unconfirmed") as error:
        commit(lake, handle)
    assert len(str(error.value).splitlines()) == 3
    assert lake.numbers() == []
    assert not commit(lake, handle).already
    assert commit(lake, handle).already
    assert lake.numbers() == [1, 2]


def test_one_that_took_long_is_published_where_the_log_shows_it(
    lake: LightDelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = lake.stage(transaction(), [1, 2])
    monkeypatch.setattr(sink, "now", iter((0.0, DAY)).__next__)
    assert not commit(lake, handle).already
    assert lake.numbers() == [1, 2]


@pytest.mark.parametrize("kind", [LightDelta, LightMerge])
def test_rows_that_another_has_published_and_settled_meanwhile_have_not_vanished(
    kind: type[LightDelta], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped after its look at the table, before it has read what is staged."""
    lake, real = kind(tmp_path / "lake"), staged_table.read_adds
    handle = lake.stage(transaction(), [1, 2])

    def stopped(*given: Any) -> Any:
        monkeypatch.setattr(staged_table, "read_adds", real)
        commit(lake, handle)
        lake.release(transaction())
        return real(*given)

    monkeypatch.setattr(staged_table, "read_adds", stopped)
    assert commit(lake, handle).already
    assert lake.numbers() == [1, 2]
