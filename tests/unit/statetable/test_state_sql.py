"""The state table in SQL, by the statements of the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import duckdb
import pytest

from onceonly.checkpoint.model import Event
from onceonly.statetable import table as state
from onceonly.statetable.table import StateTable

pytestmark = pytest.mark.slow
OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
BODY = {"definition": {"name": "x", "sinks": []}, "ranges": []}


def statement(engine: str, folder: str) -> str:
    (found,) = re.findall(rf"^(SELECT .*?)\s*-- {engine}$", OPERATIONS.read_text(), re.MULTILINE)
    return found.replace("/srv/onceonly/state", folder)


@pytest.fixture
def table(tmp_path, monkeypatch) -> StateTable:
    """Of two pipelines, with merged files, the files that were merged, and an open checkpoint."""
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 8)
    table = StateTable.make(str(tmp_path / "state"))
    for name, rows in (("flights", 12), ("trains", 3)):
        view = table.view(name)
        for number in range(1, rows + 1):
            event = Event.PLANNED if number == rows else Event.EMPTY
            view = table.append(view, view.row(number, event, 0, owner="run", body=BODY))
            view = table.tidy(view)
    return table


def test_duckdb_reads_all_pipelines_at_once(table):
    found = duckdb.sql(f"SELECT pipeline, seq, event, head FROM ({statement('DuckDB', table.uri)}) ORDER BY 1, 2")
    check(table, found.fetchall())


def check(table: StateTable, found: list[tuple[str, int, str, str]]) -> None:
    recorded = [row for name in table.pipelines() for row in table.history(name)]
    assert [(*row[:3], json.loads(row[3])) for row in found] == [
        (row.pipeline, row.seq, row.event.value, row.head) for row in recorded
    ]
