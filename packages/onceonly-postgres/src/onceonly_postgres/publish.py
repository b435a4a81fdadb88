"""The statements of the one transaction that publishes: rows out, rows in, staging tables gone."""

from __future__ import annotations

from typing import Any

from psycopg.sql import SQL, Composed, Identifier, Literal

from onceonly.sinks import Handle
from onceonly.sinks.toolkit import replaced_handles
from onceonly_postgres import staging_tables
from onceonly_postgres.columns import TableColumn
from onceonly_postgres.handle import MergeColumns
from onceonly_postgres.server import Cursor, qualified


class RowsMissing(Exception):
    """A staging table is not there, or has lost rows."""


class TableChanged(Exception):
    """A column of the table has another type than the one for which the rows were staged."""


class ColumnMissing(Exception):
    """The table has lost a column of the staged rows."""


def lock_table(cursor: Cursor, table: Composed) -> None:
    """Keep others from altering the table until the transaction ends. Readers and writers go on."""
    cursor.execute(SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(table))


def require_same_columns(columns: list[TableColumn], handle: Handle) -> None:
    """Refuse a table whose columns are others than those of the staged rows: values might be rounded.

    Raises:
        ColumnMissing, TableChanged: it is.
    """
    types = {column.name: column.definition for column in columns}
    for column in handle["columns"]:
        name, staged_type = column["name"], column["type"]
        if name not in types:
            raise ColumnMissing(f"Column '{name}' is not there")
        if types[name] != staged_type:
            raise TableChanged(f"Column '{name}' was {staged_type}, and is {types[name]}")


def require_rows(cursor: Cursor, schema: str, handle: Handle) -> None:
    """Raise RowsMissing unless all staged rows are there."""
    for staged in handle["tables"]:
        rows = staging_tables.count_rows(cursor, schema, staged["name"])
        if rows is None:
            raise RowsMissing(f"The table {staged['name']} of {handle['txn']} is not there.")
        if rows != staged["rows"]:
            raise RowsMissing(f"The table {staged['name']} of {handle['txn']} has {rows} of {staged['rows']} rows.")


def publish_rows(cursor: Cursor, table: Composed, schema: str, handle: Handle) -> None:
    """Take out what the handle replaces, and put its rows into the table. They have been counted."""
    for old in replaced_handles(handle):
        column = Identifier(old["checkpoint_column"])
        cursor.execute(SQL("DELETE FROM {} WHERE {} = %s").format(table, column), [old["txn"]])
    for staged in handle["tables"]:
        cursor.execute(_insert_statement(table, qualified(schema, staged["name"]), handle))
        if "merge" not in handle and cursor.rowcount != staged["rows"]:
            raise RowsMissing(f"Of {staged['rows']} rows in {staged['name']}, the table took {cursor.rowcount}.")


def drop_staged(cursor: Cursor, schema: str, handle: Handle) -> None:
    """Drop the staging tables in the transaction that has published their rows."""
    for staged in handle["tables"]:
        cursor.execute(SQL("DROP TABLE {}").format(qualified(schema, staged["name"])))


def explain_insert(cursor: Cursor, table: Composed, schema: str, handle: Handle) -> None:
    """Let the server plan each statement: it checks columns, types and rights, and executes nothing."""
    for staged in handle["tables"]:
        cursor.execute(SQL("EXPLAIN ") + _insert_statement(table, qualified(schema, staged["name"]), handle))


def _insert_statement(table: Composed, staged: Composed, handle: Handle) -> Composed:
    names = [column["name"] for column in handle["columns"]]
    columns = SQL(", ").join(map(Identifier, names))
    if "merge" in handle:
        return _merge_statement(table, staged, names, handle["merge"])
    if "checkpoint_column" not in handle:
        return SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(table, columns, columns, staged)
    return SQL("INSERT INTO {} ({}, {}) SELECT {}, {} FROM {}").format(
        table, columns, Identifier(handle["checkpoint_column"]), columns, Literal(handle["txn"]), staged
    )


def _merge_statement(table: Composed, staged: Composed, names: list[str], merge: MergeColumns) -> Composed:
    """Return the statement that keeps the newest row of each key.

    One statement may not change a row twice, so it reads the newest of each key alone.
    """
    keys, order = list(map(Identifier, merge["keys"])), list(map(Identifier, merge["order_by"]))
    parts: dict[str, Any] = {
        "table": table,
        "staged": staged,
        "columns": SQL(", ").join(map(Identifier, names)),
        "keys": SQL(", ").join(keys),
        "newest_first": SQL(", ").join(SQL("{} DESC").format(column) for column in order),
        "changes": SQL(", ").join(
            SQL("{} = excluded.{}").format(Identifier(name), Identifier(name))
            for name in names
            if name not in merge["keys"]
        ),
        "new_order": SQL(", ").join(SQL("excluded.{}").format(column) for column in order),
        "old_order": SQL(", ").join(SQL("present.{}").format(column) for column in order),
    }
    return SQL(
        "INSERT INTO {table} AS present ({columns}) "
        "SELECT DISTINCT ON ({keys}) {columns} FROM {staged} ORDER BY {keys}, {newest_first} "
        "ON CONFLICT ({keys}) DO UPDATE SET {changes} WHERE ({new_order}) > ({old_order})"
    ).format(**parts)
