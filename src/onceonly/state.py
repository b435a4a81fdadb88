"""The state table: an append-only Delta table, one row per transition, each a compare-and-set.

A row is written from the snapshot that was read, with Delta's `txn` action (appId = pipeline, version = the pipeline's
next sequence number). Of two writers from one snapshot the second gets `Lost`, re-reads and decides again; writers of
different pipelines do not disturb each other. Source: Delta protocol, "Transaction Identifiers".

Reading does not grow with history: a pipeline's last row says where its open checkpoints begin (`Head`), tidying
merges small files, and file statistics skip the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from onceonly import staterow, statestore
from onceonly.checkpoint import Checkpoint, Event, Row, first, fold
from onceonly.errors import OnceonlyError, OutcomeUnknown
from onceonly.offsets import Boundary, Interval, range_of
from onceonly.staterow import Head

SMALL_FILES = 64  # a pipeline's files are merged when there are more
FULL_FILE = 4 << 20  # bytes; a merged file of this size is left alone, so that tidying costs the same for ever
TAIL = 64  # rows read first: the last one and, nearly always, all of the open checkpoints
TRIES = 3
NEAR = timedelta(days=32)
INTERVAL_COLUMNS = ("interval_start", "interval_end")
PINS = f"event IN ('{Event.PLANNED.value}', '{Event.EMPTY.value}')"  # rows that pin offsets


class Lost(Exception):
    """The compare-and-set was lost to another writer of the same pipeline: read again, decide again."""


@dataclass(frozen=True)
class View:
    """One pipeline as one snapshot of the table shows it."""

    pipeline: str
    table: DeltaTable
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
            self.checkpoints.update(_load(self.table, self.pipeline, [epoch]))
        return self.checkpoints.get(epoch)

    def planned_by(self, owner: str) -> list[Checkpoint]:
        """What `owner` planned or took over, oldest first."""
        return self._planned(f"owner = {_text(owner)}")

    def planned_for(self, interval: Interval) -> list[Checkpoint]:
        """What was pinned for any part of `interval`, oldest first."""
        return self._planned(f"interval_start < {_time(interval.end)} AND interval_end > {_time(interval.start)}")

    def boundaries(self, time: datetime, topic: str) -> tuple[Boundary | None, Boundary | None]:
        """The nearest boundaries of the topic that are pinned at or before, and at or after, `time`."""
        at, low, high = _time(time), _time(time - NEAR), _time(time + NEAR)
        before = self._pinned_at(f"interval_start <= {at} AND interval_end > {low}", f"interval_end <= {low}")
        after = self._pinned_at(f"interval_end >= {at} AND interval_start < {high}", f"interval_start >= {high}")
        return (
            self._boundary(max((pair for pair in before if pair[0] <= time), default=None), topic),
            self._boundary(min((pair for pair in after if pair[0] >= time), default=None), topic),
        )

    def _pinned_at(self, near: str, far: str) -> list[tuple[datetime, int]]:
        """Boundaries as (time, epoch): those near by, which statistics find at once; the far ones where there are none.

        Pinned intervals do not overlap, so one that is found near by leaves no closer one among the far.
        """
        for chosen in (near, far):
            found = _scan(self.table, self.pipeline, f"{PINS} AND {chosen}", ["epoch", *INTERVAL_COLUMNS]).to_pylist()
            if found:
                return [(row[name], row["epoch"]) for row in found for name in INTERVAL_COLUMNS]
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
        table = _scan(self.table, self.pipeline, f"{PINS} AND {chosen}", ["epoch"])
        found = (self.checkpoint(epoch) for epoch in sorted(set(table["epoch"].to_pylist())))
        return [checkpoint for checkpoint in found if checkpoint]


class StateTable:
    """The durable record of every pipeline, at a path or URI."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.id = statestore.open_(uri).id

    @classmethod
    def make(cls, uri: str) -> StateTable:
        """The table at `uri`, made if there is none; not for a process that only expects one."""
        statestore.make(uri)
        return cls(uri)

    def view(self, pipeline: str) -> View:
        """The pipeline now. Cost follows its open checkpoints, not its history."""
        table = self._open()
        seq = table.transaction_version(pipeline) or 0
        if not seq:
            return View(pipeline, table, Head())
        tail = _rows(table, pipeline, f"seq > {seq - TAIL}")
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
        return View(pipeline, table, head, near | _load(table, pipeline, far))

    def append(self, view: View, row: Row) -> View:
        """Write `row` if the pipeline is still as `view` shows it.

        Returns:
            The view that follows; `view` itself must not be written from again.
        Raises:
            Lost: another writer was first; nothing was written.
            OutcomeUnknown: the table cannot be read back after a failed write.
        """
        known = view.checkpoint(row.epoch)
        checkpoint = known.apply(row) if known else first(row)
        head = view.head.after(row, checkpoint)
        self._write(view.table, replace(row, head=head.to_json()))
        return View(view.pipeline, view.table, head, {**view.checkpoints, row.epoch: checkpoint})

    def pipelines(self) -> list[str]:
        """Every pipeline that ever wrote a row."""
        return sorted(p["pipeline"] for p in self._open().partitions())

    def versions(self) -> dict[str, int]:
        """Every pipeline's last sequence number: what has not changed need not be read again."""
        table = self._open()
        return {p["pipeline"]: table.transaction_version(p["pipeline"]) or 0 for p in table.partitions()}

    def owners(self, since_seq: Mapping[str, int]) -> dict[str, set[str]]:
        """By pipeline: who owned a checkpoint of it, as rows above that sequence number name them; in one scan."""
        chosen = {name: f"seq > {seq} AND owner IS NOT NULL" for name, seq in since_seq.items()}
        found: dict[str, set[str]] = {name: set() for name in chosen}
        for row in _scan_all(self._open(), chosen, ["pipeline", "owner"]).to_pylist() if chosen else ():
            found[row["pipeline"]].add(row["owner"])
        return found

    def recent(self, pipelines: Iterable[str], most: int) -> dict[str, list[Row]]:
        """By pipeline: all rows of its last epochs, and of every open one, in order; in two scans."""
        table = self._open()
        last = {name: f"seq = {table.transaction_version(name) or 0}" for name in pipelines}
        found: dict[str, list[Row]] = {name: [] for name in last}
        heads = [(row.pipeline, Head.from_json(row.head)) for row in _rows_all(table, last)]
        for row in _rows_all(table, {name: _recent(head, most) for name, head in heads}):
            found[row.pipeline].append(row)
        return found

    def history(self, pipeline: str, since_epoch: int = 0, until_epoch: int | None = None) -> list[Row]:
        """All rows of these epochs (the last one included), in order; for people, not for decisions."""
        until = "" if until_epoch is None else f" AND epoch <= {until_epoch}"
        return _rows(self._open(), pipeline, f"epoch >= {since_epoch}{until}")

    def tidy(self, view: View) -> View:
        """Merge the pipeline's small files and drop old log entries, when there are many; returns the view after it."""
        table, pipeline = view.table, view.pipeline
        if len(table.file_uris(file_pruning_predicate=[("pipeline", "=", pipeline)])) <= SMALL_FILES:
            return view
        with suppress(CommitFailedError):  # another process is tidying: its result serves us as well
            table.optimize.compact(partition_filters=[("pipeline", "=", pipeline)], target_size=FULL_FILE)
            table.create_checkpoint()
            table.cleanup_metadata()
            table.vacuum(retention_hours=1, dry_run=False)
        return self.view(pipeline)

    def _open(self) -> DeltaTable:
        """The table as it is now; a new one in its place is not the table, and would number everything from 1."""
        try:
            opened = statestore.open_(self.uri)
        except statestore.Missing as error:  # says "nothing was written", which this process cannot say any more
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
        return opened.table

    def _write(self, table: DeltaTable, row: Row) -> None:
        for _ in range(TRIES):
            if (table.transaction_version(row.pipeline) or 0) != row.seq - 1:
                raise Lost  # a fresh snapshot would accept the same number again
            try:
                return _commit(table, row)
            except (DeltaError, OSError) as error:
                again = self._look(row, error)
                if again is None:
                    return None
                table = again
        raise _unknown(row, self.uri, None)

    def _look(self, row: Row, error: Exception) -> DeltaTable | None:
        """After a failed write: None when the row is there after all, else the table to try again from."""
        try:
            table = self._open()
            there = _scan(table, row.pipeline, f"seq = {row.seq} AND id = {_text(row.id)}", ["id"])
        except (DeltaError, OSError, OnceonlyError) as unreadable:  # also "cannot be opened": the row may be there
            raise _unknown(row, self.uri, unreadable) from error
        return None if there.num_rows else table


