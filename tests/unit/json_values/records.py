"""An independent reading of JSON values: what a row has to be, by plain rules and exact fractions."""

from __future__ import annotations

import base64
import json
import re
from fractions import Fraction
from typing import Any

import numpy
import pyarrow as pa

from onceonly.json_values.reader import read_all, reader

BAD = object()
DAY = r"(?!0000)\d{4}-\d\d-\d\d"
TIME = rf"({DAY})[T ](\d\d:\d\d)(:\d\d)?(?:\.(\d{{1,6}})0*)?(Z|([+-])(\d\d)(?::?(\d\d))?)?"
BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}


class Number:
    """A number as it is written."""

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def exact(self) -> Fraction:
        return Fraction(self.text)


def parse(text: str) -> Any:
    return json.loads(text, parse_int=Number, parse_float=Number)


def read(records: list[bytes | None], type_: Any) -> list[tuple[Any, str | None]]:
    """Through Arrow, as Spark gets it."""
    found = read_all(reader(type_, "value"), records, type_)
    assert isinstance(found, pa.StructArray)
    return [(row["value"], row["why"]) for row in found.to_pylist()]


def expected(value: Any, type_: Any) -> Any:
    """What a column of that type has to hold for a value; BAD: it cannot hold it."""
    if value is None:
        return None
    if isinstance(type_, dict):
        return _nested(value, type_)
    if type_ in BITS:
        return _whole(value, BITS[type_])
    if type_ in ("float", "double"):
        return _floating(value, type_)
    if type_.startswith("decimal"):
        return _decimal(value, *map(int, re.findall(r"\d+", type_)))
    if type_ == "boolean":
        return value if isinstance(value, bool) else BAD
    if not isinstance(value, str):
        return BAD
    if type_ == "string":
        return BAD if any("\ud800" <= char <= "\udfff" for char in value) else value
    if type_ == "binary":
        return _bytes(value)
    return _time(value, type_)


def is_equal(found: Any, wanted: Any) -> bool:
    """By exact value. A Fraction is what is looked for where a number is."""
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict)
            and found.keys() == wanted.keys()
            and all(is_equal(found[k], wanted[k]) for k in wanted)
        )
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(is_equal, found, wanted))
    if isinstance(wanted, Fraction):
        return not isinstance(found, bool) and Fraction(found) == wanted
    if isinstance(wanted, float):
        return found == wanted or (found != found and wanted != wanted)
    if isinstance(wanted, numpy.datetime64):
        return bool(numpy.datetime64(found.replace(tzinfo=None) if hasattr(found, "hour") else found) == wanted)
    return type(found) is type(wanted) and bool(found == wanted)


def _nested(value: Any, type_: Any) -> Any:
    if type_["type"] == "array":
        rows = [expected(item, type_["elementType"]) for item in value] if isinstance(value, list) else BAD
        return BAD if rows is BAD or BAD in rows else rows
    if not isinstance(value, dict):
        return BAD
    if type_["type"] == "struct":
        row = {field["name"]: expected(value.get(field["name"]), field["type"]) for field in type_["fields"]}
        return BAD if BAD in row.values() else row
    names = [expected(name, "string") for name in value]
    values = [expected(item, type_["valueType"]) for item in value.values()]
    return BAD if BAD in names + values else list(zip(names, values, strict=True))


def _whole(value: Any, bits: int) -> Any:
    if not isinstance(value, Number) or value.exact.denominator != 1:
        return BAD
    return value.exact if -(2 ** (bits - 1)) <= value.exact < 2 ** (bits - 1) else BAD


def _floating(value: Any, type_: str) -> Any:
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if not isinstance(value, Number):
        return BAD
    nearest = _nearest(value.exact, *((24, -149, 2**128) if type_ == "float" else (53, -1074, 2**1024)))
    if nearest is BAD or (re.fullmatch(r"-?\d+", value.text) and nearest != value.exact):
        return BAD
    return nearest


def _nearest(exact: Fraction, bits: int, least: int, beyond: int) -> Any:
    """The binary fraction of so many bits that is nearest, half to even."""
    exponent = least
    while abs(exact) >= Fraction(2) ** (exponent + bits):
        exponent += 1
    nearest = round(exact / Fraction(2) ** exponent) * Fraction(2) ** exponent
    return BAD if abs(nearest) >= beyond else nearest


def _decimal(value: Any, precision: int, scale: int) -> Any:
    if isinstance(value, str) and re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", value):
        value = Number(value)
    if not isinstance(value, Number):
        return BAD
    unscaled = value.exact * 10**scale
    return value.exact if unscaled.denominator == 1 and abs(unscaled) < 10**precision else BAD


def _bytes(value: str) -> Any:
    try:
        data = base64.b64decode(value)
    except ValueError:
        return BAD
    return data if base64.b64encode(data).decode() == value else BAD


def _time(value: str, type_: str) -> Any:
    if type_ == "date":
        return _numpy(value, "D") if re.fullmatch(DAY, value, re.ASCII) else BAD
    match = re.fullmatch(TIME, value, re.ASCII)
    if match is None or (match[4] and not match[3]) or bool(match[5]) != (type_ == "timestamp"):
        return BAD
    time = _numpy(f"{match[1]}T{match[2]}{match[3] or ':00'}.{(match[4] or '').ljust(6, '0')}", "us")
    if time is BAD or match[5] in (None, "Z"):
        return time
    hours, minutes = int(match[7]), int(match[8] or 0)
    if hours > 23 or minutes > 59:
        return BAD
    east = numpy.timedelta64(hours * 60 + minutes, "m") * (-1 if match[6] == "-" else 1)
    time -= east
    return time if numpy.datetime64("0001-01-01") <= time < numpy.datetime64("10000-01-01") else BAD


def _numpy(text: str, unit: Any) -> Any:
    try:
        return numpy.datetime64(text, unit)
    except ValueError:
        return BAD
