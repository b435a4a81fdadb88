"""What windows keep and check in the state: their definition, the watermark's bound, and types that fit the values.

The bound says how late a row may be dated and still move the watermark. One event of the year 2092, from a device with
a wrong clock, would otherwise close every window. It comes from what the checkpoint has pinned, and not from a clock: a
stage that is repeated computes the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from onceonly.errors import InvalidPipeline
from onceonly.unix_time import MICROSECOND

DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}  # of the integer types, each wider than the one before
DEFINITION_KEY = "onceonly.windows"  # key in the metadata of the state's column 'watermark', which the state preserves
WATERMARK = "watermark"  # the state's column that carries it
TIME_KEY = "onceonly.as_of"  # key in the column's metadata: the time of the checkpoint, in microseconds since 1970
NOTE_KEY = "onceonly.note"  # key in the metadata of a changed column: a sentence for the log and `describe`


def check_same(state: Any, open_windows: Any, now: str) -> None:
    """Refuse open windows with another definition: they would never be closed, or be mixed with the new ones.

    Args:
        open_windows: those in the state.
        now: the current definition, as text.
    Raises:
        InvalidPipeline: the definitions differ; lateness does not matter.
    """
    then = state.schema["watermark"].metadata.get(DEFINITION_KEY, now)
    if then != now and not open_windows.isEmpty():
        raise InvalidPipeline(
            "the open windows have another definition than the transform.",
            f"They are {then}; the transform now has {now}.",
            "Restore the old definition until they are closed. Or give the StateSink a new name: it starts without "
            "open windows, and the content of these is lost. Nothing was staged.",
            code="windows-changed",
        )


def mark_changes(changes: Any, now: str, note: Mapping[str, str]) -> Any:
    """Return the changes with the definition of the windows in their metadata, and perhaps a note."""
    return changes.withMetadata("watermark", {DEFINITION_KEY: now, **note})


def check_types(columns: Any, state: Any) -> None:
    """Refuse columns whose values may not fit the state's types, before any row is read.

    Args:
        columns: a DataFrame with the columns that are stored in the state, under their names there.
    Raises:
        InvalidPipeline: a value or a key might not fit.
    """
    kinds = _kind_names(state)
    problems = []
    for name, kind in _kind_names(columns).items():
        problem = _find_problem(name, kind, kinds)
        if problem:
            problems.append(problem)
    if problems:
        raise InvalidPipeline(
            "the state's types cannot hold the values of the windows.",
            f"{'; '.join(problems)}: values would be truncated.",
            "Cast the column in the transform, or declare the wider type in state_schema(…). Nothing was staged.",
            code="state-type-too-narrow",
        )


def _kind_names(frame: Any) -> dict[str, str]:
    """Return the names of the Spark types of a DataFrame's columns, by column."""
    return {field.name: field.dataType.simpleString() for field in frame.schema.fields}


def _find_problem(name: str, kind: str, kinds: Mapping[str, str]) -> str | None:
    """Return why the state cannot hold a column of that type; None: it can."""
    if name not in kinds:
        return f"'{name}' is not in the state's schema"
    if fits(kind, kinds[name]):
        return None
    return f"'{name}' has the type {kind}, and the state has {kinds[name]}"


def fits(kind: str, into: str) -> bool:
    """Whether every value of one Spark type is also a value of the other."""
    if kind == into or (into == "string" and kind.startswith(("char(", "varchar("))):
        return True
    if into.startswith("decimal"):
        return _fits_decimal(kind, *_decimal(into))
    if into == "double":  # also from bigint: whoever declares such a sum as double accepts rounding
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


def mark_time(state: Any, as_of: datetime) -> Any:
    """Return the state with the time of the checkpoint that is being staged: the end of its interval, or of its plan.

    A state without windows is returned as it is.
    """
    if WATERMARK not in state.columns:
        return state
    metadata = state.schema[WATERMARK].metadata
    return state.withMetadata(WATERMARK, {**metadata, TIME_KEY: round(as_of.timestamp() * 1e6)})


def read_latest_time(state: Any, ahead: timedelta) -> int | None:
    """Return the latest time that moves the watermark, in microseconds; None where no checkpoint is staged (a test)."""
    as_of: int | None = state.schema[WATERMARK].metadata.get(TIME_KEY)
    if as_of is None:
        return None
    return as_of + ahead // MICROSECOND


def make_note(rows_ahead: int, ahead: timedelta) -> dict[str, str]:
    """Return the metadata that tells of rows dated ahead; empty if there are none."""
    if not rows_ahead:
        return {}
    rows = "1 row is" if rows_ahead == 1 else f"{rows_ahead:,} rows are"
    return {NOTE_KEY: f"{rows} dated more than {ahead} ahead of the checkpoint: did not move the watermark"}
