"""Rows written by Spark's own Parquet writer, into folders by partition, with field ids in the files.

Spark only has to keep rows of different partitions apart. What a partition's values are is computed from the files. So
a folder's name may be a digest, where a value would make a bad name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from onceonly.sinks.toolkit import read_schema, to_arrow_schema
from onceonly.spark import row_files
from onceonly.spark.conf import temporary_conf
from onceonly_iceberg import layout

FIELD_ID = "parquet.field.id"
WRITE_IDS = "spark.sql.parquet.fieldId.write.enabled"
PLAIN_NAME = r"^[0-9A-Za-z_.-]{1,48}$"
RESERVED_NAME = r"^(null|sha-.*)$"
HOUR_MICROS = 3_600_000_000
MAX_INT = 2**31 - 1
# Spark hashes several values one after the other, with 42 as the first seed, and each hash as the next. The hash of
# this number is 0, so what comes after it is hashed with the seed 0, as Iceberg does it.
HASHES_TO_ZERO = -1_693_959_553
SPARK_NAMES = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    "binary": "binary",
}


def arrow_schema(rows: Any) -> pa.Schema:
    """Return the columns of a DataFrame."""
    return to_arrow_schema(read_schema(rows))


def write(table: Table, rows: Any, uri: str) -> bool:
    """Write all rows below a folder. Returns whether each file is in the table's sort order."""
    from pyspark.sql import functions as F

    schema = table.schema()
    has_ids = not layout.has_lists(schema)
    columns = []
    for column in schema.fields:
        value = F.col(row_files.quote_name(column.name)) if column.name in rows.columns else F.lit(None)
        metadata = {FIELD_ID: column.field_id} if has_ids else {}
        columns.append(value.cast(spark_type(column.field_type, has_ids)).alias(column.name, metadata=metadata))
    frame = rows.select(*columns)
    folders = _folder_columns(table)
    if folders:
        frame = frame.select("*", *(expression().alias(name) for name, expression in folders.items()))
        if layout.is_clustered(table.properties):
            frame = frame.repartition(*(F.col(name) for name in folders))
    order = _sort_columns(table)
    if order:
        frame = frame.sortWithinPartitions(*(F.col(name) for name in folders), *order)
    with temporary_conf(frame.sparkSession, {WRITE_IDS: str(has_ids).lower()}):
        row_files.save(frame, uri, "parquet", list(folders))
    return bool(order)


# ---- types


def spark_type(kind: IcebergType, has_ids: bool) -> Any:
    """Return Spark's type, with field ids in structs."""
    from pyspark.sql.types import StructField
    from pyspark.sql.types import StructType as SparkStruct

    data = {"name": "value", "type": type_json(kind, has_ids), "nullable": True, "metadata": {}}
    return SparkStruct([StructField.fromJson(data)]).fields[0].dataType


def type_json(kind: IcebergType, has_ids: bool) -> Any:
    match kind:
        case StructType():
            return {"type": "struct", "fields": [_field_json(part, has_ids) for part in kind.fields]}
        case ListType():
            return {"type": "array", "elementType": type_json(kind.element_type, has_ids), "containsNull": True}
        case MapType():
            key, value = type_json(kind.key_type, has_ids), type_json(kind.value_type, has_ids)
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case _:
            return SPARK_NAMES[str(kind)]


def _field_json(part: NestedField, has_ids: bool) -> dict[str, Any]:
    metadata = {FIELD_ID: part.field_id} if has_ids else {}
    return {"name": part.name, "type": type_json(part.field_type, has_ids), "nullable": True, "metadata": metadata}


# ---- partitions


def _folder_columns(table: Table) -> dict[str, Callable[[], Any]]:
    """Return the columns by whose values Spark makes folders, by names that no column of the table has."""
    schema = table.schema()
    taken = {name.lower() for name in schema.column_names}
    columns: dict[str, Callable[[], Any]] = {}
    for part in table.spec().fields:
        if isinstance(part.transform, VoidTransform):
            continue
        name = "".join(letter if letter.isalnum() else "_" for letter in part.name)
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        columns[name] = _folder_of(schema, part)
    return columns


def _folder_of(schema: Schema, part: PartitionField) -> Callable[[], Any]:
    path = schema.find_column_name(part.source_id) or ""
    kind = schema.find_type(part.source_id)

    def expression() -> Any:
        from pyspark.sql import functions as F

        source = F.col(".".join(map(row_files.quote_name, path.split("."))))
        return _plain_name(_transform(source, kind, part.transform), kind)

    return expression


