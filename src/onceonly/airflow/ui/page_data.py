"""What the pages show, out of the state table: never more of it than a page needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from onceonly.airflow import installation
from onceonly.checkpoint.model import Checkpoint, Event
from onceonly.errors import OutcomeUnknown
from onceonly.runtime.owners import airflow_owner
from onceonly.statetable.table import StateTable
from onceonly.views import queries, summary
from onceonly.views.summary import Summary

CHECKPOINTS_PER_PAGE = 50


class Summaries:
    """A cache of summaries, which are read again only when the pipeline has a new row."""

    def __init__(self) -> None:
        # by state table and pipeline: the last row of it that was read, and the summary up to there
        self._cache: dict[tuple[str, str], tuple[int, Summary]] = {}

    def get(self, state: StateTable, versions: Mapping[str, int]) -> tuple[list[Summary], list[OutcomeUnknown]]:
        """Return the summaries in the order of `versions`, and why other pipelines of it cannot be read.

        Args:
            versions: by pipeline, the sequence number of its last row; 0: it could not be read, and is tried again.
        """
        outdated = []
        for name, last_row in versions.items():
            cached_row = self._cache.get((state.id, name), (0,))[0]
            if cached_row != last_row or not last_row:
                outdated.append(name)
        by_name, damaged = summary.read_summaries(state, outdated)
        for name, fresh in by_name.items():
            self._cache[state.id, name] = versions[name], fresh
        summaries = [self._cache[state.id, name][1] for name in versions if name not in damaged]
        return summaries, list(damaged.values())


@dataclass(frozen=True)
class Page:
    """Some checkpoints of a pipeline, newest first."""

    number: int
    pages: int
    checkpoints: list[Checkpoint]


def page(state: StateTable, pipeline: str, epochs: int, number: int) -> Page:
    """Return a page of a pipeline with that many epochs.

    Page 1 holds the last epochs; a number too high is the last page.
    """
    pages = max(1, -(-epochs // CHECKPOINTS_PER_PAGE))
    number = min(max(1, number), pages)
    last = epochs - (number - 1) * CHECKPOINTS_PER_PAGE
    first = last - CHECKPOINTS_PER_PAGE + 1
    return Page(number, pages, queries.list_checkpoints(state, pipeline, first, last))


def planned_by(state: StateTable, pipeline: str, dag_id: str, run_id: str) -> list[Checkpoint]:
    """Return the checkpoints that a DAG run of this Airflow has planned."""
    return state.view(pipeline).planned_by(airflow_owner(dag_id, run_id, installation.of_server()))


def duration(checkpoint: Checkpoint) -> timedelta | None:
    """Return the time from its plan to its end; None while it has not ended."""
    if not checkpoint.state.settled:
        return None
    return checkpoint.updated_at - checkpoint.planned_at


def timeline(state: StateTable, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Return the events of `queries.timeline` with what the page shows beside them.

    That is "time", "after": the time since the event before, None of the first one, and "kind": how it looks.
    """
    events = []
    previous: datetime | None = None
    for event in queries.timeline(state, checkpoint):
        time = datetime.fromisoformat(event["at"])
        after = time - previous if previous else None
        events.append({**event, "time": time, "after": after, "kind": _kind(event)})
        previous = time
    return events


def _kind(event: Mapping[str, Any]) -> str:
    """Return the style of an event: a verdict looks like its outcome, as one that failed is not green."""
    if event["event"] == Event.VERDICT.value:
        return str(event["detail"]["outcome"])
    return str(event["event"])
