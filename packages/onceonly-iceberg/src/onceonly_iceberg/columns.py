"""What the rows of a transform have to look like for a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from onceonly.errors import InvalidPipeline


def check_columns(sink: str, table: Table, rows: pa.Schema) -> None:
    """Refuse rows that would not be in the table as they are.

    A column that the rows lack is null. Smaller numbers are widened, as Iceberg widens columns.

    Raises:
        InvalidPipeline: says which column does not fit, and how to add it.
    """
    schema, name = table.schema(), ".".join(table.name())
    columns = {column.name: column for column in schema.fields}
    unknown = [column.name for column in rows if column.name not in columns]
    if unknown:
        raise InvalidPipeline(
            f"sink '{sink}': table {name} has no column '{unknown[0]}'.",
            f"The rows have {', '.join(map(repr, unknown))}; the table has {', '.join(columns)}.",
            f"Add it (ALTER TABLE {name} ADD COLUMN …), or drop it in the transform. Nothing was staged.",
            code="iceberg-column-unknown",
        )
    for column in columns.values():
        if column.name not in rows.names and column.required:
            raise InvalidPipeline(
                f"sink '{sink}': the rows have no column '{column.name}'.",
                f"Table {name} requires a value in it.",
                "Return it from the transform, or make it optional in the table. Nothing was staged.",
                code="iceberg-column-required",
            )
    for row_column in rows:
        kind = columns[row_column.name].field_type
        if not fits(row_column.type, kind):
            raise InvalidPipeline(
                f"sink '{sink}': column '{row_column.name}' has another type than in {name}.",
                f"The rows have {row_column.type}, and the table has {kind}.",
                "Cast it in the transform, or widen the table's column. Nothing was staged.",
                code="iceberg-column-type",
            )


PLAIN: Mapping[type[IcebergType], Callable[[pa.DataType], Any]] = {
    BooleanType: pa.types.is_boolean,
    DateType: pa.types.is_date32,
    DoubleType: lambda rows: pa.types.is_float32(rows) or pa.types.is_float64(rows),
    FloatType: pa.types.is_float32,
    IntegerType: lambda rows: pa.types.is_signed_integer(rows) and rows.bit_width <= 32,
    LongType: pa.types.is_signed_integer,
    StringType: lambda rows: pa.types.is_string(rows) or pa.types.is_large_string(rows),
    BinaryType: lambda rows: pa.types.is_binary(rows) or pa.types.is_large_binary(rows),
    TimestampType: lambda rows: rows == pa.timestamp("us"),
    TimestamptzType: lambda rows: pa.types.is_timestamp(rows) and rows.tz is not None and rows.unit == "us",
}


def fits(rows: pa.DataType, kind: IcebergType) -> bool:
    """Return whether values of the type on the left are exact in a column of the type on the right."""
    if pa.types.is_null(rows):
        return True
    match kind:
        case StructType():
            return _fits_struct(rows, kind)
        case ListType():
            return _is_list(rows) and fits(rows.value_type, kind.element_type)
        case MapType():
            return pa.types.is_map(rows) and _fits_map(rows, kind)
        case DecimalType():
            return _fits_decimal(rows, kind)
        case _:
            return type(kind) in PLAIN and bool(PLAIN[type(kind)](rows))


def _fits_map(rows: pa.DataType, kind: MapType) -> bool:
    return fits(rows.key_type, kind.key_type) and fits(rows.item_type, kind.value_type)


def _is_list(rows: pa.DataType) -> bool:
    return bool(pa.types.is_list(rows) or pa.types.is_large_list(rows))


def _fits_decimal(rows: pa.DataType, kind: DecimalType) -> bool:
    if not pa.types.is_decimal(rows):
        return False
    return bool(rows.scale == kind.scale and rows.precision <= kind.precision)


def _fits_struct(rows: pa.DataType, kind: StructType) -> bool:
    """Structs have the same fields in the same order: Spark casts them by position."""
    if not pa.types.is_struct(rows) or [field.name for field in rows] != [part.name for part in kind.fields]:
        return False
    return all(fits(field.type, part.field_type) for field, part in zip(rows, kind.fields, strict=True))
