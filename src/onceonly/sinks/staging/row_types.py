"""The types of staged rows, as in Spark. They are part of the handle, so that no reader has to infer them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from onceonly.errors import InvalidPipeline
from onceonly.spark.row_files import Schema

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
# Read options for Spark's timestamps in Parquet: as nanoseconds they would overflow in 2262.
MICROS = {"coerce_int96_timestamp_unit": "us"}
DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
OF_SOME_LENGTH = re.compile(r"(var)?char\(\d+\)")


class OnlySpark(Exception):
    """A type that Arrow does not have, such as an interval or a variant."""


def read_schema(rows: Any) -> dict[str, Any]:
    """Return the schema of a DataFrame, as a handle holds it."""
    schema: dict[str, Any] = nullable(json.loads(rows.schema.json()))
    return schema


def arrow(schema: Schema) -> pa.Schema:
    """Return the schema in Arrow. Raises OnlySpark."""
    return pa.schema(_fields(schema))


def _fields(struct: Schema) -> list[pa.Field]:
    return [pa.field(field["name"], kind_of(field["type"])) for field in struct["fields"]]


def kind_of(kind: Any) -> pa.DataType:
    """Return the Arrow type for one of Spark's types in its JSON form. Raises OnlySpark."""
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
        case unsupported:
            raise OnlySpark(unsupported)


def _plain(kind: str) -> pa.DataType:
    if kind in PLAIN:
        return PLAIN[kind]
    if decimal := DECIMAL.fullmatch(kind):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if OF_SOME_LENGTH.fullmatch(kind):
        return pa.string()
    raise OnlySpark(kind)


def nullable(schema: Any) -> Any:
    """Return the schema of a table that Spark creates from a DataFrame: all columns nullable and without metadata."""
    if isinstance(schema, list):
        return [nullable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    replaced = {"nullable": True, "containsNull": True, "valueContainsNull": True, "metadata": {}}
    return {key: replaced[key] if key in replaced else nullable(value) for key, value in schema.items()}


def refuse_duplicates(sink: str, rows: Any) -> None:
    """Raise InvalidPipeline if two columns have one name: to Spark and to tables, upper and lower case are the same."""
    names = [name.lower() for name in rows.columns]
    duplicates = sorted({name for name in rows.columns if names.count(name.lower()) > 1})
    if duplicates:
        raise InvalidPipeline(
            f"sink '{sink}': the rows have several columns of one name.",
            f"The transform's output has {', '.join(map(repr, duplicates))} more than once (upper and lower "
            "case count as the same).",
            "Rename or drop one of them in the transform. Nothing was staged.",
            code="duplicate-column",
        )
