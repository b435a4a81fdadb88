"""The state table: an append-only Delta table, one row per transition, each a compare-and-set.

A row is written from the snapshot that was read, with Delta's `txn` action (appId = pipeline, version = the pipeline's
next sequence number). Of two writers from one snapshot the second gets `Lost`, re-reads and decides again; writers of
different pipelines do not disturb each other. Source: Delta protocol, "Transaction Identifiers".

Reading does not grow with history: a pipeline's last row says where its open checkpoints begin (`Head`), tidying
merges small files, and file statistics skip the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from onceonly.checkpoint import gaps
from onceonly.checkpoint.model import Checkpoint, Event, Row, first, fold
from onceonly.checkpoint.offsets import Boundary, Interval, range_of
from onceonly.errors import OnceonlyError, OutcomeUnknown
from onceonly.filesystems.durability import Log
from onceonly.filesystems.paths import local_path
from onceonly.statetable import compaction, location, row_files
from onceonly.statetable.reading import Reading, sql_text, sql_time
from onceonly.statetable.row_format import Head

SMALL_FILES = 64  # a pipeline's files are merged when there are more
TAIL = 64  # rows read first: the last one and, nearly always, all of the open checkpoints
TRIES = 3
NEAR = timedelta(days=32)
PINS = f"event IN ('{Event.PLANNED.value}', '{Event.EMPTY.value}')"  # rows that pin offsets


class Lost(Exception):
    """The compare-and-set was lost to another writer of the same pipeline: read again, decide again."""


@dataclass(frozen=True)
class View:
    """One pipeline as one snapshot of the table shows it."""

    pipeline: str
    table: Reading
    head: Head
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)  # those loaded: at least the open and the latest

    @property
    def open(self) -> list[Checkpoint]:
        """Unsettled checkpoints, oldest first."""
        return [self.checkpoints[epoch] for epoch in sorted(self.head.open)]

    @property
    def latest(self) -> Checkpoint | None:
        return self.checkpoints.get(self.head.epoch)

    def checkpoint(self, epoch: int) -> Checkpoint | None:
        """That checkpoint, from this same snapshot; None when the epoch was never issued."""
        if epoch not in self.checkpoints and 0 < epoch <= self.head.epoch:
            self.checkpoints.update(_load(self.table, self.pipeline, [epoch], self.head.seq))
        return self.checkpoints.get(epoch)

    def planned_by(self, owner: str) -> list[Checkpoint]:
        """What `owner` planned or took over, oldest first."""
        return self._planned(f"owner = {sql_text(owner)}")

    def planned_for(self, interval: Interval) -> list[Checkpoint]:
        """What was pinned for any part of `interval`, oldest first."""
        return self._planned(f"interval_start < {sql_time(interval.end)} AND interval_end > {sql_time(interval.start)}")

    def taken_back(self, epoch: int) -> bool:
        """Whether a rewind has taken out what that checkpoint published; once it has, that stays so."""
        return any(to is not None and to < epoch for to in (rewind.rewinds_to for rewind in self._rewinds(epoch)))

    def _rewinds(self, since: int) -> list[Checkpoint]:
        """Those that were decided after that epoch."""
        chosen = f"event = '{Event.REWOUND.value}' AND epoch > {since} AND seq <= {self.head.seq}"
        epochs = self.table.scan({self.pipeline: chosen}, ["epoch"])["epoch"].to_pylist()
        return [checkpoint for epoch in epochs if (checkpoint := self.checkpoint(epoch))]

    def boundaries(self, time: datetime, topic: str) -> tuple[Boundary | None, Boundary | None]:
        """The nearest boundaries of the topic that are pinned at or before, and at or after, `time`."""
        at, low, high = sql_time(time), sql_time(time - NEAR), sql_time(time + NEAR)
        before = self._pinned_at(f"interval_start <= {at} AND interval_end > {low}", f"interval_end <= {low}")
        after = self._pinned_at(f"interval_end >= {at} AND interval_start < {high}", f"interval_start >= {high}")
        return (
            self._boundary(max((pair for pair in before if pair[0] <= time), default=None), topic),
            self._boundary(min((pair for pair in after if pair[0] >= time), default=None), topic),
        )

    def gap_before(self, interval: Interval) -> Interval | None:
        """What no pinned interval covers between the one that ends last before `interval` and its start."""
        at, low = sql_time(interval.start), sql_time(interval.start - NEAR)
        before = self._pinned_at(f"interval_end <= {at} AND interval_end > {low}", f"interval_end <= {low}")
        last = max((time for time, _ in before), default=interval.start)
        return Interval(last, interval.start) if last < interval.start else None

    def _pinned_at(self, near: str, far: str) -> list[tuple[datetime, int]]:
        """Boundaries as (time, epoch): those near by, which statistics find at once; the far ones where there are none.

        Pinned intervals do not overlap, so one that is found near by leaves no closer one among the far.
        """
        for chosen in (near, far):
            found = self._pinned(chosen, ["epoch", *gaps.COLUMNS]).to_pylist()
            if found:
                return [(row[name], row["epoch"]) for row in found for name in gaps.COLUMNS]
        return []

    def _boundary(self, pair: tuple[datetime, int] | None, topic: str) -> Boundary | None:
        checkpoint = self.checkpoint(pair[1]) if pair else None
        if pair is None or checkpoint is None or checkpoint.interval is None:
            return None
        pinned = range_of(checkpoint.ranges, topic)
        if pinned is None:
            return None
        offsets = pinned.starts if checkpoint.interval.start == pair[0] else pinned.ends
        return Boundary(pair[0], pinned.topic_id, offsets)

    def _planned(self, chosen: str) -> list[Checkpoint]:
        epochs = sorted(set(self._pinned(chosen, ["epoch"])["epoch"].to_pylist()))
        found = (self.checkpoint(epoch) for epoch in epochs)
        return [checkpoint for checkpoint in found if checkpoint]

    def _pinned(self, chosen: str, columns: Sequence[str]) -> pa.Table:
        return self.table.scan({self.pipeline: f"{PINS} AND {chosen} AND seq <= {self.head.seq}"}, columns)


class StateTable:
    """The durable record of every pipeline, at a path or URI.

    What it shows is on disk, and so is a row when `append` returns: something outside may follow from either.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.id = location.open_(uri).id
        local = local_path(uri)
        self._log = Log(local) if local else None  # what an object store has taken is durable

    @classmethod
    def make(cls, uri: str) -> StateTable:
        """The table at `uri`, made if there is none; not for a process that only expects one."""
        location.make(uri)
        return cls(uri)

    def view(self, pipeline: str) -> View:
        """The pipeline now. Cost follows its open checkpoints, not its history."""
        table = self._reading()
        seq = table.version(pipeline)
        if not seq:
            return View(pipeline, table, Head())
        tail = table.rows({pipeline: f"seq > {seq - TAIL} AND seq <= {seq}"})
        if not tail or tail[-1].seq != seq:
            raise OutcomeUnknown(
                f"{pipeline}: the state table at {self.uri} is damaged.",
                f"Its log says the last row is number {seq}; the rows end at {tail[-1].seq if tail else 0}.",
                "Nothing was changed. Restore the table (Delta time travel) before running this pipeline.",
            )
        head = Head.from_json(tail[-1].head)
        wanted = {**head.open, head.epoch: head.latest}
        far = [epoch for epoch, first_seq in wanted.items() if first_seq <= seq - TAIL]
        near = fold(row for row in tail if row.epoch in wanted and row.epoch not in far)
        return View(pipeline, table, head, near | _load(table, pipeline, far, seq))

    def append(self, view: View, row: Row) -> View:
        """Write `row` if the pipeline is still as `view` shows it.

        Returns:
            The view that follows; `view` itself must not be written from again.
        Raises:
            Lost: another writer was first, or the view is older than the log goes back; nothing was written.
            OutcomeUnknown: the table cannot be read back after a failed write, or the row may not be on disk.
        """
        known = view.checkpoint(row.epoch)
        checkpoint = known.apply(row) if known else first(row)
        head = view.head.after(row, checkpoint)
        table = self._write(view.table.delta, replace(row, head=head.to_json()))
        return View(
            view.pipeline, Reading(self._open, table, behind=True), head, {**view.checkpoints, row.epoch: checkpoint}
        )

    def pipelines(self) -> list[str]:
        """Every pipeline that ever wrote a row."""
        return self._reading().pipelines()

    def versions(self) -> dict[str, int]:
        """Every pipeline's last sequence number: what has not changed need not be read again."""
        table = self._reading()
        return {name: table.version(name) for name in table.pipelines()}

    def owners(self, since_seq: Mapping[str, int]) -> dict[str, set[str]]:
        """By pipeline: who owned a checkpoint of it, as rows above that sequence number name them; in one scan."""
        chosen = {name: f"seq > {seq} AND owner IS NOT NULL" for name, seq in since_seq.items()}
        found: dict[str, set[str]] = {name: set() for name in chosen}
        for row in self._reading().scan(chosen, ["pipeline", "owner"]).to_pylist() if chosen else ():
            found[row["pipeline"]].add(row["owner"])
        return found

    def gaps(self, pipelines: Iterable[str]) -> dict[str, list[Interval]]:
        """By pipeline: what no interval covers between its first and its last pinned one, oldest first; in one scan."""
        chosen = {name: f"{PINS} AND interval_start IS NOT NULL" for name in pipelines}
        if not chosen:
            return {}
        import pyarrow.compute as pc  # here, as in `row_files`

        found = self._reading().scan(chosen, ["pipeline", *gaps.COLUMNS])
        return {name: gaps.between(found.filter(pc.equal(found["pipeline"], name))) for name in chosen}

    def recent(self, pipelines: Iterable[str], most: int) -> dict[str, list[Row]]:
        """By pipeline: all rows of its last epochs, and of every open one, in order; in two scans."""
        table = self._reading()
        last = {name: f"seq = {table.version(name)}" for name in pipelines}
        found: dict[str, list[Row]] = {name: [] for name in last}
        heads = [(row.pipeline, Head.from_json(row.head)) for row in table.rows(last)]
        for row in table.rows({name: _recent(head, most) for name, head in heads}):
            found[row.pipeline].append(row)
        return found

    def history(self, pipeline: str, since_epoch: int = 0, until_epoch: int | None = None) -> list[Row]:
        """All rows of these epochs (the last one included), in order; for people, not for decisions."""
        until = "" if until_epoch is None else f" AND epoch <= {until_epoch}"
        return self._reading().rows({pipeline: f"epoch >= {since_epoch}{until}"})

    def tidy(self, view: View) -> View:
        """Merge the pipeline's small files and drop old log entries, when there are many; returns the view after it.

        Nothing depends on it, so a failure is told and stops nobody.
        """
        try:
            if not compaction.tidy(view.table, view.pipeline, SMALL_FILES):
                return view
        except CommitFailedError:  # another process is tidying: its result serves us as well
            pass
        except Exception as error:  # whatever it is: the rows are there as before
            warnings.warn(f"the state table at {self.uri} could not be tidied: {error}", RuntimeWarning, stacklevel=2)
        return self.view(view.pipeline)

    def _reading(self) -> Reading:
        return Reading(self._open)

    def _open(self) -> DeltaTable:
        """The table as it is now; a new one in its place is not the table, and would number everything from 1."""
        try:
            opened = location.open_(self.uri)
        except location.Missing as error:  # says "nothing was written", which this process cannot say any more
            raise OutcomeUnknown(
                f"the state table at {self.uri} is gone.",
                "This process began with it. Was its volume unmounted, or its folder deleted?",
                "Nothing was deleted. Bring it back, then: onceonly recover",
            ) from error
        if opened.id != self.id:
            raise OutcomeUnknown(
                f"the state table at {self.uri} is not the one that this process began with.",
                f"Its identity was {self.id} and is now {opened.id}: it was deleted, or forked.",
                "Restore the table, or start again if that was meant. Nothing was written to it.",
            )
        self._keep()
        return opened.table

    def _keep(self) -> None:
        """Before anything follows from what the table shows: a power failure can take nothing of it back."""
        try:
            if self._log:
                self._log.keep()
        except OSError as error:
            raise OutcomeUnknown(
                f"the state table at {self.uri} may not survive a power failure.",
                f"Its log could not be written to disk: {error}",
                "Nothing follows from what it shows. When its disk is well again: onceonly recover",
            ) from error

    def _write(self, table: DeltaTable, row: Row) -> DeltaTable:
        """Append it, once and durably; returns the table to go on from."""
        failed, error = 0, None
        while failed < TRIES:
            if _last(table, row.pipeline) != row.seq - 1:  # in the snapshot that the commit is made from
                table = self._unless_lost(row, error)
                break
            try:
                row_files.append(table, row)
                self._check_read(table.version() + 1)
            except (DeltaError, OSError) as failure:
                error, before = failure, table.version()
                table, landed = self._look(row, error)
                if not landed:  # an attempt counts unless others have written meanwhile, each of them once
                    failed += not (isinstance(error, CommitFailedError) and table.version() > before)
                    continue
            break
        else:
            raise _unknown(row, self.uri, error)
        self._keep()
        return table

    def _unless_lost(self, row: Row, error: Exception | None) -> DeltaTable:
        """Where its number is taken: the table, if the row itself has it. A write that failed may land after a look.

        Raises:
            Lost: another has it, so no such write can land any more.
            OutcomeUnknown: nobody is seen to have it; what it came from could not be brought up to date.
        """
        if error is None:
            raise Lost
        table, landed = self._look(row, error)
        if landed:
            return table
        if (_last(table, row.pipeline) or 0) < row.seq:
            raise _unknown(row, self.uri, error)
        row_files.remove(self.uri, row.pipeline, row.id)
        raise Lost

    def _check_read(self, version: int) -> None:
        """A commit from that version on is in the log as it is read.

        Of a process that was stopped for hours just before, the name may have been cleaned up meanwhile and so be free.
        """
        if self._log and self._log.passes_over(version):
            raise OSError(f"the log goes on after version {version}")

    def _look(self, row: Row, error: Exception) -> tuple[DeltaTable, bool]:
        """After a failed write: the table as it is now, and whether the row is in it after all."""
        try:
            table = self._reading()
            there = table.scan({row.pipeline: f"seq = {row.seq} AND id = {sql_text(row.id)}"}, ["id"])
        except (DeltaError, OSError, OnceonlyError) as unreadable:  # also "cannot be opened": the row may be there
            raise _unknown(row, self.uri, unreadable) from error
        return table.delta, bool(there.num_rows)


