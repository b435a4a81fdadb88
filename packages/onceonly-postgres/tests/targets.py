"""Tables that the contract suite publishes to, and what can become of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plain_client import execute

from onceonly import KafkaSource, Merge, Pipeline
from onceonly.runtime.live_services import LiveServices
from onceonly.sinks import Handle, Sink, Transaction
from onceonly.testing.contract import SINK, Break, Damage, Target
from onceonly_postgres import PostgresSink

CONNECTION = "shop_database"


def connection_variable(port: int | str, **settings: str) -> tuple[str, str]:
    """Return name and value of the variable that holds the connection."""
    extra = {"host": "127.0.0.1", "port": port, "dbname": "postgres", "user": "airflow", **settings}
    return f"AIRFLOW_CONN_{CONNECTION.upper()}", json.dumps({"conn_type": "postgres", "extra": extra})


def open_sink(config: PostgresSink) -> Sink:
    """Return a new sink, as a process makes it from a definition."""
    pipeline = Pipeline(name="flights", source=KafkaSource("flights"), transform="jobs:same", sinks=[config])
    return LiveServices().sink(pipeline, config.name)


@dataclass(frozen=True)
class NumberTable(Target):
    """A table with a column n, and a schema of its own for the ledger and staging tables."""

    port: int
    table: str
    options: dict[str, Any] = field(default_factory=dict)

    def config(self) -> PostgresSink:
        return PostgresSink(SINK, self.table, CONNECTION, schema=self.ledger_schema, **self.options)

    @property
    def ledger_schema(self) -> str:
        return f"onceonly_{self.table}"

    def sink(self) -> Sink:
        return open_sink(self.config())

    def published(self) -> list[int]:
        return [number for (number,) in self.query(f'SELECT n FROM "{self.table}" ORDER BY n')]

    def traces(self, txn: Transaction) -> list[Any]:
        return self.query(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND obj_description(oid, 'pg_class') = %s", txn.name
        )

    def query(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return execute(self.port, sql, *arguments)


def plain_table(port: int, table: str) -> NumberTable:
    execute(port, f'CREATE TABLE "{table}" (n int)')
    return NumberTable(port, table)


def marked_table(port: int, table: str) -> NumberTable:
    execute(port, f'CREATE TABLE "{table}" (n int NOT NULL, checkpoint text, CHECK (n > -1))')
    return NumberTable(port, table, {"checkpoint_column": "checkpoint"})


def merged_table(port: int, table: str) -> NumberTable:
    execute(port, f'CREATE TABLE "{table}" (n int PRIMARY KEY, at int NOT NULL)')
    return NumberTable(port, table, {"merge": Merge(["n"], ["at"])})


Undo = Callable[[], object]


def drop_staged(target: NumberTable, handle: Handle, txn: Transaction) -> None:
    for staged in handle["tables"]:
        target.query(f'DROP TABLE "{target.ledger_schema}"."{staged["name"]}"')


def delete_staged_row(target: NumberTable, handle: Handle, txn: Transaction) -> None:
    staged = f'"{target.ledger_schema}"."{handle["tables"][0]["name"]}"'
    target.query(f"DELETE FROM {staged} WHERE ctid = (SELECT min(ctid) FROM {staged})")


def rename_table(target: NumberTable, handle: Handle, txn: Transaction) -> Undo:
    target.query(f'ALTER TABLE "{target.table}" RENAME TO "{target.table}_away"')
    return lambda: target.query(f'ALTER TABLE "{target.table}_away" RENAME TO "{target.table}"')


def widen_column(target: NumberTable, handle: Handle, txn: Transaction) -> None:
    target.query(f'ALTER TABLE "{target.table}" ALTER n TYPE bigint')


def rename_column(target: NumberTable, handle: Handle, txn: Transaction) -> Undo:
    target.query(f'ALTER TABLE "{target.table}" RENAME COLUMN n TO m')
    return lambda: target.query(f'ALTER TABLE "{target.table}" RENAME COLUMN m TO n')


def add_constraint(target: NumberTable, handle: Handle, txn: Transaction) -> Undo:
    target.query(f'ALTER TABLE "{target.table}" ADD CONSTRAINT small CHECK (n < 3 OR n = 7)')
    return lambda: target.query(f'ALTER TABLE "{target.table}" DROP CONSTRAINT small')


def forget_ledger(target: NumberTable, handle: Handle, txn: Transaction) -> Undo:
    """As a server does that was restored from a copy of before the first publication."""
    target.query(f'ALTER TABLE "{target.ledger_schema}".ledger RENAME TO away')
    return lambda: target.query(f'ALTER TABLE "{target.ledger_schema}".away RENAME TO ledger')


def advance_ledger(target: NumberTable, handle: Handle, txn: Transaction) -> None:
    """As it looks to the target if an older state table was restored."""
    sink = target.sink()
    sink.check()
    target.query(
        f"INSERT INTO \"{target.ledger_schema}\".ledger VALUES (%s, %s, %s, %s, NULL, 9, 'another', 'another', 9, 9, "
        "'line', '[]', now()) ON CONFLICT (state_id, pipeline, sink, target) DO UPDATE SET decision = 9, "
        "txn = 'another', published = 'another', published_by = 9",
        txn.state_id,
        txn.pipeline,
        txn.sink,
        f"public.{target.table}",
    )


BREAKS = (
    Break("staged tables dropped", drop_staged, "again", first=True),
    Break("staged row deleted", delete_staged_row, "again", first=True),
    Break("table renamed", rename_table, "action", first=True),
    Break("column renamed", rename_column, "action", first=True),
    Break("column widened", widen_column, "again", first=True),
    Break("constraint added", add_constraint, "action", first=True),
    Break("server restored", forget_ledger, "action"),
    Break("state table restored", advance_ledger, "action", first=True),
)


# ---- what may become of published rows


def drop_table(target: NumberTable, handle: Handle, txn: Transaction) -> None:
    target.query(f'DROP TABLE "{target.table}"')


def make_table_again(target: NumberTable, handle: Handle, txn: Transaction) -> None:
    target.query(f'ALTER TABLE "{target.table}" RENAME TO "{target.table}_old"')
    target.query(f'CREATE TABLE "{target.table}" (LIKE "{target.table}_old" INCLUDING ALL)')


def set_ledger_back(target: NumberTable, handle: Handle, txn: Transaction) -> None:
    """As after a restore of a copy of before that publication."""
    target.query(
        f'UPDATE "{target.ledger_schema}".ledger SET decision = 1, published_by = 1, number = 1, '
        "published = replace(published, '-3-', '-1-'), txn = replace(txn, '-3-', '-1-')"
    )


def remove_ledger(target: NumberTable, handle: Handle, txn: Transaction) -> None:
    target.query(f'DROP TABLE "{target.ledger_schema}".ledger')


def delete_row(target: NumberTable, handle: Handle, txn: Transaction) -> None:
    target.query(f'DELETE FROM "{target.table}" WHERE n = 3')


def double_row(target: NumberTable, handle: Handle, txn: Transaction) -> None:
    target.query(f'INSERT INTO "{target.table}" SELECT * FROM "{target.table}" WHERE n = 3')


def rewrite_table(target: NumberTable, handle: Handle, txn: Transaction) -> None:
    target.query(f'VACUUM FULL "{target.table}"')


DAMAGES = (
    Damage("table dropped", drop_table, ("target-missing",)),
    Damage("table made again", make_table_again, ("target-replaced",)),
    Damage("ledger set back", set_ledger_back, ("target-went-back",)),
    Damage("ledger removed", remove_ledger, ("commit-missing",)),
    Damage("table rewritten", rewrite_table, heals=True),
)
MARKED_DAMAGES = (
    *DAMAGES,
    Damage("row deleted", delete_row, ("rows-deleted",), deep=True),
    Damage("row doubled", double_row, ("rows-twice",), deep=True),
)
