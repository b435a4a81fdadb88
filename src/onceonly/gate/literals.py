"""Values in a suite, which are JSON, as values of the column that they are compared with. Nothing is rounded but to
the nearest value of a floating-point column."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

from onceonly.gate.columns import TIMES, Column, Kind, to_days, to_microseconds
from onceonly.gate.errors import Unjudgeable, WrongKind

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
        items = ", ".join(f"{key!r}: {show_literal(item)}" for key, item in value.items())
        return f"{{{items}}}"
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
        return math.inf if value > 0 else -math.inf


def _parse_time(value: str, column: Column) -> int:
    """Return a date or time in ISO form as a normalized value of the column. Raises WrongKind."""
    try:
        if column.kind is Kind.DATE:
            return to_days(value)
        return to_microseconds(value, column.kind is Kind.TIMESTAMP)
    except ValueError as error:
        kind = "date" if column.kind is Kind.DATE else "time"
        raise WrongKind(f"{value!r} is no {kind} in ISO form for column '{column.name}' ({error})") from error
