"""Parsed JSON values as values of Spark's types: equal, or refused with field and value.

A type is in the JSON form of Spark's types. docs/reference.md lists what becomes what; nothing else does.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any

from onceonly.json_values.text import NotJson, in_bounds, shown

Convert = Callable[[Any], Any]
INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
NOT_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}  # as Spark writes them
FLOAT_MAX, FLOAT_OVERFLOW = float(2**128 - 2**104), 2**128 - 2**103  # what is nearer to the next power of 2 overflows
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
DAY = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
TIME = re.compile(
    DAY.pattern + r"[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?"
    r"(Z|[+-](?:0[0-9]|1[0-9]|2[0-3])(?::?[0-5][0-9])?)?"
)
SECOND, DAY_MICROS = 1_000_000, 86_400_000_000  # in microseconds
EPOCH = date(1970, 1, 1).toordinal()
LEAST, MOST = (1 - EPOCH) * DAY_MICROS, (date.max.toordinal() + 1 - EPOCH) * DAY_MICROS - 1  # years 1 to 9999
NAMES = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
WANTED = {
    "boolean": "true or false",
    "byte": "a whole number in its range",
    "short": "a whole number in its range",
    "integer": "a whole number in its range",
    "long": "a whole number in its range",
    "float": "a number in its range; a whole number that it has exactly",
    "double": "a number in its range; a whole number that it has exactly",
    "decimal": "a number that has no more digits, or one in quotes",
    "string": "a text of valid characters",
    "binary": "a text in base64",
    "date": 'a text such as "2013-01-31"',
    "timestamp": 'a text such as "2013-01-31T05:10:20.123456Z", with an offset and at most 6 digits of a second',
    "timestamp_ntz": 'a text such as "2013-01-31T05:10:20.123456", without an offset, at most 6 digits of a second',
    "array": "an array",
    "map": "an object",
    "struct": "an object",
}


class Unlike(ValueError):
    """A value that its type does not have; `path` gets longer on the way out."""

    def __init__(self, value: Any, type_: str, path: str = "") -> None:
        super().__init__()
        self.value, self.type, self.path = value, type_, path

    def __str__(self) -> str:
        """As a sentence."""
        if self.value is MISSING:
            return f"{self.path} is null or missing, and its column is NOT NULL."
        return f"{self.path} is {shown(self.value)}, which is not {_called(self.type)} ({WANTED[_kind(self.type)]})."


MISSING = object()


def converter(type_: Any) -> Convert:
    """A function of parsed values that are not null.

    Raises, that function:
        Unlike: the value is no value of that type.
    """
    kind = type_["type"] if isinstance(type_, Mapping) else _kind(type_)
    match kind:
        case "struct":
            return _struct(type_["fields"])
        case "array":
            return _array(converter(type_["elementType"]))
        case "map":
            return _map(converter(type_["valueType"]))
        case "decimal":
            return _decimal(type_)
        case "byte" | "short" | "integer" | "long":
            return _whole(kind, INTEGERS[kind])
    return {
        "boolean": _boolean,
        "string": _text,
        "float": _float,
        "double": _double,
        "binary": _binary,
        "date": _date,
        "timestamp": _timestamp,
        "timestamp_ntz": _local_time,
    }[kind]


# ---- values in values


def _struct(fields: list[Mapping[str, Any]]) -> Convert:
    steps = [(field["name"], converter(field["type"]), field.get("nullable", True)) for field in fields]

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Unlike(value, "struct")
        row = {}
        for name, step, nullable in steps:
            inner = value.get(name)
            if inner is not None:
                try:
                    row[name] = step(inner)
                except Unlike as error:
                    error.path = f".{name}{error.path}"
                    raise
            elif nullable:
                row[name] = None
            else:
                raise Unlike(MISSING, "", f".{name}")
        return row

    return convert


def _array(step: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if type(value) is not list:
            raise Unlike(value, "array")
        rows: list[Any] = []
        try:
            for inner in value:
                rows.append(None if inner is None else step(inner))
        except Unlike as error:
            error.path = f"[{len(rows)}]{error.path}"
            raise
        return rows

    return convert


def _map(step: Convert) -> Convert:
    def convert(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise Unlike(value, "map")
        pairs = []
        for name, inner in value.items():
            try:
                pairs.append((_text(name), None if inner is None else step(inner)))
            except Unlike as error:
                error.path = f"[{shown(name)}]{error.path}"
                raise
        return pairs

    return convert


# ---- texts and bytes


def _boolean(value: Any) -> bool:
    if value is not True and value is not False:
        raise Unlike(value, "boolean")
    return bool(value)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise Unlike(value, "string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            raise Unlike(value, "string") from None
    return value


def _binary(value: Any) -> bytes:
    try:
        if type(value) is str:
            data = base64.b64decode(value, validate=True)
            if base64.b64encode(data).decode() == value:
                return data
    except (binascii.Error, ValueError):
        pass
    raise Unlike(value, "binary")


# ---- numbers


def _whole(kind: str, bits: int) -> Convert:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def convert(value: Any) -> int:
        if type(value) is Decimal and (not value or value.adjusted() < bits):  # 0e8 is zero, whatever its exponent
            whole = int(value)
            if whole == value and least <= whole <= most:
                return whole
        elif type(value) is int and least <= value <= most:
            return value
        raise Unlike(value, kind)

    return convert


def _decimal(type_: str) -> Convert:
    precision, scale = map(int, type_[len("decimal(") : -1].split(","))
    exactly = Context(prec=precision, traps=[Inexact, InvalidOperation])
    last_digit = Decimal((0, (1,), -scale))

    def convert(value: Any) -> Decimal:
        number = value
        try:
            if type(value) is str:
                number = in_bounds(value) if NUMBER.fullmatch(value) else None
            if type(number) is int:
                number = Decimal(number)
            if type(number) is Decimal:
                return number.quantize(last_digit, context=exactly)
        except (DecimalException, NotJson):
            pass
        raise Unlike(value, type_)

    return convert


def _double(value: Any) -> float:
    if type(value) is str and value in NOT_NUMBERS:
        return NOT_NUMBERS[value]
    if type(value) is Decimal:
        number = float(value)
        if abs(number) != NOT_NUMBERS["Infinity"]:
            return number
    elif type(value) is int:
        try:
            if float(value) == value:
                return float(value)
        except OverflowError:
            pass
    raise Unlike(value, "double")


def _float(value: Any) -> float:
    try:
        number = _double(value)
        if number in (NOT_NUMBERS["Infinity"], NOT_NUMBERS["-Infinity"]) or number != number:
            return number
        nearest = _nearest_float(number, value)
        if type(value) is not int or nearest == value:
            return nearest
    except (Unlike, OverflowError):
        pass
    raise Unlike(value, "float")


def _nearest_float(number: float, value: Any) -> float:
    """The float that is nearest to a value whose nearest double is `number`.

    Rounding twice is wrong where the double lies in the middle of two floats and the value beside it.
    """
    if abs(value) < FLOAT_OVERFLOW and abs(number) >= FLOAT_OVERFLOW:
        return FLOAT_MAX if number > 0 else -FLOAT_MAX
    (nearest,) = struct.unpack("<f", struct.pack("<f", number))
    if nearest == number or type(value) is int:
        return float(nearest)
    (bits,) = struct.unpack("<i", struct.pack("<f", nearest))
    away = (abs(number) > abs(nearest)) * 2 - 1  # floats are ordered as their bits, apart from the sign
    (other,) = struct.unpack("<f", struct.pack("<i", bits + away))
    middle = (nearest + other) / 2 == number
    if not middle or value == Decimal(number):
        return float(nearest)
    return float(max(nearest, other) if value > Decimal(number) else min(nearest, other))


# ---- times


def _date(value: Any) -> date:
    match = DAY.fullmatch(value) if type(value) is str else None
    try:
        if match:
            return date(*map(int, match.groups()))
    except ValueError:
        pass
    raise Unlike(value, "date")


def _timestamp(value: Any) -> int:
    """Microseconds since 1970, which Arrow takes six times as fast as times with an offset."""
    time, zone = _time(value)
    if time is not None and zone:
        micros = _micros(time) - _offset(zone)
        if LEAST <= micros <= MOST:
            return micros
    raise Unlike(value, "timestamp")


def _local_time(value: Any) -> int:
    """Microseconds since 1970, as if in UTC."""
    time, zone = _time(value)
    if time is None or zone:
        raise Unlike(value, "timestamp_ntz")
    return _micros(time)


def _time(value: Any) -> tuple[datetime | None, str]:
    """The time without its offset, and that."""
    match = TIME.fullmatch(value) if type(value) is str else None
    if match is None:
        return None, ""
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    fraction = (fraction or "").rstrip("0")
    if len(fraction) > 6:
        return None, ""
    micros = int(fraction.ljust(6, "0"))
    try:
        time = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second or 0), micros)
    except ValueError:
        return None, ""
    return time, zone or ""


def _micros(time: datetime) -> int:
    seconds = (time.hour * 60 + time.minute) * 60 + time.second
    return (time.toordinal() - EPOCH) * DAY_MICROS + seconds * SECOND + time.microsecond


def _offset(zone: str) -> int:
    """Of a zone east of Greenwich, in microseconds."""
    if zone == "Z":
        return 0
    minutes = int(zone[1:3]) * 60 + int(zone[3:].lstrip(":") or 0)
    return (-minutes if zone[0] == "-" else minutes) * 60 * SECOND


# ---- names


def _kind(type_: str) -> str:
    return type_.partition("(")[0]


def _called(type_: str) -> str:
    name = NAMES.get(type_, type_.upper())
    return f"an {name}" if name[0] in "AI" else f"a {name}"
