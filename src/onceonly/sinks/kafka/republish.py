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
        self,
        transactions: Transactions,
        target: Target,
        ids: Ids,
        rows: Callable[[Part], Iterable[Any]],
        confirm: Confirm,
    ) -> None:
        self._transactions, self._target, self._ids = transactions, target, ids
        self._rows, self._confirm = rows, confirm
        self._at_once, self._slowest = AT_ONCE, 0.0  # parts in parallel; seconds of the slowest group of them
        self._tries: Counter[str] = Counter()

    def write(self, lost: Sequence[Part]) -> dict[str, Tx]:
        """Write as many of these parts as the time-out allows; returns their open transactions by spool file.

        Raises:
            OutcomeUnknown: a single part takes longer than the time-out, or its transaction is lost repeatedly.
            OnceonlyError: the brokers do not accept the rows. No transaction of this round stays open.
        """
        self._refuse_endless(lost)
        while True:
            started_at, ids_by_spool = monotonic(), dict[str, str]()
            try:
                txs = self._confirm(self._write_round(lost, started_at, ids_by_spool))
                self._tries.update(list(ids_by_spool))
                return {spool: txs[id] for spool, id in ids_by_spool.items()}
            except BaseException as error:
                self.end(ids_by_spool.values())
                if not isinstance(error, NotCommitted | Fenced):
                    raise
                if monotonic() - started_at < self._target.timeout:
                    raise  # not because of the time-out
                self._go_slower(lost[0], error)

    def end(self, ids: Iterable[str]) -> None:
        """Abort the transactions of these ids, as far as the brokers answer. Others are swept later, or time out.

        A transaction with an id of a pool may belong to another process, so it is left to `coordinator/sweep.py`.
        """
        with suppress(OnceonlyError):
            side_by_side(self._transactions.fence, [id for id in ids if transactional_ids.slot_of(id) is None])

    def _write_round(
        self, lost: Sequence[Part], started_at: float, ids_by_spool: dict[str, str]
    ) -> dict[str, tuple[int, int] | None]:
        """Write as many parts as there is time for; return their producers by transactional id.

        The ids are added to `ids_by_spool` before they are used.
        """
        producers_by_id: dict[str, tuple[int, int] | None] = {}
        for first in range(0, len(lost), self._at_once):
            if first and not self._has_room(started_at):
                break
            group, group_started_at = lost[first : first + self._at_once], monotonic()
            group_ids = [self._id_for(part) for part in group]
            ids_by_spool |= zip((part.spool for part in group), group_ids, strict=True)
            producers = side_by_side(self._write, list(zip(group, group_ids, strict=True)))
            producers_by_id |= zip(group_ids, producers, strict=True)
            self._slowest = max(self._slowest, monotonic() - group_started_at)
        return producers_by_id

    def _has_room(self, started_at: float) -> bool:
        """Return whether the next parts, if as slow as the slowest, leave half of the time-out.

        That half is for recording and ending them.
        """
        return 2 * (monotonic() - started_at + self._slowest) <= self._target.timeout

    def _write(self, part_and_id: tuple[Part, str]) -> tuple[int, int] | None:
        """Write one part in a transaction of that id, which stays open; return its producer if the id is shared."""
        part, id = part_and_id
        is_shared = transactional_ids.slot_of(id) is not None
        return produce.write_all(self._target, id, self._check_rows(part), self._transactions if is_shared else None)

    def _check_rows(self, part: Part) -> Iterator[Any]:
        """Yield the rows. Raises InvalidPipeline for one that the brokers' settings of today refuse."""
        topics, first_row = self._target.topics.without_margin(), 0
        for batch in self._rows(part):
            limits.check(topics, Rows(self._target.sink, batch, first_row, part.spool))
            first_row += batch.num_rows
            yield batch

    def _id_for(self, part: Part) -> str:
        number = part.spool.split("-")[0]
        return self._ids.unique(number) if part.tx else self._ids.first(number)

    def _refuse_endless(self, lost: Sequence[Part]) -> None:
        """Raise OutcomeUnknown if a transaction was lost too often."""
        for part in lost:
            if self._tries[part.spool] >= TRIES:
                raise OutcomeUnknown(
                    f"sink '{self._target.sink}': the transaction of {part.spool} was lost {TRIES} times in a row.",
                    "Each was aborted before it could be committed, by another process or by a very short time-out.",
                    "No rows are lost: they are in the spool. Publish again: onceonly recover",
                    code="transaction-lost",
                )

    def _go_slower(self, part: Part, error: Exception) -> None:
        """Write fewer parts in parallel. If one alone is too slow, use the longest time-out that the brokers allow."""
        self._slowest = 0.0
        if self._at_once > 1:
            self._at_once //= 2
            return
        max_timeout = self._max_timeout()
        if max_timeout > self._target.timeout:
            self._target = replace(self._target, timeout=max_timeout)
            return
        raise OutcomeUnknown(
            f"sink '{self._target.sink}': writing {count(part.rows, 'row')} takes longer than a transaction may last.",
            f"The brokers aborted it after {self._target.timeout:g} s (KafkaSink(transaction_timeout=…), and their "
            "transaction.max.timeout.ms), although no other part was written at the same time.",
            "Raise transaction.max.timeout.ms of the brokers and recover: published parts are kept. For later "
            "checkpoints, give the transform's result more partitions.",
            code="transaction-too-slow",
        ) from error

    def _max_timeout(self) -> float:
        """Return the longest time-out that the brokers allow, in seconds; 0 if unknown."""
        with suppress(InvalidPipeline):
            return self._transactions.read_max_transaction_timeout()
        return 0.0


def side_by_side(function: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
    """Call it for all items, in parallel. All calls are completed before the first error is raised."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(function, item) for item in items]
    return [future.result() for future in futures]
