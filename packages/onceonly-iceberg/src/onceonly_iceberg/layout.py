"""The layout of a table: which columns a file has, which partition it is in, and how its rows are ordered.

A file is in one partition if the transform gives the same for its least and its greatest value. So the partition of a
file is computed from its metrics by PyIceberg's own transforms, and never taken from the name of a folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
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

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly_iceberg.metrics import FileMetrics

MIN_FORMAT, MAX_FORMAT = 2, 2
PLAIN_TYPES = (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)
TRANSFORMS = (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
DISTRIBUTION = "write.distribution-mode"


def check_table(sink: str, table: Table) -> None:
    """Refuse a table to which files could not be appended exactly.

    Raises:
        InvalidPipeline: says why.
    """
    if not MIN_FORMAT <= table.format_version <= MAX_FORMAT:
        raise InvalidPipeline(
            f"sink '{sink}': table {_name(table)} has format version {table.format_version}.",
            "Sequence numbers keep out a process that commits late; version 1 has none. Newer versions are not "
            "supported yet.",
            "Use format version 2 (ALTER TABLE … SET TBLPROPERTIES ('format-version'='2')). Nothing was written.",
            code="iceberg-format",
        )
    for column in table.schema().fields:
        if "." in column.name or not is_supported(column.field_type):
            raise InvalidPipeline(
                f"sink '{sink}': column '{column.name}' of {_name(table)} cannot be written.",
                f"Its type is {column.field_type}. Spark has no such type, or the name has a dot.",
                "Use another type or name in the table. Nothing was written.",
                code="iceberg-column",
            )
    _check_names(sink, table, StructType(*table.schema().fields))
    for part in table.spec().fields:
        if not isinstance(part.transform, TRANSFORMS):
            raise InvalidPipeline(
                f"sink '{sink}': {_name(table)} is partitioned by '{part.transform}'.",
                "This transform is not known.",
                "Partition by identity, bucket, truncate, year, month, day or hour. Nothing was written.",
                code="iceberg-transform",
            )


def _check_names(sink: str, table: Table, kind: IcebergType) -> None:
    """Refuse names beside each other that differ only in case: Spark, Hive and Trino take them for one."""
    match kind:
        case ListType():
            _check_names(sink, table, kind.element_type)
        case MapType():
            _check_names(sink, table, kind.key_type)
            _check_names(sink, table, kind.value_type)
        case StructType():
            names_by_lower: dict[str, str] = {}
            for part in kind.fields:
                other = names_by_lower.setdefault(part.name.lower(), part.name)
                if other != part.name:
                    raise InvalidPipeline(
                        f"sink '{sink}': columns '{other}' and '{part.name}' of {_name(table)} differ only in case.",
                        "Spark, Hive and Trino take them for one column.",
                        f"Rename one of them (ALTER TABLE {_name(table)} RENAME COLUMN …). Nothing was written.",
                        code="iceberg-column",
                    )
                _check_names(sink, table, part.field_type)


def _name(table: Table) -> str:
    return ".".join(table.name())


def is_supported(kind: IcebergType) -> bool:
    """Return whether values of the type are the same in Spark."""
    if isinstance(kind, StructType):
        return all("." not in part.name and is_supported(part.field_type) for part in kind.fields)
    if isinstance(kind, ListType):
        return is_supported(kind.element_type)
    if isinstance(kind, MapType):
        return is_supported(kind.key_type) and is_supported(kind.value_type)
    return isinstance(kind, PLAIN_TYPES)


def has_lists(schema: Schema) -> bool:
    """Return whether some column is or has a list or a map, for which Spark's writer knows no field ids."""
    return any(_has_lists(column.field_type) for column in schema.fields)


def _has_lists(kind: IcebergType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_lists(part.field_type) for part in kind.fields)
    return isinstance(kind, ListType | MapType)


def source_type(schema: Schema, part: PartitionField) -> IcebergType:
    return schema.find_type(part.source_id)


def find_partition(sink: str, spec: PartitionSpec, schema: Schema, metrics: FileMetrics) -> list[Any]:
    """Return the partition's values of a file.

    Raises:
        NotCommitted: the file has rows of several partitions.
    """
    return [_find_value(sink, part, schema, metrics) for part in spec.fields]


def _find_value(sink: str, part: PartitionField, schema: Schema, metrics: FileMetrics) -> Any:
    if isinstance(part.transform, VoidTransform):
        return None
    nulls = metrics.all_nulls.get(part.source_id, metrics.rows)  # a column that the file lacks is null
    if nulls == metrics.rows:
        return None
    bounds = metrics.bounds[part.source_id]
    if bounds.least is None and bounds.greatest is None:
        if isinstance(source_type(schema, part), FloatType | DoubleType) and not nulls:
            return float("nan")
        raise _mixed_error(sink, part)
    transform = part.transform.transform(source_type(schema, part))
    least, greatest = transform(bounds.least), transform(bounds.greatest)
    if nulls or least != greatest:
        raise _mixed_error(sink, part)
    return least


def _mixed_error(sink: str, part: PartitionField) -> NotCommitted:
    return NotCommitted(
        f"sink '{sink}': a staged file has rows of several partitions.",
        f"Partition field '{part.name}' ({part.transform}) differs among them.",
        "This is a fault of Onceonly, or text that is not UTF-8. Nothing was published.",
        code="iceberg-partition-mixed",
    )


def is_clustered(properties: Mapping[str, str]) -> bool:
    """Return whether rows of a partition are to be written by one task."""
    return properties.get(DISTRIBUTION, "hash") != "none"
