"""Rows into a PostgreSQL table, each exactly once.

`stage` copies rows into tables of their own. `commit` is one transaction of the server: the ledger's row goes from the
last decision to this one, the rows go into the table, and the staging tables go. The ledger's row is the evidence.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.sql import SQL, Composed, Identifier

from onceonly.errors import ActionNeeded, CannotPublish, InvalidPipeline, OnceonlyError, StageAgain
from onceonly.sinks import (
    Answer,
    Context,
    DecisionTraces,
    Depth,
    Finding,
    Handle,
    History,
    InspectableRows,
    Outcome,
    Publication,
    Published,
    Receipts,
    ReplaceableRows,
    Sink,
    TargetHistory,
    Trace,
    Transaction,
    VerifiableTarget,
)
from onceonly.sinks.toolkit import (
    collect_small_batch,
    nothing_published,
    read_schema,
    refuse_duplicates,
    require_history,
    to_arrow_schema,
)
from onceonly_postgres import columns as table_columns
from onceonly_postgres import errors, ledger, publish, spark_stage, staging_tables
from onceonly_postgres.columns import TableColumn
from onceonly_postgres.config import PostgresSink
from onceonly_postgres.handle import PostgresHandle, stem
from onceonly_postgres.ledger import Ledger, LedgerKey, LedgerRow
from onceonly_postgres.server import Cursor, Server, qualified
from onceonly_postgres.verification import Verification

MAX_CONFLICTS = 3  # deadlocks and the like, of which the server ends one side
READ_ROWS = 10_000  # that a gate reads at a time
CONFLICTS = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


@dataclass(frozen=True)
class Table:
    """The target as it is now."""

    id: int
    name: Composed
    columns: Sequence[TableColumn]


class PostgresWriter(Sink, DecisionTraces, TargetHistory, ReplaceableRows, InspectableRows, VerifiableTarget):
    """Writes to the table of a `PostgresSink`."""

    handle_shape = PostgresHandle

    def __init__(self, config: PostgresSink, server: Server) -> None:
        self.name, self.config, self._server = config.name, config, server
        self._ledger = Ledger(server, config.schema)
        self._target = ".".join(config.table_name)

    @classmethod
    def make(cls, config: PostgresSink, context: Context) -> PostgresWriter:
        extra = context.connection(config.connection)
        return cls(config, Server.parse(extra, config.connection, config.name))

    @property
    def place(self) -> str:
        """The target, as people and proofs name it."""
        return self.config.targets()[0]

    # ---- check

    @nothing_published()
    def check(self) -> list[str]:
        self._ledger.make()
        with self._server.transaction(is_trial=True) as cursor:
            table = self._find_table(cursor)
            if table is None:
                raise errors.missing_table_error(self.name, self._target, InvalidPipeline)
            problems = self._list_problems(cursor, table)
            cursor.execute("SELECT current_setting('fsync'), current_setting('full_page_writes')")
            [durability] = cursor.fetchall()
        if problems:
            raise errors.unsuitable_error(self.name, self._target, problems)
        notes = [f"{self.name}: publishes to {self.place}, the ledger is in the schema '{self.config.schema}'"]
        if "off" in durability:
            notes.append(
                f"{self.name}: fsync or full_page_writes is off: a power cut may lose rows that were published"
            )
        return notes

    def _list_problems(self, cursor: Cursor, table: Table) -> list[str]:
        """List what keeps the sink from writing to the table."""
        problems = self._list_column_problems(table)
        merge = self.config.merge
        if merge and not table_columns.has_unique_index(cursor, table.id, merge.keys):
            problems.append(f"it has no unique index on {', '.join(merge.keys)} alone")
        for right in self._list_rights():
            cursor.execute("SELECT has_table_privilege(%s::bigint::oid, %s)", [table.id, right])
            if cursor.fetchone() != (True,):
                problems.append(f"this role may not {right}")
        cursor.execute("SELECT has_schema_privilege(%s, 'CREATE')", [self.config.schema])
        if cursor.fetchone() != (True,):
            problems.append(f"this role may not create tables in the schema '{self.config.schema}'")
        return problems

    def _list_column_problems(self, table: Table) -> list[str]:
        problems = []
        by_name = {column.name: column for column in table.columns}
        for column in table.columns:
            if column.is_required and not column.has_default and not column.is_supported:
                problems.append(f"'{column.name}' is {column.definition}, which the sink cannot fill exactly")
        marker = self.config.checkpoint_column
        if marker and (marker not in by_name or by_name[marker].type.name != "text"):
            problems.append(f"the checkpoint_column '{marker}' is no text column of it")
        for name in self._required_columns():
            if name not in by_name or not by_name[name].is_required:
                problems.append(f"'{name}' of merge is no column that is NOT NULL")
        return problems

    def _list_rights(self) -> list[str]:
        """List the rights on the table that the sink needs."""
        if self.config.merge:
            return ["INSERT", "SELECT", "UPDATE"]
        if self.config.checkpoint_column:
            return ["INSERT", "SELECT", "DELETE"]
        return ["INSERT"]

    def _required_columns(self) -> tuple[str, ...]:
        """Return the columns by which changes are merged: none of them may be null."""
        merge = self.config.merge
        return (*merge.keys, *merge.order_by) if merge else ()

    def _find_table(self, cursor: Cursor) -> Table | None:
        schema, name = self.config.table_name
        table_id = table_columns.find_table(cursor, schema, name)
        if table_id is None:
            return None
        return Table(table_id, qualified(schema, name), table_columns.list_columns(cursor, table_id))

    # ---- stage

    @nothing_published()
    def stage(self, txn: Transaction, rows: Any) -> Handle:
        job = self._prepare(txn, rows)
        return self._record(txn, rows, job, spark_stage.run(job, rows))

    @nothing_published()
    def stage_small_batch(self, txn: Transaction, rows: Any) -> Handle:
        job = self._prepare(txn, rows)
        few = collect_small_batch(rows)
        receipts = spark_stage.run(job, rows) if few is None else spark_stage.run_here(job, few)
        return self._record(txn, rows, job, receipts)

    def _prepare(self, txn: Transaction, rows: Any) -> spark_stage.Job:
        """Return what workers need. Raises InvalidPipeline: the rows do not fit the table exactly."""
        refuse_duplicates(self.name, rows)
        self._ledger.make()
        with self._server.transaction(is_trial=True) as cursor:
            table = self._find_table(cursor)
        if table is None:
            raise errors.missing_table_error(self.name, self._target, InvalidPipeline)
        schema, by_name = read_schema(rows), {column.name: column for column in table.columns}
        misfits = table_columns.find_misfits(by_name, schema, self.config.checkpoint_column)
        names = [field["name"] for field in schema["fields"]]
        for column in self._required_columns():
            if column not in names:
                misfits.append(f"'{column}' of merge is missing")
        if misfits:
            raise errors.misfits_error(self.name, self._target, misfits)
        columns = [by_name[name] for name in names]
        return spark_stage.Job(self._server, self.config.schema, txn.name, columns, self._required_columns())

    def _record(
        self, txn: Transaction, rows: Any, job: spark_stage.Job, receipts: Sequence[spark_stage.Receipt]
    ) -> Handle:
        """Drop what attempts of tasks have written that lost, and return the handle of the others."""
        names = [receipt.table for receipt in receipts]
        staging_tables.drop(self._server, self.config.schema, txn.name, keep=names)
        handle = {
            "kind": "postgres",
            "target": self._target,
            "txn": txn.name,
            "tables": [{"name": receipt.table, "rows": receipt.rows} for receipt in receipts],
            "columns": [{"name": column.name, "type": column.definition} for column in job.columns],
            "schema": read_schema(rows),
            "rows": sum(receipt.rows for receipt in receipts),
            "bytes": sum(receipt.bytes for receipt in receipts),
        }
        if self.config.checkpoint_column:
            handle["checkpoint_column"] = self.config.checkpoint_column
        if self.config.merge:
            handle["merge"] = {"keys": list(self.config.merge.keys), "order_by": list(self.config.merge.order_by)}
        return handle

    # ---- publish

    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        """Count the staged rows, and let the server plan the statements.

        If the table has constraints or triggers, the rows are put into it and rolled back: only that shows a conflict.

        Raises:
            StageAgain: staged rows are missing, or the table was altered so that they no longer fit.
            ActionNeeded: the table is missing, or refuses the rows.
            TargetWentBack, StateBehind, Fenced: as in `commit`.
            OutcomeUnknown: no answer.
        """
        key = self._key_of(handle)
        with self._explained(ActionNeeded, StageAgain), self._server.transaction(is_trial=True) as cursor:
            row = self._ledger.read(cursor, key)
            if row.last_decision.is_published(self.name, handle["txn"], decision):
                return handle
            table = self._require_target(cursor, row, last, ActionNeeded)
            publish.require_same_columns(list(table.columns), handle)
            publish.require_rows(cursor, self.config.schema, handle)
            if table_columns.has_rules(cursor, table.id) or "replaces" in handle or "retracts" in handle:
                publish.publish_rows(cursor, table.name, self.config.schema, handle)
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            else:
                publish.explain_insert(cursor, table.name, self.config.schema, handle)
        return handle

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        """Publish in one transaction.

        Raises:
            Fenced: it was given up.
            StateBehind: the ledger shows another transaction at this decision, or a later one.
            TargetWentBack: the ledger lacks the sink's last publication: the server was restored from an older copy.
            CannotPublish: staged rows are missing, or the table is missing, was altered, or refuses the rows.
            OutcomeUnknown: the server does not answer, or somebody else holds a lock. It is safe to call again.
        """
        key = self._key_of(handle)
        with self._explained(CannotPublish, CannotPublish):
            return self._repeat_conflicts(lambda: self._publish(key, handle, decision, last))

    def _publish(self, key: LedgerKey, handle: Handle, decision: int, last: Publication | None) -> Outcome:
        self._make_ledger(last)
        with self._server.transaction() as cursor:
            row = self._ledger.lock(cursor, key)
            if row.last_decision.is_published(self.name, handle["txn"], decision):
                return self._outcome(handle, key, row, already=True)
            table = self._require_target(cursor, row, last, CannotPublish)
            publish.require_same_columns(list(table.columns), handle)
            publish.require_rows(cursor, self.config.schema, handle)
            publish.publish_rows(cursor, table.name, self.config.schema, handle)
            publish.drop_staged(cursor, self.config.schema, handle)
            row = _continue_line(row, table.id, last)
            row = replace(row, published=handle["txn"], published_by=decision, number=row.number + 1)
            row = replace(row, decision=decision, txn=handle["txn"])
            self._ledger.publish(cursor, key, row)
        return self._outcome(handle, key, row, already=False)

    def _make_ledger(self, last: Publication | None) -> None:
        """Create the ledger for a first publication. One that is gone is not created: it would show nothing."""
        if last is None or not last.proof:
            self._ledger.make()

    def _require_target(
        self, cursor: Cursor, row: LedgerRow, last: Publication | None, error: type[OnceonlyError]
    ) -> Table:
        """Return the table, if it has what was published to it. Nobody can alter it until the transaction ends."""
        table = self._find_table(cursor)
        if table:
            publish.lock_table(cursor, table.name)
            table = self._find_table(cursor)  # as it is under the lock, which may be another one of that name
        require_history(_Comparison(self.name, self.place, row, table.id if table else None), last)
        if table is None:
            raise errors.missing_table_error(self.name, self._target, error)
        return table

    def _outcome(self, handle: Handle, key: LedgerKey, row: LedgerRow, already: bool) -> Outcome:
        return Outcome(already, {"rows": handle["rows"]}, self._proof(key, row))

    def _proof(self, key: LedgerKey, row: LedgerRow) -> dict[str, Any]:
        return {
            "target": self.place,
            "state_id": key.state_id,
            "pipeline": key.pipeline,
            "txn": row.published,
            "line": row.line,
            "number": row.number,
        }

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        key = self._key_of(handle)
        self._ledger.make()
        with self._explained(CannotPublish, CannotPublish), self._server.transaction() as cursor:
            row = self._ledger.lock(cursor, key)
            if row.decision < decision:
                self._ledger.publish(cursor, key, replace(row, decision=decision, txn=""))
        if (row.decision, row.txn) == (decision, handle["txn"]):
            return self._outcome(handle, key, row, already=True)
        return None

    def _repeat_conflicts(self, publish_once: Callable[[], Outcome]) -> Outcome:
        """Try again what the server has rolled back in favour of another transaction."""
        for _ in range(MAX_CONFLICTS - 1):
            try:
                return publish_once()
            except CONFLICTS:
                continue
        return publish_once()

    @contextmanager
    def _explained(self, refusal: type[OnceonlyError], staged_refusal: type[OnceonlyError]) -> Iterator[None]:
        """Raise errors of the server as what they mean for the outcome.

        Args:
            refusal: what waits for a person.
            staged_refusal: of staged rows that are missing or fit no more.
        """
        try:
            yield
        except publish.RowsMissing as error:
            raise errors.missing_rows_error(self.name, str(error), staged_refusal) from error
        except publish.ColumnMissing as error:
            raise errors.changed_table_error(self.name, self._target, str(error), refusal) from error
        except publish.TableChanged as error:
            raise errors.changed_table_error(self.name, self._target, str(error), staged_refusal) from error
        except (*CONFLICTS, psycopg.errors.LockNotAvailable) as error:
            raise errors.locked_error(self._server, error) from error
        except psycopg.Error as error:
            raise errors.refused_error(self._server, error, refusal) from error

    def _key_of(self, handle: Handle) -> LedgerKey:
        """Return whose row of the ledger it is. Raises CannotPublish: the handle is of another table."""
        txn = Transaction.parse(handle["txn"])
        assert txn is not None  # the handle's shape
        if handle["target"] != self._target:
            raise errors.foreign_handle_error(self.name, f"It is of {handle['target']}, and not of {self._target}.")
        for staged in handle["tables"]:
            if not staged["name"].startswith(stem(txn.name)):
                raise errors.foreign_handle_error(self.name, f"{staged['name']} is no staging table of {txn.name}.")
        return LedgerKey.of_transaction(txn, self._target)

    # ---- what is left

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        staging_tables.drop(self._server, self.config.schema, txn.name)

    def release(self, txn: Transaction) -> None:
        """Drop what attempts of tasks have left that were still running when the others had won."""
        staging_tables.drop(self._server, self.config.schema, txn.name)

    def leftovers(self, prefix: str) -> list[Transaction]:
        with self._server.transaction(is_trial=True) as cursor:
            return staging_tables.list_transactions(cursor, self.config.schema, prefix)

    # ---- what the target shows

    def traces(self, pipeline: str) -> list[Trace]:
        with self._server.transaction(is_trial=True) as cursor:
            rows = self._ledger.list_rows(cursor, pipeline, self.name, self._target)
        return [Trace(state_id, decision, self.place) for state_id, decision in rows]

    def compare(self, last: Publication) -> History:
        with self._server.transaction(is_trial=True) as cursor:
            row, table = self._read(cursor, last), self._find_table(cursor)
        return _Comparison(self.name, self.place, row, table.id if table else None).compare(last)

    def find_current_publication(self, last: Publication) -> Publication | None:
        with self._server.transaction(is_trial=True) as cursor:
            row, table = self._read(cursor, last), self._find_table(cursor)
        if table is None:
            return None
        if row.table_id != table.id:  # another table has its name: nothing of ours is in it
            row = LedgerRow()
        txn = Transaction.parse(row.published)
        proof = self._proof(self._key_in(last), row)
        return Publication(txn.epoch if txn else 0, row.published_by, proof)

    def _read(self, cursor: Cursor, last: Publication) -> LedgerRow:
        return self._ledger.read(cursor, self._key_in(last))

    def _key_in(self, last: Publication) -> LedgerKey:
        return LedgerKey(last.proof["state_id"], last.proof["pipeline"], self.name, self._target)

    def verify(self, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
        proofs = [one.publication for one in published if one.publication.proof]
        with self._server.transaction(is_trial=True) as cursor:
            table = self._find_table(cursor)
            row = self._read(cursor, proofs[-1]) if proofs else LedgerRow()
            marked_rows = self._count_marked_rows(cursor, table) if table and depth.reads_rows else None
        table_id = table.id if table else None
        yield from Verification(self.place, table_id, row, marked_rows).run(published, depth)

    def _count_marked_rows(self, cursor: Cursor, table: Table) -> dict[str, int] | None:
        """Count the rows of each transaction; None: they have no mark."""
        marker = self.config.checkpoint_column
        if marker is None or marker not in [column.name for column in table.columns]:
            return None
        cursor.execute(SQL("SELECT {0}, count(*) FROM {1} GROUP BY {0}").format(Identifier(marker), table.name))
        return {str(txn): int(rows) for txn, rows in cursor.fetchall()}

    def evidence(self, handle: Handle) -> list[str]:
        key = self._key_of(handle)
        with self._server.transaction(is_trial=True) as cursor:
            row = self._ledger.read(cursor, key)
        return [f"the ledger of {self.place} shows decision {row.decision}: {row.txn or 'given up, or none'}"]

    # ---- published rows are taken back

    def check_replace(self, old: Handle) -> None:
        if "checkpoint_column" not in old:
            why = (
                "It keeps the newest row of each key." if "merge" in old else "Nothing in a row says who published it."
            )
            raise errors.unmarked_rows_error(self.name, why)
        if old["checkpoint_column"] != self.config.checkpoint_column:
            raise errors.unmarked_rows_error(self.name, f"They are marked in '{old['checkpoint_column']}'.")

    def retraction(self, txn: Transaction, olds: Sequence[Handle], restored: Handle | None) -> Handle:
        retracts = []
        for old in olds:
            self.check_replace(old)
            retracts.append({"txn": old["txn"], "checkpoint_column": old["checkpoint_column"]})
        return {
            "kind": "postgres",
            "target": self._target,
            "txn": txn.name,
            "tables": [],
            "columns": [],
            "schema": {"type": "struct", "fields": []},
            "rows": 0,
            "bytes": 0,
            "retracts": retracts,
        }

    # ---- a gate reads what is staged

    def read_staged(self, handle: Handle) -> Any:
        self._key_of(handle)
        schema = to_arrow_schema(handle["schema"])
        return pa.RecordBatchReader.from_batches(schema, self._read_batches(handle, schema))

    def _read_batches(self, handle: Handle, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for staged in handle["tables"]:
            yield from staging_tables.read_batches(self._server, self.config.schema, staged["name"], schema, READ_ROWS)

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        """Return the staged rows; a worker reads each staging table."""
        from pyspark.sql.types import StructType

        self._key_of(handle)
        server, schema, arrow_schema = self._server, self.config.schema, to_arrow_schema(handle["schema"])
        names = [(staged["name"],) for staged in handle["tables"]]

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for name in batch.column(0).to_pylist():
                    yield from staging_tables.read_batches(server, schema, name, arrow_schema, READ_ROWS)

        tables = spark.createDataFrame(names, "name STRING").repartition(max(1, len(names)))
        return tables.mapInArrow(read, StructType.fromJson(handle["schema"]))


@dataclass(frozen=True)
class _Comparison:
    """The ledger's row and the table, as one transaction has read them."""

    name: str
    place: str
    row: LedgerRow
    table_id: int | None

    def compare(self, last: Publication) -> History:
        if last.target != self.place:
            return History(Answer.ELSEWHERE)
        return ledger.compare(self.row, self.table_id, last)


def _continue_line(row: LedgerRow, table_id: int, last: Publication | None) -> LedgerRow:
    """Return the row for a publication to this table, on a new line if earlier ones of this line are lost."""
    if row.table_id is not None and row.table_id != table_id:
        return replace(row, table_id=table_id, line=uuid.uuid4().hex, earlier_lines=())
    lost = last.lost if last else ()
    for publication in lost:
        if publication.proof["line"] == row.line and publication.decision > row.published_by:
            earlier = (*row.earlier_lines, (row.line, row.published_by))
            return replace(row, table_id=table_id, line=uuid.uuid4().hex, earlier_lines=earlier)
    return replace(row, table_id=table_id)
