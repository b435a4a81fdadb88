"""The sink of docs/add-a-sink.md with a table's name, assets, DecisionTraces and InspectableRows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from onceonly.errors import CannotPublish, InvalidPipeline, OnceonlyError, OutcomeUnknown, StageAgain
from onceonly.sinks import (
    Context,
    DecisionTraces,
    Handle,
    InspectableRows,
    LastDecision,
    Outcome,
    Publication,
    Receipts,
    Sink,
    SinkConfig,
    Trace,
    Transaction,
)

TABLES = """
    CREATE TABLE IF NOT EXISTS rows (txn TEXT, row TEXT);
    CREATE TABLE IF NOT EXISTS decisions (app_id TEXT, decision INTEGER, txn TEXT, PRIMARY KEY (app_id, decision));
    CREATE VIEW IF NOT EXISTS {view} AS SELECT row FROM rows WHERE txn IN (SELECT txn FROM decisions);
"""


@dataclass(frozen=True)
class SqliteSink(SinkConfig):
    """A view `table` (row) in the database at `path`, which is relative to ONCEONLY_HOME."""

    path: str
    table: str = "published"

    kind = "sqlite"
    writer = "onceonly_sqlite:SqliteWriter"
    inspectable = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.table.isidentifier():
            raise InvalidPipeline(f"sink '{self.name}': '{self.table}' is no name of a table.", todo="Use letters.")

    def targets(self) -> tuple[str, ...]:
        return (f"table '{self.table}' of '{self.path}'",)

    def asset_uris(self) -> tuple[str, ...]:
        return (f"sqlite://{self.path}/{self.table}",)


class SqliteWriter(Sink, DecisionTraces, InspectableRows):
    def __init__(self, config: SqliteSink, context: Context) -> None:
        self.name, self._table, self._path = config.name, config.table, context.locate(config.path)

    def check(self) -> list[str]:
        with self._transaction():
            return [f"{self.name}: publishes to '{self._table}' of {self._path}"]

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        lines = [(txn.name, json.dumps(row.asDict(recursive=True), default=str)) for row in rows.toLocalIterator()]
        with self._transaction() as db:
            db.executemany("INSERT INTO rows VALUES (?, ?)", lines)
        return {"txn": txn.name, "app_id": txn.app_id, "rows": len(lines), "target": self._path}

    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        with self._transaction() as db:
            if not self._read_last(db, handle).is_published(self.name, handle["txn"], decision):
                self._require_rows(db, handle, StageAgain)
        return handle

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        with self._transaction() as db:
            already = self._read_last(db, handle).is_published(self.name, handle["txn"], decision)
            if not already:
                self._require_rows(db, handle, CannotPublish)
                db.execute("INSERT INTO decisions VALUES (?, ?, ?)", (handle["app_id"], decision, handle["txn"]))
        return Outcome(already, {"rows": handle["rows"]})

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        with self._transaction() as db:
            last = self._read_last(db, handle)
            if last.decision < decision:
                db.execute("INSERT INTO decisions VALUES (?, ?, '')", (handle["app_id"], decision))
        return Outcome(True, {"rows": handle["rows"]}) if last == LastDecision(decision, handle["txn"]) else None

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM rows WHERE txn = ? AND txn NOT IN (SELECT txn FROM decisions)", (txn.name,))

    def leftovers(self, prefix: str) -> list[Transaction]:
        with self._transaction() as db:
            names = db.execute("SELECT DISTINCT txn FROM rows WHERE txn NOT IN (SELECT txn FROM decisions)").fetchall()
        return [txn for (name,) in names if (txn := Transaction.parse(name)) and name.startswith(f"{prefix}-")]

    def traces(self, pipeline: str) -> list[Trace]:
        with self._transaction() as db:
            last_decisions = db.execute("SELECT app_id, max(decision) FROM decisions GROUP BY app_id").fetchall()
        traces = []
        for app_id, decision in last_decisions:
            _, state_id, traced_pipeline, sink = app_id.split("/")
            if (traced_pipeline, sink) == (pipeline, self.name):
                traces.append(Trace(state_id, decision, f"database {self._path}"))
        return traces

    def read_staged(self, handle: Handle) -> Any:
        import pyarrow as pa

        return pa.Table.from_pylist(self._read_rows(handle)).to_reader()

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        return spark.createDataFrame(self._read_rows(handle))

    def _read_rows(self, handle: Handle) -> list[dict[str, Any]]:
        with self._transaction() as db:
            return [json.loads(row) for (row,) in db.execute("SELECT row FROM rows WHERE txn = ?", (handle["txn"],))]

    def _read_last(self, db: sqlite3.Connection, handle: Handle) -> LastDecision:
        query = "SELECT decision, txn FROM decisions WHERE app_id = ? ORDER BY decision DESC LIMIT 1"
        return LastDecision(*db.execute(query, (handle["app_id"],)).fetchone() or (0, ""))

    def _require_rows(self, db: sqlite3.Connection, handle: Handle, error: type[OnceonlyError]) -> None:
        (count,) = db.execute("SELECT count(*) FROM rows WHERE txn = ?", (handle["txn"],)).fetchone()
        if count != handle["rows"]:
            what, why = f"sink '{self.name}': staged rows are missing.", f"{count} of {handle['rows']} are there."
            raise error(what, why, f"onceonly resolve PIPELINE EPOCH --give-up {self.name} --reason …")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing. An error of the database says nothing about the outcome."""
        try:
            with closing(sqlite3.connect(self._path, timeout=60, isolation_level=None)) as db:
                db.executescript(f"BEGIN IMMEDIATE; {TABLES.format(view=self._table)}")
                yield db
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise OutcomeUnknown(f"sink '{self.name}': {error}.", todo="onceonly recover") from error
