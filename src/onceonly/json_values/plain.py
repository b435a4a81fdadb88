"""Rows for Python functions of single values, which are all that Spark has before 4.1."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from onceonly.json_values.reader import Read, ReadOne

Step = Callable[[Any], Any]
EPOCH = datetime(1970, 1, 1)


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
        return lambda micros: (EPOCH + timedelta(microseconds=micros)).replace(tzinfo=UTC)
    if type_ == "timestamp_ntz":
        return lambda micros: EPOCH + timedelta(microseconds=micros)
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
