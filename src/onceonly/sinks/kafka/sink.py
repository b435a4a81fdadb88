"""Kafka topics, written to exactly once.

`stage` spools the rows and, in staged mode, leaves them in open transactions, one per Spark partition. `commit` ends
those. If one was lost (time-out, failed broker, fencing), its rows are written again from its spool file, in a new
transaction that is recorded before it is ended (`republish.py`). In late mode, all rows are written that way.

The only evidence is the marker that ends a transaction in the log. If there is no marker and the coordinator refuses to
end the transaction, its id is fenced. After that it cannot be open, and the log is read again.
Source: KIP-98, KIP-890; the schedules are in docs/kafka.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    Answer,
    History,
    Inspectable,
    KeepsCopies,
    PooledTransaction,
    PoolsIds,
    ProvesHistory,
    Publication,
    Receipts,
    Resolvable,
    Revocable,
    ShowsEvidence,
    Sink,
)
from onceonly.errors import NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.filesystems import confined, executors
from onceonly.filesystems.folders import Folders
from onceonly.kafka import kafkapython
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.registry.client import Registry
from onceonly.registry.wire import HEAD
from onceonly.sinks.context import Context
from onceonly.sinks.kafka import (
    check,
    errors,
    gate_view,
    history,
    produce,
    registered,
    rehearsal,
    stage,
    staged_rows,
    transactional_ids,
)
from onceonly.sinks.kafka import spool as kafkaspool
from onceonly.sinks.kafka.confirm import confirm_open
from onceonly.sinks.kafka.handle import Part, Tx, parts_of, with_parts
from onceonly.sinks.kafka.outcome import TransactionFinisher, TxOutcome, discard_open
from onceonly.sinks.kafka.produce import Target
from onceonly.sinks.kafka.republish import Republisher, side_by_side
from onceonly.sinks.kafka.stage import Job
from onceonly.sinks.kafka.transactional_ids import Ids
from onceonly.sinks.staging import handles
from onceonly.sinks.staging import history as histories

SHOWN = 4  # partitions, in an error


class KafkaWriter(Sink, KeepsCopies, Revocable, ProvesHistory, Inspectable, PoolsIds, ShowsEvidence, Resolvable):
    """Writes to the topics of a `KafkaSink`.

    Args:
        late: whether rows are only written at commit.
        spool: path or URI of the folder with all spools. Spark's workers and the committer have to reach it.
        root: the project's folder, to which the path of the schema file is relative.
        registry: where the schema's id is from that values begin with.
    """

    handle_shape = handles.Kafka

    def __init__(
        self,
        config: KafkaSink,
        connection: KafkaConnection,
        late: bool,
        spool: str,
        root: Path,
        registry: Registry | None = None,
    ) -> None:
        self.name, self.config, self._registry = config.name, config, registry
        self._connection, self._late, self._spool, self._root = connection, late, Folders(spool), root

    @classmethod
    def make(cls, config: KafkaSink, context: Context) -> KafkaWriter:
        settings, late = context.settings, config.is_late(context.pipeline.mode)
        reached = context.kafka(config.connection, config.bootstrap)
        return cls(config, reached, late, settings.spool, settings.project, context.registry(config.registry))

    def check(self) -> list[str]:
        with self._transactions() as known:
            notes = check.check(self.config, self._late, known, self._connection, self._root)
        parts = registered.parts(self.config, self._root)
        return notes + (registered.check(self.config, self._registry, parts) if self._registry else [])

    # ---- stage

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        with self._transactions() as known:
            schema = check.schema(self.config, self._root)
            check.refuse(self.config, known, self._connection)
            records = stage.records(self.config, rows, schema, self._heads())
            place = self._place(known)
            job = self._job(txn, self._target(known))
            opened_at = datetime.now(UTC).isoformat()
            with self._explained(known):
                receipts = stage.run(job, records)
            opened = self._confirm(known, {r.id: r.producer for r in receipts if r.id})
            log_ends = staged_rows.read_log_ends(known, place["topics"], opened.values())
            if job.ids:
                self._fence(known, txn, keep=set(opened))  # those that failed or repeated task attempts left open
            if self._place(known) != place:  # asked last: rows and ends are by name, and an id never comes back
                raise errors.recreated_while_staging(self.name, place)
            parts = [Part(r.spool, r.rows, opened.get(r.id or "")) for r in receipts]
            pending = {"opened_at": opened_at, "timeout": self.config.transaction_timeout} if opened else {}
            return {
                **pending,
                "kind": "kafka",
                "guarantee": self.config.guarantee,
                "mode": "late" if self._late else "staged",
                "transaction_version": known.transaction_version(),
                **place,
                "txn": txn.name,
                "slot": self._slot(txn),
                "folder": self._spool.path(txn.name),
                "schema": gate_view.staged_schema(rows, schema),
                "rows": sum(part.rows for part in parts),
                "bytes": sum(receipt.bytes for receipt in receipts),
                "parts": [part.to_json() for part in parts],
                "log_ends": log_ends,
            }

    def _confirm(self, known: Transactions, written: Mapping[str, tuple[int, int] | None]) -> dict[str, Tx]:
        return confirm_open(self.config, known, written)

    def _place(self, known: Transactions) -> dict[str, Any]:
        """Where the rows go: the cluster's id and, by name, those of the topics."""
        return {"cluster": known.cluster_id(), "topics": known.topic_ids(self.config.allowed)}

    def _heads(self) -> list[tuple[registered.Part, registered.Heads]]:
        """What begins with the id of a schema, and by which; a schema is registered here, where that was chosen."""
        if self._registry is None:
            return []
        found = registered.parts(self.config, self._root)
        return [(part, registered.heads(self.config, self._registry, part)) for part in found]

    def _job(self, txn: Transaction, target: Target) -> Job:
        at_once = self.config.guarantee == "none"
        staged = self.config.guarantee == "exactly-once" and not self._late
        spool = None if at_once else self._spool.path(txn.name)
        ids = Ids(self.config.id_prefix, txn, self._slot(txn)) if staged else None
        shared = self._connection if ids and ids.slot is not None else None
        return Job(target, spool, ids, staged or at_once, shared, executors.environment(spool) if spool else {})

    # ---- rehearse

    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        """Look at topics, transactions and spool. Ends, opens and fences no transaction.

        Raises:
            StageAgain: a topic was created again, or the spool lacks what has to be written from it.
            ActionNeeded: a topic is missing, it is another cluster, or the log cannot tell how a transaction ended.
            TargetWentBack: as in `commit`.
            InvalidPipeline: the brokers would refuse what has to be written.
            NotCommitted, OutcomeUnknown: no answer.
        """
        folder = self._here(handle)["folder"]
        with self._transactions() as known, self._explained(known):
            if self._is_published(known, handle, last):
                return handle
            rehearsal.require_same_topics(self.config, known, handle)
            parts = rehearsal.parts_to_write(self.config, known, handle)
            rehearsal.require_writable(self.config, known, handle, parts, folder)
        return handle

    def _is_published(self, known: Transactions, handle: Handle, last: Publication | None) -> bool:
        """Whether the log shows all of the handle although the topics lack the last publication.

        Raises:
            TargetWentBack: they lack it, and the log does not show all of the handle; or they show what was lost.
        """
        if last is None:
            return False
        compared = history.compare(known, self._connection.bootstrap, self.config.allowed, last)
        if compared.answer is not Answer.WENT_BACK:
            histories.require_still_lost(self, last)
            return False
        if not rehearsal.is_published(known, handle):
            raise histories.went_back(self.name, last, compared)
        return True

    def compare(self, last: Publication) -> History:
        with self._transactions() as known:
            return history.compare(known, self._connection.bootstrap, self.config.allowed, last)

    def proof_now(self, last: Publication) -> Publication | None:
        with self._transactions() as known:
            return history.proof_now(known, self._connection.bootstrap, self.config.allowed, last)

    # ---- commit

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        with self._transactions() as known, self._explained(known):
            self._is_published(known, handle, last)
            if handle["guarantee"] != "exactly-once":
                return self._commit_plainly(known, handle)
            return self._commit(known, handle, receipts)

    def _commit(self, known: Transactions, handle: Handle, receipts: Receipts) -> Outcome:
        republisher, outcomes, ended = None, dict[tuple[str, int, int], TxOutcome](), False
        while True:
            lost = self._settle(known, handle, outcomes)
            ended = ended or TxOutcome.COMMITTED in outcomes.values()
            if not lost:
                return self._outcome(known, handle, already=not ended and bool(handle["parts"]))
            self._check_same_topics(known, handle)
            republisher = republisher or self._republisher(known, handle)
            handle = self._write_again(known, handle, lost, receipts, republisher)

    def _outcome(self, known: Transactions, handle: Handle, already: bool = False) -> Outcome:
        """That of a published handle. The markers of its transactions were seen."""
        proof = history.publication_proof(known, self._connection.bootstrap, handle)
        return Outcome(already, {"rows": handle["rows"]}, proof)

    def _settle(
        self, known: Transactions, handle: Handle, outcomes: dict[tuple[str, int, int], TxOutcome]
    ) -> list[Part]:
        """End the open transactions; returns the parts that have to be written (again).

        Args:
            outcomes: known to this commit, by id and producer; they are final. New ones are added here.
        Raises:
            InDoubt: there is no evidence of the outcome of some.
        """
        parts = parts_of(handle)
        open = [part for part in parts if part.tx and part.tx.name not in outcomes]
        seen = TransactionFinisher(known, handle).settle_all(open)
        if doubtful := [part for part, outcome in zip(open, seen, strict=True) if outcome is TxOutcome.DOUBT]:
            raise errors.in_doubt(self.name, doubtful)
        outcomes |= {part.tx.name: outcome for part, outcome in zip(open, seen, strict=True) if part.tx}
        return [part for part in parts if part.tx is None or outcomes[part.tx.name] is TxOutcome.LOST]

    def _write_again(
        self, known: Transactions, handle: Handle, lost: list[Part], receipts: Receipts, republisher: Republisher
    ) -> Handle:
        """Write some of `lost` in new transactions and record them; returns the handle that is recorded now."""
        opened = republisher.write(lost)
        try:
            log_ends = staged_rows.read_log_ends(known, handle["topics"], opened.values())
            self._check_same_topics(known, handle)  # asked last: they were written by name, and an id never comes back
            parts = [replace(part, tx=opened.get(part.spool, part.tx)) for part in parts_of(handle)]
            new = {**with_parts(handle, parts), "log_ends": [*handle.get("log_ends", ()), *log_ends]}
            recorded = receipts.replace(handle, new)
        except BaseException:  # the first error is the one to raise
            republisher.end(tx.id for tx in opened.values())
            raise
        if recorded != new:
            side_by_side(lambda tx: discard_open(known, tx), list(opened.values()))
        return recorded

    def _republisher(self, known: Transactions, handle: Handle) -> Republisher:
        txn = Transaction.parse(handle["txn"])
        assert txn is not None
        ids = Ids(self.config.id_prefix, txn, handle["slot"])
        return Republisher(
            known,
            self._target(known),
            ids,
            lambda part: self._spooled(handle, part),
            lambda written: self._confirm(known, written),
        )

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """Make sure that nothing of it can be published any more, and then read the log.

        Parts that were already published stay, even if others never will be; `evidence` shows each part. Rows of a sink
        without transactions stay, too: writing them cannot be prevented.
        """
        if handle["guarantee"] != "exactly-once":
            return Outcome(already=True, detail={"rows": handle["rows"]}) if handle["guarantee"] == "none" else None
        txn = Transaction.parse(handle["txn"])
        assert txn is not None
        try:
            with self._transactions() as known:
                self._fence(known, txn, keep=set())
                outcomes = TransactionFinisher(known, handle).fence_all(parts_of(handle))
                is_whole = all(outcome in rehearsal.PUBLISHED for outcome in outcomes)
                return self._outcome(known, handle, already=True) if is_whole else None
        except NotCommitted as error:
            raise OutcomeUnknown(f"sink '{self.name}': {error.what}", error.why, error.todo, error.code) from error

    def _commit_plainly(self, known: Transactions, handle: Handle) -> Outcome:
        """At least once: a repeated commit writes the rows again."""
        parts = [part for part in parts_of(handle) if part.spool]
        if parts:
            self._check_same_topics(known, handle)
        target = self._target(known)
        for part in parts:
            produce.write_all(target, None, self._spooled(handle, part))
        return self._outcome(known, handle)

    def _spooled(self, handle: Handle, part: Part) -> Iterator[Any]:
        confined.check_folder(self.name, handle["txn"])
        confined.check_file(self.name, part.spool)
        try:
            yield from kafkaspool.read(self._spool.path(handle["txn"]), part.spool)
        except FileNotFoundError as error:
            raise errors.spool_missing(self.name, handle, part) from error

    def _check_same_topics(self, known: Transactions, handle: Handle) -> None:
        now = {"cluster": known.cluster_id(), "topics": known.topic_ids(handle["topics"])}
        then = {"cluster": handle["cluster"], "topics": handle["topics"]}
        if now != then:
            raise errors.staged_for_another(self.name, handle, then, now)

    # ---- discard, release, sweep

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        self.revoke(txn)
        self._spool.delete(txn.name)

    def release(self, txn: Transaction) -> None:
        """Open transactions were never recorded: they are duplicates of the committed ones."""
        self.discard(txn, None)

    def revoke(self, txn: Transaction) -> None:
        """Fence open transactions. `EndTxn(abort)` is not enough: a zombie could then begin a new one."""
        if self.config.guarantee == "exactly-once":
            with self._transactions() as known:
                self._fence(known, txn, keep=set())

    def leftovers(self, prefix: str) -> list[Transaction]:
        found = set(self._spool.holding(prefix))
        if self.config.guarantee == "exactly-once":
            with self._transactions() as known:
                found |= {
                    txn for id in known.open(transactional_ids.of(prefix)) if (txn := transactional_ids.owner(id))
                }
        return sorted(found, key=lambda txn: (txn.epoch, txn.attempt, txn.nonce))

    def _fence(self, known: Transactions, txn: Transaction, keep: set[str]) -> None:
        self._end_all(known, [id for id in known.open(transactional_ids.of(txn.name)) if id not in keep])

    def _end_all(self, known: Transactions, ids: list[str]) -> None:
        side_by_side(known.fence, ids)

    # ---- the pool

    def _slot(self, txn: Transaction) -> int | None:
        return txn.slot if self.config.ids == "pool" else None

    def pooled(self, prefix: str) -> list[PooledTransaction]:
        if self.config.ids != "pool":
            return []
        with self._transactions() as known:
            described = known.describe(known.open(transactional_ids.pool_of(prefix)))
        _, pipeline, sink = prefix.split("-")
        return [
            PooledTransaction(pipeline, sink, slot, id, (seen.producer_id, seen.epoch))
            for id, seen in described.items()
            if (slot := transactional_ids.slot_of(id)) is not None
        ]

    def needs(self, handle: Handle, txn: PooledTransaction) -> bool:
        parts = parts_of(handle)
        return any(part.tx is None or (part.tx.id, part.tx.producer) == (txn.id, txn.producer) for part in parts)

    def discard_pooled(self, txns: Sequence[PooledTransaction]) -> None:
        with self._transactions() as known:
            for txn in txns:
                known.withdraw(txn.id, *txn.producer)

    # ---- the gate's view

    def staged(self, handle: Handle) -> Any:
        return gate_view.batches(self._here(handle), self.config.format, self._schema, self._head)

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        return gate_view.frame(self._here(handle), self.config.format, self._schema, spark, self._head)

    def columns(self) -> list[str] | None:
        return gate_view.columns(self.config.format, self._schema)

    @property
    def stages_columns_as_returned(self) -> bool:
        return False

    def _here(self, handle: Handle) -> Handle:
        """The handle with the spool that would be published, even if the handle names another one."""
        confined.check_folder(self.name, handle["txn"])
        for part in parts_of(handle):
            if part.spool or handle["guarantee"] != "none":  # without a guarantee, nothing is kept
                confined.check_file(self.name, part.spool)
        return {**handle, "folder": self._spool.path(handle["txn"])}

    @property
    def _head(self) -> int:
        """The bytes before a value."""
        return HEAD if self.config.registry and self.config.format != "raw" else 0

    @property
    def _schema(self) -> gate_view.Schema:
        if self.config.format != "protobuf":
            return check.schema(self.config, self._root)
        return next(part for part in registered.parts(self.config, self._root) if part.name == registered.VALUE)

    # ---- manual resolution

    def evidence(self, handle: Handle) -> list[str]:
        with self._transactions() as known:
            settler = TransactionFinisher(known, handle)
            return [line for part in parts_of(handle) for line in settler.describe(part)]

    def resolved(self, handle: Handle, committed: bool) -> Handle:
        with self._transactions() as known:
            return with_parts(handle, TransactionFinisher(known, handle).resolve(parts_of(handle), committed))

    # ---- the cluster

    def _target(self, known: Transactions) -> Target:
        topics = check.topics(self.config, known)
        return Target(self.name, self._connection.librdkafka(), topics, self.config.transaction_timeout)

    @cached_property
    def _arguments(self) -> dict[str, Any]:
        return kafkapython.arguments(self._connection)

    @contextmanager
    def _transactions(self) -> Iterator[Transactions]:
        with Transactions(self._arguments) as known:
            yield known

    @contextmanager
    def _explained(self, known: Transactions) -> Iterator[None]:
        """Name the partitions that accept nothing now: a client only notices that nothing is acknowledged."""
        try:
            yield
        except (NotCommitted, OutcomeUnknown) as error:
            why = self._refusing(known) if type(error) in (NotCommitted, OutcomeUnknown) else ""
            if not why:
                raise
            raise type(error)(error.what, f"{error.why} {why}".strip(), error.todo, error.code) from error

    def _refusing(self, known: Transactions) -> str:
        """A sentence about them; empty if there is none, or no answer."""
        with suppress(OnceonlyError):
            if found := known.refusing(self.config.allowed):
                more = f"; and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
                return f"The brokers write nothing there now: {'; '.join(found[:SHOWN])}{more}."
        return ""
