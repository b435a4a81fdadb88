"""Writes at commit: parts that have no transaction yet (late mode), or whose transaction was lost.

Writing a checkpoint may take longer than the time-out of a transaction. So it is written in rounds: the transactions of
one round are recorded and ended before the next round begins, and are never written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any, TypeVar

from onceonly.counts import count
from onceonly.errors import Fenced, InvalidPipeline, NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.kafka.transactions import Transactions
from onceonly.sinks.kafka import limits, produce, transactional_ids
from onceonly.sinks.kafka.handle import Part, Tx
from onceonly.sinks.kafka.limits import Rows
from onceonly.sinks.kafka.produce import Target
from onceonly.sinks.kafka.transactional_ids import Ids

AT_ONCE = 8  # transactions that are written or ended in parallel
TRIES = 5  # how often one part is written if its transaction is lost each time
T = TypeVar("T")
Confirm = Callable[[Mapping[str, tuple[int, int] | None]], Mapping[str, Tx]]


class Republisher:
    """The rounds of one commit. Each adapts to the brokers' speed in the previous one.

    Args:
        rows: returns the spooled rows of a part, as batches.
        confirm: (id -> producer of what was written) to the open transactions that the coordinator reports. Raises
            NotCommitted.
    """

    def __init__(
        self, known: Transactions, target: Target, ids: Ids, rows: Callable[[Part], Iterable[Any]], confirm: Confirm
    ) -> None:
        self._known, self._target, self._ids, self._rows, self._confirm = known, target, ids, rows, confirm
        self._at_once, self._slowest = AT_ONCE, 0.0
        self._tries: Counter[str] = Counter()

    def write(self, lost: Sequence[Part]) -> dict[str, Tx]:
        """Write as many of these parts as the time-out allows; returns their open transactions by spool file.

        Raises:
            OutcomeUnknown: a single part takes longer than the time-out, or its transaction is lost repeatedly.
            OnceonlyError: the brokers do not accept the rows. No transaction of this round stays open.
        """
        self._refuse_endless(lost)
        while True:
            begun, ids = monotonic(), dict[str, str]()
            try:
                opened = self._confirm(self._round(lost, begun, ids))
                self._tries.update(list(ids))
                return {spool: opened[id] for spool, id in ids.items()}
            except BaseException as error:
                self.end(ids.values())
                if not isinstance(error, NotCommitted | Fenced) or monotonic() - begun < self._target.timeout:
                    raise
                self._go_slower(lost[0], error)

    def end(self, ids: Iterable[str]) -> None:
        """Abort these, as far as the brokers answer. What stays open is swept later, or times out.

        A transaction with an id of a pool may belong to another process, so it is left to `coordinator/id_pool.py`.
        """
        with suppress(OnceonlyError):
            side_by_side(self._known.fence, [id for id in ids if transactional_ids.slot_of(id) is None])

    def _round(self, lost: Sequence[Part], begun: float, ids: dict[str, str]) -> dict[str, tuple[int, int] | None]:
        """id -> producer. The ids are added to `ids` (by spool file) before they are used."""
        written: dict[str, tuple[int, int] | None] = {}
        for first in range(0, len(lost), self._at_once):
            if first and not self._has_room(begun):
                break
            some, since = lost[first : first + self._at_once], monotonic()
            theirs = [self._id_for(part) for part in some]
            ids |= zip((part.spool for part in some), theirs, strict=True)
            producers = side_by_side(self._write, list(zip(some, theirs, strict=True)))
            written |= zip(theirs, producers, strict=True)
            self._slowest = max(self._slowest, monotonic() - since)
        return written

    def _has_room(self, begun: float) -> bool:
        """Whether the next parts, if as slow as the slowest, leave half of the time-out to record and end them."""
        return 2 * (monotonic() - begun + self._slowest) <= self._target.timeout

    def _write(self, under: tuple[Part, str]) -> tuple[int, int] | None:
        part, id = under
        shared = transactional_ids.slot_of(id) is not None
        return produce.write_all(self._target, id, self._accepted(part), self._known if shared else None)

    def _accepted(self, part: Part) -> Iterator[Any]:
        """The rows. Raises InvalidPipeline for one that the brokers' settings of today refuse."""
        topics, first = self._target.topics.without_margin(), 0
        for batch in self._rows(part):
            limits.check(topics, Rows(self._target.sink, batch, first, part.spool))
            first += batch.num_rows
            yield batch

    def _id_for(self, part: Part) -> str:
        number = part.spool.split("-")[0]
        return self._ids.unique(number) if part.tx else self._ids.first(number)

    def _refuse_endless(self, lost: Sequence[Part]) -> None:
        if endless := [part.spool for part in lost if self._tries[part.spool] >= TRIES]:
            raise OutcomeUnknown(
                f"sink '{self._target.sink}': the transaction of {endless[0]} was lost {TRIES} times in a row.",
                "Each was aborted before it could be committed, by another process or by a very short time-out.",
                "No rows are lost: they are in the spool. Publish again: onceonly recover",
            )

    def _go_slower(self, part: Part, error: Exception) -> None:
        """Write fewer parts in parallel. If one alone is too slow, use the longest time-out that the brokers allow."""
        self._slowest = 0.0
        if self._at_once > 1:
            self._at_once //= 2
            return
        if (longest := self._longest()) > self._target.timeout:
            self._target = replace(self._target, timeout=longest)
            return
        raise OutcomeUnknown(
            f"sink '{self._target.sink}': writing {count(part.rows, 'row')} takes longer than a transaction may last.",
            f"The brokers aborted it after {self._target.timeout:g} s (KafkaSink(transaction_timeout=…), and their "
            "transaction.max.timeout.ms), although no other part was written at the same time.",
            "Raise transaction.max.timeout.ms of the brokers and recover: published parts are kept. For later "
            "checkpoints, give the transform's result more partitions.",
        ) from error

    def _longest(self) -> float:
        """The longest time-out that the brokers allow; 0 if unknown."""
        with suppress(InvalidPipeline):
            return self._known.transaction_max_timeout()
        return 0.0


def side_by_side(function: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
    """Call it for all items, in parallel. All calls are completed before the first error is raised."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(function, item) for item in items]
    return [each.result() for each in running]
