"""Places in a source, as users declare them: where the first checkpoint begins, and where reading ends for good."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from onceonly.pipeline.checks import option_error

EARLIEST, LATEST = "earliest", "latest"
OF_GROUP = "group:"  # before the name of a consumer group


def check_topic_start(start: Any) -> str | dict[str, int]:
    """Return the start as plain data: a word, the ISO text of a time, 'group:NAME', or offsets by partition.

    Raises:
        InvalidPipeline: it is none of these.
    """
    if isinstance(start, Mapping):
        return _check_offsets("start", start)
    if isinstance(start, str) and start.startswith(OF_GROUP) and start != OF_GROUP:
        return start
    start_place = _parse_start(start)
    if start_place is None:
        todo = "Use 'earliest', 'latest', a time with its zone, 'group:NAME', or {partition: offset}."
        raise option_error(f"start {start!r}", "is not a place in a topic", todo, code="option-invalid")
    return start_place


def check_end(end: Any, start: str | Mapping[str, int]) -> str | dict[str, int] | None:
    """Return the end as plain data: the ISO text of a time, or offsets by partition; None: there is none.

    Args:
        start: where the same source begins, as `check_topic_start` returns it.
    Raises:
        InvalidPipeline: it is none of these, or it comes before the start.
    """
    if end is None:
        return None
    if isinstance(end, Mapping):
        offsets = _check_offsets("end", end)
        if isinstance(start, Mapping):
            _refuse_ends_before(offsets, start)
        return offsets
    if end == LATEST:
        why = "is where every checkpoint ends: at the last record that is committed when it is planned"
        raise option_error("end 'latest'", why, "Remove it.", code="option-invalid")
    time = _parse_time(end)
    if time is None:
        todo = "Use a time with its zone, or {partition: offset} for every partition."
        raise option_error(f"end {end!r}", "is not a place in a topic", todo, code="option-invalid")
    start_time = _parse_time(start)
    if start_time and datetime.fromisoformat(time) < datetime.fromisoformat(start_time):
        raise option_error(f"end {time}", f"comes before start {start}", "Exchange them.", code="options-conflict")
    return time


def check_stored_start(start: Any, word: str, unit: str) -> str | int:
    """Return the start as plain data: a word, the ISO text of a time, or a number of that unit.

    Raises:
        InvalidPipeline: it is none of these.
    """
    checked: str | int | None = start if _is_offset(start) else _parse_start(start)
    if checked is None:
        todo = f"Use 'earliest', 'latest', a time with its zone, or a {unit}."
        raise option_error(f"start {start!r}", f"is not a place in a {word}", todo, code="option-invalid")
    return checked


def _parse_start(start: Any) -> str | None:
    """Return where a source starts: a word, or the ISO text of a time with its zone; None: it is neither."""
    if start in (EARLIEST, LATEST):
        return str(start)
    return _parse_time(start)


def _parse_time(time: Any) -> str | None:
    """Return the ISO text of a time with its zone; None: it is not one."""
    try:
        parsed = time if isinstance(time, datetime) else datetime.fromisoformat(time)
    except (TypeError, ValueError):
        return None
    return parsed.isoformat() if parsed.tzinfo is not None else None


def _is_offset(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_offsets(option: str, given: Mapping[Any, Any]) -> dict[str, int]:
    offsets = {}
    is_valid = len(given) > 0
    for partition, offset in given.items():
        offsets[str(partition)] = offset
        is_valid = is_valid and str(partition).isdecimal() and _is_offset(offset)
    if not is_valid:
        raise option_error(
            f"{option} {dict(given)!r}",
            "does not give an offset for each partition",
            "Write {0: 1200, 1: 800}.",
            code="option-invalid",
        )
    return offsets


def _refuse_ends_before(ends: Mapping[str, int], starts: Mapping[str, int]) -> None:
    for partition, start in starts.items():
        end = ends.get(partition, start)
        if end < start:
            why = f"ends partition {partition} at {end}, and start begins it at {start}"
            raise option_error("end", why, "Correct one of them.", code="options-conflict")
