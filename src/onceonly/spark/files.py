"""Reading exactly the files that are named, with Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from onceonly.spark.file_formats import Schema, as_read, in_order, on_spark, reader
from onceonly.spark.tables import GLOB


@dataclass(frozen=True)
class Group:
    """Files that are read alike.

    Args:
        schema: of the rows as they were written.
        paths: below the folder in which they are, with the same partition columns.
    """

    format: str
    schema: Schema
    paths: Sequence[str]


def read_groups(spark: SparkSession, root: str, groups: Sequence[Group]) -> DataFrame:
    """Return all rows of at least one group, with the columns of all groups, those of the last group first.

    A column that a row's group does not have is null.
    """
    rows, *older_rows = [_read_group(spark, root, group) for group in reversed(groups)]
    for frame in older_rows:
        rows = rows.unionByName(frame, allowMissingColumns=True)
    return rows


def make_empty(spark: SparkSession, format: str, schema: Schema) -> DataFrame:
    """Return no rows, with the columns that files of that schema have."""
    return spark.createDataFrame([], on_spark(as_read(format, schema)))


def _read_group(spark: SparkSession, root: str, group: Group) -> DataFrame:
    paths = [GLOB.sub(r"\\\1", f"{root}/{path}") for path in group.paths]
    group_reader = reader(spark, group.format, group.schema).option("basePath", root)
    rows: DataFrame = in_order(group_reader.load(paths), group.schema)
    return rows
