"""Kafka topics, written to exactly once.

`stage` spools the rows and, in staged mode, leaves them in open transactions, one per Spark partition. `commit` ends
those. If one was lost (time-out, failed broker, fencing), its rows are written again from its spool file, in a new
transaction that is recorded before it is ended (`republish.py`). In late mode, all rows are written that way.

The only evidence is the marker that ends a transaction in the log. If there is no marker and the coordinator refuses to
end the transaction, its id is fenced. After that it cannot be open, and the log is read again.
Source: KIP-98, KIP-890; the schedules are in docs/kafka.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    StagesSmallBatches,
)
from onceonly.checkpoint.transaction_names import list_transactions
from onceonly.errors import NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.kafka import client_settings
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.registry.client import Registry
from onceonly.kafka.registry.wire import HEAD
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import KafkaSink
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
from onceonly.sinks.kafka.handle import Part, parts_of, with_parts
from onceonly.sinks.kafka.outcome import TransactionFinisher, TxOutcome, discard_open
from onceonly.sinks.kafka.produce import Target
from onceonly.sinks.kafka.republish import Republisher, side_by_side
from onceonly.sinks.kafka.stage import Job
from onceonly.sinks.kafka.transactional_ids import Ids
from onceonly.sinks.staging import handles
from onceonly.sinks.staging import history as histories
from onceonly.sinks.staging.handles import check_file, check_folder
from onceonly.storage import logins
from onceonly.storage.folders import Folders

MAX_REFUSALS_SHOWN = 4  # partitions, in an error


class KafkaWriter(
    StagesSmallBatches, KeepsCopies, Revocable, ProvesHistory, Inspectable, PoolsIds, ShowsEvidence, Resolvable
):
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
        connection = context.kafka(config.connection, config.bootstrap)
        return cls(config, connection, late, settings.spool, settings.project, context.registry(config.registry))

    def check(self) -> list[str]:
        with self._transactions() as transactions:
            notes = check.check(self.config, self._late, transactions, self._connection, self._root)
        parts = registered.parts(self.config, self._root)
        if self._registry:
            notes = notes + registered.check(self.config, self._registry, parts)
        return notes

    # ---- stage

    def stage(self, txn: Transaction, rows: Any, is_small_batch: bool = False) -> Handle:
        with self._transactions() as transactions:
            schema = check.schema(self.config, self._root)
            check.refuse(self.config, transactions, self._connection)
            records = stage.records(self.config, rows, schema, self._schema_heads())
            place = self._place(transactions)
            job = self._job(txn, self._target(transactions))
            opened_at = datetime.now(UTC).isoformat()
            with self._explain_refusals(transactions):
                receipts = stage.run(job, records, is_small_batch)
            producers_by_id = {receipt.id: receipt.producer for receipt in receipts if receipt.id}
            txs_by_id = confirm_open(self.config, transactions, producers_by_id)
            log_ends = staged_rows.read_log_ends(transactions, place["topics"], txs_by_id.values())
            if job.ids:  # failed and repeated task attempts have left others open
                self._fence_open(transactions, txn, keep=set(txs_by_id))
            if self._place(transactions) != place:  # asked last: rows and ends are by name, and an id never comes back
                raise errors.recreated_while_staging(self.name, place)
            parts = [Part(receipt.spool, receipt.rows, txs_by_id.get(receipt.id or "")) for receipt in receipts]
            time_limit = {"opened_at": opened_at, "timeout": self.config.transaction_timeout} if txs_by_id else {}
            return {
                **time_limit,
                "kind": "kafka",
                "guarantee": self.config.guarantee,
                "mode": "late" if self._late else "staged",
                "transaction_version": transactions.read_transaction_version(),
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

    def _place(self, transactions: Transactions) -> dict[str, Any]:
        """Return where the rows go: the cluster's id and, by name, those of the topics."""
        return {"cluster": transactions.read_cluster_id(), "topics": transactions.read_topic_ids(self.config.allowed)}

    def _schema_heads(self) -> list[tuple[registered.Part, registered.Heads]]:
        """Return what begins with the id of a schema, and by which; a schema is registered here, if that was chosen."""
        if self._registry is None:
            return []
        parts = registered.parts(self.config, self._root)
        return [(part, registered.heads(self.config, self._registry, part)) for part in parts]

    def _job(self, txn: Transaction, target: Target) -> Job:
        """Return what the workers need to stage this transaction."""
        is_published_at_once = self.config.guarantee == "none"
        is_staged_in_kafka = self.config.guarantee == "exactly-once" and not self._late
        spool = None if is_published_at_once else self._spool.path(txn.name)
        ids = Ids(self.config.id_prefix, txn, self._slot(txn)) if is_staged_in_kafka else None
        identify = self._connection if ids and ids.slot is not None else None
        storage = logins.executor_variables(spool) if spool else {}
        return Job(target, spool, ids, is_staged_in_kafka or is_published_at_once, identify, storage)

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
        folder = self._with_own_folder(handle)["folder"]
        with self._transactions() as transactions, self._explain_refusals(transactions):
            if self._is_published(transactions, handle, last):
                return handle
            rehearsal.require_same_topics(self.config, transactions, handle)
            parts = rehearsal.parts_to_write(self.config, transactions, handle)
            rehearsal.require_writable(self.config, transactions, handle, parts, folder)
        return handle

    def _is_published(self, transactions: Transactions, handle: Handle, last: Publication | None) -> bool:
        """Return whether the log shows all of the handle although the topics lack the last publication.

        Raises:
            TargetWentBack: they lack it, and the log does not show all of the handle; or they show what was lost.
        """
        if last is None:
            return False
        comparison = history.compare(transactions, self._connection.bootstrap, self.config.allowed, last)
        if comparison.answer is not Answer.WENT_BACK:
            histories.require_still_lost(self, last)
            return False
        if not rehearsal.is_published(transactions, handle):
            raise histories.went_back(self.name, last, comparison)
        return True

    def compare(self, last: Publication) -> History:
        with self._transactions() as transactions:
            return history.compare(transactions, self._connection.bootstrap, self.config.allowed, last)

    def proof_now(self, last: Publication) -> Publication | None:
        with self._transactions() as transactions:
            return history.proof_now(transactions, self._connection.bootstrap, self.config.allowed, last)

    # ---- commit

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        with self._transactions() as transactions, self._explain_refusals(transactions):
            self._is_published(transactions, handle, last)
            if handle["guarantee"] != "exactly-once":
                return self._commit_plainly(transactions, handle)
            return self._commit(transactions, handle, receipts)

    def _commit(self, transactions: Transactions, handle: Handle, receipts: Receipts) -> Outcome:
        """Settle the parts and write the lost ones again, until none is lost."""
        republisher, outcomes = None, dict[tuple[str, int, int], TxOutcome]()
        while True:
            lost = self._settle(transactions, handle, outcomes)
            if not lost:
                is_ended_now = TxOutcome.COMMITTED in outcomes.values()  # outcomes are only added
                already = not is_ended_now and bool(handle["parts"])
                return self._published_outcome(transactions, handle, already=already)
            self._check_same_topics(transactions, handle)
            if republisher is None:
                republisher = self._republisher(transactions, handle)
            handle = self._write_again(transactions, handle, lost, receipts, republisher)

    def _published_outcome(self, transactions: Transactions, handle: Handle, already: bool = False) -> Outcome:
        """Return the outcome of a published handle. The markers of its transactions were seen."""
        proof = history.publication_proof(transactions, self._connection.bootstrap, handle)
        return Outcome(already, {"rows": handle["rows"]}, proof)

    def _settle(
        self, transactions: Transactions, handle: Handle, outcomes: dict[tuple[str, int, int], TxOutcome]
    ) -> list[Part]:
        """End the open transactions; returns the parts that have to be written (again).

        Args:
            outcomes: known to this commit, by id and producer; they are final. New ones are added here.
        Raises:
            InDoubt: there is no evidence of the outcome of some.
        """
        parts = parts_of(handle)
        unsettled = [part for part in parts if part.tx and part.tx.name not in outcomes]
        doubtful, new_outcomes = [], dict[tuple[str, int, int], TxOutcome]()
        settled = TransactionFinisher(transactions, handle).settle_all(unsettled)
        for part, outcome in zip(unsettled, settled, strict=True):
            if outcome is TxOutcome.DOUBT:
                doubtful.append(part)
            if part.tx:
                new_outcomes[part.tx.name] = outcome
        if doubtful:
            raise errors.in_doubt(self.name, doubtful)
        outcomes |= new_outcomes
        return [part for part in parts if part.tx is None or outcomes[part.tx.name] is TxOutcome.LOST]

    def _write_again(
        self, transactions: Transactions, handle: Handle, lost: list[Part], receipts: Receipts, republisher: Republisher
    ) -> Handle:
        """Write some of `lost` in new transactions and record them; returns the handle that is recorded now."""
        txs_by_spool = republisher.write(lost)
        try:
            log_ends = staged_rows.read_log_ends(transactions, handle["topics"], txs_by_spool.values())
            # Asked last: they were written by name, and an id never comes back
            self._check_same_topics(transactions, handle)
            parts = [replace(part, tx=txs_by_spool.get(part.spool, part.tx)) for part in parts_of(handle)]
            new_handle = {**with_parts(handle, parts), "log_ends": [*handle.get("log_ends", ()), *log_ends]}
            # Not recorded yet: if the process dies before this, its new transactions are swept or time out
            recorded_handle = receipts.replace(handle, new_handle)
        except BaseException:  # the first error is the one to raise
            republisher.end(tx.id for tx in txs_by_spool.values())
            raise
        if recorded_handle != new_handle:  # another process has recorded its own: ours will never be committed
            side_by_side(lambda tx: discard_open(transactions, tx), list(txs_by_spool.values()))
        return recorded_handle

    def _republisher(self, transactions: Transactions, handle: Handle) -> Republisher:
        """Return what writes parts of this handle again."""
        txn = Transaction.parse(handle["txn"])
        assert txn is not None
        ids = Ids(self.config.id_prefix, txn, handle["slot"])
        return Republisher(
            transactions,
            self._target(transactions),
            ids,
            lambda part: self._read_spooled(handle, part),
            lambda written: confirm_open(self.config, transactions, written),
        )

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """Make sure that nothing of it can be published any more, and then read the log.

        Parts that were already published stay, even if others never will be; `evidence` shows each part. Rows of a sink
        without transactions stay, too: writing them cannot be prevented.
        """
        if handle["guarantee"] == "none":
            return Outcome(already=True, detail={"rows": handle["rows"]})
        if handle["guarantee"] != "exactly-once":
            return None
        txn = Transaction.parse(handle["txn"])
        assert txn is not None
        try:
            with self._transactions() as transactions:
                self._fence_open(transactions, txn, keep=set())
                outcomes = TransactionFinisher(transactions, handle).fence_all(parts_of(handle))
                if any(outcome not in rehearsal.PUBLISHED for outcome in outcomes):
                    return None
                return self._published_outcome(transactions, handle, already=True)
        except NotCommitted as error:
            raise OutcomeUnknown(f"sink '{self.name}': {error.what}", error.why, error.todo, error.code) from error

    def _commit_plainly(self, transactions: Transactions, handle: Handle) -> Outcome:
        """Write the rows at least once: a repeated commit writes them again."""
        parts = [part for part in parts_of(handle) if part.spool]
        if parts:
            self._check_same_topics(transactions, handle)
        target = self._target(transactions)
        for part in parts:
            produce.write_all(target, None, self._read_spooled(handle, part))
        return self._published_outcome(transactions, handle)

    def _read_spooled(self, handle: Handle, part: Part) -> Iterator[Any]:
        """Yield the rows of a part from its spool file. Raises CannotPublish: the file does not exist any more."""
        check_folder(self.name, handle["txn"])
        check_file(self.name, part.spool)
        try:
            yield from kafkaspool.read(self._spool.path(handle["txn"]), part.spool)
        except FileNotFoundError as error:
            raise errors.spool_missing(self.name, handle, part) from error

    def _check_same_topics(self, transactions: Transactions, handle: Handle) -> None:
        """Raise CannotPublish unless cluster and topics are those that the rows were staged for."""
        now = {"cluster": transactions.read_cluster_id(), "topics": transactions.read_topic_ids(handle["topics"])}
        then = {"cluster": handle["cluster"], "topics": handle["topics"]}
        if now != then:
            raise errors.staged_for_another(self.name, handle, then, now)

    # ---- discard, release, sweep

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        self.revoke(txn)
        self._spool.delete(txn.name)

    def release(self, txn: Transaction) -> None:
        """Discard open transactions. They were never recorded: they are duplicates of the committed ones."""
        self.discard(txn, None)

    def revoke(self, txn: Transaction) -> None:
        """Fence open transactions. `EndTxn(abort)` is not enough: a zombie could then begin a new one."""
        if self.config.guarantee == "exactly-once":
            with self._transactions() as transactions:
                self._fence_open(transactions, txn, keep=set())

    def leftovers(self, prefix: str) -> list[Transaction]:
        txns = set(list_transactions(self._spool.list_names(), prefix))
        if self.config.guarantee == "exactly-once":
            with self._transactions() as transactions:
                for id in transactions.list_open(transactional_ids.unique_ids_pattern(prefix)):
                    txn = transactional_ids.owner(id)
                    if txn:
                        txns.add(txn)
        return sorted(txns, key=lambda txn: (txn.epoch, txn.attempt, txn.nonce))

    def _fence_open(self, transactions: Transactions, txn: Transaction, keep: set[str]) -> None:
        """Fence the unique ids of this transaction that are open, without those to keep."""
        open_ids = transactions.list_open(transactional_ids.unique_ids_pattern(txn.name))
        side_by_side(transactions.fence, [id for id in open_ids if id not in keep])

    # ---- the pool

    def _slot(self, txn: Transaction) -> int | None:
        return txn.slot if self.config.ids == "pool" else None

    def list_pooled(self, prefix: str) -> list[PooledTransaction]:
        if self.config.ids != "pool":
            return []
        with self._transactions() as transactions:
            open_ids = transactions.list_open(transactional_ids.pooled_ids_pattern(prefix))
            descriptions = transactions.describe(open_ids)
        _, pipeline, sink = prefix.split("-")
        pooled_transactions = []
        for id, description in descriptions.items():
            slot = transactional_ids.slot_of(id)
            if slot is not None:
                producer = description.producer_id, description.epoch
                pooled_transactions.append(PooledTransaction(pipeline, sink, slot, id, producer))
        return pooled_transactions

    def needs(self, handle: Handle, txn: PooledTransaction) -> bool:
        for part in parts_of(handle):
            if part.tx is None or (part.tx.id, part.tx.producer) == (txn.id, txn.producer):
                return True
        return False

    def discard_pooled(self, txns: Sequence[PooledTransaction]) -> None:
        with self._transactions() as transactions:
            for txn in txns:
                transactions.withdraw(txn.id, *txn.producer)

    # ---- the gate's view

    def read_staged(self, handle: Handle) -> Any:
        return gate_view.batches(self._with_own_folder(handle), self.config.format, self._schema, self._head_size)

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        return gate_view.frame(self._with_own_folder(handle), self.config.format, self._schema, spark, self._head_size)

    def columns(self) -> list[str] | None:
        return gate_view.columns(self.config.format, self._schema)

    @property
    def stages_columns_as_returned(self) -> bool:
        return False

    def _with_own_folder(self, handle: Handle) -> Handle:
        """Return the handle with the spool that would be published, even if the handle names another one."""
        check_folder(self.name, handle["txn"])
        for part in parts_of(handle):
            if part.spool or handle["guarantee"] != "none":  # without a guarantee, nothing is kept
                check_file(self.name, part.spool)
        return {**handle, "folder": self._spool.path(handle["txn"])}

    @property
    def _head_size(self) -> int:
        """The number of bytes before a value."""
        has_head = self.config.registry and self.config.format != "raw"
        return HEAD if has_head else 0

    @property
    def _schema(self) -> gate_view.Schema:
        if self.config.format != "protobuf":
            return check.schema(self.config, self._root)
        return next(part for part in registered.parts(self.config, self._root) if part.name == registered.VALUE)

    # ---- manual resolution

    def evidence(self, handle: Handle) -> list[str]:
        with self._transactions() as transactions:
            finisher = TransactionFinisher(transactions, handle)
            lines: list[str] = []
            for part in parts_of(handle):
                lines += finisher.describe(part)
            return lines

    def resolve_handle(self, handle: Handle, committed: bool) -> Handle:
        with self._transactions() as transactions:
            return with_parts(handle, TransactionFinisher(transactions, handle).resolve(parts_of(handle), committed))

    # ---- the cluster

    def _target(self, transactions: Transactions) -> Target:
        topics = check.topics(self.config, transactions)
        return Target(self.name, self._connection.librdkafka(), topics, self.config.transaction_timeout)

    @cached_property
    def _arguments(self) -> dict[str, Any]:
        return client_settings.kafka_python_arguments(self._connection)

    @contextmanager
    def _transactions(self) -> Iterator[Transactions]:
        with Transactions(self._arguments) as transactions:
            yield transactions

    @contextmanager
    def _explain_refusals(self, transactions: Transactions) -> Iterator[None]:
        """Name the partitions that accept nothing now: a client only notices that nothing is acknowledged."""
        try:
            yield
        except (NotCommitted, OutcomeUnknown) as error:
            if type(error) not in (NotCommitted, OutcomeUnknown):
                raise
            why = self._describe_refusals(transactions)
            if not why:
                raise
            raise type(error)(error.what, f"{error.why} {why}".strip(), error.todo, error.code) from error

    def _describe_refusals(self, transactions: Transactions) -> str:
        """Return a sentence about the partitions that accept nothing; empty if there is none, or no answer."""
        refusals: list[str] = []
        with suppress(OnceonlyError):
            refusals = transactions.list_refusing_partitions(self.config.allowed)
        if not refusals:
            return ""
        more = ""
        if len(refusals) > MAX_REFUSALS_SHOWN:
            more = f"; and {len(refusals) - MAX_REFUSALS_SHOWN:,} more"
        return f"The brokers write nothing there now: {'; '.join(refusals[:MAX_REFUSALS_SHOWN])}{more}."
