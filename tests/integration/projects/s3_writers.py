"""Writers of one pipeline's rows, as processes of their own or in a proxy, and what each was told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from integration.faults.s3_proxy import Fault, Request, Rule
from patience import PATIENCE

from onceonly.checkpoint.model import Event, Row
from onceonly.checkpoint.offsets import Interval, TopicRange
from onceonly.errors import OutcomeUnknown
from onceonly.statetable import table as state
from onceonly.statetable.table import Conflict, StateTable
from onceonly.statetable.view import View

FEW = 3  # rows
NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


def next_row(view: View, owner: str) -> Row:
    at = view.head.epoch
    interval = Interval(NOON + timedelta(hours=at), NOON + timedelta(hours=at + 1))
    body = {"definition": {"name": "flights", "sinks": []}, "ranges": [TopicRange("t", "id", {0: (0, 8)}).to_json()]}
    return Row("flights", view.head.seq + 1, at + 1, Event.EMPTY, 0, owner, interval=interval, body=body)


def race(uri: str, writer: int, tries: int) -> list[str]:
    """Try to be first that many times; returns the ids of the rows that were."""
    table, won = StateTable(uri), []
    for _ in range(tries):
        view = table.view("flights")
        row = next_row(view, f"writer {writer}")
        try:
            table.append(view, row)
        except Conflict:
            continue
        won.append(row.id)
    return won


def reach(environment: Mapping[str, str]) -> None:
    """A process of this module may have been prepared while another store was tried."""
    os.environ.update(environment)


def race_on(uri: str, environment: Mapping[str, str]) -> None:
    reach(environment)
    while True:
        race(uri, 0, 100)


def write(uri: str, writer: int, rows: int) -> tuple[list[str], list[str]]:
    """The ids of rows that it was told of as written, until there are so many, and those of which nothing is known."""
    table, won, unknown = StateTable(uri), [], []
    while (view := table.view("flights")).head.seq < rows:
        row = next_row(view, f"writer {writer}")
        try:
            table.append(view, row)
            won.append(row.id)
        except OutcomeUnknown:
            unknown.append(row.id)
        except Conflict:
            continue
    return won, unknown


def merge(_: str, uri: str) -> None:
    """As a plan does it, although there are few rows."""
    state.MAX_UNMERGED_ROWS = FEW
    table = StateTable(uri)
    table.tidy(table.view("flights"))


def merge_when(go: Any, environment: Mapping[str, str], uri: str) -> None:
    reach(environment)
    go.wait(PATIENCE)
    merge("", uri)


@dataclass
class Rival(Rule):
    """Another writer is first while a commit is on its way, which the server never sees."""

    uri: str
    environment: Mapping[str, str]
    came: bool = False

    def fault(self, request: Request) -> Fault | None:
        if self.came or not request.is_commit:
            return None
        self.came = True
        os.environ.update(self.environment)
        table = StateTable(self.uri)
        view = table.view("flights")
        table.append(view, next_row(view, "rival"))
        return Fault.LOST_BEFORE
