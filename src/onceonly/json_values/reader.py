"""Records of JSON as rows, in this process and on Spark's workers: what either reads, the other reads alike.

Sent to workers by value, which therefore need pyarrow and not this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from onceonly.json_values import conversion, text

Read = tuple[Any, str | None]  # the row, or why there is none; neither for a tombstone
ReadOne = Callable[[bytes | None], Read]
Check = Callable[[Any], str | None]  # of parsed values: which rule one breaks
NO_OBJECT = "It is not a JSON object."
VALUE, WHY = "value", "why"


def reader(type_: Any, part: str, check: Check | None = None) -> ReadOne:
    """A function that reads one record.

    Args:
        type_: a struct.
        part: 'key' or 'value', for messages.
    """
    parse, convert = text.parser(), conversion.converter(type_)

    def read(data: bytes | None) -> Read:
        if data is None:
            return None, None
        try:
            value = parse(data)
            if type(value) is not dict:
                return None, NO_OBJECT
            if check is not None and (broken := check(value)):
                return None, broken
            return convert(value), None
        except conversion.Unlike as error:
            error.path = part + error.path
            return None, _line(str(error))
        except text.NotJson as error:
            return None, _line(str(error))
        except MemoryError:  # the machine's, not the record's
            raise
        except Exception as error:  # one record's surprise is that record's
            return None, _line(f"It cannot be decoded: {type(error).__name__}.")

    return read


def read_all(read: ReadOne, data: Iterable[bytes | None], type_: Any) -> pa.StructArray:
    """The records as an array of VALUE and WHY."""
    rows = list(map(read, data))
    held = arrow_type(type_)
    try:
        values = pa.array([value for value, _ in rows], held)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        rows = [_that_arrow_holds(row, held) for row in rows]
        values = pa.array([value for value, _ in rows], held)
    whys = pa.array([why for _, why in rows], pa.string())
    return pa.StructArray.from_arrays([values, whys], fields=list(result_type(type_)))


def _that_arrow_holds(row: Read, held: pa.DataType) -> Read:
    try:
        pa.array([row[0]], held)
        return row
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        return None, _line(f"It cannot be kept in columns: {type(error).__name__}.")


def result_type(type_: Any) -> pa.StructType:
    return pa.struct([(VALUE, arrow_type(type_)), (WHY, pa.string())])


def nullable(type_: Any) -> Any:
    """The type with nulls everywhere: a record that is bad has no values."""
    if isinstance(type_, dict) and type_["type"] == "struct":
        fields = [{**field, "type": nullable(field["type"]), "nullable": True} for field in type_["fields"]]
        return {**type_, "fields": fields}
    if isinstance(type_, dict) and type_["type"] == "array":
        return {**type_, "elementType": nullable(type_["elementType"])}
    if isinstance(type_, dict) and type_["type"] == "map":
        return {**type_, "valueType": nullable(type_["valueType"])}
    return type_


def arrow_type(type_: Any) -> pa.DataType:
    """The type of Arrow that Spark takes for it."""
    if isinstance(type_, dict):
        match type_["type"]:
            case "struct":
                return pa.struct([(field["name"], arrow_type(field["type"])) for field in type_["fields"]])
            case "array":
                return pa.list_(pa.field("element", arrow_type(type_["elementType"])))
            case "map":
                return pa.map_(pa.string(), arrow_type(type_["valueType"]))
    if type_.startswith("decimal"):
        return pa.decimal128(*map(int, type_[len("decimal(") : -1].split(",")))
    return {
        "boolean": pa.bool_(),
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }[type_]


def _line(sentence: str) -> str:
    """On one line: it is quoted in errors, of which only the line is taken."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in sentence)
