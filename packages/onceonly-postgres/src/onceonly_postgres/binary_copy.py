"""Rows of Arrow as COPY (FORMAT binary) takes them: whole columns at once, no loop over rows.

Each row is the number of its fields (int16), and for each field its length (int32; -1: null) and its bytes, all in
network order. The formats of types are those of PostgreSQL's `*_recv` functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
EPOCH_DAYS = 10_957  # from 1970 to 2000, where PostgreSQL counts from
EPOCH_MICROS = EPOCH_DAYS * 86_400_000_000
DIGIT_BASE = 10_000  # of numeric
DIGIT_WIDTH = 4
NEGATIVE = 0x4000
CANONICAL_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
JSONB_VERSION = b"\1"
Bytes = Any  # a numpy array of uint8
Numbers = Any  # a numpy array of int64


class UnfitValue(ValueError):
    """A value that the column's type does not have. Its text quotes no value."""


@dataclass(frozen=True)
class Field:
    """The values of one column as bytes, one after the other.

    Args:
        lengths: of each value; -1: null.
        data: of all values that are not null.
    """

    lengths: Numbers
    data: Bytes

    def split(self) -> list[pa.Array]:
        """Return the length of each value, and its bytes, both as binary values; null has no bytes."""
        return [_binaries(_big_endian(self.lengths, ">i4")), _values(np.maximum(self.lengths, 0), self.data)]


@dataclass(frozen=True)
class ColumnType:
    """The type of a column of the table, as far as its bytes depend on it.

    Args:
        name: as PostgreSQL calls it, without length or precision, such as "int4" or "timestamptz".
        element: of an array, the type of its elements.
        oid: of the type.
    """

    name: str
    oid: int
    element: ColumnType | None = None


def join_fields(fields: Sequence[Field], rows: int) -> bytes:
    """Return rows of these columns."""
    parts = [_binaries(_big_endian(np.full(rows, len(fields)), ">i2"))]
    for field in fields:
        parts += field.split()
    _, data = _join(parts)
    return bytes(data)


