"""Records of JSON as rows, in this process and on Spark's workers: what either reads, the other reads alike.

Sent to workers by value, which therefore need pyarrow and not this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC
from typing import Any

import pyarrow as pa

from onceonly.json_values import conversion, text
from onceonly.unix_time import MICROSECOND, NAIVE_UNIX_EPOCH

Read = tuple[Any, str | None]  # the row, or why there is none; neither for a tombstone
ReadOne = Callable[[bytes | None], Read]
Check = Callable[[Any], str | None]  # of parsed values: which rule one breaks
Step = Callable[[Any], Any]
NO_OBJECT = "It is not a JSON object."
VALUE, WHY = "value", "why"


def reader(type_: Any, part: str, check: Check | None = None) -> ReadOne:
    """Return a function that reads one record.

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
            if check is not None and (broken_rule := check(value)):
                return None, broken_rule
            return convert(value), None
        except conversion.Unlike as error:
            error.path = part + error.path
            return None, _on_one_line(str(error))
        except text.NotJson as error:
            return None, _on_one_line(str(error))
        except MemoryError:  # the machine's, not the record's
            raise
        except Exception as error:  # one record's surprise is that record's
            return None, _on_one_line(f"It cannot be decoded: {type(error).__name__}.")

    return read


def read_all(read: ReadOne, data: Iterable[bytes | None], type_: Any) -> pa.StructArray:
    """Return the records as an array of VALUE and WHY."""
    rows = list(map(read, data))
    arrow = arrow_type(type_)
    try:
        values = _first_column(rows, arrow)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        rows = [_keep_if_arrow_takes(row, arrow) for row in rows]
        values = _first_column(rows, arrow)
    whys = pa.array([why for _, why in rows], pa.string())
    return pa.StructArray.from_arrays([values, whys], fields=list(result_type(type_)))


def _first_column(rows: Iterable[Read], arrow: pa.DataType) -> pa.Array:
    return pa.array([value for value, _ in rows], arrow)


def _keep_if_arrow_takes(row: Read, arrow: pa.DataType) -> Read:
    """Return the row, or why there is none because Arrow does not take its value."""
    try:
        pa.array([row[0]], arrow)
        return row
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        return None, _on_one_line(f"It cannot be kept in columns: {type(error).__name__}.")


def result_type(type_: Any) -> pa.StructType:
    """Return the type of what `read_all` returns."""
    return pa.struct([(VALUE, arrow_type(type_)), (WHY, pa.string())])


def nullable(type_: Any) -> Any:
    """Return the type with nulls everywhere: a record that is bad has no values."""
    if isinstance(type_, dict) and type_["type"] == "struct":
        fields = [{**field, "type": nullable(field["type"]), "nullable": True} for field in type_["fields"]]
        return {**type_, "fields": fields}
    if isinstance(type_, dict) and type_["type"] == "array":
        return {**type_, "elementType": nullable(type_["elementType"])}
    if isinstance(type_, dict) and type_["type"] == "map":
        return {**type_, "valueType": nullable(type_["valueType"])}
    return type_


def arrow_type(type_: Any) -> pa.DataType:
    """Return the type of Arrow that Spark takes for it."""
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


def _on_one_line(sentence: str) -> str:
    """Return the sentence on one line: it is quoted in errors, of which only the line is taken."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in sentence)


# ---- rows for Python functions of single values, which are all that Spark has before 4.1


def plain_reader(make: Callable[[], ReadOne], type_: Any) -> Callable[[Any], Read]:
    """Return a function that reads one record; it makes its reader at the first one, on the worker."""
    readers: list[tuple[ReadOne, Step]] = []  # none, or the only one

    def read(data: Any) -> Read:
        if not readers:
            readers.append((make(), _or_null(_pickled_step(type_))))
        read_one, step = readers[0]
        value, why = read_one(None if data is None else bytes(data))
        return step(value), why

    return read


def _pickled_step(type_: Any) -> Step:
    """Return a step from what Arrow takes to what Spark's pickled rows take."""
    if type_ == "timestamp":
        return lambda micros: (NAIVE_UNIX_EPOCH + micros * MICROSECOND).replace(tzinfo=UTC)
    if type_ == "timestamp_ntz":
        return lambda micros: NAIVE_UNIX_EPOCH + micros * MICROSECOND
    if not isinstance(type_, dict):
        return lambda value: value
    if type_["type"] == "struct":
        steps = [(field["name"], _or_null(_pickled_step(field["type"]))) for field in type_["fields"]]
        return lambda row: tuple(step(row[name]) for name, step in steps)
    if type_["type"] == "array":
        inner = _or_null(_pickled_step(type_["elementType"]))
        return lambda values: [inner(value) for value in values]
    inner = _or_null(_pickled_step(type_["valueType"]))
    return lambda pairs: {name: inner(value) for name, value in pairs}


def _or_null(step: Step) -> Step:
    return lambda value: None if value is None else step(value)
