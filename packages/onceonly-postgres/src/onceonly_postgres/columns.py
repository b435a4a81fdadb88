"""The columns of the table, and whether rows fit them exactly."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceonly_postgres.binary_copy import ENCODERS, ColumnType
from onceonly_postgres.server import Cursor

FIND_TABLE = """
    SELECT c.oid::bigint, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s
"""
LIST_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typname, t.oid::bigint, e.typname, e.oid::bigint,
           a.atttypmod, a.attnotnull, a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a'
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_type e ON t.typelem = e.oid AND t.typcategory = 'A'
    WHERE a.attrelid = %s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# Constraints that only an INSERT shows: it is tried, and rolled back, before the decision
HAS_RULES = """
    SELECT EXISTS (SELECT FROM pg_constraint WHERE conrelid = %(id)s::bigint::oid)
        OR EXISTS (SELECT FROM pg_index WHERE indrelid = %(id)s::bigint::oid AND indisunique)
        OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = %(id)s::bigint::oid AND NOT tgisinternal)
        OR (SELECT relrowsecurity OR relhasrules OR relkind = 'p' FROM pg_class WHERE oid = %(id)s::bigint::oid)
"""
UNIQUE_INDEXES = """
    SELECT array_agg(a.attname ORDER BY a.attnum)::text[]
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = %s::bigint::oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
        AND i.indexprs IS NULL AND i.indimmediate AND i.indnkeyatts = i.indnatts
    GROUP BY i.indexrelid
"""
TABLE_KINDS = ("r", "p")  # a plain table, or a partitioned one
INTEGERS: Mapping[str, int] = {"byte": 1, "short": 2, "integer": 4, "long": 8}  # Spark's, with their bytes
INTEGER_DIGITS: Mapping[str, int] = {"byte": 3, "short": 5, "integer": 10, "long": 19}
TEXTS = ("text", "varchar", "json", "jsonb", "uuid")
# PostgreSQL's type -> Spark's types whose values it holds exactly
ACCEPTED: Mapping[str, tuple[str, ...]] = {
    "bool": ("boolean",),
    "bytea": ("binary",),
    "date": ("date",),
    "float4": ("float",),
    "float8": ("float", "double", "byte", "short", "integer"),
    "int2": ("byte", "short"),
    "int4": ("byte", "short", "integer"),
    "int8": ("byte", "short", "integer", "long"),
    "timestamp": ("timestamp_ntz",),
    "timestamptz": ("timestamp",),
    **dict.fromkeys(TEXTS, ("string",)),
}
TIMES = ("timestamp", "timestamptz")
WHOLE_MICROSECONDS = (-1, 6)  # a timestamp(3) would be rounded
DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")


@dataclass(frozen=True)
class TableColumn:
    """A column of the table.

    Args:
        definition: its type in SQL, with length and precision.
        modifier: PostgreSQL's `atttypmod`; -1: no length and no precision.
    """

    name: str
    definition: str
    type: ColumnType
    modifier: int
    is_required: bool
    has_default: bool
    is_generated: bool

    @property
    def is_supported(self) -> bool:
        scalar = self.type.element or self.type
        return scalar.name in ENCODERS

    @property
    def max_characters(self) -> int | None:
        """The length of a varchar(n)."""
        if (self.type.element or self.type).name == "varchar" and self.modifier >= 0:
            return self.modifier - 4
        return None

    @property
    def precision_and_scale(self) -> tuple[int, int] | None:
        """Of a numeric(p, s)."""
        if self.modifier < 0:
            return None
        packed = self.modifier - 4
        return packed >> 16, ((packed & 0x7FF) ^ 0x400) - 0x400  # the scale has a sign


def find_table(cursor: Cursor, schema: str, name: str) -> int | None:
    """Return the id of a table; None: there is none, or it is a view or the like."""
    cursor.execute(FIND_TABLE, [schema, name])
    row = cursor.fetchone()
    if row is None or row[1] not in TABLE_KINDS:
        return None
    return int(row[0])


def list_columns(cursor: Cursor, table_id: int) -> list[TableColumn]:
    """List the columns of a table in its order."""
    cursor.execute(LIST_COLUMNS, [table_id])
    columns = []
    for name, definition, type_name, oid, element_name, element_oid, modifier, *flags in cursor.fetchall():
        element = ColumnType(element_name, element_oid) if element_name else None
        columns.append(TableColumn(name, definition, ColumnType(type_name, oid, element), modifier, *flags))
    return columns


def has_rules(cursor: Cursor, table_id: int) -> bool:
    """Whether something but types can refuse a row: a constraint, a unique index, a trigger, a policy, a partition."""
    cursor.execute(HAS_RULES, {"id": table_id})
    [(answer,)] = cursor.fetchall()
    return bool(answer)


def has_unique_index(cursor: Cursor, table_id: int, names: Sequence[str]) -> bool:
    """Whether a unique index is on these columns, and on no others."""
    cursor.execute(UNIQUE_INDEXES, [table_id])
    return any(sorted(columns) == sorted(names) for (columns,) in cursor.fetchall())


def find_misfits(columns: Mapping[str, TableColumn], schema: Mapping[str, Any], ignored: str | None) -> list[str]:
    """Say of each column of the rows why the table's does not hold its values exactly, and what the rows lack.

    Args:
        schema: of the rows, in Spark's JSON form.
        ignored: a column that the sink fills itself.
    """
    misfits = []
    spark_types = {field["name"]: field["type"] for field in schema["fields"]}
    for name, spark_type in spark_types.items():
        column = columns.get(name)
        if column is None:
            misfits.append(f"'{name}' is no column of the table")
        elif column.is_generated:
            misfits.append(f"'{name}' is generated by the table")
        elif name == ignored:
            misfits.append(f"'{name}' is the checkpoint_column, which the sink fills")
        elif not _is_exact(column, spark_type):
            misfits.append(f"'{name}' is {_describe(spark_type)}, and {column.definition} in the table")
    for name, column in columns.items():
        is_filled = name in spark_types or name == ignored or column.has_default or column.is_generated
        if column.is_required and not is_filled:
            misfits.append(f"'{name}' is missing, and the table requires it")
    return misfits


def _is_exact(column: TableColumn, spark_type: Any) -> bool:
    if not column.is_supported:
        return False
    if column.type.element:
        return (
            isinstance(spark_type, dict)
            and spark_type["type"] == "array"
            and _is_exact_scalar(column, column.type.element.name, spark_type["elementType"])
        )
    return _is_exact_scalar(column, column.type.name, spark_type)


def _is_exact_scalar(column: TableColumn, name: str, spark_type: Any) -> bool:
    if not isinstance(spark_type, str):
        return False
    if name == "numeric":
        return _fits_numeric(column.precision_and_scale, spark_type)
    if name in TIMES and column.modifier not in WHOLE_MICROSECONDS:
        return False
    return spark_type in ACCEPTED[name]


def _fits_numeric(limits: tuple[int, int] | None, spark_type: str) -> bool:
    decimal = DECIMAL.fullmatch(spark_type)
    if decimal:
        precision, scale = int(decimal[1]), int(decimal[2])
    elif spark_type in INTEGERS:
        precision, scale = INTEGER_DIGITS[spark_type], 0
    else:
        return False
    if limits is None:
        return True
    return scale <= limits[1] and precision - scale <= limits[0] - limits[1]


def _describe(spark_type: Any) -> str:
    return spark_type if isinstance(spark_type, str) else str(spark_type["type"])