def _join(parts: Sequence[pa.Array]) -> tuple[Numbers, Bytes]:
    """Join binary values row by row. Returns where each row begins, and the last one ends; and the bytes of all."""
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    _, offset_buffer, data_buffer = joined.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[: len(joined) + 1] if len(joined) else np.zeros(1, np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.zeros(0, np.uint8)
    return offsets, data[: offsets[-1]]


def _values(sizes: Numbers, data: Bytes) -> pa.Array:
    """Return bytes that stand one after the other as binary values of these sizes. Nothing is copied."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sizes), buffers)


def _binaries(values: Bytes) -> pa.Array:
    """Return values of one width, one a row, as binary values."""
    rows, width = values.shape
    return _values(np.full(rows, width, np.int64), values.reshape(-1))


def _big_endian(numbers: Any, dtype: str) -> Bytes:
    """Return numbers as bytes, one row each."""
    width = np.dtype(dtype).itemsize
    return np.ascontiguousarray(numbers.astype(dtype)).view(np.uint8).reshape(-1, width)


def encode_column(column: pa.Array, column_type: ColumnType) -> Field:
    """Return the values of a column as bytes. Raises UnfitValue."""
    if column_type.element:
        return _encode_arrays(column, column_type.element)
    present = column.drop_null()
    encode = ENCODERS[column_type.name]
    return _with_nulls(column, *encode(present))


def _encode_arrays(column: pa.Array, element: ColumnType) -> Field:
    """Return one-dimensional arrays: a head of dimensions, then each element with its length."""
    present = column.drop_null()
    counts = pc.list_value_length(present).to_numpy(zero_copy_only=False).astype(np.int64)
    elements = encode_column(present.flatten(), element)
    starts, bodies = _join(elements.split())
    ends = np.concatenate([[0], np.cumsum(counts)])
    nulls_before = np.concatenate([[0], np.cumsum(elements.lengths < 0)])
    has_nulls = nulls_before[ends[1:]] > nulls_before[ends[:-1]]
    filled = counts > 0
    dimensions = np.stack([counts[filled], np.ones(int(filled.sum()), np.int64)], axis=1)  # elements, first index
    parts = [
        _binaries(_big_endian(filled, ">i4")),  # number of dimensions
        _binaries(_big_endian(has_nulls, ">i4")),
        _binaries(_big_endian(np.full(len(counts), element.oid), ">u4")),
        _values(np.where(filled, 8, 0), _big_endian(dimensions, ">i4").reshape(-1)),
        _values(starts[ends[1:]] - starts[ends[:-1]], bodies),
    ]
    offsets, data = _join(parts)
    return _with_nulls(column, np.diff(offsets), data)


def _with_nulls(column: pa.Array, lengths: Numbers, data: Bytes) -> Field:
    """Return the field of a column, from the values that are not null."""
    if not column.null_count:
        return Field(lengths, data)
    all_lengths = np.full(len(column), -1, np.int64)
    all_lengths[column.is_valid().to_numpy(zero_copy_only=False)] = lengths
    return Field(all_lengths, data)


# ---- values that are not null -> their lengths and bytes


Encoded = tuple[Numbers, Bytes]


def _fixed(values: Any, dtype: str) -> Encoded:
    data = _big_endian(values, dtype)
    return np.full(len(values), data.shape[1], np.int64), data.reshape(-1)


def _number_encoder(arrow_type: pa.DataType, dtype: str) -> Callable[[pa.Array], Encoded]:
    """Return the encoder of numbers of one width. It refuses a number that the type does not have."""

    def encode(values: pa.Array) -> Encoded:
        return _fixed(_cast(values, arrow_type).to_numpy(zero_copy_only=False), dtype)

    return encode


def _encode_date(values: pa.Array) -> Encoded:
    days = _cast(_cast(values, pa.date32()), pa.int32()).to_numpy(zero_copy_only=False).astype(np.int64) - EPOCH_DAYS
    if (days < -(2**31) + 1).any():
        raise UnfitValue("a date is before those that PostgreSQL has")
    return _fixed(days, ">i4")


def _encode_time(values: pa.Array) -> Encoded:
    """Return times with or without a zone: microseconds since 2000, in UTC or in none."""
    micros = _cast(_cast(values, pa.timestamp("us", values.type.tz)), pa.int64()).to_numpy(zero_copy_only=False)
    if (micros < -(2**63) + 1 + EPOCH_MICROS).any():
        raise UnfitValue("a time is before those that PostgreSQL has")
    return _fixed(micros - EPOCH_MICROS, ">i8")


def _encode_bytes(values: pa.Array) -> Encoded:
    values = _cast(values, pa.large_binary())
    _, offset_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
    if data_buffer is None or not len(values):
        return np.zeros(len(values), np.int64), np.zeros(0, np.uint8)
    return np.diff(offsets), np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]


def _encode_text(values: pa.Array) -> Encoded:
    lengths, data = _encode_bytes(values)
    if (data == 0).any():
        raise UnfitValue("a text contains the character U+0000, which PostgreSQL does not store")
    return lengths, data


def _encode_jsonb(values: pa.Array) -> Encoded:
    """Return JSON with the version of its format in front."""
    lengths, data = _encode_text(values)
    starts = np.cumsum(lengths) - lengths
    return lengths + 1, np.insert(data, starts, JSONB_VERSION[0])


def _encode_uuid(values: pa.Array) -> Encoded:
    if not pc.all(pc.match_substring_regex(values, CANONICAL_UUID), min_count=0).as_py():
        raise UnfitValue("a text is no UUID")
    data = b"".join(UUID(text).bytes for text in values.to_pylist())
    return np.full(len(values), 16, np.int64), np.frombuffer(data, np.uint8)


def _encode_numeric(values: pa.Array) -> Encoded:
    if pa.types.is_integer(values.type):
        parts = [encode_decimal(Decimal(number)) for number in values.to_pylist()]
    else:
        parts = [encode_decimal(number) for number in values.to_pylist()]
    lengths = np.array([len(part) for part in parts], np.int64)
    return lengths, np.frombuffer(b"".join(parts), np.uint8)


def encode_decimal(number: Decimal) -> bytes:
    """Return a finite decimal: digits of base 10,000, the weight of the first one, the sign and the scale."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # Arrow has neither NaN nor infinity among decimals
    scale = max(-exponent, 0)
    text = "".join(map(str, digits)) + "0" * max(exponent, 0)
    text = text.rjust(scale, "0")
    whole, fraction = text[: len(text) - scale], text[len(text) - scale :]
    whole = whole.rjust(-(-len(whole) // DIGIT_WIDTH) * DIGIT_WIDTH, "0")
    fraction = fraction.ljust(-(-len(fraction) // DIGIT_WIDTH) * DIGIT_WIDTH, "0")
    groups = [int((whole + fraction)[at : at + DIGIT_WIDTH]) for at in range(0, len(whole + fraction), DIGIT_WIDTH)]
    weight = len(whole) // DIGIT_WIDTH - 1
    while groups and groups[0] == 0:
        groups, weight = groups[1:], weight - 1
    while groups and groups[-1] == 0:
        groups = groups[:-1]
    if not groups:
        weight, sign = 0, 0
    head = [len(groups), weight, NEGATIVE if sign else 0, scale]
    return b"".join(part.to_bytes(2, "big", signed=True) for part in [*head, *groups])


def _cast(values: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    try:
        return values.cast(arrow_type)
    except pa.ArrowInvalid as error:
        raise UnfitValue(f"a value does not fit {arrow_type}") from error


ENCODERS: Mapping[str, Callable[[pa.Array], Encoded]] = {
    "bool": lambda values: _fixed(values.to_numpy(zero_copy_only=False), ">u1"),
    "bytea": _encode_bytes,
    "date": _encode_date,
    "float4": _number_encoder(pa.float32(), ">f4"),
    "float8": _number_encoder(pa.float64(), ">f8"),
    "int2": _number_encoder(pa.int16(), ">i2"),
    "int4": _number_encoder(pa.int32(), ">i4"),
    "int8": _number_encoder(pa.int64(), ">i8"),
    "json": _encode_text,
    "jsonb": _encode_jsonb,
    "numeric": _encode_numeric,
    "text": _encode_text,
    "timestamp": _encode_time,
    "timestamptz": _encode_time,
    "uuid": _encode_uuid,
    "varchar": _encode_text,
}
