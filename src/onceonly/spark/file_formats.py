"""How Spark writes files of rows, and reads them again as they were: by their types, with nothing guessed or lost.

Without an import of Spark, because the types of a format are also asked for where no Spark is.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from onceonly.spark.strict_reading import strict_reader

Schema = Mapping[str, Any]  # Spark's StructType in its JSON form
MICROS = {  # by default, Spark truncates to milliseconds
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
BLANKS = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}  # by default Spark strips them
OPTIONS = {  # to write, and to read
    "csv": {"header": "true", "escape": '"', **BLANKS, **MICROS},
    "json": {"ignoreNullFields": "false", **MICROS},
}


def reader(spark: Any, format: str, schema: Schema) -> Any:
    """A DataFrameReader of such files, for which a value that it cannot read is an error."""
    read = strict_reader(spark).format(format).options(**OPTIONS.get(format, {}), **_strict(format))
    return read.schema(on_spark(as_read(format, schema)))


def in_order(rows: Any, schema: Schema) -> Any:
    """The columns in the order of the schema: those of partition folders come last otherwise."""
    return rows.select(*(_quoted(field["name"]) for field in schema["fields"]))


def as_read(format: str, schema: Schema) -> Schema:
    """The types that rows of this schema have after they were read from such files."""
    found: Schema = {"avro": in_avro, "json": in_json}.get(format, dict)(schema)
    return found


def on_spark(schema: Schema) -> Any:
    """The schema as Spark's StructType."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(dict(schema))


def in_json(kind: Any) -> Any:
    """The type after reading from JSON, in which the keys of maps are text."""
    return _replaced(kind, {}, keys="string")


def in_avro(kind: Any) -> Any:
    """The type after reading from Avro, in which the smallest integer is an int."""
    return _replaced(kind, {"byte": "integer", "short": "integer"})


def _replaced(kind: Any, by: Mapping[str, str], keys: str | None = None) -> Any:
    if isinstance(kind, str):
        return by.get(kind, kind)
    changed = dict(kind)
    for part in ("type", "elementType", "valueType", "keyType"):
        if part in kind and (part != "type" or "name" in kind):
            changed[part] = keys if part == "keyType" and keys else _replaced(kind[part], by, keys)
    if "fields" in kind:
        changed["fields"] = [_replaced(field, by, keys) for field in kind["fields"]]
    return changed


def _strict(format: str) -> dict[str, str]:
    """Options that make unreadable values an error instead of null, and keep an empty text of CSV apart from null."""
    strict = {"mode": "FAILFAST"}
    return {"csv": strict | {"multiLine": "true", "nullValue": uuid.uuid4().hex}, "json": strict}.get(format, {})


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
