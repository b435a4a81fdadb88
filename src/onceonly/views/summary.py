"""Where a pipeline is: its last checkpoint and commit, what is open, what waits, and how far it is behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import Interval
from onceonly.errors import OutcomeUnknown
from onceonly.views import queries, timeouts

if TYPE_CHECKING:
    from onceonly.statetable.table import StateTable

RECENT = 10  # checkpoints among which the last commit is looked for first


@dataclass(frozen=True)
class Summary:
    """A pipeline in one line."""

    name: str
    latest: Checkpoint
    committed: Checkpoint | None  # of the recent ones that are, the one that reaches furthest; else the last one
    open: tuple[Checkpoint, ...]  # the oldest first
    gaps: tuple[Interval, ...] = ()  # that no interval covers, oldest first
    missing: Mapping[str, int] = field(default_factory=dict)  # by sink: how many checkpoints its target has lost
    unfit: tuple[Checkpoint, ...] = ()  # that have to be staged again, and nobody has begun; the oldest first


def summaries(state: StateTable, names: Iterable[str]) -> tuple[dict[str, Summary], dict[str, OutcomeUnknown]]:
    """Of each pipeline, and why others cannot be read."""
    recent, damaged = queries.overview(state, names, RECENT)
    gaps = queries.gaps(state, [found[0] for found in recent.values()])
    return {name: _summary(state, name, found, gaps.get(name, [])) for name, found in recent.items()}, damaged


def _summary(state: StateTable, pipeline: str, found: list[Checkpoint], gaps: list[Interval]) -> Summary:
    """`found`: newest first, with every unsettled one."""
    committed = max((cp for cp in found if cp.state is State.COMMITTED), key=reach, default=None)
    if committed is None and found[0].epoch > RECENT:
        committed = next(state.view(pipeline).committed(1), None)
    unsettled = tuple(cp for cp in reversed(found) if not cp.state.settled)
    unfit = tuple(cp for cp in reversed(found) if cp.has_to_be_staged_again and cp.state.settled)
    return Summary(pipeline, found[0], committed, unsettled, tuple(gaps), queries.missing(state, pipeline), unfit)


def reach(checkpoint: Checkpoint) -> datetime:
    """Up to when its rows are complete: the end of its interval, or when its offsets were pinned."""
    return checkpoint.interval.end if checkpoint.interval else checkpoint.planned_at


@dataclass(frozen=True)
class Lag:
    """An upper bound of how far the pipeline is behind; `error` instead if the source does not answer.

    Args:
        records: offsets have gaps, so there may be fewer. What `gaps` hold comes on top.
        since: everything up to then is published.
        gaps: that no interval covers, oldest first.
        versions: of the tables that it reads.
        held: how many of the records lie behind open transactions of producers, where nobody can read them yet.
    """

    records: int | None = None
    since: datetime | None = None
    gaps: tuple[Interval, ...] = ()
    error: str | None = None
    versions: int = 0
    held: int = 0


@dataclass(frozen=True)
class Pending:
    """A sink's open transactions and the part of their time-out that is used (1.0: all)."""

    checkpoint: Checkpoint
    sink: str
    used: float

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=float(self.checkpoint.handles[self.sink]["timeout"]))

    @property
    def age(self) -> timedelta:
        return self.used * self.timeout

    @property
    def late(self) -> bool:
        return self.used >= timeouts.WARN_AT


def pending(checkpoints: Iterable[Checkpoint], now: datetime) -> list[Pending]:
    """The oldest first."""
    waiting = (State.STAGED, State.COMMITTING)
    sinks = [(cp, sink) for cp in checkpoints if cp.state in waiting for sink in cp.waiting]
    found = [Pending(cp, sink, part) for cp, sink in sinks if (part := timeouts.used(cp, sink, now)) is not None]
    return sorted(found, key=lambda each: -each.used)
