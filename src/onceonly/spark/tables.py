"""Reading exactly a range of versions of a Delta table, with Spark."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onceonly.spark.conf import OLD_VERSIONS, temporary_conf
from onceonly.spark.row_files import escape_glob, quote_name, strict_reader

FEED = (
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
)  # what a Change Data Feed has beside the table's columns
FILE_COLUMN = "__onceonly_file"
UNQUOTED_NAME = re.compile(r"[\w.-]+")  # a file name that is the same in every encoding
LOST = re.compile(
    r"FILE_NOT_EXIST|FileNotFound|DELTA_FILE_NOT_FOUND|PATH_NOT_FOUND|PATH_DOES_NOT_EXIST|FAILED_READ_FILE|TIMESTAMP|VERSION"
    r"|does not exist|No such file|truncated|[Vv]ersion",
)
Files = Sequence[tuple[str, Mapping[str, str | None]]]  # path, and the text of each partition column


def parse_schema(text: str) -> StructType:
    """Convert a Delta schema to Spark's, without settings of its columns, which are for writers."""
    schema: StructType = StructType.fromJson(_remove_metadata(json.loads(text)))
    return schema


def read_files(
    spark: SparkSession, root: str, schema: StructType, partition_columns: Sequence[str], files: Files
) -> DataFrame:
    """Return the rows of these files, with the columns of `schema`; what a file has not is null."""
    if not files:
        return spark.createDataFrame([], schema)
    if not partition_columns or _has_distinct_names(files):
        return _read_group(spark, root, schema, partition_columns, files)
    # A row shows only its file's name, so files of the same name are read one by one.
    rows, *further_rows = [_read_group(spark, root, schema, partition_columns, [file]) for file in files]
    for frame in further_rows:
        rows = rows.unionAll(frame)
    return rows


def read_snapshot(spark: SparkSession, uri: str, version: int, schema: StructType) -> DataFrame:
    """Return all rows of the table as of that version."""
    rows = _read_versions(spark, uri, {"versionAsOf": str(version)})
    return rows.select(*map(_column, schema.names))


def add_insert_columns(rows: DataFrame, version: int, time: datetime) -> DataFrame:
    """Return the rows as a Change Data Feed would show them if they were inserted by that version."""
    values = (F.lit("insert"), F.lit(version).cast("bigint"), F.lit(time.isoformat()).cast("timestamp"))
    columns = []
    for name, value in zip(FEED, values, strict=True):
        columns.append(value.alias(name))
    return rows.select("*", *columns)


def read_changes(spark: SparkSession, uri: str, start: int, end: int, schema: StructType) -> DataFrame:
    """Return the Change Data Feed of the versions from `start` to before `end`, with the columns of `schema`."""
    options = {"readChangeFeed": "true", "startingVersion": str(start), "endingVersion": str(end - 1)}
    rows = _read_versions(spark, uri, options)
    columns = []
    for field in schema.fields:
        columns.append(_column(field.name).cast(field.dataType).alias(field.name))
    return rows.select(*columns, *FEED)


def _read_versions(spark: SparkSession, uri: str, options: Mapping[str, str]) -> DataFrame:
    """Read versions of a table, without Delta's refusal of old ones, which is raised when the read is analysed.

    A client of Spark Connect sends a read to be analysed with each use of it. A view is analysed once.
    """
    with temporary_conf(spark, OLD_VERSIONS):
        rows: DataFrame = strict_reader(spark).format("delta").options(**options).load(uri)
        if "connect" not in type(rows).__module__:
            return rows
        view = f"onceonly_{uuid.uuid4().hex}"
        rows.createTempView(view)
    return spark.table(view)


def looks_lost(error: Exception) -> bool:
    """Return whether a read may have failed because files or versions were deleted. Only the log can prove it."""
    return LOST.search(str(error)) is not None


def _read_group(
    spark: SparkSession, root: str, schema: StructType, partition_columns: Sequence[str], files: Files
) -> DataFrame:
    file_schema = StructType([field for field in schema.fields if field.name not in partition_columns])
    paths = [escape_glob(f"{root.rstrip('/')}/{path}") for path, _ in files]
    rows: DataFrame = strict_reader(spark).schema(file_schema).parquet(*paths)
    if not partition_columns:
        return rows
    if len(files) == 1:
        (_, values) = files[0]
        partition_values = {name: F.lit(values.get(name)) for name in partition_columns}
    else:
        rows, partition_values = _join_partition_values(spark, rows, partition_columns, files)
    columns = []
    for field in schema.fields:
        if field.name in partition_values:
            columns.append(partition_values[field.name].cast(field.dataType).alias(field.name))
        else:
            columns.append(_column(field.name))
    return rows.select(*columns)


def _join_partition_values(
    spark: SparkSession, rows: DataFrame, partition_columns: Sequence[str], files: Files
) -> tuple[DataFrame, dict[str, Column]]:
    """Join the rows with the partition values of their file, by its name.

    Returns:
        the rows, and a column for each partition column. It fails for a row of a file that is not among `files`.
    """
    value_columns = [f"{FILE_COLUMN}_{number}" for number in range(len(partition_columns))]
    lookup_rows = []
    for path, values in files:
        lookup_rows.append((_file_name(path), *map(values.get, partition_columns)))
    lookup_schema = ", ".join(f"{name} STRING" for name in (FILE_COLUMN, *value_columns))
    lookup = spark.createDataFrame(lookup_rows, lookup_schema)
    tagged = rows.withColumn(f"{FILE_COLUMN}_of", F.col("_metadata.file_name"))
    joined = tagged.join(F.broadcast(lookup), tagged[f"{FILE_COLUMN}_of"] == lookup[FILE_COLUMN], "left")
    failure = F.raise_error(F.concat(F.lit("a file that was not requested: "), F.col(f"{FILE_COLUMN}_of")))
    partition_values = {}
    for name, column in zip(partition_columns, value_columns, strict=True):
        is_unlisted = F.col(FILE_COLUMN).isNull()
        partition_values[name] = F.when(is_unlisted, failure.cast("string")).otherwise(F.col(column))
    return joined, partition_values


def _has_distinct_names(files: Files) -> bool:
    """Return whether each file can be told from the others by its name alone."""
    names = set()
    for path, _ in files:
        name = _file_name(path)
        if name in names or not UNQUOTED_NAME.fullmatch(name):
            return False
        names.add(name)
    return True


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


def _column(name: str) -> Column:
    return F.col(quote_name(name))


def _remove_metadata(part: Any) -> Any:
    """Return a part of a schema's JSON with empty metadata everywhere."""
    if isinstance(part, dict):
        new_part: dict[str, Any] = {}
        for key, value in part.items():
            if key == "metadata":
                new_part[key] = {}
            else:
                new_part[key] = _remove_metadata(value)
        return new_part
    if isinstance(part, list):
        return [_remove_metadata(element) for element in part]
    return part
