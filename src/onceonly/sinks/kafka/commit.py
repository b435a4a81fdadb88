"""A commit: open transactions are ended, and parts that have none, or whose transaction was lost, are written again.

Writing a checkpoint may take longer than the time-out of a transaction. So it is written in rounds: the transactions of
one round are recorded and ended before the next round begins, and are never written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

from onceonly.checkpoint.model import Outcome
from onceonly.checkpoint.sink import Receipts
from onceonly.counts import count
from onceonly.errors import CannotPublish, Fenced, InDoubt, InvalidPipeline, NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka import check, history, limits, open_transactions, producer
from onceonly.sinks.kafka import spool as kafkaspool
from onceonly.sinks.kafka.handle import Ids, KafkaHandle, Part, Tx, slot_of, transaction_names
from onceonly.sinks.kafka.limits import CheckedRows
from onceonly.sinks.kafka.outcome import (
    MAX_PARALLEL_TRANSACTIONS,
    TransactionFinisher,
    TxOutcome,
    discard_open,
    side_by_side,
)
from onceonly.sinks.kafka.producer import SendTarget

MAX_TRIES = 5  # how often one part is written if its transaction is lost each time
Confirm = Callable[[Mapping[str, tuple[int, int] | None]], Mapping[str, Tx]]


class Commit:
    """One commit of a sink.

    Args:
        folder: with the spool files of the transaction.
    """

    def __init__(self, config: KafkaSink, connection: KafkaConnection, transactions: Transactions, folder: str) -> None:
        self._config, self._connection, self._transactions, self._folder = config, connection, transactions, folder
        self._outcomes: dict[tuple[str, int, int], TxOutcome] = {}  # by id and producer; they are final
        self._republisher: Republisher | None = None

    def publish(self, handle: KafkaHandle, receipts: Receipts) -> Outcome:
        """Settle the parts and write the lost ones again, until none is lost."""
        while True:
            lost = self._settle(handle)
            if not lost:
                is_ended_now = TxOutcome.COMMITTED in self._outcomes.values()  # outcomes are only added
                already = not is_ended_now and bool(handle.parts)
                return history.published_outcome(self._transactions, self._connection.bootstrap, handle, already)
            self._check_same_topics(handle)
            handle = self._write_again(handle, lost, receipts)

    def publish_without_transactions(self, handle: KafkaHandle) -> Outcome:
        """Write the rows at least once: a repeated commit writes them again."""
        parts = [part for part in handle.parts if part.spool]
        if parts:
            self._check_same_topics(handle)
        target = check.target(self._config, self._connection, self._transactions)
        for part in parts:
            producer.write_all(target, None, self._read_spooled(handle, part))
        return history.published_outcome(self._transactions, self._connection.bootstrap, handle)

    def _settle(self, handle: KafkaHandle) -> list[Part]:
        """End the open transactions; returns the parts that have to be written (again).

        Raises:
            InDoubt: there is no evidence of the outcome of some.
        """
        unsettled = [part for part in handle.parts if part.tx and part.tx.name not in self._outcomes]
        doubtful, new_outcomes = [], dict[tuple[str, int, int], TxOutcome]()
        finisher = TransactionFinisher(self._transactions, handle.topics, handle.log_ends)
        for part, outcome in zip(unsettled, finisher.settle_all(unsettled), strict=True):
            if outcome is TxOutcome.DOUBT:
                doubtful.append(part)
            if part.tx:
                new_outcomes[part.tx.name] = outcome
        if doubtful:
            raise _in_doubt_error(self._config.name, doubtful)
        self._outcomes |= new_outcomes
        return [part for part in handle.parts if part.tx is None or self._outcomes[part.tx.name] is TxOutcome.LOST]

    def _write_again(self, handle: KafkaHandle, lost: list[Part], receipts: Receipts) -> KafkaHandle:
        """Write some of `lost` in new transactions and record them; returns the handle that is recorded now."""
        republisher = self._republisher = self._republisher or self._make_republisher(handle)
        txs_by_spool = republisher.write(lost)
        try:
            log_ends = open_transactions.read_log_ends(self._transactions, handle.topics, txs_by_spool.values())
            # Asked last: they were written by name, and an id never comes back
            self._check_same_topics(handle)
            parts = [replace(part, tx=txs_by_spool.get(part.spool, part.tx)) for part in handle.parts]
            new_handle = {**handle.replace_parts(parts), "log_ends": [*handle.data.get("log_ends", ()), *log_ends]}
            # Not recorded yet: if the process dies before this, its new transactions are swept or time out
            recorded_handle = receipts.replace(handle.data, new_handle)
        except BaseException:  # the first error is the one to raise
            republisher.end(tx.id for tx in txs_by_spool.values())
            raise
        if recorded_handle != new_handle:  # another process has recorded its own: ours will never be committed
            side_by_side(lambda tx: discard_open(self._transactions, tx), list(txs_by_spool.values()))
        return KafkaHandle.parse(self._config.name, recorded_handle)

    def _make_republisher(self, handle: KafkaHandle) -> Republisher:
        return Republisher(
            self._transactions,
            check.target(self._config, self._connection, self._transactions),
            Ids(self._config.id_prefix, handle.txn, handle.slot),
            lambda part: self._read_spooled(handle, part),
            lambda written: open_transactions.confirm_open(self._config, self._transactions, written),
        )

    def _read_spooled(self, handle: KafkaHandle, part: Part) -> Iterator[Any]:
        """Yield the rows of a part from its spool file. Raises CannotPublish: the file does not exist any more."""
        try:
            yield from kafkaspool.read(self._folder, part.spool)
        except FileNotFoundError as error:
            raise _missing_spool_error(self._config.name, handle, part) from error

    def _check_same_topics(self, handle: KafkaHandle) -> None:
        """Raise CannotPublish unless cluster and topics are those that the rows were staged for."""
        now = {
            "cluster": self._transactions.read_cluster_id(),
            "topics": self._transactions.read_topic_ids(handle.topics),
        }
        if now != handle.place:
            raise _other_target_error(self._config.name, handle, now)


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
        target: SendTarget,
        ids: Ids,
        rows: Callable[[Part], Iterable[Any]],
        confirm: Confirm,
    ) -> None:
        self._transactions, self._target, self._ids = transactions, target, ids
        self._rows, self._confirm = rows, confirm
        self._parallel_parts = MAX_PARALLEL_TRANSACTIONS
        self._slowest = 0.0  # seconds of the slowest group of parallel parts
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
            side_by_side(self._transactions.fence, [id for id in ids if slot_of(id) is None])

    def _write_round(
        self, lost: Sequence[Part], started_at: float, ids_by_spool: dict[str, str]
    ) -> dict[str, tuple[int, int] | None]:
        """Write as many parts as there is time for; return their producers by transactional id.

        The ids are added to `ids_by_spool` before they are used.
        """
        producers_by_id: dict[str, tuple[int, int] | None] = {}
        for first in range(0, len(lost), self._parallel_parts):
            if first and not self._has_room(started_at):
                break
            group, group_started_at = lost[first : first + self._parallel_parts], monotonic()
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
        is_shared = slot_of(id) is not None
        return producer.write_all(self._target, id, self._check_rows(part), self._transactions if is_shared else None)

    def _check_rows(self, part: Part) -> Iterator[Any]:
        """Yield the rows. Raises InvalidPipeline for one that the brokers' settings of today refuse."""
        topics, first_row = self._target.topics.without_margin(), 0
        for batch in self._rows(part):
            limits.check(topics, CheckedRows(self._target.sink, batch, first_row, part.spool))
            first_row += batch.num_rows
            yield batch

    def _id_for(self, part: Part) -> str:
        number = part.spool.split("-")[0]
        return self._ids.unique(number) if part.tx else self._ids.first(number)

    def _refuse_endless(self, lost: Sequence[Part]) -> None:
        """Raise OutcomeUnknown if a transaction was lost too often."""
        for part in lost:
            if self._tries[part.spool] >= MAX_TRIES:
                raise OutcomeUnknown(
                    f"sink '{self._target.sink}': the transaction of {part.spool} was lost {MAX_TRIES} times in a row.",
                    "Each was aborted before it could be committed, by another process or by a very short time-out.",
                    "No rows are lost: they are in the spool. Publish again: onceonly recover",
                    code="transaction-lost",
                )

    def _go_slower(self, part: Part, error: Exception) -> None:
        """Write fewer parts in parallel. If one alone is too slow, use the longest time-out that the brokers allow."""
        self._slowest = 0.0
        if self._parallel_parts > 1:
            self._parallel_parts //= 2
            return
        max_timeout = self._max_timeout()
        if max_timeout > self._target.timeout:
            self._target = replace(self._target, timeout=max_timeout)
            return
        raise OutcomeUnknown(
            f"sink '{self._target.sink}': writing {count(part.rows, 'row')} takes longer than a transaction may last.",
            f"The brokers aborted it after {self._target.timeout:g} s (KafkaSink(transaction_timeout=…), and their "
            "transaction.max.timeout.ms), although no other part was written at the same time.",
            "Raise transaction.max.timeout.ms of the brokers, then: onceonly recover PIPELINE. Published parts are "
            "kept. "
            "For later checkpoints, give the transform's result more partitions.",
            code="transaction-too-slow",
        ) from error

    def _max_timeout(self) -> float:
        """Return the longest time-out that the brokers allow, in seconds; 0 if unknown."""
        with suppress(InvalidPipeline):
            return self._transactions.read_max_transaction_timeout()
        return 0.0


