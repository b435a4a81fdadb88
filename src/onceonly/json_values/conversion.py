"""Parsed JSON values as values of Spark's types: equal, or refused with field and value.

A type is in the JSON form of Spark's types. docs/reference.md lists what becomes what; nothing else does.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any

from onceonly.json_values.text import NotJson, parse_decimal, show_value
from onceonly.unix_time import FIRST_DAY, LAST_DAY, UNIX_EPOCH

Convert = Callable[[Any], Any]
INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
NOT_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}  # as Spark writes them
FLOAT_MAX, FLOAT_OVERFLOW = float(2**128 - 2**104), 2**128 - 2**103  # what is nearer to the next power of 2 overflows
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
DATE_TEXT = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
TIME = re.compile(
    DATE_TEXT.pattern + r"[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?"
    r"(Z|[+-](?:0[0-9]|1[0-9]|2[0-3])(?::?[0-5][0-9])?)?"
)
SECOND, DAY_MICROS = 1_000_000, 86_400_000_000  # in microseconds
EPOCH_ORDINAL = UNIX_EPOCH.toordinal()
MIN_MICROS, MAX_MICROS = FIRST_DAY * DAY_MICROS, (LAST_DAY + 1) * DAY_MICROS - 1  # years 1 to 9999
NAMES = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
EXPECTED = {
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
        """Return it as a sentence."""
        if self.value is NO_VALUE:
            return f"{self.path} is null or missing, and its column is NOT NULL."
        expected = EXPECTED[_type_name(self.type)]
        return f"{self.path} is {show_value(self.value)}, which is not {_with_article(self.type)} ({expected})."


NO_VALUE = object()


def converter(type_: Any) -> Convert:
    """Return a function that converts parsed values that are not null.

    Args:
        type_: of Spark, in its JSON form.
    Raises, that function:
        Unlike: the value is no value of that type.
    """
    kind = _type_name(type_)
    match kind:
        case "struct":
            return _struct_converter(type_["fields"])
        case "array":
            return _array_converter(converter(type_["elementType"]))
        case "map":
            return _map_converter(converter(type_["valueType"]))
        case "decimal":
            return _decimal_converter(type_)
        case "byte" | "short" | "integer" | "long":
            return _integer_converter(kind, INTEGERS[kind])
    return {
        "boolean": _to_boolean,
        "string": _to_text,
        "float": _to_float,
        "double": _to_double,
        "binary": _to_bytes,
        "date": _to_date,
        "timestamp": _to_micros,
        "timestamp_ntz": _to_local_micros,
    }[kind]


# ---- values in values


def _struct_converter(fields: list[Mapping[str, Any]]) -> Convert:
    """Convert objects to rows. A column that an object lacks is null; its other names are ignored."""
    steps = [(field["name"], converter(field["type"]), field.get("nullable", True)) for field in fields]

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Unlike(value, "struct")
        row = {}
        for name, step, nullable in steps:
            field_value = value.get(name)
            if field_value is not None:
                try:
                    row[name] = step(field_value)
                except Unlike as error:
                    error.path = f".{name}{error.path}"
                    raise
            elif nullable:
                row[name] = None
            else:
                raise Unlike(NO_VALUE, "", f".{name}")
        return row

    return convert


def _array_converter(step: Convert) -> Convert:
    """Convert arrays to lists of converted items."""

    def convert(value: Any) -> list[Any]:
        if type(value) is not list:
            raise Unlike(value, "array")
        items: list[Any] = []
        try:
            for item in value:
                items.append(None if item is None else step(item))
        except Unlike as error:
            error.path = f"[{len(items)}]{error.path}"
            raise
        return items

    return convert


def _map_converter(step: Convert) -> Convert:
    """Convert objects to pairs of a name and a converted value."""

    def convert(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise Unlike(value, "map")
        pairs = []
        for name, item in value.items():
            try:
                pairs.append((_to_text(name), None if item is None else step(item)))
            except Unlike as error:
                error.path = f"[{show_value(name)}]{error.path}"
                raise
        return pairs

    return convert


# ---- texts and bytes


def _to_boolean(value: Any) -> bool:
    if value is not True and value is not False:
        raise Unlike(value, "boolean")
    return bool(value)


def _to_text(value: Any) -> str:
    """Return the text. Half of a surrogate pair, which JSON can have, is refused."""
    if type(value) is not str:
        raise Unlike(value, "string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            raise Unlike(value, "string") from None
    return value


def _to_bytes(value: Any) -> bytes:
    """Decode base64, if it is written as its encoder writes it."""
    try:
        if type(value) is str:
            data = base64.b64decode(value, validate=True)
            if base64.b64encode(data).decode() == value:
                return data
    except (binascii.Error, ValueError):
        pass
    raise Unlike(value, "binary")


# ---- numbers


def _integer_converter(kind: str, bits: int) -> Convert:
    """Convert whole numbers in the range of so many bits, also those that are written as 1.0 or 1e2."""
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def convert(value: Any) -> int:
        # 0e8 is zero, whatever its exponent. A number with as many digits as the type has bits is too large for it, and
        # never expanded.
        if type(value) is Decimal and (not value or value.adjusted() < bits):
            integer = int(value)
            if integer == value and least <= integer <= most:
                return integer
        elif type(value) is int and least <= value <= most:
            return value
        raise Unlike(value, kind)

    return convert


def _decimal_converter(type_: str) -> Convert:
    """Convert numbers, and texts of numbers, that have no more digits than the type."""
    precision, scale = map(int, type_[len("decimal(") : -1].split(","))
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
    last_digit = Decimal((0, (1,), -scale))

    def convert(value: Any) -> Decimal:
        number = value
        try:
            if type(value) is str and NUMBER.fullmatch(value):
                number = parse_decimal(value)
            if type(number) is int:
                number = Decimal(number)
            if type(number) is Decimal:
                return number.quantize(last_digit, context=exact)
        except (DecimalException, NotJson):
            pass  # it has too many digits, or too large an exponent
        raise Unlike(value, type_)

    return convert


def _to_double(value: Any) -> float:
    """Return the nearest double of a fraction, or the double that equals a whole number."""
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
            pass  # no double is so large
    raise Unlike(value, "double")


def _to_float(value: Any) -> float:
    """Return the nearest float of a fraction, or the float that equals a whole number."""
    try:
        number = _to_double(value)
        if math.isinf(number) or math.isnan(number):
            return number
        nearest = _round_to_float(number, value)
        if type(value) is not int or nearest == value:
            return nearest
    except (Unlike, OverflowError):
        pass
    raise Unlike(value, "float")


def _round_to_float(number: float, value: Any) -> float:
    """Return the float that is nearest to a value whose nearest double is `number`.

    Rounding twice is wrong where the double lies in the middle of two floats and the value beside it.
    """
    if abs(value) < FLOAT_OVERFLOW and abs(number) >= FLOAT_OVERFLOW:
        return math.copysign(FLOAT_MAX, number)
    (nearest,) = struct.unpack("<f", struct.pack("<f", number))
    if nearest == number or type(value) is int:
        return float(nearest)
    (bits,) = struct.unpack("<i", struct.pack("<f", nearest))
    step = 1 if abs(number) > abs(nearest) else -1  # floats are ordered as their bits, apart from the sign
    (neighbour,) = struct.unpack("<f", struct.pack("<i", bits + step))
    is_in_the_middle = (nearest + neighbour) / 2 == number
    if not is_in_the_middle or value == Decimal(number):
        return float(nearest)
    if value > Decimal(number):
        return float(max(nearest, neighbour))
    return float(min(nearest, neighbour))


# ---- times


def _to_date(value: Any) -> date:
    try:
        if type(value) is str and (match := DATE_TEXT.fullmatch(value)):
            return date(*map(int, match.groups()))
    except ValueError:
        pass
    raise Unlike(value, "date")


def _to_micros(value: Any) -> int:
    """Return microseconds since 1970, which Arrow takes six times as fast as times with an offset."""
    time, zone = _parse_time(value)
    if time is not None and zone:
        micros = _micros_since_1970(time) - _offset_micros(zone)
        if MIN_MICROS <= micros <= MAX_MICROS:
            return micros
    raise Unlike(value, "timestamp")


def _to_local_micros(value: Any) -> int:
    """Return microseconds since 1970, as if in UTC."""
    time, zone = _parse_time(value)
    if time is None or zone:
        raise Unlike(value, "timestamp_ntz")
    return _micros_since_1970(time)


def _parse_time(value: Any) -> tuple[datetime | None, str]:
    """Return the time without its offset, and the offset ("" if it has none); None if it is no such time."""
    if type(value) is not str:
        return None, ""
    match = TIME.fullmatch(value)
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


def _micros_since_1970(time: datetime) -> int:
    seconds = (time.hour * 60 + time.minute) * 60 + time.second
    return (time.toordinal() - EPOCH_ORDINAL) * DAY_MICROS + seconds * SECOND + time.microsecond


def _offset_micros(zone: str) -> int:
    """Return the offset in microseconds: positive east of Greenwich."""
    if zone == "Z":
        return 0
    minutes = int(zone[1:3]) * 60 + int(zone[3:].lstrip(":") or 0)
    if zone[0] == "-":
        minutes = -minutes
    return minutes * 60 * SECOND


# ---- names


def _type_name(type_: Any) -> str:
    """Return the type without its parameters and parts: "decimal" of "decimal(10,2)"."""
    if isinstance(type_, Mapping):
        return str(type_["type"])
    return str(type_).partition("(")[0]


def _with_article(type_: str) -> str:
    """Return the type's name in SQL, with its article."""
    name = NAMES.get(type_, type_.upper())
    if name[0] in "AI":
        return f"an {name}"
    return f"a {name}"
