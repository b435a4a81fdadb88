"""Where a pipeline is: its last checkpoint and commit, what is open, what waits, and how far it is behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import Interval
from onceonly.errors import OutcomeUnknown
from onceonly.statetable.gaps import Coverage
from onceonly.views import descriptions, formatting, queries
from onceonly.views.story import count_rows_in_force

if TYPE_CHECKING:
    from onceonly.statetable.table import StateTable
    from onceonly.statetable.view import View

TIMEOUT_WARNING_SHARE = 0.8  # of a transaction's time-out
MAX_RECENT = 10  # checkpoints among which the last commit is looked for first
MAX_STEPS_BACK = 20  # intervals without a commit at the end, behind which the furthest commit is looked for


@dataclass(frozen=True)
class Summary:
    """What one line of an overview says of a pipeline.

    The command line, the pages and the metrics show its figures, and take none from elsewhere.
    """

    name: str
    latest: Checkpoint
    furthest_commit: Checkpoint | None  # behind which nothing is published: the lag is counted from it; no repair
    open: tuple[Checkpoint, ...]  # the oldest first
    coverage: Coverage = field(default_factory=Coverage)  # of its intervals
    missing: Mapping[str, int] = field(default_factory=dict)  # by sink: how many checkpoints its target has lost
    unfit: tuple[Checkpoint, ...] = ()  # that have to be staged again, and nobody has begun; the oldest first
    last_commit: Checkpoint | None = None  # of the recent ones, repairs among them; an interval may reach further
    rows_by_sink: Mapping[str, int | None] = field(default_factory=dict)  # of its records, as they are in force

    @property
    def gaps(self) -> tuple[Interval, ...]:
        """The intervals that are missing, oldest first."""
        return self.coverage.gaps

    @property
    def open_or_unfit(self) -> list[Checkpoint]:
        """Return the checkpoints that are open or have to be staged again, the oldest first."""
        return sorted((*self.open, *self.unfit), key=lambda checkpoint: checkpoint.epoch)

    @property
    def rows(self) -> int | None:
        """The rows of the last commit's records in all sinks; None: nothing is committed, or a sink does not count."""
        if self.last_commit is None:
            return None
        return queries.sum_rows(self.rows_by_sink)

    @property
    def bad_records(self) -> int | None:
        """Bad records of the last commit; None: nothing is committed, or it has no such thing."""
        return self.last_commit.bad_records if self.last_commit else None

    @property
    def rows_text(self) -> str:
        """The rows of the last commit that are in force, as `formatting.rows` writes them; '-' where there is none."""
        text = formatting.counts(self.rows_by_sink)
        if self.bad_records:
            text = f"{text} ({self.bad_records:,} bad)"
        return text

    @property
    def complete_until(self) -> datetime | None:
        """Up to when the published rows are complete; None: nothing is committed.

        Of intervals, that is where the first one begins that is missing or unsettled, but for those that are replaced.
        """
        if self.furthest_commit is None:
            return None
        times = [self.coverage.end or self.furthest_commit.data_end]
        for gap in self.gaps:
            times.append(gap.start)
        for checkpoint in self.open:
            if checkpoint.interval and checkpoint.replaces is None:
                times.append(checkpoint.interval.start)
        return min(times)


def read_summaries(
    state_table: StateTable, names: Iterable[str]
) -> tuple[dict[str, Summary], dict[str, OutcomeUnknown]]:
    """Return the summary of each pipeline by name, and by name why others cannot be read."""
    recent_by_name, damaged = queries.read_overview(state_table, names, MAX_RECENT)
    coverage_by_name = queries.read_coverage(state_table, [recent[0] for recent in recent_by_name.values()])
    by_name = {}
    for name, checkpoints in recent_by_name.items():
        by_name[name] = _summarize(state_table, name, checkpoints, coverage_by_name.get(name, Coverage()))
    return by_name, damaged


def _summarize(state_table: StateTable, pipeline: str, recent: list[Checkpoint], coverage: Coverage) -> Summary:
    """Return the summary of a pipeline.

    Args:
        recent: the last checkpoints and every unsettled one, newest first.
    """
    latest = recent[0]
    commits = list(filter(queries.is_progress, recent))
    if not commits and latest.epoch > MAX_RECENT:  # else all that there are were looked at
        commits = _find_last_commit(state_table.view(pipeline))
    unsettled, unfit = [], []
    for checkpoint in reversed(recent):
        if not checkpoint.state.is_settled:
            unsettled.append(checkpoint)
        elif checkpoint.has_to_be_staged_again:
            unfit.append(checkpoint)
    missing = queries.missing_by_sink(state_table, pipeline)
    summary = Summary(pipeline, latest, None, tuple(unsettled), coverage, missing, tuple(unfit))
    if not commits:
        return summary
    repairs = [cp for cp in recent if cp.is_repair and cp.state is State.COMMITTED]
    last_commit = max([*commits, *repairs], key=_commit_order)
    rows = _count_rows(state_table.view(pipeline), last_commit, latest)
    furthest = _find_furthest(state_table.view(pipeline), commits, unsettled, coverage.end)
    return replace(summary, furthest_commit=furthest, last_commit=last_commit, rows_by_sink=rows)


def _commit_order(committed: Checkpoint) -> tuple[datetime, int]:
    return committed.updated_at, committed.epoch


