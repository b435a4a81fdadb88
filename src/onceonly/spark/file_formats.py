"""How Spark writes files of rows, and reads them again as they were: by their types, with nothing guessed or lost.

Without an import of Spark, because the types of a format are also asked for where no Spark is.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceonly.spark import stores
from onceonly.spark.conf import PARQUET_TIMES, temporary_conf
from onceonly.spark.strict_reading import escape_glob, quote_name, strict_reader
from onceonly.storage.paths import local_path, spark_uri

Schema = Mapping[str, Any]  # Spark's StructType in its JSON form
MICROSECOND_FORMATS = {  # by default, Spark truncates to milliseconds
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
BLANKS = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}  # by default Spark strips them
OPTIONS = {  # to write, and to read
    "csv": {"header": "true", "escape": '"', **BLANKS, **MICROSECOND_FORMATS},
    "json": {"ignoreNullFields": "false", **MICROSECOND_FORMATS},
}


@dataclass(frozen=True)
class FileGroup:
    """Files that are read alike.

    Args:
        schema: of the rows as they were written.
        paths: below the folder in which they are, with the same partition columns.
    """

    format: str
    schema: Schema
    paths: Sequence[str]


def read_file_groups(spark: Any, root: str, groups: Sequence[FileGroup]) -> Any:
    """Return all rows of at least one group, with the columns of all groups, those of the last group first.

    A column that a row's group does not have is null.
    """
    rows, *older_rows = [_read_group(spark, root, group) for group in reversed(groups)]
    for frame in older_rows:
        rows = rows.unionByName(frame, allowMissingColumns=True)
    return rows


def make_empty_rows(spark: Any, format: str, schema: Schema) -> Any:
    """Return no rows, with the columns that files of that schema have."""
    return spark.createDataFrame([], on_spark(as_read(format, schema)))


def _read_group(spark: Any, root: str, group: FileGroup) -> Any:
    paths = [escape_glob(f"{root}/{path}") for path in group.paths]
    group_reader = reader(spark, group.format, group.schema).option("basePath", root)
    rows: Any = in_order(group_reader.load(paths), group.schema)
    return rows


def reader(spark: Any, format: str, schema: Schema) -> Any:
    """Return a DataFrameReader of such files, for which a value that it cannot read is an error."""
    file_reader = strict_reader(spark).format(format).options(**OPTIONS.get(format, {}), **_strict_options(format))
    return file_reader.schema(on_spark(as_read(format, schema)))


def in_order(rows: Any, schema: Schema) -> Any:
    """Return the rows with columns in the order of the schema: those of partition folders come last otherwise."""
    return rows.select(*(quote_name(field["name"]) for field in schema["fields"]))


def as_read(format: str, schema: Schema) -> Schema:
    """Return the types that rows of this schema have after they were read from such files."""
    schema_as_read: Schema = {"avro": in_avro, "json": in_json}.get(format, dict)(schema)
    return schema_as_read


def on_spark(schema: Schema) -> Any:
    """Return the schema as Spark's StructType."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(dict(schema))


def in_json(kind: Any) -> Any:
    """Return the type after reading from JSON, in which the keys of maps are text."""
    return _replace_types(kind, {}, key_type="string")


def in_avro(kind: Any) -> Any:
    """Return the type after reading from Avro, in which the smallest integer is an int."""
    return _replace_types(kind, {"byte": "integer", "short": "integer"})


def _replace_types(kind: Any, replacements: Mapping[str, str], key_type: str | None = None) -> Any:
    """Return a type in Spark's JSON form with other types in it, at any depth.

    Args:
        replacements: name of a type -> name of its replacement.
        key_type: the type of all maps' keys; None: they are replaced as any other.
    """
    if isinstance(kind, str):
        return replacements.get(kind, kind)
    new_type = dict(kind)
    for part in ("type", "elementType", "valueType", "keyType"):
        is_tag = part == "type" and "name" not in kind  # "struct", "array" or "map"; of a field it is the field's type
        if part not in kind or is_tag:
            continue
        if part == "keyType" and key_type:
            new_type[part] = key_type
        else:
            new_type[part] = _replace_types(kind[part], replacements, key_type)
    if "fields" in kind:
        new_type["fields"] = [_replace_types(field, replacements, key_type) for field in kind["fields"]]
    return new_type


def _strict_options(format: str) -> dict[str, str]:
    """Return options that make unreadable values an error instead of null, and keep an empty text of CSV from null."""
    match format:
        case "csv":
            return {"mode": "FAILFAST", "multiLine": "true", "nullValue": uuid.uuid4().hex}
        case "json":
            return {"mode": "FAILFAST"}
        case _:
            return {}


def write_files(rows: Any, folder: str, format: str = "parquet", by: Sequence[str] = ()) -> int:
    """Write all rows in one job, replacing the content of the folder; returns the number of rows.

    Args:
        by: columns that become partition folders.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    observation, uri = Observation(uuid.uuid4().hex), folder_uri(folder)
    writer = rows.observe(observation, F.count(F.lit(1)).alias("rows")).write.mode("overwrite").format(format)
    committer_options = stores.committer_options(uri)  # as the store can do it
    settings = dict([stores.PROTOCOL]) if committer_options else {}
    with temporary_conf(rows.sparkSession, settings | PARQUET_TIMES):
        writer.options(**OPTIONS.get(format, {}), **committer_options).partitionBy(*by).save(uri)
    return int(observation.get["rows"])


def folder_uri(folder: str) -> str:
    """Return the folder's URI for Spark, independent of Spark's default file system."""
    local = local_path(folder)
    return f"file://{local}" if local else spark_uri(folder)
