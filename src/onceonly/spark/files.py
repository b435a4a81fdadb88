"""Read exactly the files that are named, with Spark."""

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


def rows(spark: SparkSession, root: str, groups: Sequence[Group]) -> DataFrame:
    """All rows of at least one group, with the columns of all, those of the last group first. Others are null."""
    newest, *older = [_group(spark, root, group) for group in reversed(groups)]
    for frame in older:
        newest = newest.unionByName(frame, allowMissingColumns=True)
    return newest


def none(spark: SparkSession, format: str, schema: Schema) -> DataFrame:
    """No rows, with the columns that files of that schema have."""
    return spark.createDataFrame([], on_spark(as_read(format, schema)))


def _group(spark: SparkSession, root: str, group: Group) -> DataFrame:
    paths = [GLOB.sub(r"\\\1", f"{root}/{path}") for path in group.paths]
    read = reader(spark, group.format, group.schema).option("basePath", root)
    found: DataFrame = in_order(read.load(paths), group.schema)
    return found