def _count_rows(view: View, committed: Checkpoint, latest: Checkpoint) -> dict[str, int | None]:
    """Return by sink the rows of a commit's records that are in force: those of a repair count with what it repairs."""
    origin = view.require(committed.origin)
    repairs = view.repairs_of(origin.epoch) if latest.epoch > origin.epoch else []
    return count_rows_in_force(origin, repairs)


def _find_furthest(
    view: View, commits: Iterable[Checkpoint], unsettled: Iterable[Checkpoint], covered_until: datetime | None
) -> Checkpoint:
    """Return the commit that reaches furthest.

    Older intervals may have been run or repaired after the newest one, which then is none of the recent checkpoints.

    Args:
        commits: the recent ones.
        covered_until: the end of what the intervals cover, with those that are not settled; None: there are none.
    """
    furthest = max(commits, key=_data_end)
    time = _step_back(covered_until, unsettled)
    for _ in range(MAX_STEPS_BACK):
        if time is None or time <= furthest.data_end:
            return furthest
        last = view.checkpoints_ending_last(time)
        commits_there = list(filter(queries.is_progress, last))
        if commits_there:
            return commits_there[-1]
        time = last[0].interval.start if last and last[0].interval else None  # it is skipped, aborted or open
    return furthest


def _step_back(time: datetime | None, unsettled: Iterable[Checkpoint]) -> datetime | None:
    """Return the time before the unsettled intervals that end at that time: nothing has covered these before."""
    starts: dict[datetime | None, datetime] = {}
    for checkpoint in unsettled:
        if checkpoint.interval and checkpoint.replaces is None:
            starts[checkpoint.interval.end] = checkpoint.interval.start
    while time in starts:
        time = starts[time]
    return time


def _find_last_commit(view: View) -> list[Checkpoint]:
    """Return the last checkpoint that is committed and no repair; empty: there is none."""
    if view.latest and queries.is_progress(view.latest):  # however many repairs there were since
        return [view.latest]
    return list(islice(filter(queries.is_progress, view.iterate_committed()), 1))


def _data_end(checkpoint: Checkpoint) -> datetime:
    return checkpoint.data_end


@dataclass(frozen=True)
class Lag:
    """An upper bound of how far the pipeline is behind; `error` instead if the source does not answer.

    Args:
        records: offsets have gaps, so there may be fewer. What `gaps` hold comes on top.
        since: everything up to then is published.
        gaps: the intervals that are missing, oldest first.
        versions: of the tables that it reads.
        blocked_records: how many of the records lie behind open transactions of producers, so nobody can read them yet.
    """

    records: int | None = None
    since: datetime | None = None
    gaps: tuple[Interval, ...] = ()
    error: str | None = None
    versions: int = 0
    blocked_records: int = 0


@dataclass(frozen=True)
class PendingSink:
    """A sink's open transactions, and `used`: the share of their time-out that has passed (1.0: all)."""

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
    def is_late(self) -> bool:
        """Whether so much of the time-out has passed that people are warned."""
        return self.used >= TIMEOUT_WARNING_SHARE


def list_pending(checkpoints: Iterable[Checkpoint], now: datetime) -> list[PendingSink]:
    """Return the sinks with open transactions, those first that have used most of their time-out."""
    sinks = []
    for checkpoint in checkpoints:
        if checkpoint.state not in (State.STAGED, State.COMMITTING):
            continue
        for sink in checkpoint.waiting:
            used = _compute_used_share(checkpoint, sink, now)
            if used is not None:
                sinks.append(PendingSink(checkpoint, sink, used))
    return sorted(sinks, key=lambda pending_sink: -pending_sink.used)


def list_timeout_warnings(checkpoint: Checkpoint, now: datetime) -> Iterator[str]:
    """Yield a line for each sink whose pending transactions are about to time out, or have.

    Args:
        now: aware.
    """
    for pending_sink in list_pending([checkpoint], now):
        if pending_sink.is_late:
            yield (
                f"{checkpoint.pipeline} epoch {checkpoint.epoch}: the open transactions of sink '{pending_sink.sink}' "
                f"have used {pending_sink.used:.0%} of their time-out and keep read_committed readers waiting. Commit "
                f"or abort: {_ending_commands(checkpoint)}. (After the time-out the broker aborts them; their rows are "
                "in the spool, and the commit writes them again.)"
            )


def _ending_commands(checkpoint: Checkpoint) -> str:
    """Return the commands that end its transactions: a person decides on a held one, which recovery leaves as it is."""
    if checkpoint.is_held:
        return descriptions.how_to_decide(checkpoint.pipeline, checkpoint.epoch, checkpoint.changed_seq)
    return f"onceonly recover {checkpoint.pipeline}"


def _compute_used_share(checkpoint: Checkpoint, sink: str, now: datetime) -> float | None:
    """Return the share of a sink's time-out that has passed (1.0: all).

    None if the sink has no open transaction, or is in doubt.

    Args:
        now: aware.
    """
    handle = checkpoint.handles[sink]
    if "opened_at" not in handle or sink in checkpoint.in_doubt:
        return None
    opened_at = datetime.fromisoformat(handle["opened_at"])
    return (now - opened_at).total_seconds() / float(handle["timeout"])
