"""What has to hold before windows are taken up again: the state's were made alike, and keeps what is added up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onceonly.errors import InvalidPipeline

DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}  # of the integral types, which widen in this order
MADE_BY = "onceonly.windows"  # in the metadata of the state's column 'watermark', which the state keeps


def check_same(state: Any, held: Any, now: str) -> None:
    """Refuse to go on with open windows that were made otherwise: they would never be closed, or mixed with others.

    Args:
        held: the open windows.
        now: what the windows are made by now, for people.
    Raises:
        InvalidPipeline: they were made otherwise; lateness does not matter.
    """
    then = state.schema["watermark"].metadata.get(MADE_BY, now)
    if then != now and not held.isEmpty():
        raise InvalidPipeline(
            "the windows that are open were made otherwise.",
            f"They are {then}; the transform now says {now}.",
            "Go back to that until they are closed; or give the StateSink a new name, which starts without open ones "
            "and loses what these hold. Nothing was staged.",
        )


def marked(changes: Any, now: str) -> Any:
    """The changes, which say how the windows were made."""
    return changes.withMetadata("watermark", {MADE_BY: now})


def check_types(given: Any, state: Any) -> None:
    """Refuse columns that the state could only hold in part, before any row is read.

    Args:
        given: a DataFrame with the columns that go into the state, under its names.
    Raises:
        InvalidPipeline: a value, or a key, would be cut.
    """
    kinds = {field.name: field.dataType.simpleString() for field in state.schema.fields}
    have = {field.name: field.dataType.simpleString() for field in given.schema.fields}
    problems = [found for name, kind in have.items() if (found := _problem(name, kind, kinds))]
    if problems:
        raise InvalidPipeline(
            "the state cannot hold what the windows are made of.",
            f"{'; '.join(problems)}: each row would be cut to fit.",
            "Cast the column in the transform, or declare it so in state_schema(…). Nothing was staged.",
        )


def _problem(name: str, kind: str, kinds: Mapping[str, str]) -> str | None:
    if name not in kinds:
        return f"'{name}' is not in the state's schema"
    return None if fits(kind, kinds[name]) else f"'{name}' is made of {kind}, and the state has {kinds[name]}"


def fits(kind: str, into: str) -> bool:
    """Whether every value of one Spark type is one of the other, too."""
    if kind == into or (into == "string" and kind.startswith(("char(", "varchar("))):
        return True
    if into.startswith("decimal"):
        return _fits_decimal(kind, *_decimal(into))
    if into == "double":  # also of bigint: such a sum is declared to be rounded
        return kind == "float" or kind in DIGITS
    return into in DIGITS and DIGITS.get(kind, 99) <= DIGITS[into]


def _fits_decimal(kind: str, precision: int, scale: int) -> bool:
    if kind.startswith("decimal"):
        theirs, fraction = _decimal(kind)
        return theirs - fraction <= precision - scale and fraction <= scale
    return DIGITS.get(kind, 99) <= precision - scale


def _decimal(kind: str) -> tuple[int, int]:
    precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)
