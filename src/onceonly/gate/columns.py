"""Columns of staged rows by kind, and a suite's values, which are JSON, as normalized values of a column.

Nothing is rounded but to the nearest value of a floating-point column.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceonly.unix_time import MICROSECOND, NAIVE_UNIX_EPOCH


class Unjudgeable(Exception):
    """No rows of this type can be judged by the expectation, or no rows at all; the text says why."""


class WrongKind(Unjudgeable):
    """The expectation judges columns of other types."""


DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
TEXT_OF_SOME_LENGTH = re.compile(r"(var)?char\(\d+\)")


class Kind(StrEnum):
    """What the values of a column are, as an error names it."""

    BOOLEAN = "truth values"
    INTEGER = "integers"
    FLOAT = "floating-point numbers"
    DECIMAL = "decimals"
    TEXT = "text"
    DATE = "dates"
    TIMESTAMP = "times"
    LOCAL_TIMESTAMP = "times without a zone"
    BINARY = "bytes"
    OPAQUE = "nested values"  # and intervals and variants: of these only null can be told from the rest


NUMBERS = (Kind.INTEGER, Kind.FLOAT, Kind.DECIMAL)
TIMES = (Kind.DATE, Kind.TIMESTAMP, Kind.LOCAL_TIMESTAMP)
COMPARABLE = tuple(kind for kind in Kind if kind is not Kind.OPAQUE)

KINDS: Mapping[str, Kind] = {  # by Spark's name in JSON
    "binary": Kind.BINARY,
    "boolean": Kind.BOOLEAN,
    "byte": Kind.INTEGER,
    "date": Kind.DATE,
    "double": Kind.FLOAT,
    "float": Kind.FLOAT,
    "integer": Kind.INTEGER,
    "long": Kind.INTEGER,
    "short": Kind.INTEGER,
    "string": Kind.TEXT,
    "timestamp": Kind.TIMESTAMP,
    "timestamp_ntz": Kind.LOCAL_TIMESTAMP,
}
FORMS: Mapping[Kind, pa.DataType] = {  # the type of the values that are compared; that of a decimal is its own
    Kind.BOOLEAN: pa.bool_(),
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.TEXT: pa.string(),
    Kind.DATE: pa.int64(),
    Kind.TIMESTAMP: pa.int64(),
    Kind.LOCAL_TIMESTAMP: pa.int64(),
    Kind.BINARY: pa.binary(),
    Kind.OPAQUE: pa.bool_(),
}


@dataclass(frozen=True)
class Column:
    """A column of staged rows. `spark_type` is its type as Spark names it in JSON: "long", "decimal(10,2)", "array"."""

    name: str
    spark_type: str

    @property
    def kind(self) -> Kind:
        if DECIMAL.fullmatch(self.spark_type):
            return Kind.DECIMAL
        if TEXT_OF_SOME_LENGTH.fullmatch(self.spark_type) or self.spark_type.startswith("string "):  # a collation
            return Kind.TEXT
        return KINDS.get(self.spark_type, Kind.OPAQUE)

    @property
    def form(self) -> pa.DataType:
        """The Arrow type of `normalize`d values."""
        decimal = DECIMAL.fullmatch(self.spark_type)
        if decimal:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        return FORMS[self.kind]

    def normalize(self, values: pa.Array) -> pa.Array:
        """Return the values in the form in which they are compared."""
        if self.kind is Kind.OPAQUE:
            return pc.if_else(pc.is_valid(values), True, pa.scalar(None, pa.bool_()))
        if self.kind is Kind.FLOAT:
            wide = values.cast(pa.float64())
            return pc.add(pc.if_else(pc.is_nan(wide), pa.scalar(None, pa.float64()), wide), 0.0)
        if self.kind is Kind.TEXT:
            return _valid_text(values.cast(pa.string()))
        if self.kind is Kind.DATE:
            return values.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        if self.kind in TIMES:
            zone = values.type.tz
            return values.cast(pa.timestamp("us", zone)).cast(pa.int64())
        return values.cast(self.form)

    def show(self, value: Any) -> str:
        """Return a normalized value as a person reads it."""
        if self.kind is Kind.OPAQUE:
            return "a value"
        if self.kind is Kind.BINARY:
            return f"0x{value.hex()}"
        if self.kind not in TIMES:
            return str(value)
        try:
            if self.kind is Kind.DATE:
                return date.fromordinal(value + NAIVE_UNIX_EPOCH.toordinal()).isoformat()
            zone = "Z" if self.kind is Kind.TIMESTAMP else ""
            return f"{(NAIVE_UNIX_EPOCH + value * MICROSECOND).isoformat()}{zone}"
        except (OverflowError, ValueError):  # before the year 1, or after 9999
            unit = "days" if self.kind is Kind.DATE else "µs"
            return f"{value} {unit} since 1970"


def columns_of_spark(schema: Mapping[str, Any]) -> list[Column]:
    """Return the columns of a Spark schema in its JSON form."""
    return [Column(field["name"], _spark_name(field["type"])) for field in schema["fields"]]


def columns_of_arrow(schema: pa.Schema) -> list[Column]:
    """Return the columns of an Arrow schema, with the types that Spark has for them."""
    return [Column(field.name, _spark_name_of_arrow(field.type)) for field in schema]


def by_name(columns: Iterable[Column]) -> dict[str, Column]:
    return {column.name: column for column in columns}


def _spark_name(kind: Any) -> str:
    """Return the name of a type in Spark's JSON form; of a nested one without its parts."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "udt":
        return _spark_name(kind["sqlType"])
    return str(kind["type"])


