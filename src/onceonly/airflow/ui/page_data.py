"""What the pages show, out of the state table: never more of it than a page needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from onceonly.airflow import installation
from onceonly.checkpoint.model import Checkpoint, Event
from onceonly.errors import OutcomeUnknown
from onceonly.runtime.owners import airflow_run
from onceonly.statetable.table import StateTable
from onceonly.views import queries, summary
from onceonly.views.summary import Summary

PAGE = 50  # checkpoints on a page


class Summaries:
    """Read again only when the pipeline has a new row."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[int, Summary]] = {}

    def get(self, state: StateTable, versions: Mapping[str, int]) -> tuple[list[Summary], list[OutcomeUnknown]]:
        """In the order of `versions`, which names each pipeline's last row; and why others cannot be read."""
        old = [name for name, seq in versions.items() if self._known.get((state.id, name), (0,))[0] != seq or not seq]
        found, damaged = summary.summaries(state, old)
        for name, each in found.items():
            self._known[state.id, name] = versions[name], each
        summaries = [self._known[state.id, name][1] for name in versions if name not in damaged]
        return summaries, list(damaged.values())


@dataclass(frozen=True)
class Page:
    """Some checkpoints of a pipeline, newest first."""

    number: int
    pages: int
    checkpoints: list[Checkpoint]


def page(state: StateTable, pipeline: str, epochs: int, number: int) -> Page:
    """Page 1 holds the last epochs; a number too high is the last page."""
    pages = max(1, -(-epochs // PAGE))
    number = min(max(1, number), pages)
    last = epochs - (number - 1) * PAGE
    return Page(number, pages, queries.list_checkpoints(state, pipeline, last - PAGE + 1, last))


def planned_by(state: StateTable, pipeline: str, dag_id: str, run_id: str) -> list[Checkpoint]:
    return state.view(pipeline).planned_by(airflow_run(dag_id, run_id, installation.of_server()))


def duration(checkpoint: Checkpoint) -> timedelta | None:
    """From its plan to its end; None while it has none."""
    return checkpoint.updated_at - checkpoint.planned_at if checkpoint.state.settled else None


def timeline(state: StateTable, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """As `queries.timeline`, with "time", "after": the time since the entry before, and "kind": how it looks."""
    found = queries.timeline(state, checkpoint)
    times = [datetime.fromisoformat(entry["at"]) for entry in found]
    return [
        {**entry, "time": time, "after": time - before if before else None, "kind": _kind(entry)}
        for entry, time, before in zip(found, times, [None, *times], strict=False)
    ]


def _kind(entry: Mapping[str, Any]) -> str:
    """A verdict looks like its outcome: one that failed is not green."""
    return str(entry["detail"]["outcome"] if entry["event"] == Event.VERDICT.value else entry["event"])
