"""The state table: one append-only Delta table per pipeline below one folder, one row per transition.

Each row is committed as the next version of its pipeline's Delta log, so writing it is a compare-and-set; only the
table's own maintenance commits versions without a row. Of two writers from one view the second gets a `Conflict`, reads
again and decides again. Writers of different pipelines never meet.

The cost of reading does not grow with history, nor with the number of pipelines: a pipeline's last row names the first
rows of its open checkpoints (`Head`), the last rows are read from the log, and small files are merged.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from onceonly.checkpoint.model import Checkpoint, Event, Row, first
from onceonly.checkpoint.offsets import Interval
from onceonly.delta import log_files
from onceonly.errors import OnceonlyError, OutcomeUnknown
from onceonly.statetable import location, row_files
from onceonly.statetable.gaps import Coverage, read_coverage
from onceonly.statetable.log import NO_VERSION, Commit, Damaged, Entry, Log, Taken, damage_error
from onceonly.statetable.predicates import (
    AFTER,
    OWNED,
    REPLACES,
    above_seq,
    from_epoch,
    of_epochs,
    of_event,
)
from onceonly.statetable.row_format import Head
from onceonly.statetable.rows import Past, Rows
from onceonly.statetable.view import View
from onceonly.storage.paths import local_path
from onceonly.waits import wait_for

MAX_UNMERGED_ROWS = 64  # a pipeline's table is tidied when its log has more of them since the last time
MAX_TAIL_ROWS = 64  # rows that a view reads from the log: nearly always they hold all of the open checkpoints
MAX_WRITE_FAILURES = 3  # of one row
MAX_QUERIES_AT_ONCE = 4  # of different pipelines
IDENTITY_FRESH_SECONDS = 5.0  # on an object store, what a look at the table's identity has shown counts so long
Notify = Callable[[Checkpoint, Row], None]
T = TypeVar("T")


class Conflict(Exception):
    """The compare-and-set was lost to another writer of the same pipeline: read again, decide again."""


class StateTable:
    """The durable record of every pipeline, at a path or URI.

    Everything that it shows is on disk, and so is a row when `append` returns: external effects may depend on either.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.id = location.read_identity(uri)
        self._looked = time.monotonic()
        self._logs: dict[str, Log] = {}
        if local := local_path(uri):
            log_files.DurableLog(local).sync()  # its identity

    @classmethod
    def make(cls, uri: str) -> StateTable:
        """Return the table at `uri`, created if it does not exist. Not for a process that expects an existing one."""
        try:
            return cls(uri)
        except location.Missing:
            location.make(uri)
        return cls(uri)

    def view(self, pipeline: str) -> View:
        """Return the pipeline's current state. The cost depends on its open checkpoints, not on its history.

        Raises:
            OutcomeUnknown: the table cannot be read, or is damaged.
        """
        with wait_for(f"the state table at {self.uri}"):
            return self._read_view(pipeline)

    def _read_view(self, pipeline: str) -> View:
        rows = self._rows(pipeline)
        last = rows.last()
        if last is None or last.row is None:
            return View(pipeline, rows, Head())
        head = Head.from_json(last.row.head)
        first_seqs = {**head.open, head.epoch: head.latest}  # by epoch, of all checkpoints that the view has
        # Once the log is read down to their first rows, checkpoints are folded from memory. Older ones take a query.
        near_seqs = [seq for seq in first_seqs.values() if seq > head.seq - MAX_TAIL_ROWS]
        rows.read_since(min(near_seqs, default=head.seq))
        checkpoints = rows.checkpoints(list(first_seqs))
        if missing := sorted(set(first_seqs) - set(checkpoints)):
            why = f"Its last row names epochs whose rows are not there: {missing}."
            raise damage_error(pipeline, rows.past.uri, why)
        return View(pipeline, rows, head, checkpoints)

    def append(self, view: View, row: Row) -> View:
        """Write `row` if the pipeline is still as `view` shows it.

        Returns:
            The view after the row. `view` itself must not be written from again.
        Raises:
            Conflict: another writer was first, or the view is older than the log; nothing was written.
            OutcomeUnknown: the table cannot be read back after a failed write, or the row may not be on disk.
        """
        previous = view.checkpoint(row.epoch)
        checkpoint = previous.apply(row) if previous else first(row)
        head = view.head.apply(row, checkpoint)
        with wait_for(f"the state table at {self.uri}, which gets a row"):
            entry = self._write(view.rows, replace(row, head=head.to_json()))
        return View(view.pipeline, view.rows.with_entry(entry), head, {**view.checkpoints, row.epoch: checkpoint})

    def pipelines(self) -> list[str]:
        """Return every pipeline that has a row."""
        return location.list_pipelines(self.uri)

    def versions(self) -> dict[str, int]:
        """Return the last sequence number of each pipeline (0: it cannot be read).

        A pipeline whose number is unchanged need not be read again.
        """
        return {name: self._last_seq(name) for name in self.pipelines()}

    def owners(self, since_seq: Mapping[str, int]) -> dict[str, set[str]]:
        """Return, for each pipeline that can be read, the owners of its checkpoints in rows above that number.

        Args:
            since_seq: by pipeline: a sequence number.
        """

        def owners_of(name: str) -> set[str] | None:
            with suppress(OutcomeUnknown):
                return self._rows(name).distinct(OWNED & above_seq(since_seq[name]), "owner")
            return None

        owners_by_pipeline = {}
        for name, owners in _map_at_once(owners_of, since_seq).items():
            if owners is not None:
                owners_by_pipeline[name] = owners
        return owners_by_pipeline

    def coverage(self, pipelines: Iterable[str]) -> dict[str, Coverage]:
        """Return by pipeline what its intervals cover, and which are missing."""

        def coverage_of(name: str) -> Coverage:
            rows = self._rows(name)
            last = rows.last()
            if last is None or last.row is None:
                return Coverage()
            return read_coverage(rows, Head.from_json(last.row.head).open)

        return _map_at_once(coverage_of, pipelines)

    def gaps(self, pipelines: Iterable[str]) -> dict[str, list[Interval]]:
        """Return by pipeline the intervals that are missing, oldest first."""
        gaps = {}
        for name, coverage in self.coverage(pipelines).items():
            gaps[name] = list(coverage.gaps)
        return gaps

    def recent(self, pipelines: Iterable[str], most: int) -> dict[str, list[Row]]:
        """Return by pipeline all rows of some of its epochs, in order.

        They are its last `most` epochs, and every one that is open or to be staged again.
        """
        return {name: self._recent_rows(name, most) for name in pipelines}

    def history(self, pipeline: str, since_epoch: int = 0, until_epoch: int | None = None) -> list[Row]:
        """Return all rows of these epochs, both ends included, in order; for display, not for decisions."""
        return self._rows(pipeline).find(from_epoch(since_epoch, until_epoch))

    def superseding(self, pipeline: str, epochs: Sequence[int]) -> list[Checkpoint]:
        """Return later checkpoints that replace one of these epochs or retract some of them, in order; for people.

        What replaces such a later one is among them: a repair may have left a sink to it.
        """
        rows = self._rows(pipeline)
        superseding_epochs: set[int] = set()
        for row in rows.from_epoch(min(epochs) + 1, of_event(Event.REWOUND) | REPLACES):
            if _supersedes(row, {*epochs, *superseding_epochs}):
                superseding_epochs.add(row.epoch)
        return _checkpoints_in_order(rows, superseding_epochs)

    def after_others(self, pipeline: str) -> list[Checkpoint]:
        """Return its checkpoints that have read what other pipelines published, in order; for people."""
        rows = self._rows(pipeline)
        return _checkpoints_in_order(rows, rows.distinct(AFTER, "epoch"))

    def tidy(self, view: View) -> View:
        """Merge the pipeline's small files and drop old log entries, if there are many; returns the view after it.

        Nothing depends on it, so a failure only causes a warning.
        """
        if view.rows.count_unmerged() <= MAX_UNMERGED_ROWS:
            return view
        from onceonly.statetable import compaction  # with delta-rs

        try:
            compaction.tidy(view.pipeline, location.table_folder(self.uri, view.pipeline), self._log(view.pipeline))
        except Taken:  # another process does the same
            pass
        except Exception as error:  # the rows are unchanged, whatever failed
            warnings.warn(f"the state table at {self.uri} was not compacted: {error}", RuntimeWarning, stacklevel=2)
        return self.view(view.pipeline)

    def _last_seq(self, name: str) -> int:
        with suppress(OutcomeUnknown):
            return _seq(self._rows(name).last())
        return 0

    def _recent_rows(self, name: str, most: int) -> list[Row]:
        rows = self._rows(name)
        last = rows.last()
        if last is None or last.row is None:
            return []
        head = Head.from_json(last.row.head)
        oldest_epoch = head.epoch - most + 1
        older_epochs = [epoch for epoch in (*head.open, *head.unfit) if epoch < oldest_epoch]
        recent_rows: list[Row] = []
        if older_epochs:
            recent_rows += rows.find(of_epochs(older_epochs))
        recent_rows += rows.from_epoch(oldest_epoch)
        return sorted(recent_rows, key=lambda row: row.seq)

    def _rows(self, pipeline: str) -> Rows:
        """Return the pipeline's rows as they are now.

        Where its log is missing, or is not the one that was read before, the table's identity is checked again: the
        whole table may have been replaced.
        """
        self._check_identity()
        log = self._log(pipeline)
        rows = Rows(Past(pipeline, location.table_folder(self.uri, pipeline), log))
        if log.is_other():
            self._check_identity(just_now=True)
        return rows

    def _log(self, pipeline: str) -> Log:
        if pipeline not in self._logs:
            self._logs[pipeline] = location.open_log(location.table_folder(self.uri, pipeline))
        return self._logs[pipeline]

    def _check_identity(self, just_now: bool = False) -> None:
        """Refuse a new table in the place of this one: it would number everything from 1.

        On an object store a look is two round trips, and counts for a while: a row follows on an entry that was seen
        just before it. Where a log is missing or is another one than before, there is another look (`just_now`).
        On a disk a look takes 0.07 ms, so each read and each write begins with one: hours may lie between them.
        """
        if not just_now and not local_path(self.uri) and time.monotonic() - self._looked < IDENTITY_FRESH_SECONDS:
            return
        try:
            identity = location.read_identity(self.uri)
        except location.Missing as error:  # it claims that nothing was written, which this process cannot know
            raise OutcomeUnknown(
                f"the state table at {self.uri} no longer exists.",
                "It did when this process started. Its volume may be unmounted, or its folder deleted.",
                "Nothing was deleted. Mount or restore it, then: onceonly recover",
                code="state-table-replaced",
            ) from error
        if identity != self.id:
            raise OutcomeUnknown(
                f"the state table at {self.uri} is not the one with which this process started.",
                f"Its identity was {self.id} and is now {identity}: it was replaced or forked.",
                "Restore the table, or start the process again if that was intended. Nothing was written to it.",
                code="state-table-replaced",
            )
        self._looked = time.monotonic()

    def _write(self, rows: Rows, row: Row) -> Entry:
        """Append the row, once and durably; returns its entry.

        A failed try is no evidence: its commit may have landed, and only its answer be lost. So the table is read after
        each one, and the row is tried again only where it is not there.

        Raises:
            Conflict: another writer was first.
            OutcomeUnknown: the row may be there, or may not be on disk.
        """
        if _seq(rows.last()) != row.seq - 1:
            raise Conflict
        self._check_identity()
        log, failures = self._log(row.pipeline), 0
        while True:
            try:
                entry = self._try_commit(log, rows, row)
                break
            except Damaged as damage:
                raise damage_error(row.pipeline, rows.past.uri, str(damage)) from damage
            except (OSError, Taken) as error:
                entry_or_rows = self._read_after_failure(row, rows.last(), error)
                if isinstance(entry_or_rows, Entry):
                    entry = entry_or_rows
                    break
                # A commit without a row, such as a merge, may have the version: that is no failure of this one.
                if not (isinstance(error, Taken) and entry_or_rows.version > rows.version):
                    failures += 1
                rows = entry_or_rows
                if failures == MAX_WRITE_FAILURES:
                    raise _unknown_outcome_error(row, self.uri, error) from error
        self._sync(log)
        return entry

    def _try_commit(self, log: Log, rows: Rows, row: Row) -> Entry:
        """Commit the row as the version after those of `rows`; a table without one is created first."""
        version = rows.version
        if version == NO_VERSION:
            log.create()
            version = 0
        add = row_files.put(location.table_folder(self.uri, row.pipeline), [row], row.id)
        log.commit(version + 1, Commit("WRITE", [add], row), rows.last())
        return Entry(version + 1, row)

    def _read_after_failure(self, row: Row, after: Entry | None, error: Exception) -> Entry | Rows:
        """Return the row's entry if it is there after a failed write, else the rows to write it after.

        Args:
            after: the entry of the row before it.
            error: of that write.
        Raises:
            Conflict: another row has its number, so that it can no longer land; or the row before it is gone.
            OutcomeUnknown: the table cannot be read, so the row may be there.
        """
        try:
            rows = self._rows(row.pipeline)
            last = rows.last()
            entry = rows.past.find_entry(row.seq)
        except OnceonlyError as read_error:
            raise _unknown_outcome_error(row, self.uri, read_error) from error
        if entry and entry.row:
            if entry.row.id == row.id:
                return entry
            row_files.remove(rows.past.uri, row.id)  # another row has the number, so no entry will ever name this file
            raise Conflict
        if _row_id(last) != _row_id(after):
            raise Conflict
        return rows

    def _sync(self, log: Log) -> None:
        """Make sure that the log survives a power failure. Raises OutcomeUnknown."""
        try:
            log.sync()
        except OSError as error:
            raise OutcomeUnknown(
                f"the state table at {self.uri} may not survive a power failure.",
                f"Its log could not be written to disk: {error}",
                "Nothing was done that depends on it. Repair the disk, then: onceonly recover",
                code="row-not-durable",
            ) from error