class Snapshot(StateTable):
    """The table at one moment, for reading: several answers fit together, and cost one look at its log."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        opened = statestore.open_(uri)
        self.id, self._table = opened.id, opened.table

    def _open(self) -> DeltaTable:
        return self._table


def _commit(table: DeltaTable, row: Row) -> None:
    stamp = CommitProperties(app_transactions=[Transaction(row.pipeline, row.seq)])
    write_deltalake(table, staterow.to_arrow([row]), mode="append", commit_properties=stamp)


def _load(table: DeltaTable, pipeline: str, epochs: Sequence[int]) -> dict[int, Checkpoint]:
    chosen = f"epoch IN ({', '.join(map(str, epochs))})"
    return fold(_rows(table, pipeline, chosen)) if epochs else {}


def _recent(head: Head, most: int) -> str:
    old = ", ".join(str(epoch) for epoch in head.open if epoch <= head.epoch - most)
    return f"(epoch > {head.epoch - most}{f' OR epoch IN ({old})' if old else ''})"


def _rows(table: DeltaTable, pipeline: str, chosen: str) -> list[Row]:
    return _rows_all(table, {pipeline: chosen})


def _rows_all(table: DeltaTable, chosen: Mapping[str, str]) -> list[Row]:
    found = staterow.from_arrow(_scan_all(table, chosen, staterow.SCHEMA.names)) if chosen else []
    return sorted(found, key=lambda row: row.seq)


def _scan(table: DeltaTable, pipeline: str, chosen: str, columns: Sequence[str]) -> pa.Table:
    return _scan_all(table, {pipeline: chosen}, columns)


def _scan_all(table: DeltaTable, chosen: Mapping[str, str], columns: Sequence[str]) -> pa.Table:
    """By delta-rs's own engine: pyarrow's, reading through its file system, aborts some processes at their exit."""
    where = " OR ".join(f"(pipeline = {_text(name)} AND {which})" for name, which in chosen.items())
    query = f"SELECT {', '.join(columns)} FROM state WHERE {where}"
    found = pa.table(QueryBuilder().register("state", table).execute(query).read_all())
    return found.cast(pa.schema([staterow.SCHEMA.field(name) for name in columns]))


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _time(value: datetime) -> str:
    return f"arrow_cast('{value.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"


def _unknown(row: Row, uri: str, error: Exception | None) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{row.pipeline} epoch {row.epoch}: whether '{row.event.value}' was recorded is not known.",
        f"The state table at {uri} did not take the row or cannot be read back{f': {error}' if error else ''}.",
        "Nothing was deleted. When the table's storage answers again: onceonly recover " + row.pipeline,
    )
