"""The evidence: one row for each state table, pipeline, sink and table, with the last decision and whose it was.

The row changes in the transaction that publishes rows, from the last decision to this one, under its lock. So it also
fences: whoever comes late finds the later decision. Its size does not grow.

A *line* is a sequence of publications without a gap. If a person accepts that publications are lost, and the sink goes
on, a new line begins: so a publication of before the gap is known for one that is there or one that is lost.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from onceonly.sinks import Answer, History, LastDecision, Publication, Transaction
from onceonly_postgres.server import Cursor, Server, qualified

TABLE = "ledger"
CREATE = """
    CREATE TABLE IF NOT EXISTS {ledger} (
        state_id text, pipeline text, sink text, target text, table_id regclass, decision bigint NOT NULL,
        txn text NOT NULL, published text NOT NULL, published_by bigint NOT NULL, number bigint NOT NULL,
        line text NOT NULL, earlier_lines jsonb NOT NULL, at timestamptz NOT NULL,
        PRIMARY KEY (state_id, pipeline, sink, target)
    )
"""
COLUMNS = "table_id::oid::bigint, decision, txn, published, published_by, number, line, earlier_lines"
EXISTS_ALREADY = (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateSchema, psycopg.errors.DuplicateTable)
MAX_CREATE_ATTEMPTS = 5


@dataclass(frozen=True)
class LedgerKey:
    """Whose row it is: `target` is 'schema.table'."""

    state_id: str
    pipeline: str
    sink: str
    target: str

    @classmethod
    def of_transaction(cls, txn: Transaction, target: str) -> LedgerKey:
        return cls(txn.state_id, txn.pipeline, txn.sink, target)

    @property
    def values(self) -> list[str]:
        return [self.state_id, self.pipeline, self.sink, self.target]


@dataclass(frozen=True)
class LedgerRow:
    """What the ledger shows of one sink.

    Args:
        table_id: of the table that was published to; None: nothing was.
        decision, txn: the last decision, and its transaction; empty: it was given up.
        published, published_by: the last transaction that was published, and its decision.
        number: how many were published. A gap between the numbers of two is one that nobody has recorded.
        line: in which the last decision stands.
        earlier_lines: those before it, each with its last decision.
    """

    table_id: int | None = None
    decision: int = 0
    txn: str = ""
    published: str = ""
    published_by: int = 0
    number: int = 0
    line: str = ""
    earlier_lines: Sequence[tuple[str, int]] = ()

    @property
    def last_decision(self) -> LastDecision:
        return LastDecision(self.decision, self.txn)


class Ledger:
    """The table `ledger` of one schema."""

    def __init__(self, server: Server, schema: str) -> None:
        self._server, self._schema = server, schema
        self._ledger: Composed = qualified(schema, TABLE)

    def make(self) -> None:
        """Create schema and table unless they exist; another process may do the same."""
        for attempt in range(1, MAX_CREATE_ATTEMPTS + 1):
            try:
                with self._server.transaction() as cursor:
                    if not self.exists(cursor):
                        cursor.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(self._schema)))
                        cursor.execute(SQL(CREATE).format(ledger=self._ledger))
                return
            except EXISTS_ALREADY:
                if attempt == MAX_CREATE_ATTEMPTS:
                    raise

    def exists(self, cursor: Cursor) -> bool:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [self._ledger.as_string(cursor)])
        [(exists,)] = cursor.fetchall()
        return bool(exists)

    def read(self, cursor: Cursor, key: LedgerKey) -> LedgerRow:
        """Return the row; an empty one if there is none."""
        if not self.exists(cursor):
            return LedgerRow()
        return self._read(cursor, key, SQL(""))

    def lock(self, cursor: Cursor, key: LedgerKey) -> LedgerRow:
        """Return the row, locked until the transaction ends. It is created if there is none."""
        cursor.execute(
            SQL(
                "INSERT INTO {} VALUES (%s, %s, %s, %s, NULL, 0, '', '', 0, 0, %s, '[]', now()) ON CONFLICT DO NOTHING"
            ).format(self._ledger),
            [*key.values, uuid.uuid4().hex],
        )
        return self._read(cursor, key, SQL("FOR UPDATE"))

    def _read(self, cursor: Cursor, key: LedgerKey, lock: SQL) -> LedgerRow:
        query = SQL("SELECT {} FROM {} WHERE (state_id, pipeline, sink, target) = (%s, %s, %s, %s) {}")
        cursor.execute(query.format(SQL(COLUMNS), self._ledger, lock), key.values)
        row = cursor.fetchone()
        if row is None:
            return LedgerRow()
        table_id, decision, txn, published, published_by, number, line, earlier_lines = row
        earlier = tuple((name, end) for name, end in earlier_lines)
        return LedgerRow(table_id, decision, txn, published, published_by, number, line, earlier)

    def publish(self, cursor: Cursor, key: LedgerKey, row: LedgerRow) -> None:
        """Write a row that was locked, with a later decision."""
        query = SQL(
            "UPDATE {} SET (table_id, decision, txn, published, published_by, number, line, earlier_lines, at) "
            "= (%s::bigint::oid::regclass, %s, %s, %s, %s, %s, %s, %s::jsonb, now()) "
            "WHERE (state_id, pipeline, sink, target) = (%s, %s, %s, %s) AND decision < %s"
        ).format(self._ledger)
        lines = json.dumps(list(row.earlier_lines))
        values: list[Any] = [row.table_id, row.decision, row.txn, row.published, row.published_by, row.number, row.line]
        values.append(lines)
        cursor.execute(query, [*values, *key.values, row.decision])
        if cursor.rowcount != 1:  # cannot be: the row is locked, and its decision is an earlier one
            raise RuntimeError(
                f"the ledger shows decision {row.decision} already, or a later one: nothing is published"
            )

    def list_rows(self, cursor: Cursor, pipeline: str, sink: str, target: str) -> list[tuple[str, int]]:
        """List (id of the state table, last decision) of the sink."""
        if not self.exists(cursor):
            return []
        query = SQL("SELECT state_id, decision FROM {} WHERE (pipeline, sink, target) = (%s, %s, %s) AND decision > 0")
        cursor.execute(query.format(self._ledger), [pipeline, sink, target])
        return [(str(state_id), int(decision)) for state_id, decision in cursor.fetchall()]


def is_shown(row: LedgerRow, proof_line: str, decision: int, txn: str) -> bool:
    """Whether a publication of that line is among those that the row stands for."""
    if proof_line == row.line:
        if row.published_by == decision:
            return row.published == txn
        return row.published_by > decision
    return any(line == proof_line and decision <= end for line, end in row.earlier_lines)


def compare(row: LedgerRow, table_id: int | None, last: Publication) -> History:
    """Compare the ledger with a publication.

    Args:
        table_id: of the table that is there now.
    """
    proof = last.proof
    if table_id is None:
        return History(Answer.WENT_BACK, "there is no such table")
    if row.table_id is not None and row.table_id != table_id and proof["txn"]:
        return History(Answer.WENT_BACK, "the table was dropped, and another one has its name")
    if not proof["txn"]:  # a person has accepted a table that shows nothing
        return History(Answer.SAME)
    if is_shown(row, proof["line"], last.decision, proof["txn"]):
        return History(Answer.SAME)
    if row.line != proof["line"]:
        return History(Answer.WENT_BACK, "its ledger does not know that publication")
    why = f"its ledger shows decision {row.published_by} ({row.published or 'nothing'}), and not {proof['txn']}"
    return History(Answer.WENT_BACK, why, min(row.published_by, last.decision - 1))
