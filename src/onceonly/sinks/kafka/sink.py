"""Kafka topics, written to exactly once.

`stage` spools the rows and, in staged mode, leaves them in open transactions, one per Spark partition. `commit` ends
those. If one was lost (time-out, failed broker, fencing), its rows are written again from its spool file, in a new
transaction that is recorded before it is ended (`commit.py`). In late mode, all rows are written that way.

The only evidence is the marker that ends a transaction in the log. If there is no marker and the coordinator refuses to
end the transaction, its id is fenced. After that it cannot be open, and the log is read again.
Source: KIP-98, KIP-890; the schedules are in docs/kafka.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    Answer,
    History,
    InspectableRows,
    PooledTransaction,
    Publication,
    Receipts,
    Sink,
    TargetHistory,
    TransactionalIdPool,
)
from onceonly.checkpoint.transaction_names import list_transactions
from onceonly.checkpoint.verification import Depth, Finding, Published, VerifiableTarget
from onceonly.errors import NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.kafka import client_settings
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.registry import HEAD
from onceonly.kafka.registry.client import Registry
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.settings import Writer
from onceonly.sinks.context import Context
from onceonly.sinks.kafka import (
    check,
    gate_view,
    history,
    jvm_writer,
    open_transactions,
    registered_schemas,
    rehearsal,
    stage,
    verification,
)
from onceonly.sinks.kafka.commit import Commit
from onceonly.sinks.kafka.handle import Ids, KafkaHandle, Part, owner, pooled_ids_pattern, slot_of, unique_ids_pattern
from onceonly.sinks.kafka.job import Job
from onceonly.sinks.kafka.open_transactions import confirm_open
from onceonly.sinks.kafka.outcome import PUBLISHED, TransactionFinisher, side_by_side
from onceonly.sinks.kafka.producer import SendTarget
from onceonly.sinks.staging import handles
from onceonly.sinks.staging import history as histories
from onceonly.storage import logins
from onceonly.storage.folders import Folders

MAX_REFUSALS_SHOWN = 4  # partitions, in an error


class KafkaWriter(Sink, TargetHistory, InspectableRows, TransactionalIdPool, VerifiableTarget):
    """Writes to the topics of a `KafkaSink`.

    Args:
        late: whether rows are only written at commit.
        spool: path or URI of the folder with all spools. Spark's workers and the committer have to reach it.
        root: the project's folder, to which the path of the schema file is relative.
        registry: where the schema's id is from that values begin with.
        writer: of the rows: "jvm" is refused where it cannot write; "auto" takes it where it can, if rows are many.
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
        writer: Writer = "auto",
    ) -> None:
        self.name, self.config, self._registry = config.name, config, registry
        self._connection, self._late, self._spool, self._root = connection, late, Folders(spool), root
        self._writer = writer

    @classmethod
    def make(cls, config: KafkaSink, context: Context) -> KafkaWriter:
        settings, late = context.settings, config.is_late(context.pipeline.mode)
        connection = context.kafka(config.connection, config.bootstrap)
        registry, writer = context.registry(config.registry), settings.kafka_writer
        return cls(config, connection, late, settings.spool, settings.project, registry, writer)

    def check(self) -> list[str]:
        with self._transactions() as transactions:
            notes = check.check(self.config, self._late, transactions, self._connection, self._root)
        reason = jvm_writer.why_not(self._spool.uri, self._connection)
        if reason and self._writer != "python":
            notes.append(f"{self.name}: Python workers write its rows, not Spark's JVM: {reason}")
        parts = registered_schemas.read_parts(self.config, self._root)
        if self._registry:
            notes = notes + registered_schemas.check(self.config, self._registry, parts)
        return notes

    def list_written_folders(self) -> list[str]:
        return [] if self.config.guarantee == "none" else [self._spool.uri]

    # ---- stage

    def stage_small_batch(self, txn: Transaction, rows: Any) -> Handle:
        return self.stage(txn, rows, is_small_batch=True)

    def stage(self, txn: Transaction, rows: Any, is_small_batch: bool = False) -> Handle:
        with self._transactions() as transactions:
            schema = check.schema(self.config, self._root)
            check.check_writable(self.config, transactions, self._connection)
            records = stage.records(self.config, rows, schema, self._schema_heads())
            place = self._place(transactions)
            job = self._job(txn, self._target(transactions))
            opened_at = datetime.now(UTC).isoformat()
            with self._explain_refusals(transactions):
                staged = stage.run(job, records, self._writer, is_small_batch)
            producers_by_id = {receipt.id: receipt.producer for receipt in staged.receipts if receipt.id}
            txs_by_id = confirm_open(self.config, transactions, producers_by_id)
            log_ends = open_transactions.read_log_ends(transactions, place["topics"], txs_by_id.values())
            if job.ids:  # failed and repeated task attempts have left others open
                self._fence_open(transactions, txn, keep=set(txs_by_id))
            if self._place(transactions) != place:  # asked last: rows and ends are by name, and an id never comes back
                raise stage.recreated_topic_error(self.name, place)
            parts = [Part(receipt.spool, receipt.rows, txs_by_id.get(receipt.id or "")) for receipt in staged.receipts]
            time_limit = {"opened_at": opened_at, "timeout": self.config.transaction_timeout} if txs_by_id else {}
            return {
                **time_limit,
                "kind": "kafka",
                "guarantee": self.config.guarantee,
                "mode": "late" if self._late else "staged",
                "writer": staged.writer,
                "transaction_version": transactions.read_transaction_version(),
                **place,
                "txn": txn.name,
                "slot": self._slot(txn),
                "folder": self._spool.path(txn.name),
                "schema": gate_view.staged_schema(rows, schema),
                "rows": sum(part.rows for part in parts),
                "bytes": sum(receipt.bytes for receipt in staged.receipts),
                "digest": staged.digest,
                "parts": [part.to_json() for part in parts],
                "log_ends": log_ends,
            }

    def _place(self, transactions: Transactions) -> dict[str, Any]:
        """Return where the rows go: the cluster's id and, by name, those of the topics."""
        return {
            "cluster": transactions.read_cluster_id(),
            "topics": transactions.read_topic_ids(self.config.written_topics()),
        }

    def _schema_heads(self) -> list[tuple[registered_schemas.SchemaPart, registered_schemas.Heads]]:
        """Return what begins with the id of a schema, and by which; a schema is registered here, if that was chosen."""
        if self._registry is None:
            return []
        parts = registered_schemas.read_parts(self.config, self._root)
        return [(part, registered_schemas.require_heads(self.config, self._registry, part)) for part in parts]

    def _job(self, txn: Transaction, target: SendTarget) -> Job:
        """Return what the workers need to stage this transaction."""
        is_published_at_once = self.config.guarantee == "none"
        is_staged_in_kafka = self.config.guarantee == "exactly-once" and not self._late
        folder = self._spool.path(txn.name)
        ids = Ids(self.config.id_prefix, txn, self._slot(txn)) if is_staged_in_kafka else None
        return Job(
            target,
            self._connection,
            folder,
            has_spool=not is_published_at_once,
            ids=ids,
            write=is_staged_in_kafka or is_published_at_once,
            storage=logins.executor_variables(folder),
        )

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
        kafka_handle = self._parse_handle(handle)
        folder = self._spool.path(kafka_handle.txn.name)
        with self._transactions() as transactions, self._explain_refusals(transactions):
            if self._is_published(transactions, kafka_handle, last):
                return handle
            rehearsal.require_same_topics(self.config, transactions, kafka_handle)
            parts = rehearsal.parts_to_write(self.config, transactions, kafka_handle)
            rehearsal.require_writable(self.config, transactions, kafka_handle, parts, folder)
        return handle

    def _is_published(self, transactions: Transactions, handle: KafkaHandle, last: Publication | None) -> bool:
        """Return whether the log shows all of the handle although the topics lack the last publication.

        Raises:
            TargetWentBack: they lack it, and the log does not show all of the handle; or they show what was lost.
        """
        if last is None:
            return False
        comparison = history.compare(transactions, self._connection.bootstrap, self.config.written_topics(), last)
        if comparison.answer is not Answer.WENT_BACK:
            histories.require_still_lost(self, last)
            return False
        if not rehearsal.is_published(transactions, handle):
            raise histories.went_back(self.name, last, comparison)
        return True

    def compare(self, last: Publication) -> History:
        with self._transactions() as transactions:
            return history.compare(transactions, self._connection.bootstrap, self.config.written_topics(), last)

    def find_current_publication(self, last: Publication) -> Publication | None:
        with self._transactions() as transactions:
            return history.find_current_publication(
                transactions, self._connection.bootstrap, self.config.written_topics(), last
            )

    def verify(self, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
        try:
            with self._transactions() as transactions:
                names, bootstrap = self.config.written_topics(), self._connection.bootstrap
                yield from verification.verify(self.name, transactions, bootstrap, names, published, depth)
        except NotCommitted as error:
            raise OutcomeUnknown(f"sink '{self.name}': {error.what}", error.why, error.todo, error.code) from error

    # ---- commit

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        kafka_handle = self._parse_handle(handle)
        with self._transactions() as transactions, self._explain_refusals(transactions):
            self._is_published(transactions, kafka_handle, last)
            commit = Commit(self.config, self._connection, transactions, self._spool.path(kafka_handle.txn.name))
            if kafka_handle.guarantee != "exactly-once":
                return commit.publish_without_transactions(kafka_handle)
            return commit.publish(kafka_handle, receipts)

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """Make sure that nothing of it can be published any more, and then read the log.

        Parts that were already published stay, even if others never will be; `evidence` shows each part. Rows of a sink
        without transactions stay, too: writing them cannot be prevented.
        """
        kafka_handle = self._parse_handle(handle)
        if kafka_handle.guarantee == "none":
            return Outcome(already=True, detail={"rows": kafka_handle.rows})
        if kafka_handle.guarantee != "exactly-once":
            return None
        try:
            with self._transactions() as transactions:
                self._fence_open(transactions, kafka_handle.txn, keep=set())
                outcomes = _finisher(transactions, kafka_handle).fence_all(kafka_handle.parts)
                if any(outcome not in PUBLISHED for outcome in outcomes):
                    return None
                return history.published_outcome(transactions, self._connection.bootstrap, kafka_handle, already=True)
        except NotCommitted as error:
            raise OutcomeUnknown(f"sink '{self.name}': {error.what}", error.why, error.todo, error.code) from error

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
                for id in transactions.list_open(unique_ids_pattern(prefix)):
                    txn = owner(id)
                    if txn:
                        txns.add(txn)
        return sorted(txns, key=lambda txn: (txn.epoch, txn.attempt, txn.nonce))

    def _fence_open(self, transactions: Transactions, txn: Transaction, keep: set[str]) -> None:
        """Fence the unique ids of this transaction that are open, without those to keep."""
        open_ids = transactions.list_open(unique_ids_pattern(txn.name))
        side_by_side(transactions.fence, [id for id in open_ids if id not in keep])

    # ---- the pool

    def _slot(self, txn: Transaction) -> int | None:
        return txn.slot if self.config.ids == "pool" else None

    def list_pooled(self, prefix: str) -> list[PooledTransaction]:
        if self.config.ids != "pool":
            return []
        with self._transactions() as transactions:
            open_ids = transactions.list_open(pooled_ids_pattern(prefix))
            descriptions = transactions.describe(open_ids)
        _, pipeline, sink = prefix.split("-")
        pooled_transactions = []
        for id, description in descriptions.items():
            slot = slot_of(id)
            if slot is not None:
                producer = description.producer_id, description.epoch
                pooled_transactions.append(PooledTransaction(pipeline, sink, slot, id, producer))
        return pooled_transactions

    def is_needed(self, handle: Handle, txn: PooledTransaction) -> bool:
        for part in self._parse_handle(handle).parts:
            if part.tx is None or (part.tx.id, part.tx.producer) == (txn.id, txn.producer):
                return True
        return False

    def discard_pooled(self, txns: Sequence[PooledTransaction]) -> None:
        with self._transactions() as transactions:
            for txn in txns:
                transactions.withdraw(txn.id, *txn.producer)

    # ---- the gate's view

    def read_staged(self, handle: Handle) -> Any:
        return gate_view.batches(self._spooled_rows(handle), self.config.format, self._schema, self._head_size)

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        return gate_view.frame(self._spooled_rows(handle), self.config.format, self._schema, spark, self._head_size)

    def columns(self) -> list[str] | None:
        return gate_view.columns(self.config.format, self._schema)

    @property
    def stages_columns_as_returned(self) -> bool:
        return False

    def _spooled_rows(self, handle: Handle) -> gate_view.SpooledRows:
        """Return the rows that would be published, in the sink's own spool, even if the handle names another one."""
        kafka_handle = self._parse_handle(handle)
        files = tuple(part.spool for part in kafka_handle.parts)
        folder = self._spool.path(kafka_handle.txn.name)
        return gate_view.SpooledRows(folder, files, kafka_handle.rows, handle.get("schema"))

    def _parse_handle(self, handle: Handle) -> KafkaHandle:
        """Parse a handle. Raises CannotPublish if it names files or folders that this sink does not write."""
        return KafkaHandle.parse(self.name, handle)

    @property
    def _head_size(self) -> int:
        """The number of bytes before a value."""
        has_head = self.config.registry and self.config.format != "raw"
        return HEAD if has_head else 0

    @property
    def _schema(self) -> gate_view.Schema:
        if self.config.format != "protobuf":
            return check.schema(self.config, self._root)
        return registered_schemas.read_value_part(self.config, self._root)

    # ---- manual resolution

    def evidence(self, handle: Handle) -> list[str]:
        kafka_handle = self._parse_handle(handle)
        with self._transactions() as transactions:
            return _finisher(transactions, kafka_handle).describe_all(kafka_handle.parts)

    def resolve_handle(self, handle: Handle, committed: bool) -> Handle:
        kafka_handle = self._parse_handle(handle)
        with self._transactions() as transactions:
            parts = _finisher(transactions, kafka_handle).resolve(kafka_handle.parts, committed)
            return kafka_handle.replace_parts(parts)

    # ---- the cluster

    def _target(self, transactions: Transactions) -> SendTarget:
        return check.target(self.config, self._connection, transactions)

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
            refusals = transactions.list_refusing_partitions(self.config.written_topics())
        if not refusals:
            return ""
        more = ""
        if len(refusals) > MAX_REFUSALS_SHOWN:
            more = f"; and {len(refusals) - MAX_REFUSALS_SHOWN:,} more"
        return f"The brokers write nothing there now: {'; '.join(refusals[:MAX_REFUSALS_SHOWN])}{more}."


def _finisher(transactions: Transactions, handle: KafkaHandle) -> TransactionFinisher:
    return TransactionFinisher(transactions, handle.topics, handle.log_ends)