class Transitions:
    """Writes transitions to the state table, and notifies of each one that is recorded."""

    def __init__(self, state_table: StateTable, notify: Notify | None = None) -> None:
        self.state_table = state_table
        self._notify = notify or (lambda checkpoint, row: None)

    def change(self, name: str, decide: Callable[[View], Row | None], view: View | None = None) -> View:
        """Write the row that `decide` computes from the current view; None: nothing has to be written.

        Where another writer was first, the pipeline is read again, and `decide` is called again.

        Args:
            view: the view to begin with, if the caller has just read one.
        Returns:
            The view after the row, or the one for which none had to be written.
        """
        while True:
            view = view or self.state_table.view(name)
            row = decide(view)
            if row is None:
                return view
            try:
                view = self.state_table.append(view, row)
            except Conflict:
                view = None
                continue
            self._notify_or_warn(view.require(row.epoch), row)
            return view

    def advance(self, name: str, epoch: int, decide: Callable[[View, Checkpoint], Row | None]) -> Checkpoint:
        """Do the same for one checkpoint, which `decide` gets as well. Returns it as it is then, written or not."""
        return self.change(name, lambda view: decide(view, view.require(epoch))).require(epoch)

    def _notify_or_warn(self, checkpoint: Checkpoint, row: Row) -> None:
        """Call the notify function. Nothing depends on it: where it fails, that is a warning and stops nothing."""
        try:
            self._notify(checkpoint, row)
        except Exception as error:
            what = f"{checkpoint.pipeline} epoch {checkpoint.epoch}: '{row.event.value}' is recorded"
            warnings.warn(f"{what}, but the notify function failed: {error!r}", RuntimeWarning, stacklevel=3)


