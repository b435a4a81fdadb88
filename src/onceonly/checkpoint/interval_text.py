"""Intervals as people write them: for commands, and in the conf of a run."""

from __future__ import annotations

from datetime import UTC, datetime

from onceonly.checkpoint.offsets import Interval
from onceonly.errors import InvalidPipeline


def parse_interval(start: str, end: str) -> Interval:
    """Return the interval between two times, see `parse_time`."""
    return Interval(parse_time(start), parse_time(end))


def parse_time(text: str) -> datetime:
    """Return a time that is written in ISO-8601; one without a zone is in UTC.

    Raises:
        InvalidPipeline: it is not a time.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidPipeline(
            f"'{text}' is not a time.",
            str(error),
            "Write 2013-01-01 or 2013-01-01T06:00+01:00. Nothing was written.",
            code="option-invalid",
        ) from error
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return time.astimezone(UTC)