def _other_target_error(sink: str, handle: KafkaHandle, now: Mapping[str, Any]) -> CannotPublish:
    return CannotPublish(
        f"sink '{sink}': the rows were staged for another cluster or topic.",
        f"They were staged for {handle.place}. The sink would now write to {now}.",
        "Restore the topic or the connection, then: onceonly recover PIPELINE. Or: onceonly resolve PIPELINE EPOCH "
        f"--give-up {sink} --reason …. The rows are kept in {handle.folder}.",
        "target-recreated",
    )


def _in_doubt_error(sink: str, parts: Sequence[Part]) -> InDoubt:
    names = transaction_names(parts)
    return InDoubt(
        f"sink '{sink}': it is not known whether {count(len(parts), 'transaction')} of it committed.",
        f"The marker of {names} no longer exists: the log was truncated or compacted, or the topic was recreated.",
        "Look whether the rows are in the topic. If they are: onceonly resolve PIPELINE EPOCH "
        f"--committed {sink} --reason …. If none is: onceonly resolve PIPELINE EPOCH --aborted {sink} --reason …, "
        "which writes all of them again.",
        code="evidence-lost",
    )


def _missing_spool_error(sink: str, handle: KafkaHandle, part: Part) -> CannotPublish:
    return CannotPublish(
        f"sink '{sink}': spooled rows no longer exist.",
        f"{handle.folder}/{part.spool} with {count(part.rows, 'row')} is missing.",
        f"Restore it, then: onceonly recover PIPELINE. Or: onceonly resolve PIPELINE EPOCH --give-up {sink} --reason …",
        "spool-missing",
    )
