"""Rows as JSON in a table of a SQLite database. Rows and evidence change in one transaction of that database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from onceonly import CannotPublish, Fenced, InvalidPipeline, OutcomeUnknown
from onceonly.errors import StageAgain, StateBehind
from onceonly.sinks import (
    Context,
    DecisionTraces,
    Handle,
    InspectableRows,
    Outcome,
    Publication,
    Receipts,
    Sink,
    SinkConfig,
    Trace,
    Transaction,
)


@dataclass(frozen=True)
class SqliteSink(SinkConfig):
    """A table `table` (txn, row) in the database at `path`, which is relative to ONCEONLY_HOME."""

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
    """In the same database: `staged`, a row per transaction, and `decided`, the last decision per app id."""

    def __init__(self, config: SqliteSink, context: Context) -> None:
        self.name, self._table, self._path = config.name, config.table, context.locate(config.path)

    def check(self) -> list[str]:
        with self._transaction():
            return [f"{self.name}: inserts into '{self._table}' of {self._path}"]

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        found = rows if isinstance(rows, list) else [row.asDict() for row in rows.toLocalIterator()]
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO staged VALUES (?, ?)", (txn.name, json.dumps(found)))
        return {"txn": txn.name, "app_id": txn.app_id, "rows": len(found), "target": self._path}

    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        with self._transaction() as db:
            if not self._is_published(db, handle, decision):
                try:
                    self._rows(db, handle)
                except CannotPublish as error:
                    raise StageAgain(error.what, error.why, code="staged-rows-missing") from error
        return handle

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        done = {"rows": handle["rows"]}
        with self._transaction() as db:
            if self._is_published(db, handle, decision):
                return Outcome(already=True, detail=done)
            rows = [(handle["txn"], json.dumps(row)) for row in self._rows(db, handle)]
            db.executemany(f"INSERT INTO {self._table} VALUES (?, ?)", rows)
            db.execute("DELETE FROM staged WHERE txn = ?", (handle["txn"],))
            self._write_last(db, handle, decision, handle["txn"])
        return Outcome(detail=done)

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        with self._transaction() as db:
            last = self._last(db, handle)
            if last[0] < decision:
                self._write_last(db, handle, decision, None)
        return Outcome(already=True, detail={"rows": handle["rows"]}) if last == (decision, handle["txn"]) else None

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM staged WHERE txn = ?", (txn.name,))

    def leftovers(self, prefix: str) -> list[Transaction]:
        with self._transaction() as db:
            names = [name for (name,) in db.execute("SELECT txn FROM staged ORDER BY txn")]
        return [txn for name in names if name.startswith(f"{prefix}-") and (txn := Transaction.parse(name))]

    def traces(self, pipeline: str) -> list[Trace]:
        with self._transaction() as db:
            found = [(app_id.split("/"), at) for app_id, at in db.execute("SELECT app_id, decision FROM decided")]
        mine = [(state_id, at) for (_, state_id, of, sink), at in found if (of, sink) == (pipeline, self.name)]
        return [Trace(state_id, at, f"database {self._path}") for state_id, at in mine]

    def read_staged(self, handle: Handle) -> Any:
        import pyarrow as pa

        with self._transaction() as db:
            return pa.Table.from_pylist(self._rows(db, handle)).to_reader()

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        with self._transaction() as db:
            return spark.createDataFrame(self._rows(db, handle))

    def _is_published(self, db: sqlite3.Connection, handle: Handle, decision: int) -> bool:
        """Raises StateBehind or Fenced if another transaction has this decision, or a later one was published."""
        shown = self._last(db, handle)
        if shown == (decision, handle["txn"]):
            return True
        if shown[0] >= decision:
            raise self._overtaken(handle, decision, shown)
        return False

    def _rows(self, db: sqlite3.Connection, handle: Handle) -> list[dict[str, Any]]:
        found = db.execute("SELECT rows FROM staged WHERE txn = ?", (handle["txn"],)).fetchone()
        if found is None:
            todo = f"Restore it and recover, or: onceonly resolve PIPELINE EPOCH --give-up {self.name} --reason …"
            raise CannotPublish(f"sink '{self.name}': the staged rows no longer exist.", f"No {handle['txn']}.", todo)
        return list(json.loads(found[0]))

    def _last(self, db: sqlite3.Connection, handle: Handle) -> tuple[int, str | None]:
        """The last decision, and the transaction that published it; None: it was given up."""
        found = db.execute("SELECT decision, txn FROM decided WHERE app_id = ?", (handle["app_id"],)).fetchone()
        return found or (0, None)

    def _write_last(self, db: sqlite3.Connection, handle: Handle, decision: int, txn: str | None) -> None:
        db.execute("INSERT OR REPLACE INTO decided VALUES (?, ?, ?)", (handle["app_id"], decision, txn))

    def _overtaken(self, handle: Handle, decision: int, last: tuple[int, str | None]) -> Exception:
        what = f"sink '{self.name}': decision {last[0]} is there where {decision} is to be published."
        if last == (decision, None):
            return Fenced(what, "It was given up.")
        todo = "Go on after what is there: onceonly state forward (docs/operations.md, Backup and restore)"
        return StateBehind(what, f"It is of {last[1]}, not {handle['txn']}: the state table went back.", todo)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing. An error of the database says nothing about the outcome."""
        db = None
        try:
            db = sqlite3.connect(self._path, timeout=60, isolation_level=None)
            db.execute("BEGIN IMMEDIATE")
            db.execute("CREATE TABLE IF NOT EXISTS staged (txn TEXT PRIMARY KEY, rows TEXT)")
            db.execute("CREATE TABLE IF NOT EXISTS decided (app_id TEXT PRIMARY KEY, decision INTEGER, txn TEXT)")
            db.execute(f"CREATE TABLE IF NOT EXISTS {self._table} (txn TEXT, row TEXT)")
            yield db
            db.execute("COMMIT")
        except sqlite3.Error as error:
            raise OutcomeUnknown(f"sink '{self.name}': {error}.", todo="onceonly recover looks again.") from error
        finally:
            if db:
                db.close()  # rolls back what was not committed
