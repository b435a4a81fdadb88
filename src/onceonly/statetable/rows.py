"""The rows of one pipeline as they were at one moment.

The last ones come from the entries of its log, newest first, as many as are asked for. Those that were merged into
larger files are found by a query. Rows never change: so where files were removed meanwhile, a newer version is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceonly.checkpoint.model import Checkpoint, Row, fold
from onceonly.checkpoint.offsets import Interval
from onceonly.statetable import row_format
from onceonly.statetable.log import NO_VERSION, Damaged, Entry, Log, damage_error, read_error, rows_of
from onceonly.statetable.predicates import EVERY, Where, from_epoch, of_epochs

if TYPE_CHECKING:
    from onceonly.statetable.query import Query


class Past:
    """What has been read of a pipeline's log. The views that follow from one another share it.

    Args:
        durable: make sure that what is read survives a power failure; not needed where nothing follows from it.

    Raises, in every call:
        OutcomeUnknown: the table cannot be read, or is damaged.
    """

    def __init__(self, pipeline: str, uri: str, log: Log, durable: bool = True) -> None:
        self.pipeline, self.uri = pipeline, uri
        self._query: Query | None = None
        self._read: list[Entry] = []  # those with a row, newest first, without a hole
        self._is_merged, self._merge_version = (
            False,
            NO_VERSION,
        )  # all further rows are in merged files, since that version
        self._last_merged_id: str | None = None  # of the last of those rows
        with self._translating_errors():
            self.version, self._entries = log.entries()
            if durable:
                log.sync()

    def last(self) -> Entry | None:
        """Return the entry of the last row; None: there is no row."""
        if not self._read and self.version != NO_VERSION and not self._read_one_more():
            row = self.query().last()  # its entry was removed
            if row:
                self._read = [Entry(NO_VERSION, row)]
        return self._read[0] if self._read else None

    def read_back(self, seq: int) -> None:
        """Read down to that row, if the log's entries go as far."""
        while self.oldest > seq and self._read_one_more():
            pass

    def read_back_to_epoch(self, epoch: int) -> None:
        """Read down to where that epoch was issued, if the log's entries go as far."""
        while not self._has_all_of(epoch) and self._read_one_more():
            pass

    def _has_all_of(self, epoch: int) -> bool:
        row = self._oldest_row()
        return row is not None and _has_epoch_from(row, epoch)

    def _oldest_row(self) -> Row | None:
        return self._read[-1].row if self._read else None

    def read_unmerged(self) -> None:
        """Read what a query would have to look for in many small files."""
        while not self._is_merged and self.oldest > 1 and self._read_one_more():
            pass

    @property
    def oldest(self) -> int:
        """The number of the oldest row that has been read."""
        row = self._oldest_row()
        return row.seq if row else 1

    @property
    def rows(self) -> list[Row]:
        """The rows that have been read, oldest first."""
        return list(rows_of(reversed(self._read)))

    def find_entry(self, seq: int) -> Entry | None:
        """Return the entry of that row; None: there is no such row."""
        last = self.last()
        if last is None or last.row is None or last.row.seq < seq:
            return None
        self.read_back(seq)
        for entry in self._read:
            if entry.row and entry.row.seq == seq:
                return entry
        records = self.merged_query().find(f"seq = {seq}", tuple(row_format.COLUMNS))
        if not records:
            return None
        return Entry(NO_VERSION, row_format.from_record(records[0]))

    def query(self) -> Query:
        """Return what finds rows in files, of the version that the table has at the first question."""
        if self._query is None:
            from onceonly.statetable.query import Query

            self._query = Query(self.pipeline, self.uri)
        return self._query

    def merged_query(self) -> Query:
        """Return what finds rows that were merged; already open, if nothing was merged since the last time.

        Wherever the row that was merged last is, the same rows are before it, also in a restored copy.
        """
        if self._last_merged_id is None:
            return self.query()
        from onceonly.statetable.query import query_up_to

        return query_up_to(self._last_merged_id, self.pipeline, self.uri, self._merge_version)

    def _read_one_more(self) -> bool:
        """Read one more row; returns whether there was one."""
        with self._translating_errors():
            for entry in self._entries:
                if entry.merges and not self._is_merged:
                    self._is_merged, self._merge_version = True, entry.version
                if entry.foreign:  # another program may have changed rows
                    self.query().check_complete()
                if entry.row:
                    self._check_order(entry.row)
                    self._read.append(entry)
                    if self._is_merged and self._last_merged_id is None:
                        self._last_merged_id = entry.row.id
                    return True
            return False

    def _check_order(self, row: Row) -> None:
        expected = self.oldest - 1 if self._read else row.seq
        if row.seq != expected or row.pipeline != self.pipeline:
            raise Damaged(f"Row {expected} was expected, and row {row.seq} of '{row.pipeline}' is there.")

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Raise OutcomeUnknown in place of errors of the log."""
        try:
            yield
        except Damaged as damage:
            raise damage_error(self.pipeline, self.uri, str(damage)) from damage
        except OSError as error:
            raise read_error(self.pipeline, self.uri, error) from error


@dataclass(frozen=True)
class Rows:
    """A pipeline's rows up to one of them.

    Args:
        added: rows that were written since `past` was read, oldest first.
    """

    past: Past
    added: tuple[Entry, ...] = ()

    def with_entry(self, entry: Entry) -> Rows:
        """Return these rows and the one of the entry, which was written after them."""
        return Rows(self.past, (*self.added, entry))

    @property
    def version(self) -> int:
        """The version of the log that the next row follows on."""
        return self.added[-1].version if self.added else self.past.version

    def last(self) -> Entry | None:
        return self.added[-1] if self.added else self.past.last()

    def find(self, where: Where) -> list[Row]:
        """Return the chosen rows, in order."""
        merged_rows = map(row_format.from_record, self._find_merged(where, tuple(row_format.COLUMNS)))
        return [*sorted(merged_rows, key=lambda row: row.seq), *filter(where.test, self._unmerged_rows())]

    def values(self, where: Where, *columns: str) -> list[tuple[Any, ...]]:
        """Return these columns of the chosen rows, a tuple for each row."""
        unmerged_rows = filter(where.test, self._unmerged_rows())
        records = [*self._find_merged(where, columns), *map(row_format.record, unmerged_rows)]
        values = []
        for record in records:
            values.append(tuple(record[name] for name in columns))
        return values

    def distinct(self, where: Where, column: str) -> set[Any]:
        """Return the values of this column in the chosen rows, each once."""
        return {value for (value,) in self.values(where, column)}

    def intervals(self, where: Where) -> list[Interval]:
        """Return the intervals of the chosen rows; of merged rows, those that meet each other are one."""
        unmerged = self._unmerged_rows()
        intervals: list[Interval] = []
        if _has_older(unmerged):
            intervals += self.past.merged_query().covered_intervals(_older_sql(where, unmerged))
        for row in unmerged:
            if row.interval and where.test(row):
                intervals.append(row.interval)
        return intervals

    def of_epochs_ended_by(self, where: Where) -> Where:
        """Return the choice of all rows of the epochs that have a row of `where`.

        No row that is asked about may come after that one: it would be looked for in memory only.
        """
        unmerged = self._unmerged_rows()
        listed = of_epochs(sorted({row.epoch for row in unmerged if where.test(row)}))
        if not _has_older(unmerged):
            return listed
        merged = f"SELECT epoch FROM state WHERE {_older_sql(where, unmerged)}"
        return Where(f"{listed.sql} OR epoch IN ({merged})", listed.test)

    def count_unmerged(self) -> int:
        """Return how many rows are not in merged files, or a few more."""
        return len(self._unmerged_rows())

    def read_since(self, seq: int) -> list[Row]:
        """Return the rows from that number on, as far as the log's entries go back."""
        if self.past.last():
            self.past.read_back(seq)
        return [row for row in self._rows_in_memory() if row.seq >= seq]

    def from_epoch(self, epoch: int, where: Where = EVERY) -> list[Row]:
        """Return the chosen rows from that epoch on, in order: from the log, if its entries go back as far."""
        if self.past.last():
            self.past.read_back_to_epoch(epoch)
        rows = self._rows_in_memory()
        if not _has_all_of_epoch(rows, epoch):
            return self.find(from_epoch(epoch) & where)
        return [row for row in rows if row.epoch >= epoch and where.test(row)]

    def checkpoints(self, epochs: Sequence[int]) -> dict[int, Checkpoint]:
        """Return these checkpoints by epoch, as the rows show them. An epoch without a row is left out."""
        rows = self._rows_in_memory()
        near: set[int] = set()  # those that the log's entries show whole
        far: set[int] = set()
        for epoch in epochs:
            if _has_all_of_epoch(rows, epoch):
                near.add(epoch)
            else:
                far.add(epoch)
        checkpoints = fold(row for row in rows if row.epoch in near)
        if far:
            checkpoints |= fold(self.find(of_epochs(sorted(far))))
        return checkpoints

    def _rows_in_memory(self) -> list[Row]:
        return [*self.past.rows, *rows_of(self.added)]

    def _unmerged_rows(self) -> list[Row]:
        """Return the rows that are not in merged files, and perhaps more, oldest first."""
        if self.past.last():
            self.past.read_unmerged()
        return self._rows_in_memory()

    def _find_merged(self, where: Where, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return what a query finds of the rows before `_unmerged_rows`, as records, unsorted."""
        unmerged = self._unmerged_rows()
        if not _has_older(unmerged):
            return []
        return self.past.merged_query().find(_older_sql(where, unmerged), columns)


def _has_older(rows: Sequence[Row]) -> bool:
    return bool(rows) and rows[0].seq > 1


def _older_sql(where: Where, rows: Sequence[Row]) -> str:
    return f"({where.sql}) AND seq < {rows[0].seq}"


def _has_all_of_epoch(rows: Sequence[Row], epoch: int) -> bool:
    """Return whether all rows of that epoch are among these, which are without a hole up to the last one."""
    return bool(rows) and _has_epoch_from(rows[0], epoch)


def _has_epoch_from(row: Row, epoch: int) -> bool:
    """Return whether all rows of that epoch are this one or later: it was issued by this one, or later."""
    if row.seq == 1 or row.head["epoch"] < epoch:
        return True
    return bool(row.head["epoch"] == epoch and row.head["latest"] == row.seq)
