"""The search for the offset that belongs to a time: what a source answers, and one partition's search for it.

A clock gone wrong may date a record decades ahead. Such a record would be "the first one at or after" every time until
then, so the search passes over it. It is read with the records around it, by their offsets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

TOO_FAR = "boundary-too-far"  # code of the error of a search that is too long


@dataclass(frozen=True)
class FirstRecord:
    """The first record at or after a time: its offset and timestamp. `at` is None if there is no such record.

    Args:
        is_hidden: there is none, and a producer's open transaction begins at `offset`: records of any time may
            follow it.
        ahead: number of records before `offset` that were passed over, because they are dated too far ahead.
        since: no record in [since, offset) is dated before the time; None: the same as `offset`.
    """

    offset: int
    at: datetime | None
    is_hidden: bool = False
    ahead: int = 0
    since: int | None = field(default=None, compare=False)

    @property
    def lowest(self) -> int:
        """From this offset on no record before `offset` shows that the log goes back further than the time."""
        return self.offset if self.since is None else self.since


@dataclass
class BoundarySearch:
    """The search in one partition for the first record in [time, latest]; give it the records in order.

    Args:
        latest: a record that is dated later is passed over; None: none is.
        end: where the log ended when the search began. If nothing is found, the answer is this offset, and records
            that were passed over after it do not count.
        floor: nor do those before this offset.
    """

    time: datetime
    latest: datetime | None
    end: int
    floor: int = 0
    _ahead: int = 0
    _ahead_before_end: int = 0
    _since: int | None = None

    def look_at(self, offset: int, at: datetime) -> FirstRecord | None:
        """Return the answer if this record is the one that is searched for."""
        if at < self.time:
            self._since = None
            return None
        if self._since is None:
            self._since = offset
        if self.latest is None or at <= self.latest:
            return FirstRecord(offset, at, ahead=self._ahead, since=self._since)
        self._ahead += offset >= self.floor
        self._ahead_before_end += self.floor <= offset < self.end
        return None

    def nothing(self, is_hidden: bool = False) -> FirstRecord:
        """Return the answer if no record was the one that is searched for."""
        since = None if self._since is None else min(self._since, self.end)
        return FirstRecord(self.end, None, is_hidden, self._ahead_before_end, since)


def search(
    records: Iterable[tuple[int, datetime]], time: datetime, latest: datetime | None, end: int, floor: int = 0
) -> FirstRecord:
    """Search all records of a partition, given as (offset, time) in their order."""
    partition = BoundarySearch(time, latest, end, floor)
    for offset, at in records:
        answer = partition.look_at(offset, at)
        if answer:
            return answer
    return partition.nothing()
