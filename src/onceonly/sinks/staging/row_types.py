"""The types of staged rows, as in Spark. They are part of the handle, so that no reader has to infer them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

Schema = Mapping[str, Any]  # Spark's StructType in its JSON form
PLAIN: Mapping[str, pa.DataType] = {
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "date": pa.date32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "short": pa.int16(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
MICROS = {
    "coerce_int96_timestamp_unit": "us"
}  # Spark's timestamps in Parquet: as nanoseconds they would overflow in 2262
DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
OF_SOME_LENGTH = re.compile(r"(var)?char\(\d+\)")


class OnlySpark(Exception):
    """A type that Arrow does not have, such as an interval or a variant."""


def of(rows: Any) -> dict[str, Any]:
    """The schema of a DataFrame, as a handle holds it."""
    schema: dict[str, Any] = nullable(json.loads(rows.schema.json()))
    return schema


def on_spark(schema: Schema) -> Any:
    """The schema as Spark's StructType."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(dict(schema))


def names(schema: Schema) -> list[str]:
    return [field["name"] for field in schema["fields"]]


def arrow(schema: Schema) -> pa.Schema:
    """The schema in Arrow. Raises OnlySpark."""
    return pa.schema(_fields(schema))


def _fields(struct: Schema) -> list[pa.Field]:
    return [pa.field(field["name"], kind_of(field["type"])) for field in struct["fields"]]


def kind_of(kind: Any) -> pa.DataType:
    """The Arrow type for one of Spark's types in its JSON form. Raises OnlySpark."""
    if isinstance(kind, str):
        return _plain(kind)
    match kind["type"]:
        case "struct":
            return pa.struct(_fields(kind))
        case "array":
            return pa.list_(kind_of(kind["elementType"]))
        case "map":
            return pa.map_(kind_of(kind["keyType"]), kind_of(kind["valueType"]))
        case "udt":
            return kind_of(kind["sqlType"])
        case other:
            raise OnlySpark(other)


def _plain(kind: str) -> pa.DataType:
    if kind in PLAIN:
        return PLAIN[kind]
    if decimal := DECIMAL.fullmatch(kind):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if OF_SOME_LENGTH.fullmatch(kind):
        return pa.string()
    raise OnlySpark(kind)


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


def nullable(schema: Any) -> Any:
    """The schema of a table that Spark creates from a DataFrame: every column is nullable, and has no metadata."""
    if isinstance(schema, list):
        return [nullable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    loose = {"nullable": True, "containsNull": True, "valueContainsNull": True, "metadata": {}}
    return {key: loose[key] if key in loose else nullable(value) for key, value in schema.items()}
