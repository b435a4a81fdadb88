"""Staging tables: one for each attempt of each task, so that a task which ran twice has not doubled its rows.

Each has its transaction's name as its comment. Both come in the transaction that fills the table, so a task that dies
leaves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from psycopg.sql import SQL, Composed, Identifier, Literal

from onceonly.sinks import Transaction
from onceonly_postgres import binary_copy, handle
from onceonly_postgres.binary_copy import UnfitValue
from onceonly_postgres.columns import TableColumn
from onceonly_postgres.server import Cursor, Server, qualified

LIST_TABLES = """
    SELECT c.relname, d.description FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_description d ON d.objoid = c.oid AND d.classoid = 'pg_class'::regclass AND d.objsubid = 0
    WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname, 's_') AND {condition}
"""
OF_TRANSACTION = "d.description = %s"
OF_PREFIX = "starts_with(d.description, %s)"


def fill(
    server: Server,
    schema: str,
    txn_name: str,
    columns: Iterable[TableColumn],
    required: Collection[str],
    batches: Iterable[pa.RecordBatch],
) -> tuple[str, int, int] | None:
    """Write rows into a new table. Returns its name, rows and bytes; None: there are no rows.

    Args:
        required: columns that may not be null, beside those of the target.
    Raises:
        UnfitValue: a value is none of its column's type.
        psycopg.Error: the server has refused a row.
        OutcomeUnknown: the server does not answer.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return None
    columns = list(columns)
    name = handle.new_table_name(txn_name)
    table = qualified(schema, name)
    rows = size = 0
    with server.transaction() as cursor:
        cursor.execute(_create_statement(table, columns, required))
        cursor.execute(SQL("COMMENT ON TABLE {} IS {}").format(table, Literal(txn_name)))
        names = SQL(", ").join(Identifier(column.name) for column in columns)
        with cursor.copy(SQL("COPY {} ({}) FROM STDIN (FORMAT binary, FREEZE)").format(table, names)) as copy:
            copy.write(binary_copy.HEADER)
            batch: pa.RecordBatch | None = first
            while batch is not None:
                data = encode(batch, columns)
                copy.write(data)
                rows, size = rows + batch.num_rows, size + len(data)
                batch = next(filled, None)
            copy.write(binary_copy.TRAILER)
    return name, rows, size


def encode(batch: pa.RecordBatch, columns: Iterable[TableColumn]) -> bytes:
    """Return the rows of a batch for COPY. Raises UnfitValue, which names the column."""
    fields = []
    for values, column in zip(batch.columns, columns, strict=True):
        try:
            _refuse_long_texts(values, column)
            fields.append(binary_copy.encode_column(values, column.type))
        except UnfitValue as error:
            raise UnfitValue(f"column '{column.name}' ({column.definition}): {error}") from error
    return binary_copy.join_fields(fields, batch.num_rows)


def _refuse_long_texts(values: pa.Array, column: TableColumn) -> None:
    """PostgreSQL would cut off the blanks at the end of a text that is too long for a varchar(n)."""
    if column.max_characters is None:
        return
    texts = values.flatten() if column.type.element else values
    longest = pc.max(pc.utf8_length(texts)).as_py() or 0
    if longest > column.max_characters:
        raise UnfitValue(f"a text has {longest} characters")


def _create_statement(table: Composed, columns: Iterable[TableColumn], required: Collection[str]) -> Composed:
    parts = []
    for column in columns:
        part = SQL("{} {}").format(Identifier(column.name), SQL(column.definition))
        if column.is_required or column.name in required:
            part += SQL(" NOT NULL")
        parts.append(part)
    return SQL("CREATE TABLE {} ({})").format(table, SQL(", ").join(parts))


def list_names(cursor: Cursor, schema: str, txn_name: str) -> list[str]:
    """List the staging tables of a transaction."""
    cursor.execute(SQL(LIST_TABLES).format(condition=SQL(OF_TRANSACTION)), [schema, txn_name])
    return [name for name, _ in cursor.fetchall()]


def list_transactions(cursor: Cursor, schema: str, prefix: str) -> list[Transaction]:
    """List the transactions of a prefix that have staging tables."""
    cursor.execute(SQL(LIST_TABLES).format(condition=SQL(OF_PREFIX)), [schema, f"{prefix}-"])
    transactions = set()
    for _, description in cursor.fetchall():
        txn = Transaction.parse(description)
        if txn and txn.name.startswith(f"{prefix}-"):
            transactions.add(txn)
    return sorted(transactions, key=lambda txn: (txn.epoch, txn.attempt))


def drop(server: Server, schema: str, txn_name: str, keep: Collection[str] = ()) -> None:
    """Drop the staging tables of a transaction, each by itself: a commit that reads some of them locks them all."""
    with server.transaction() as cursor:
        names = list_names(cursor, schema, txn_name)
    for name in names:
        if name not in keep:
            with server.transaction() as cursor:
                cursor.execute(SQL("DROP TABLE IF EXISTS {}").format(qualified(schema, name)))


def count_rows(cursor: Cursor, schema: str, name: str) -> int | None:
    """Count the rows of a staging table; None: there is none."""
    table = qualified(schema, name)
    cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [table.as_string(cursor)])
    [(exists,)] = cursor.fetchall()
    if not exists:
        return None
    cursor.execute(SQL("SELECT count(*) FROM {}").format(table))
    [(rows,)] = cursor.fetchall()
    return int(rows)


def read_batches(server: Server, schema: str, name: str, arrow_schema: pa.Schema, batch_rows: int) -> Any:
    """Yield the rows of a staging table as record batches."""
    columns = []
    for field in arrow_schema:
        cast = SQL("")
        if pa.types.is_string(field.type):
            cast = SQL("::text")  # of jsonb and uuid, too
        elif pa.types.is_list(field.type) and pa.types.is_string(field.type.value_type):
            cast = SQL("::text[]")
        columns.append(SQL("{}{}").format(Identifier(field.name), cast))
    query = SQL("SELECT {} FROM {}").format(SQL(", ").join(columns), qualified(schema, name))
    with (
        server.transaction(is_trial=True, may_idle=True) as cursor,
        cursor.connection.cursor(name="staged_rows") as rows,
    ):
        rows.itersize = batch_rows
        rows.execute(query)
        while chunk := rows.fetchmany(batch_rows):
            arrays = []
            for number, field in enumerate(arrow_schema):
                arrays.append(pa.array([row[number] for row in chunk], field.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)