class Snapshot(StateTable):
    """The table for reading: each pipeline is read once, so that several questions to it have consistent answers."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.id = location.read_identity(uri)
        self._looked = time.monotonic()
        self._logs: dict[str, Log] = {}
        self._rows_read: dict[str, Rows] = {}  # by pipeline

    def _rows(self, pipeline: str) -> Rows:
        """Return the pipeline's rows as they were when it was first asked for."""
        if pipeline not in self._rows_read:
            past = Past(pipeline, location.table_folder(self.uri, pipeline), self._log(pipeline), durable=False)
            self._rows_read[pipeline] = Rows(past)
        return self._rows_read[pipeline]


def list_unsettled_epochs(uri: str) -> dict[str, list[int]]:
    """Return unsettled epochs by pipeline, in order, also of a copy, which cannot be opened as the state table."""
    unsettled_epochs = {}
    for name in location.list_pipelines(uri):
        folder = location.table_folder(uri, name)
        last = Past(name, folder, location.open_log(folder), durable=False).last()
        if last is None or last.row is None:
            continue
        open_epochs = Head.from_json(last.row.head).open
        if open_epochs:
            unsettled_epochs[name] = sorted(open_epochs)
    return unsettled_epochs


def _map_at_once(function: Callable[[str], T], pipelines: Iterable[str]) -> dict[str, T]:
    """Return by pipeline what the function returns for it; `MAX_QUERIES_AT_ONCE` of them are asked at the same time."""
    names = list(pipelines)
    if len(names) < 2:
        return {name: function(name) for name in names}
    from concurrent.futures import ThreadPoolExecutor  # here, so that `onceonly status` starts fast

    with ThreadPoolExecutor(MAX_QUERIES_AT_ONCE) as pool:
        return dict(zip(names, pool.map(function, names), strict=True))


def _checkpoints_in_order(rows: Rows, epochs: Iterable[int]) -> list[Checkpoint]:
    in_order = sorted(epochs)
    checkpoints = rows.checkpoints(in_order)
    return [checkpoints[epoch] for epoch in in_order]


def _seq(entry: Entry | None) -> int:
    return entry.row.seq if entry and entry.row else 0


def _row_id(entry: Entry | None) -> str | None:
    return entry.row.id if entry and entry.row else None


def _supersedes(row: Row, epochs: Set[int]) -> bool:
    """Return whether this row plans to replace one of these epochs, or retracts some of them."""
    rewinds_to = row.body.get("to")
    return row.body.get("replaces") in epochs or (rewinds_to is not None and rewinds_to < max(epochs))


def _unknown_outcome_error(row: Row, uri: str, error: Exception | None) -> OutcomeUnknown:
    why = f": {' '.join(str(error).split())}" if error else ""
    return OutcomeUnknown(
        f"{row.pipeline} epoch {row.epoch}: whether '{row.event.value}' was recorded is not known.",
        f"The state table at {uri} did not accept the row, or cannot be read back{why}.",
        "Nothing was deleted. When the table's storage is available again: onceonly recover " + row.pipeline,
        code="row-unknown",
    )
