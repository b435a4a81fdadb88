"""The missing intervals of a pipeline whose rows were merged: they are those of its log, wherever a row lies."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from explore.steps import Steps
from explore.table import MemoryTable, coverage_of
from unit.statetable.test_state_contract import NOON, following, planned, through_delta_rs

from onceonly.checkpoint.model import Event
from onceonly.checkpoint.offsets import Interval
from onceonly.statetable import table as state
from onceonly.statetable.table import StateTable

pytestmark = pytest.mark.slow

CLAIM = {"nonce": "n", "state_id": "s", "worker": "w"}


def hour(start: int, end: int | None = None) -> Interval:
    return Interval(NOON + timedelta(hours=start), NOON + timedelta(hours=start + 1 if end is None else end))


@pytest.fixture(params=["on a disk", "on an object store"])
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateTable:
    if request.param == "on an object store":
        through_delta_rs(monkeypatch)
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 3)
    return StateTable.make(str(tmp_path / "state"))


class History:
    """The rows of checkpoints, written to the table and to a copy in memory."""

    def __init__(self, table: StateTable) -> None:
        self.table, self.copy = table, MemoryTable(Steps())

    def add(self, make: Any) -> None:
        row = make(self.table.view("flights"))
        self.table.append(self.table.view("flights"), row)
        self.copy.append(self.copy.view("flights"), row)

    def plan(self, start: int, event: Event = Event.PLANNED, **body: Any) -> None:
        def row(view: Any) -> Any:
            made = planned(view, start=start, event=event)
            return replace(made, body={**made.body, **body})

        self.add(row)

    def go(self, epoch: int, *events: Event) -> None:
        bodies: dict[Event, dict[str, Any]] = {Event.CLAIMED: CLAIM, Event.STAGED: {"handles": {}}}
        for event in events:
            decision = epoch if event is Event.COMMITTING else None
            self.add(
                lambda view, event=event, decision=decision: following(
                    view, epoch, event, decision=decision, body=bodies.get(event, {})
                )
            )

    def merge(self) -> None:
        self.table.tidy(self.table.view("flights"))

    def check(self, *gaps: Interval, end: int) -> None:
        """By this process, and by one that has read nothing."""
        expected = coverage_of(self.copy.view("flights").checkpoints.values())
        assert (expected.gaps, expected.end) == (gaps, hour(end).start)
        for reader in (self.table, StateTable(self.table.uri)):
            assert reader.coverage(["flights"]) == {"flights": expected}


STAGED = (Event.CLAIMED, Event.STAGED)
COMMITTED = (Event.COMMITTING, Event.COMMITTED)
ABORTED = (Event.ABORTING, Event.ABORTED)


def test_gaps_are_the_same_wherever_rows_are(table: StateTable) -> None:
    history = History(table)
    history.plan(0)
    history.go(1, *STAGED, *COMMITTED)
    history.plan(1)
    history.go(2, *STAGED, *ABORTED)
    history.plan(2)
    history.go(3, *STAGED)
    history.check(hour(1), end=3)
    history.merge()
    history.check(hour(1), end=3)
    history.go(3, *COMMITTED)  # planned in a merged file, committed behind it
    history.check(hour(1), end=3)
    history.plan(40)  # by accident
    history.go(4, *ABORTED)
    history.merge()
    history.check(hour(1), hour(40), end=3)
    history.plan(40, Event.EMPTY, skipped="a slip")
    history.merge()
    history.check(hour(1), end=3)
    history.plan(5)
    history.check(hour(1), hour(3, 5), end=6)
    history.plan(1, Event.EMPTY, skipped="a strike")
    history.check(hour(3, 5), end=6)
    history.merge()
    history.plan(0, replaces=1)  # processed again, beside merged rows that cover more
    history.check(hour(3, 5), end=6)
    history.go(8, *ABORTED)
    history.merge()
    history.check(hour(3, 5), end=6)
