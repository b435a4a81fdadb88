"""Read exactly a range of versions of a Delta table, with Spark."""

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

from onceonly.spark.strict_reading import strict_reader
from onceonly.spark.temporary_conf import OLD_VERSIONS, temporary_conf

FEED = (
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
)  # what a Change Data Feed has beside the table's columns
GLOB = re.compile(r"([{}*?\[\]\\])")  # what a path must not mean to Spark
TAG = "__onceonly_file"
PLAIN = re.compile(r"[\w.-]+")  # a file name that is the same in every encoding
LOST = re.compile(
    r"FILE_NOT_EXIST|FileNotFound|DELTA_FILE_NOT_FOUND|PATH_NOT_FOUND|PATH_DOES_NOT_EXIST|FAILED_READ_FILE|TIMESTAMP|VERSION"
    r"|does not exist|No such file|truncated|[Vv]ersion",
)
Files = Sequence[tuple[str, Mapping[str, str | None]]]  # path, and the text of each partition column


def schema_of(text: str) -> StructType:
    """A Delta schema as Spark's; without settings of its columns, which are for writers."""
    found: StructType = StructType.fromJson(_bare(json.loads(text)))
    return found


def appended(spark: SparkSession, root: str, schema: StructType, partitioned: Sequence[str], files: Files) -> DataFrame:
    """The rows of these files, with the columns of `schema`; what a file has not is null."""
    if not files:
        return spark.createDataFrame([], schema)
    groups = [files] if not partitioned or _distinct(files) else [[file] for file in files]
    frames = [_group(spark, root, schema, partitioned, group) for group in groups]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def snapshot(spark: SparkSession, uri: str, version: int, schema: StructType) -> DataFrame:
    """All rows of the table as of that version."""
    rows = _of_any_age(spark, uri, {"versionAsOf": str(version)})
    return rows.select(*map(_named, schema.names))


def inserted(rows: DataFrame, version: int, time: datetime) -> DataFrame:
    """Rows as a Change Data Feed would show them if they were inserted by that version."""
    told = (F.lit("insert"), F.lit(version).cast("bigint"), F.lit(time.isoformat()).cast("timestamp"))
    return rows.select("*", *(value.alias(name) for name, value in zip(FEED, told, strict=True)))


def changed(spark: SparkSession, uri: str, start: int, end: int, schema: StructType) -> DataFrame:
    """The Change Data Feed of the versions from `start` to before `end`, with the columns of `schema`."""
    options = {"readChangeFeed": "true", "startingVersion": str(start), "endingVersion": str(end - 1)}
    rows = _of_any_age(spark, uri, options)
    columns = [_named(field.name).cast(field.dataType).alias(field.name) for field in schema.fields]
    return rows.select(*columns, *FEED)


def _of_any_age(spark: SparkSession, uri: str, options: Mapping[str, str]) -> DataFrame:
    """Versions of a table, without Delta's refusal of old ones, which is raised when the read is analysed.

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
    """Whether a read may have failed because files or versions were deleted. Only the log can prove it."""
    return LOST.search(str(error)) is not None


def _group(spark: SparkSession, root: str, schema: StructType, partitioned: Sequence[str], files: Files) -> DataFrame:
    data = StructType([field for field in schema.fields if field.name not in partitioned])
    paths = [GLOB.sub(r"\\\1", f"{root.rstrip('/')}/{path}") for path, _ in files]
    rows: DataFrame = strict_reader(spark).schema(data).parquet(*paths)
    if not partitioned:
        return rows
    if len(files) == 1:
        values = {name: F.lit(files[0][1].get(name)) for name in partitioned}
    else:
        rows, values = _looked_up(spark, rows, partitioned, files)
    return rows.select(
        *(
            values[field.name].cast(field.dataType).alias(field.name) if field.name in values else _named(field.name)
            for field in schema.fields
        )
    )


def _looked_up(
    spark: SparkSession, rows: DataFrame, partitioned: Sequence[str], files: Files
) -> tuple[DataFrame, dict[str, Column]]:
    """The rows with the values of their file; a row of a file that is not among them fails."""
    names = [TAG, *(f"{TAG}_{number}" for number in range(len(partitioned)))]
    listed = [(_name(path), *(values.get(name) for name in partitioned)) for path, values in files]
    known = spark.createDataFrame(listed, ", ".join(f"{name} STRING" for name in names))
    tagged = rows.withColumn(f"{TAG}_of", F.col("_metadata.file_name"))
    joined = tagged.join(F.broadcast(known), tagged[f"{TAG}_of"] == known[TAG], "left")
    unknown = F.raise_error(F.concat(F.lit("a file that was not requested: "), F.col(f"{TAG}_of")))
    values = {
        name: F.when(F.col(TAG).isNull(), unknown.cast("string")).otherwise(F.col(column))
        for name, column in zip(partitioned, names[1:], strict=True)
    }
    return joined, values


def _distinct(files: Files) -> bool:
    """Whether each file is known by its name alone."""
    names = [_name(path) for path, _ in files]
    return len(set(names)) == len(names) and all(PLAIN.fullmatch(name) for name in names)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def quoted(name: str) -> str:
    """A column's name as Spark takes it for that of one column, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def _named(name: str) -> Column:
    return F.col(quoted(name))


def _bare(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: {} if key == "metadata" else _bare(value) for key, value in part.items()}
    return [_bare(each) for each in part] if isinstance(part, list) else part
