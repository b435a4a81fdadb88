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
    """Convert a column of CSV."""
    return text.cast(kind)


def from_folders(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a partition column. Timestamps are in UTC, like every session of Onceonly, and have no time zone."""
    if pa.types.is_timestamp(kind):
        text = text.cast(pa.timestamp("us"))
    return text.cast(kind)


def with_valid_text(column: pa.Array) -> pa.Array:
    """Return the column with \\ufffd in place of invalid UTF-8, which Spark writes unchanged."""
    bytes_type = _bytes_type(column.type)
    if bytes_type == column.type or is_valid(column):
        return column
    return pa.array([_decode(value, column.type) for value in column.cast(bytes_type).to_pylist()], column.type)


def batches(
    rows: Iterable[pa.RecordBatch], schema: pa.Schema, file_schema: pa.Schema, read: Read
) -> Iterator[pa.RecordBatch]:
    """Yield rows of `schema` from files.

    Args:
        file_schema: the columns that the files have. The others come from folder names.
        read: converts the columns in `file_schema`.
    """
    for batch in rows:
        columns = read(batch, file_schema)
        valid_columns = []
        for field in schema:
            column = columns.get(field.name)
            if column is None:
                column = from_folders(batch.column(field.name), field.type)
            valid_columns.append(with_valid_text(column))
        yield pa.RecordBatch.from_arrays(valid_columns, schema=schema)


def as_it_is(batch: pa.RecordBatch, file_schema: pa.Schema) -> Columns:
    """Return the columns of the files without a conversion."""
    return {field.name: batch.column(field.name) for field in file_schema}


def json_parser(kind: Any) -> Convert:
    """Return a parser of one document. If one of Spark's types in `kind` is a decimal, no digits are lost."""
    exact: dict[str, Any] = {"parse_float": Decimal} if "decimal(" in json.dumps(kind) else {}
    return json.JSONDecoder(**exact).decode


def array(values: list[Any], kind: pa.DataType, leaf: Leaf) -> pa.Array:
    """Return a column from the Python values that a JSON or Avro parser returns."""
    convert = _converter(kind, leaf)
    if convert is not None:
        values = [convert(value) for value in values]
    return pa.array(values, kind)


def from_json(kind: pa.DataType) -> Convert | None:
    """Return how a value of a plain type is converted, where JSON holds it in another one; None: it need not be."""
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
    """Return how a value of a plain type is converted, where Avro holds it in another one; None: it need not be."""
    return str if pa.types.is_string(kind) else None  # in Spark a UUID is text


def _converter(kind: pa.DataType, leaf: Leaf) -> Convert | None:
    """Return how values of a type are converted; None: Arrow accepts them without a conversion."""
    if pa.types.is_struct(kind):
        return _struct({field.name: _converter(field.type, leaf) for field in kind})
    if pa.types.is_map(kind):
        return _map(_converter(kind.item_type, leaf))
    if pa.types.is_list(kind):
        return _list(_converter(kind.value_type, leaf))
    return _or_null(leaf(kind))


def _or_null(convert: Convert | None) -> Convert | None:
    """Return the converter for values of which some are null; null stays null."""
    if convert is None:
        return None

    def convert_or_null(value: Any) -> Any:
        return None if value is None else convert(value)

    return convert_or_null


def _struct(converters: Mapping[str, Convert | None]) -> Convert | None:
    needed = {name: convert for name, convert in converters.items() if convert}
    if not needed:
        return None

    def convert_struct(row: Any) -> Any:
        converted = {name: convert(row.get(name)) for name, convert in needed.items()}
        return {**row, **converted}

    return _or_null(convert_struct)


def _list(item: Convert | None) -> Convert | None:
    if item is None:
        return None
    return _or_null(lambda values: [item(value) for value in values])


def _map(item: Convert | None) -> Convert | None:
    if item is None:
        return _or_null(lambda pairs: list(pairs.items()))
    return _or_null(lambda pairs: [(key, item(value)) for key, value in pairs.items()])


# ---- invalid UTF-8


def is_valid(column: pa.Array) -> bool:
    """Return whether all of its text is valid UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _bytes_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with binary in place of string, at any depth."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_bytes_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_bytes_type(kind.key_type), _bytes_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_bytes_type(kind.value_type)))
    return pa.binary() if pa.types.is_string(kind) else kind


def _decode(value: Any, kind: pa.DataType) -> Any:
    """Return a Python value of type `kind`, from one of `_bytes_type(kind)`."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _decode(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(_decode(key, kind.key_type), _decode(item, kind.item_type)) for key, item in value]
    if pa.types.is_list(kind):
        return [_decode(item, kind.value_type) for item in value]
    return value.decode(errors="replace") if pa.types.is_string(kind) else value