class Snapshot(StateTable):
    """The table at one moment, for reading: several answers fit together, and cost one look at its log."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        opened = location.open_(uri)
        self.id, self._at = opened.id, Reading(lambda: location.open_(uri).table, opened.table)

    def _reading(self) -> Reading:
        return self._at


def _last(table: DeltaTable, pipeline: str) -> int | None:
    """Its last number; None from a snapshot that can be brought up to date no more: its log was cleaned up."""
    with suppress(DeltaError, OSError):
        table.update_incremental()
        return table.transaction_version(pipeline) or 0
    return None


def _load(table: Reading, pipeline: str, epochs: Sequence[int], until: int) -> dict[int, Checkpoint]:
    chosen = f"epoch IN ({', '.join(map(str, epochs))}) AND seq <= {until}"
    return fold(table.rows({pipeline: chosen})) if epochs else {}


def _recent(head: Head, most: int) -> str:
    old = ", ".join(str(epoch) for epoch in head.open if epoch <= head.epoch - most)
    return f"(epoch > {head.epoch - most}{f' OR epoch IN ({old})' if old else ''})"


def _unknown(row: Row, uri: str, error: Exception | None) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{row.pipeline} epoch {row.epoch}: whether '{row.event.value}' was recorded is not known.",
        f"The state table at {uri} did not take the row or cannot be read back{f': {error}' if error else ''}.",
        "Nothing was deleted. When the table's storage answers again: onceonly recover " + row.pipeline,
    )
