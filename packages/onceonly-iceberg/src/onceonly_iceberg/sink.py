"""Iceberg tables, appended to exactly once.

`stage` writes Parquet files into a folder of the transaction, below the table's data, and a list of them. `commit`
makes them part of a branch by one commit of the catalog, which also sets a property of the table: the last decision of
this sink, and whose it was. That property is the evidence. The commit asserts the branch's head as it was when the
property was read, so of several committers one succeeds, and the others look again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table

from onceonly.errors import CannotPublish, OnceonlyError, OutcomeUnknown, StageAgain
from onceonly.sinks import (
    Context,
    DecisionTraces,
    Depth,
    Finding,
    Handle,
    History,
    InspectableRows,
    LastDecision,
    Outcome,
    Publication,
    Published,
    Receipts,
    Sink,
    TargetHistory,
    Trace,
    Transaction,
    VerifiableTarget,
)
from onceonly.sinks.toolkit import nothing_published, require_history
from onceonly_iceberg import (
    commits,
    errors,
    evidence,
    layout,
    name_mapping,
    references,
    staged_files,
    staged_rows,
    staging,
    verification,
)
from onceonly_iceberg.catalogs import TableOpener, require_answer
from onceonly_iceberg.config import IcebergSink
from onceonly_iceberg.file_store import FileStore
from onceonly_iceberg.handle import IcebergHandle
from onceonly_iceberg.staged_files import StagedList

MAX_COMMIT_ATTEMPTS = 20  # commits that may lose to other writers of the table before an error is raised


@dataclass(frozen=True)
class Rehearsed:
    """The table of a rehearsal, for the commit of the same handle that follows in the same object."""

    handle: Handle
    decision: int
    last: Publication | None
    table: Table


class IcebergWriter(Sink, DecisionTraces, TargetHistory, InspectableRows, VerifiableTarget):
    """Writes to the table of an `IcebergSink`.

    Args:
        tables: opens the table.
    """

    handle_shape = IcebergHandle

    def __init__(self, config: IcebergSink, tables: TableOpener) -> None:
        self.name, self.config = config.name, config
        self._tables = tables
        self._rehearsed: Rehearsed | None = None

    @classmethod
    def make(cls, config: IcebergSink, context: Context) -> IcebergWriter:
        return cls(config, TableOpener.make(config, context))

    @property
    def place(self) -> str:
        """The branch that is published to, for people and in proofs."""
        return self.config.targets()[0]

    @nothing_published()
    def check(self) -> list[str]:
        table = self._tables.open()
        layout.check_table(self.name, table)
        errors.require_branch(self.name, self.config.branch, table)
        return [f"{self.name}: publishes to {self.place} by fast appends, metadata only"]

    # ---- staging

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        return self._stage(txn, lambda table, store: staging.stage_with_spark(self.name, table, store, txn, rows))

    def stage_small_batch(self, txn: Transaction, rows: Any) -> Handle:
        if not hasattr(rows, "toArrow"):  # of Spark 3.5
            return self.stage(txn, rows)
        arrow = rows.toArrow()
        return self._stage(txn, lambda table, store: staging.stage_in_process(self.name, table, store, txn, arrow))

    @nothing_published()
    def _stage(self, txn: Transaction, write: Callable[[Table, FileStore], StagedList]) -> Handle:
        """Write rows, and return the handle. What is left of a failure has the transaction's name."""
        table = self._tables.open()
        layout.check_table(self.name, table)
        errors.require_branch(self.name, self.config.branch, table)
        store = FileStore(table)
        staged_files.begin(store, txn)
        staged = write(table, store)
        digest = staged_files.save(store, txn, staged)
        return {
            "kind": self.config.kind,
            "target": self.place,
            "table_uuid": str(table.metadata.table_uuid),
            "branch": self.config.branch,
            "txn": txn.name,
            "app_id": txn.app_id,
            "digest": digest,
            "schema_id": staged.schema_id,
            "spec_id": staged.spec_id,
            "files": len(staged.files),
            "rows": staged.rows,
            "bytes": staged.size,
        }

    # ---- publishing

    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        """Open the table, and look at evidence, history, schema, spec and files. Writes nothing."""
        self._rehearsed = None
        with require_answer(self.config):
            table = self._tables.open_staged(handle["table_uuid"])
            if self._is_published(table, handle, decision):
                return handle
            require_history(_ComparedTable(self, table), last)
            staged = self._load_staged(table, handle, StageAgain)
            name_mapping.require_same_columns(self.name, table, staged)
            errors.require_current_spec(self.name, table, staged)
            errors.require_branch(self.name, handle["branch"], table)
        self._rehearsed = Rehearsed(handle, decision, last, table)
        return handle

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        """Make the staged files part of the branch, once.

        Raises:
            CannotPublish: the table or the staged files were changed; needs manual resolution.
            StateBehind: the table has a decision that the state table does not have.
            TargetWentBack: the branch lacks the sink's last recorded publication.
            Fenced: it was given up.
            OutcomeUnknown: the catalog or the storage did not answer. It is safe to call again.
        """
        with require_answer(self.config):
            table = self._take_rehearsed(handle, decision, last)
            for _ in range(MAX_COMMIT_ATTEMPTS):
                table = table or self._open_to_commit(handle, last)
                if self._is_published(table, handle, decision):
                    return self._outcome(table, handle, already=True)
                try:
                    return self._publish(table, handle, decision, last)
                except commits.Refused:
                    table = None  # somebody else was first: look again before anything else
        raise errors.crowded_error(self.name, self.place, MAX_COMMIT_ATTEMPTS)

    def _take_rehearsed(self, handle: Handle, decision: int, last: Publication | None) -> Table | None:
        """Return the table of this object's rehearsal, if it was of the same. The commit asserts that it is current."""
        rehearsed, self._rehearsed = self._rehearsed, None
        if rehearsed and (rehearsed.handle, rehearsed.decision, rehearsed.last) == (handle, decision, last):
            return rehearsed.table
        return None

    def _open_to_commit(self, handle: Handle, last: Publication | None) -> Table:
        table = self._tables.find()
        if table is None or str(table.metadata.table_uuid) != handle["table_uuid"]:
            require_history(_ComparedTable(self, table), last)
            found = str(table.metadata.table_uuid) if table else None
            raise errors.other_table_error(self.name, self.place, handle, found)
        return table

    def _publish(self, table: Table, handle: Handle, decision: int, last: Publication | None) -> Outcome:
        """Publish to the table as it was opened, which shows no outcome yet. Raises commits.Refused."""
        require_history(_ComparedTable(self, table), last)
        staged = self._load_staged(table, handle, CannotPublish)
        schema = errors.require_schema(self.name, table, staged)
        spec = errors.require_spec(self.name, table, staged)
        properties = name_mapping.find_missing_properties(self.name, table, staged)
        store = FileStore(table)
        files = [file.to_data_file(store, spec, schema, staged.sort_order_id) for file in staged.files]
        decided = LastDecision(decision, handle["txn"])
        commits.append(table, handle["branch"], handle["app_id"], decided, files, properties)
        return self._outcome(table, handle, already=False)

    def _outcome(self, table: Table, handle: Handle, already: bool) -> Outcome:
        """Return the outcome that the table shows. On a local disk, it survives a power failure from now on."""
        shown = self._read_evidence(table, handle)
        references.sync(table, shown.snapshot)
        proof = evidence.make_proof(self.place, handle["table_uuid"], handle["app_id"], shown)
        return Outcome(already, {"rows": handle["rows"]}, proof)

    def _is_published(self, table: Table, handle: Handle, decision: int) -> bool:
        return self._read_evidence(table, handle).last.is_published(self.name, handle["txn"], decision)

    def _read_evidence(self, table: Table, handle: Handle) -> evidence.Evidence:
        try:
            return evidence.read(table.properties, handle["app_id"])
        except (KeyError, TypeError, ValueError) as error:
            raise errors.altered_evidence_error(self.name, self.place, handle["app_id"], error) from error

    def _load_staged(self, table: Table, handle: Handle, error: type[OnceonlyError]) -> StagedList:
        """Return the list of staged files. Raises `error` if it, or one of the files, is not as it was staged."""
        store = FileStore(table)
        staged = staged_files.load(store, handle["txn"], handle["digest"])
        if staged is None:
            raise errors.missing_files_error(self.name, handle, store.uri(staged_files.list_path(handle["txn"])), error)
        sizes = store.find_sizes([file.path for file in staged.files])
        for file, size in zip(staged.files, sizes, strict=True):
            if size != file.size:
                raise errors.missing_files_error(self.name, handle, store.uri(file.path), error)
        return staged

    # ---- giving up, and leftovers

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """Close the decision by an empty snapshot together with the property.

        The property alone would move no branch, and a committer that hangs asserts the branch's head alone.
        """
        with require_answer(self.config):
            for _ in range(MAX_COMMIT_ATTEMPTS):
                table = self._tables.find()
                if table is None:
                    raise errors.no_table_to_fence_error(self.name, self.place)
                if str(table.metadata.table_uuid) != handle["table_uuid"]:
                    return None  # there the handle is refused
                last = self._read_evidence(table, handle).last
                if last.decision >= decision:
                    is_ours = last == LastDecision(decision, handle["txn"])
                    return self._outcome(table, handle, already=True) if is_ours else None
                try:
                    commits.append(table, handle["branch"], handle["app_id"], LastDecision(decision), [], {})
                except commits.Refused:
                    continue
        raise errors.crowded_error(self.name, self.place, MAX_COMMIT_ATTEMPTS)

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        """Delete the transaction's list, and its files unless the table refers to one of them."""
        with require_answer(self.config):
            table = self._tables.find()
            if table is None:
                return
            store = FileStore(table)
            if not staged_files.exists(store, txn.name) and not store.list_parquet_files(txn.name):
                return  # never begun
            is_published = evidence.read(table.properties, txn.app_id).last.txn == txn.name
            if not is_published and not references.is_referred_to(table, store.uri(txn.name)):
                store.delete_folder(txn.name)
            store.delete_file(staged_files.list_path(txn.name))

    def leftovers(self, prefix: str) -> list[Transaction]:
        """List the transactions whose list is there. Those that the table refers to are published."""
        with require_answer(self.config):
            table = self._tables.find()
            if table is None:
                return []
            return staged_files.list_transactions(FileStore(table), prefix)

    def release(self, txn: Transaction) -> None:
        with require_answer(self.config):
            table = self._tables.find()
            if table is not None:
                FileStore(table).delete_file(staged_files.list_path(txn.name))

    # ---- what the target shows

    def traces(self, pipeline: str) -> list[Trace]:
        table = self._tables.find()
        return evidence.list_traces(table.properties, pipeline, self.name, self.place) if table else []

    def compare(self, last: Publication) -> History:
        return _ComparedTable(self, self._tables.find()).compare(last)

    def find_current_publication(self, last: Publication) -> Publication | None:
        table = self._tables.find()
        return evidence.find_current(table.metadata, self.place, last) if table else None

    def evidence(self, handle: Handle) -> list[str]:
        table = self._tables.find()
        if table is None:
            return [f"There is no table {self.place}."]
        name = evidence.property_name(handle["app_id"])
        return [f"property {name} of {self.place}: {table.properties.get(name, 'not set')}"]

    def verify(self, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
        yield from verification.verify(self.name, self.place, self._tables.find(), published, depth)

    # ---- what a gate reads

    def read_staged(self, handle: Handle) -> Any:
        with require_answer(self.config):
            table = self._tables.open_staged(handle["table_uuid"])
            staged = self._load_staged(table, handle, OutcomeUnknown)
            return staged_rows.read_batches(table, FileStore(table), staged)

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        table = self._tables.open_staged(handle["table_uuid"])
        staged = self._load_staged(table, handle, OutcomeUnknown)
        return staged_rows.make_frame(table, FileStore(table), staged, spark)

    def columns(self) -> list[str] | None:
        table = self._tables.find()
        return [column.name for column in table.schema().fields] if table else None

    def types(self) -> Mapping[str, Any] | None:
        table = self._tables.find()
        return staged_rows.spark_schema(table.schema()) if table else None

    @property
    def stages_columns_as_returned(self) -> bool:
        return False  # in the table's order, with the columns that the rows lack


class _ComparedTable:
    """A table that was opened, compared with what is recorded of it."""

    def __init__(self, sink: IcebergWriter, table: Table | None) -> None:
        self.name, self._place, self._table = sink.name, sink.place, table

    def compare(self, last: Publication) -> History:
        return evidence.compare(self._table.metadata if self._table else None, self._place, last)
