"""Files of rows: how Spark writes them, and reads them again as they were. Nothing is guessed, skipped or lost.

This is the one place where Onceonly opens files with Spark. It imports no Spark, because the types of a format are also
asked for where no Spark is.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceonly.counts import count
from onceonly.errors import InvalidPipeline, NotCommitted, first_sentence
from onceonly.spark import stores
from onceonly.spark.conf import PARQUET_TIMES, temporary_conf
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
SKIPPING_SETTINGS = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
# `mergeSchema` reads every footer, and would add columns that the schema of the read does not have.
FILE_OPTIONS = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "mergeSchema": "false"}
GLOB_CHARACTERS = re.compile(r"([{}*?\[\]\\])")


# ---- strict readers
#
# Spark can be set to skip files that are missing or damaged (SKIPPING_SETTINGS), and clusters often are. Rows then
# disappear without an error. Readers of plain files can be told otherwise by options. Readers of Delta tables take no
# options, so the session's settings are switched off, too.


def strict_reader(spark: Any) -> Any:
    """Return a DataFrameReader for which a file that cannot be read is an error.

    Raises:
        InvalidPipeline: the session skips files, and refuses to be set otherwise. Nothing was read.
    """
    switch_off_skipping(spark)
    return spark.read.options(**FILE_OPTIONS)


def switch_off_skipping(spark: Any) -> None:
    """Let no read of this session skip files, from now on. A user's own reads get the errors that they would miss.

    A lazy DataFrame is read under the settings of the moment in which it is executed. So this is called again after
    foreign code (a transform) has had the session.

    Raises:
        InvalidPipeline: the session refuses to be set.
    """
    for setting in SKIPPING_SETTINGS:
        if str(spark.conf.get(setting, "false")).lower() == "false":
            continue
        try:
            spark.conf.set(setting, "false")
        except Exception as error:
            raise InvalidPipeline(
                f"Spark is set to skip files that it cannot read ({setting}).",
                f"Rows would be missing without an error, and the session refuses to be set otherwise: "
                f"{first_sentence(error)[:300]}",
                f"Set {setting}=false in Spark's configuration. Nothing was written.",
                code="spark-skips-files",
            ) from error


def escape_glob(path: str) -> str:
    """Return the path as Spark takes it for that of one file, whatever is in it."""
    return GLOB_CHARACTERS.sub(r"\\\1", path)


def quote_name(name: str) -> str:
    """Return a column's name as Spark takes it for that of one column, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def require_rows(found: int, expected: int, what: str) -> None:
    """Refuse rows that were read back in another number than they were written.

    Args:
        what: was read, such as "sink 'lake': the staged rows".
    Raises:
        NotCommitted: the numbers differ.
    """
    if found == expected:
        return
    raise NotCommitted(
        f"{what} are not the rows that were written.",
        f"{count(expected, 'row')} had been written, and {found:,} can be read. Files were damaged, removed or added.",
        "Restore the files from a copy. If the checkpoint is not decided yet: onceonly abort PIPELINE EPOCH --reason "
        "…, "
        "then onceonly run FILE.py:NAME. Nothing was published.",
        code="rows-differ",
    )


# ---- formats


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

    observation = Observation(uuid.uuid4().hex)
    save(rows.observe(observation, F.count(F.lit(1)).alias("rows")), folder, format, by)
    return int(observation.get["rows"])


def save(
    rows: Any, folder: str, format: str, by: Sequence[str] = (), format_options: Mapping[str, str] | None = None
) -> None:
    """Write all rows in one job, replacing the content of the folder.

    Args:
        by: columns that become partition folders.
        format_options: of the format's writer.
    """
    uri = folder_uri(folder)
    committer_options = stores.committer_options(uri)  # as the store can do it
    settings = dict([stores.PROTOCOL]) if committer_options else {}
    options = {**OPTIONS.get(format, {}), **committer_options, **(format_options or {})}
    with temporary_conf(rows.sparkSession, settings | PARQUET_TIMES):
        rows.write.mode("overwrite").format(format).options(**options).partitionBy(*by).save(uri)


def folder_uri(folder: str) -> str:
    """Return the folder's URI for Spark, independent of Spark's default file system."""
    local = local_path(folder)
    return f"file://{local}" if local else spark_uri(folder)