def _spark_name_of_arrow(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    for name, is_of_kind in _ARROW_KINDS:
        if is_of_kind(kind):
            return name
    return "void"


_ARROW_KINDS: Iterable[tuple[str, Any]] = (
    ("boolean", pa.types.is_boolean),
    ("byte", pa.types.is_int8),
    ("short", lambda kind: pa.types.is_int16(kind) or pa.types.is_uint8(kind)),
    ("integer", lambda kind: pa.types.is_int32(kind) or pa.types.is_uint16(kind)),
    ("long", pa.types.is_integer),
    ("float", lambda kind: pa.types.is_float32(kind) or pa.types.is_float16(kind)),
    ("double", pa.types.is_float64),
    ("date", pa.types.is_date),
    ("string", lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind)),
    ("binary", lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind)),
    ("map", pa.types.is_map),
    ("array", lambda kind: pa.types.is_list(kind) or pa.types.is_large_list(kind)),
    ("struct", pa.types.is_struct),
)


def _valid_text(values: pa.Array) -> pa.Array:
    """Return the text with \\ufffd in place of bytes that are not UTF-8, which no reader of text could take."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        for row in values.cast(pa.binary()).to_pylist():
            if row is None:
                texts.append(None)
            else:
                texts.append(row.decode(errors="replace"))
        return pa.array(texts, pa.string())
    return values


def to_days(text: str) -> int:
    """Return the days since 1970 of a date in ISO form. Raises ValueError."""
    return date.fromisoformat(text).toordinal() - NAIVE_UNIX_EPOCH.toordinal()


def to_microseconds(text: str, has_zone: bool) -> int:
    """Return the microseconds since 1970 of a time in ISO form. Raises ValueError.

    Args:
        has_zone: the time is a moment; without a zone in its text it is in UTC, as every session of Onceonly.
    """
    time = datetime.fromisoformat(text)
    if time.tzinfo and not has_zone:
        raise ValueError("the column's times have no zone")
    moment = time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC).replace(tzinfo=None)
    return (moment - NAIVE_UNIX_EPOCH) // MICROSECOND


Number = int | float | Decimal


def literal(value: Any, column: Column) -> Any:
    """Return a suite's value as a normalized value of the column.

    Raises:
        Unjudgeable: it is no value of such a column.
    """
    kind = column.kind
    if kind in (Kind.INTEGER, Kind.DECIMAL):
        return number(value)
    if kind is Kind.FLOAT:
        return _nearest_float(number(value), column)
    if kind is Kind.BOOLEAN and isinstance(value, bool):
        return value
    if kind is Kind.TEXT and isinstance(value, str):
        return value
    if kind in TIMES and isinstance(value, str):
        return _parse_time(value, column)
    raise WrongKind(f"column '{column.name}' has {kind}, and the suite gives {show_literal(value)}")


def number(value: Any) -> int | Decimal:
    """Return a number exactly as it is written. Raises Unjudgeable."""
    if isinstance(value, bool) or not isinstance(value, Number):
        raise WrongKind(f"the suite gives {show_literal(value)} where a number is needed")
    exact = Decimal(repr(value)) if isinstance(value, float) else value
    if not math.isfinite(exact):
        raise Unjudgeable(f"{value} is no number that values can be compared with")
    if isinstance(exact, Decimal) and exact and exact.adjusted() > 400:
        raise Unjudgeable(f"{value} is beyond every number of a column")
    return exact


def show_literal(value: Any) -> str:
    """Return a value of a suite as it is written there, more or less."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(show_literal, value))}]"
    if isinstance(value, dict):
        items = []
        for key, item in value.items():
            items.append(f"{key!r}: {show_literal(item)}")
        return f"{{{', '.join(items)}}}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return repr(value)
    return str(value)


def _nearest_float(value: int | Decimal, column: Column) -> float:
    """Return the nearest value of a FLOAT or DOUBLE column."""
    try:
        wide = float(value)
        if column.spark_type != "float":
            return wide
        single: float = struct.unpack("f", struct.pack("f", wide))[0]
        return single
    except OverflowError:
        return signed_infinity(value)


def signed_infinity(value: Any) -> float:
    """Return the infinity with the sign of a number beyond all floats."""
    if value > 0:
        return math.inf
    return -math.inf


def _parse_time(value: str, column: Column) -> int:
    """Return a date or time in ISO form as a normalized value of the column. Raises WrongKind."""
    try:
        if column.kind is Kind.DATE:
            return to_days(value)
        return to_microseconds(value, column.kind is Kind.TIMESTAMP)
    except ValueError as error:
        kind = "date" if column.kind is Kind.DATE else "time"
        raise WrongKind(f"{value!r} is no {kind} in ISO form for column '{column.name}' ({error})") from error
