"""The state table: an append-only Delta table, one row per transition, each a compare-and-set.

A row is written from the snapshot that was read, with Delta's `txn` action (appId = pipeline, version = the pipeline's
next sequence number). Of two writers from one snapshot the second gets `Lost`, re-reads and decides again; writers of
different pipelines do not disturb each other. Source: Delta protocol, "Transaction Identifiers".

The cost of reading does not grow with history: a pipeline's last row names the first rows of its open checkpoints
(`Head`), small files are merged, and other files are skipped by their statistics.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from onceonly.checkpoint.model import Checkpoint, Event, Row, first, fold
from onceonly.checkpoint.offsets import Interval
from onceonly.errors import OnceonlyError, OutcomeUnknown
from onceonly.filesystems.durability import Log
from onceonly.filesystems.paths import local_path
from onceonly.statetable import compaction, gaps, location, row_files
from onceonly.statetable.reading import Reading, sql_text
from onceonly.statetable.row_format import Head
from onceonly.statetable.view import PINS, View, load

SMALL_FILES = 64  # a pipeline's files are merged when there are more
TAIL = 64  # rows read first: the last one and, nearly always, all of the open checkpoints
TRIES = 3


class Lost(Exception):
    """The compare-and-set was lost to another writer of the same pipeline: read again, decide again."""


class StateTable:
    """The durable record of every pipeline, at a path or URI.

    Everything that it shows is on disk, and so is a row when `append` returns: external effects may depend on either.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.id = location.open_(uri).id
        local = local_path(uri)
        self._log = Log(local) if local else None  # what an object store has acknowledged is durable

    @classmethod
    def make(cls, uri: str) -> StateTable:
        """The table at `uri`, created if it does not exist. Not for a process that expects an existing one."""
        location.make(uri)
        return cls(uri)

    def view(self, pipeline: str) -> View:
        """The pipeline's current state. The cost depends on its open checkpoints, not on its history."""
        table = self._reading()
        seq = table.version(pipeline)
        if not seq:
            return View(pipeline, table, Head())
        tail = table.rows({pipeline: f"seq > {seq - TAIL} AND seq <= {seq}"})
        if not tail or tail[-1].seq != seq:
            raise OutcomeUnknown(
                f"{pipeline}: the state table at {self.uri} is damaged.",
                f"By its log the last row is number {seq}, but the rows end at {tail[-1].seq if tail else 0}.",
                "Nothing was changed. Restore the table (Delta time travel) before running this pipeline.",
            )
        head = Head.from_json(tail[-1].head)
        wanted = {**head.open, head.epoch: head.latest}
        far = [epoch for epoch, first_seq in wanted.items() if first_seq <= seq - TAIL]
        near = fold(row for row in tail if row.epoch in wanted and row.epoch not in far)
        return View(pipeline, table, head, near | load(table, pipeline, far, seq))

    def append(self, view: View, row: Row) -> View:
        """Write `row` if the pipeline is still as `view` shows it.

        Returns:
            The view after the row. `view` itself must not be written from again.
        Raises:
            Lost: another writer was first, or the view is older than the log; nothing was written.
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
        """Every pipeline that has a row."""
        return self._reading().pipelines()

    def versions(self) -> dict[str, int]:
        """The last sequence number of each pipeline: an unchanged pipeline need not be read again."""
        table = self._reading()
        return {name: table.version(name) for name in table.pipelines()}

    def owners(self, since_seq: Mapping[str, int]) -> dict[str, set[str]]:
        """By pipeline: the owners of its checkpoints in rows above that sequence number; by one scan."""
        chosen = {name: f"seq > {seq} AND owner IS NOT NULL" for name, seq in since_seq.items()}
        found: dict[str, set[str]] = {name: set() for name in chosen}
        for row in self._reading().scan(chosen, ["pipeline", "owner"]).to_pylist() if chosen else ():
            found[row["pipeline"]].add(row["owner"])
        return found

    def gaps(self, pipelines: Iterable[str]) -> dict[str, list[Interval]]:
        """By pipeline: the gaps between its first and its last pinned interval, oldest first; by one scan."""
        chosen = {name: f"{PINS} AND interval_start IS NOT NULL" for name in pipelines}
        if not chosen:
            return {}
        import pyarrow.compute as pc  # here, as in `row_files`

        found = self._reading().scan(chosen, ["pipeline", *gaps.COLUMNS])
        return {name: gaps.between(found.filter(pc.equal(found["pipeline"], name))) for name in chosen}

    def recent(self, pipelines: Iterable[str], most: int) -> dict[str, list[Row]]:
        """By pipeline: all rows of its last epochs and of every open one, in order; by two scans."""
        table = self._reading()
        last = {name: f"seq = {table.version(name)}" for name in pipelines}
        found: dict[str, list[Row]] = {name: [] for name in last}
        heads = [(row.pipeline, Head.from_json(row.head)) for row in table.rows(last)]
        for row in table.rows({name: _recent(head, most) for name, head in heads}):
            found[row.pipeline].append(row)
        return found

    def history(self, pipeline: str, since_epoch: int = 0, until_epoch: int | None = None) -> list[Row]:
        """All rows of these epochs, both ends included, in order; for display, not for decisions."""
        until = "" if until_epoch is None else f" AND epoch <= {until_epoch}"
        return self._reading().rows({pipeline: f"epoch >= {since_epoch}{until}"})

    def superseding(self, pipeline: str, epochs: Sequence[int]) -> list[Checkpoint]:
        """Later checkpoints that replace one of these epochs, or take some of them back, in order; for people."""
        table, first = self._reading(), min(epochs)
        replaces = f"""(event = '{Event.PLANNED.value}' AND attempt = 0 AND body LIKE '%"replaces":%')"""
        chosen = f"epoch > {first} AND (event = '{Event.REWOUND.value}' OR {replaces})"
        found = sorted({row.epoch for row in table.rows({pipeline: chosen}) if _supersedes(row, epochs)})
        loaded = load(table, pipeline, found, table.version(pipeline))
        return [loaded[epoch] for epoch in found]

    def tidy(self, view: View) -> View:
        """Merge the pipeline's small files and drop old log entries, if there are many; returns the view after it.

        Nothing depends on it, so a failure only causes a warning.
        """
        try:
            if not compaction.tidy(view.table, view.pipeline, SMALL_FILES):
                return view
        except CommitFailedError:  # another process does the same
            pass
        except Exception as error:  # the rows are unchanged, whatever failed
            warnings.warn(f"the state table at {self.uri} was not compacted: {error}", RuntimeWarning, stacklevel=2)
        return self.view(view.pipeline)

    def _reading(self) -> Reading:
        return Reading(self._open)

    def _open(self) -> DeltaTable:
        """The table's current version. A new table in its place is refused: it would number everything from 1."""
        try:
            opened = location.open_(self.uri)
        except location.Missing as error:  # it claims that nothing was written, which this process cannot know
            raise OutcomeUnknown(
                f"the state table at {self.uri} no longer exists.",
                "It did when this process started. Its volume may be unmounted, or its folder deleted.",
                "Nothing was deleted. Mount or restore it, then: onceonly recover",
            ) from error
        if opened.id != self.id:
            raise OutcomeUnknown(
                f"the state table at {self.uri} is another one than when this process started.",
                f"Its identity was {self.id} and is now {opened.id}: it was replaced or forked.",
                "Restore the table, or start the process again if that was intended. Nothing was written to it.",
            )
        self._keep()
        return opened.table

    def _keep(self) -> None:
        """Make what the table shows durable, before anything depends on it."""
        try:
            if self._log:
                self._log.keep()
        except OSError as error:
            raise OutcomeUnknown(
                f"the state table at {self.uri} may not survive a power failure.",
                f"Its log could not be written to disk: {error}",
                "Nothing was done that depends on it. Repair the disk, then: onceonly recover",
            ) from error

    def _write(self, table: DeltaTable, row: Row) -> DeltaTable:
        """Append the row, once and durably; returns the table for the next write."""
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
                if not landed:  # the attempt counts, unless another writer won it
                    failed += not (isinstance(error, CommitFailedError) and table.version() > before)
                    continue
            break
        else:
            raise _unknown(row, self.uri, error)
        self._keep()
        return table

    def _unless_lost(self, row: Row, error: Exception | None) -> DeltaTable:
        """The table, if the row itself has its number: a failed write may land after it was looked for.

        Raises:
            Lost: another row has the number, so the failed write can no longer land.
            OutcomeUnknown: no row with that number is found, and the snapshot could not be updated.
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
        """Check that readers see a commit of that version.

        If this process was stopped for hours before the commit, entries may have been cleaned up meanwhile, so that
        the name of an old version was free again.
        """
        if self._log and self._log.passes_over(version):
            raise OSError(f"readers of the log start after version {version}")

    def _look(self, row: Row, error: Exception) -> tuple[DeltaTable, bool]:
        """After a failed write: the current table, and whether the row is in it."""
        try:
            table = self._reading()
            there = table.scan({row.pipeline: f"seq = {row.seq} AND id = {sql_text(row.id)}"}, ["id"])
        except (DeltaError, OSError, OnceonlyError) as unreadable:  # if it cannot be opened, the row may be there
            raise _unknown(row, self.uri, unreadable) from error
        return table.delta, bool(there.num_rows)


class Snapshot(StateTable):
    """The table at one version, for reading. Several queries are consistent, and its log is read once."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        opened = location.open_(uri)
        self.id, self._at = opened.id, Reading(lambda: location.open_(uri).table, opened.table)

    def _reading(self) -> Reading:
        return self._at


def _last(table: DeltaTable, pipeline: str) -> int | None:
    """The pipeline's last number; None if the snapshot can no longer be updated because its log was cleaned up."""
    with suppress(DeltaError, OSError):
        table.update_incremental()
        return table.transaction_version(pipeline) or 0
    return None


def _recent(head: Head, most: int) -> str:
    old = ", ".join(str(epoch) for epoch in head.open if epoch <= head.epoch - most)
    return f"(epoch > {head.epoch - most}{f' OR epoch IN ({old})' if old else ''})"


def _supersedes(row: Row, epochs: Sequence[int]) -> bool:
    to = row.body.get("to")
    return row.body.get("replaces") in epochs or (to is not None and to < max(epochs))


def _unknown(row: Row, uri: str, error: Exception | None) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{row.pipeline} epoch {row.epoch}: whether '{row.event.value}' was recorded is not known.",
        f"The state table at {uri} did not accept the row, or cannot be read back{f': {error}' if error else ''}.",
        "Nothing was deleted. When the table's storage is available again: onceonly recover " + row.pipeline,
    )
