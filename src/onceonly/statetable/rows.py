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
from onceonly.statetable.log import NONE, Damaged, Entry, Log
from onceonly.statetable.trouble import damaged, unreadable
from onceonly.statetable.where import EVERY, Where, from_epoch, of_epochs

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
        self._merged, self._merged_at = False, NONE  # all further rows are in merged files, since that version
        self._merged_to: str | None = None  # the id of the last of those
        with self._trouble():
            self.version, self._entries = log.entries()
            if durable:
                log.keep()

    def last(self) -> Entry | None:
        """The entry of the last row; None: there is no row."""
        if not self._read and self.version != NONE and not self._more():
            row = self.query().last()  # its entry was removed
            self._read = [Entry(NONE, row)] if row else []
        return self._read[0] if self._read else None

    def read_back(self, seq: int) -> None:
        """Read down to that row, if the log's entries go as far."""
        while self.oldest > seq and self._more():
            pass

    def read_back_to_epoch(self, epoch: int) -> None:
        """Read down to where that epoch was issued, if the log's entries go as far."""
        while not _is_whole([entry.row for entry in self._read[-1:] if entry.row], epoch) and self._more():
            pass

    def read_unmerged(self) -> None:
        """Read what a query would have to look for in many small files."""
        while not self._merged and self.oldest > 1 and self._more():
            pass

    @property
    def oldest(self) -> int:
        """The number of the oldest row that has been read."""
        row = self._read[-1].row if self._read else None
        return row.seq if row else 1

    @property
    def rows(self) -> list[Row]:
        """Those that have been read, oldest first."""
        return [entry.row for entry in reversed(self._read) if entry.row]

    def entry(self, seq: int) -> Entry | None:
        """The entry of that row, if there is one."""
        last = self.last()
        if last is None or last.row is None or last.row.seq < seq:
            return None
        self.read_back(seq)
        near = next((entry for entry in self._read if entry.row and entry.row.seq == seq), None)
        found = [] if near else self.merged().find(f"seq = {seq}", tuple(row_format.COLUMNS))
        return Entry(NONE, row_format.from_record(found[0])) if found else near

    def query(self) -> Query:
        """Finds rows in files, of the version that the table has when it is first asked."""
        if self._query is None:
            from onceonly.statetable.query import Query

            self._query = Query(self.pipeline, self.uri)
        return self._query

    def merged(self) -> Query:
        """Finds rows that were merged; already open, if nothing was merged since the last time.

        Wherever the row that was merged last is, the same rows are before it, also in a restored copy.
        """
        if self._merged_to is None:
            return self.query()
        from onceonly.statetable.query import of_rows_up_to

        return of_rows_up_to(self._merged_to, self.pipeline, self.uri, self._merged_at)

    def _more(self) -> bool:
        """Read one more row; returns whether there was one."""
        with self._trouble():
            for entry in self._entries:
                if entry.merges and not self._merged:
                    self._merged, self._merged_at = True, entry.version
                if entry.foreign:
                    self.query().check_complete()
                if entry.row:
                    self._check_order(entry.row)
                    self._read.append(entry)
                    if self._merged and self._merged_to is None:
                        self._merged_to = entry.row.id
                    return True
            return False

    def _check_order(self, row: Row) -> None:
        expected = self.oldest - 1 if self._read else row.seq
        if row.seq != expected or row.pipeline != self.pipeline:
            raise Damaged(f"Row {expected} was expected, and row {row.seq} of '{row.pipeline}' is there.")

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except Damaged as damage:
            raise damaged(self.pipeline, self.uri, str(damage)) from damage
        except OSError as error:
            raise unreadable(self.pipeline, self.uri, error) from error


@dataclass(frozen=True)
class Rows:
    """A pipeline's rows up to one of them.

    Args:
        added: rows that were written since `past` was read, oldest first.
    """

    past: Past
    added: tuple[Entry, ...] = ()

    def then(self, entry: Entry) -> Rows:
        return Rows(self.past, (*self.added, entry))

    @property
    def version(self) -> int:
        """The version of the log that the next row follows on."""
        return self.added[-1].version if self.added else self.past.version

    def last(self) -> Entry | None:
        return self.added[-1] if self.added else self.past.last()

    def find(self, where: Where) -> list[Row]:
        """Those rows, in order."""
        found = [row_format.from_record(found) for found in self._merged(where, tuple(row_format.COLUMNS))]
        return [*sorted(found, key=lambda row: row.seq), *filter(where.test, self._near())]

    def values(self, where: Where, *columns: str) -> list[tuple[Any, ...]]:
        """Those columns of those rows."""
        near = [row_format.record(row) for row in self._near() if where.test(row)]
        return [tuple(found[name] for name in columns) for found in [*self._merged(where, columns), *near]]

    def intervals(self, where: Where) -> list[Interval]:
        """The intervals of those rows; of older rows, those that meet each other are one."""
        near = self._near()
        old = self.past.merged().covered(_older(where, near)) if _has_older(near) else []
        return [*old, *(row.interval for row in near if row.interval and where.test(row))]

    def unmerged(self) -> int:
        """How many rows are not in merged files, or a few more."""
        return len(self._near())

    def since(self, seq: int) -> list[Row]:
        """The rows from that number on, as far as the log's entries go back."""
        if self.past.last():
            self.past.read_back(seq)
        return [row for row in self._known() if row.seq >= seq]

    def from_epoch(self, epoch: int, where: Where = EVERY) -> list[Row]:
        """Of the rows of that epoch and later ones, those, in order: from the log, if its entries go back as far."""
        if self.past.last():
            self.past.read_back_to_epoch(epoch)
        known = self._known()
        if not _is_whole(known, epoch):
            return self.find(from_epoch(epoch) & where)
        return [row for row in known if row.epoch >= epoch and where.test(row)]

    def checkpoints(self, epochs: Sequence[int]) -> dict[int, Checkpoint]:
        """These checkpoints as the rows show them."""
        known = self._known()
        near = [epoch for epoch in epochs if _is_whole(known, epoch)]
        far = sorted(set(epochs) - set(near))
        found = fold(row for row in known if row.epoch in near)
        return found | (fold(self.find(of_epochs(far))) if far else {})

    def _known(self) -> list[Row]:
        return [*self.past.rows, *(entry.row for entry in self.added if entry.row)]

    def _near(self) -> list[Row]:
        """The rows that are not in merged files, at least."""
        if self.past.last():
            self.past.read_unmerged()
        return self._known()

    def _merged(self, where: Where, columns: Sequence[str]) -> list[dict[str, Any]]:
        """What a query finds of the rows before those."""
        near = self._near()
        return self.past.merged().find(_older(where, near), columns) if _has_older(near) else []


def _has_older(near: Sequence[Row]) -> bool:
    return bool(near) and near[0].seq > 1


def _older(where: Where, near: Sequence[Row]) -> str:
    return f"({where.sql}) AND seq < {near[0].seq}"


def _is_whole(rows: Sequence[Row], epoch: int) -> bool:
    """Whether all rows of that epoch are among these: it was issued by the first of them, or later."""
    if not rows:
        return False
    first, head = rows[0].seq, rows[0].head
    return first == 1 or head["epoch"] < epoch or (head["epoch"] == epoch and head["latest"] == first)