def _plain_name(value: Any, kind: IcebergType) -> Any:
    """Return a text that is another one for each value, and can be the name of a folder everywhere."""
    from pyspark.sql import functions as F

    text = F.hex(value) if isinstance(kind, BinaryType) else value.cast("string")
    is_plain = text.rlike(PLAIN_NAME) & ~text.rlike(RESERVED_NAME)
    digest = F.concat(F.lit("sha-"), F.substring(F.sha2(text, 256), 1, 40))
    return F.when(value.isNull(), F.lit("null")).when(is_plain, text).otherwise(digest)


def _transform(source: Any, kind: IcebergType, transform: Any) -> Any:
    """Return what is the same for all rows of a partition."""
    from pyspark.sql import functions as F

    if isinstance(transform, BucketTransform):
        return _bucket(source, kind, transform.num_buckets)
    if isinstance(transform, TruncateTransform):
        return _truncate(source, kind, transform.width)
    if isinstance(transform, YearTransform):
        return F.year(source)
    if isinstance(transform, MonthTransform):
        return F.year(source) * 12 + F.month(source)
    if isinstance(transform, DayTransform):
        return F.to_date(source)
    if isinstance(transform, HourTransform):
        return F.floor(F.unix_micros(source.cast("timestamp")) / F.lit(HOUR_MICROS))
    assert isinstance(transform, IdentityTransform)
    return source


def _truncate(source: Any, kind: IcebergType, width: int) -> Any:
    from pyspark.sql import functions as F

    if isinstance(kind, StringType | BinaryType):
        return F.substring(source, 1, width)
    if isinstance(kind, IntegerType | LongType):
        number = source.cast("long")
        return number - F.pmod(number, F.lit(width).cast("long"))
    unscaled = (source * F.lit(10**kind.scale).cast("decimal(38,0)")).cast("decimal(38,0)")  # type: ignore[attr-defined]
    return unscaled - F.pmod(unscaled, F.lit(width).cast("decimal(38,0)"))


def _bucket(source: Any, kind: IcebergType, buckets: int) -> Any:
    """Return the bucket of Iceberg's hash (Murmur3, 32 bits, seed 0)."""
    from pyspark.sql import functions as F

    if isinstance(kind, StringType | BinaryType | DecimalType):
        return _bucket_in_python(source, kind, buckets)
    if isinstance(kind, DateType):
        number = F.unix_date(source)
    elif isinstance(kind, TimestampType | TimestamptzType):
        number = F.unix_micros(source.cast("timestamp"))
    else:
        number = source
    hashed = F.hash(F.lit(HASHES_TO_ZERO), number.cast("long"))
    return F.when(source.isNotNull(), hashed.bitwiseAND(F.lit(MAX_INT)) % F.lit(buckets))


def _bucket_in_python(source: Any, kind: IcebergType, buckets: int) -> Any:
    """Return the bucket of texts and bytes, which Spark's own hash takes in another way: by batches, in Python."""
    from pyspark.sql.pandas import functions as pandas_functions
    from pyspark.sql.types import IntegerType as SparkInteger

    make_udf: Any = pandas_functions.pandas_udf
    function = _make_bucket_function(isinstance(kind, DecimalType), buckets)
    return make_udf(function, SparkInteger())(source)


def _make_bucket_function(is_decimal: bool, buckets: int) -> Any:
    """Return the function for Spark's workers; it is sent by value, and needs mmh3 and pandas there."""

    def bucket(values):  # type: ignore[no-untyped-def]
        import mmh3

        def to_bytes(value: Any) -> bytes:
            if is_decimal:
                sign, digits, _ = value.as_tuple()
                unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
                size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
                return unscaled.to_bytes(size, "big", signed=True)
            return value.encode() if isinstance(value, str) else bytes(value)

        def bucket_of(value: Any) -> int | None:
            if value is None:
                return None
            return (mmh3.hash(to_bytes(value)) & 0x7FFFFFFF) % buckets

        return values.astype(object).map(bucket_of).astype("Int32")

    import pandas as pd

    bucket.__annotations__ = {"values": pd.Series, "return": pd.Series}
    return bucket


# ---- order


def _sort_columns(table: Table) -> list[Any]:
    """Return the table's sort order; empty: it has none, or one that only Iceberg's transforms give."""
    from pyspark.sql import functions as F

    schema, columns = table.schema(), []
    for part in table.sort_order().fields:
        name = schema.find_column_name(part.source_id)
        if not isinstance(part.transform, IdentityTransform) or name is None:
            return []
        column = F.col(".".join(map(row_files.quote_name, name.split("."))))
        is_first = part.null_order is NullOrder.NULLS_FIRST
        if part.direction is SortDirection.ASC:
            columns.append(column.asc_nulls_first() if is_first else column.asc_nulls_last())
        else:
            columns.append(column.desc_nulls_first() if is_first else column.desc_nulls_last())
    return columns
