"""Converts rows that were written to files, as text or otherwise, back to their original types."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

Convert = Callable[[Any], Any]
Columns = Mapping[str, pa.Array]
Read = Callable[[pa.RecordBatch, pa.Schema], Columns]
Leaf = Callable[[pa.DataType], Convert | None]  # how a value of a plain type is converted; None: it need not be


def from_csv(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of CSV."""
    return text.cast(kind)


def from_folders(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """A partition column. Timestamps are in UTC, like every session of Onceonly, and have no time zone."""
    return (text.cast(pa.timestamp("us")) if pa.types.is_timestamp(kind) else text).cast(kind)


def sound(column: pa.Array) -> pa.Array:
    """The column with \\ufffd in place of invalid UTF-8, which Spark writes unchanged."""
    as_bytes = _as_bytes(column.type)
    if as_bytes == column.type or is_valid(column):
        return column
    return pa.array([_decoded(value, column.type) for value in column.cast(as_bytes).to_pylist()], column.type)


def batches(rows: Iterable[pa.RecordBatch], schema: pa.Schema, held: pa.Schema, read: Read) -> Iterator[pa.RecordBatch]:
    """Rows of `schema` from files. `read` converts the columns in `held`; the others come from folder names."""
    for batch in rows:
        found = read(batch, held)
        each = [
            found[field.name] if field.name in found else from_folders(batch.column(field.name), field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays([sound(column) for column in each], schema=schema)


def as_it_is(batch: pa.RecordBatch, held: pa.Schema) -> Columns:
    return {field.name: batch.column(field.name) for field in held}


def json_parser(kind: Any) -> Convert:
    """A parser of one document. If one of Spark's types in `kind` is a decimal, no digits are lost."""
    exact: dict[str, Any] = {"parse_float": Decimal} if "decimal(" in json.dumps(kind) else {}
    return json.JSONDecoder(**exact).decode


def array(values: list[Any], kind: pa.DataType, leaf: Leaf) -> pa.Array:
    """A column from the Python values that a JSON or Avro parser returns."""
    convert = _converter(kind, leaf)
    return pa.array(values if convert is None else [convert(value) for value in values], kind)


def from_json(kind: pa.DataType) -> Convert | None:
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat
    if pa.types.is_date(kind):
        return date.fromisoformat
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_floating(kind):
        return float  # "NaN" and "Infinity" are text
    return base64.b64decode if pa.types.is_binary(kind) else None


def from_avro(kind: pa.DataType) -> Convert | None:
    return str if pa.types.is_string(kind) else None  # in Spark a UUID is text


def _converter(kind: pa.DataType, leaf: Leaf) -> Convert | None:
    """None if Arrow accepts the values without a conversion."""
    if pa.types.is_struct(kind):
        return _struct({field.name: _converter(field.type, leaf) for field in kind})
    if pa.types.is_map(kind):
        return _map(_converter(kind.item_type, leaf))
    if pa.types.is_list(kind):
        return _list(_converter(kind.value_type, leaf))
    return _or_null(leaf(kind))


def _or_null(convert: Convert | None) -> Convert | None:
    return convert and (lambda value: None if value is None else convert(value))


def _struct(converters: Mapping[str, Convert | None]) -> Convert | None:
    some = {name: convert for name, convert in converters.items() if convert}
    if not some:
        return None
    return _or_null(lambda row: {**row, **{name: convert(row.get(name)) for name, convert in some.items()}})


def _list(item: Convert | None) -> Convert | None:
    return item and _or_null(lambda values: [item(value) for value in values])


def _map(item: Convert | None) -> Convert | None:
    return _or_null(lambda pairs: [(key, item(value) if item else value) for key, value in pairs.items()])


# ---- invalid UTF-8


def is_valid(column: pa.Array) -> bool:
    """Whether all of its text is valid UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    """The type with binary in place of string, at any depth."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_bytes(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_as_bytes(kind.key_type), _as_bytes(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_bytes(kind.value_type)))
    return pa.binary() if pa.types.is_string(kind) else kind


def _decoded(value: Any, kind: pa.DataType) -> Any:
    """A Python value of type `kind`, from one of `_as_bytes(kind)`."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _decoded(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(_decoded(key, kind.key_type), _decoded(item, kind.item_type)) for key, item in value]
    if pa.types.is_list(kind):
        return [_decoded(item, kind.value_type) for item in value]
    return value.decode(errors="replace") if pa.types.is_string(kind) else value
