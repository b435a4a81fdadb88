"""What a pipeline needs to know about a source. Each kind has it, so that no code has to list the kinds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Protocol

from onceonly.pipeline.checks import invalid

EARLIEST, LATEST = "earliest", "latest"


class SourceConfig(Protocol):
    """What users declare as a source: a frozen dataclass, stored with every checkpoint."""

    kind: ClassVar[str]  # in stored definitions

    @property
    def topic(self) -> str:
        """Its name in messages and in the state table; unique in a pipeline. Empty if it has a pattern."""

    @property
    def topic_pattern(self) -> str | None:
        """In place of `topic`: a regular expression of whole names; each topic that matches is read as one."""

    @property
    def input_name(self) -> str:
        """Its name in its pipeline and in the transform's input: the topic, the pattern, or the name of the table."""

    def reads(self, topic: str) -> bool:
        """Return whether a topic, or table, of that name is one of those that it reads."""

    def of(self, topic: str) -> SourceConfig:
        """Return the same source for one of its topics."""

    @property
    def begins(self) -> str | Mapping[str, int]:
        """Where the first checkpoint begins: 'earliest', 'latest', the ISO text of a time, or offsets by partition."""

    @property
    def most(self) -> int | None:
        """The maximum number of offsets in one checkpoint."""

    @property
    def grace(self) -> float:
        """Seconds for which an interval waits for what comes late."""


def check_grace(grace: float) -> None:
    """Raise InvalidPipeline unless it is a time to wait, of at most a leap year."""
    if not 0 <= grace <= 3600 * 24 * 366:
        raise invalid("grace", f"is {grace}", "Give seconds, from 0 to a year.")


def place(start: Any) -> str | None:
    """Return where a source starts: a word, or the ISO text of a time with its zone; None: it is neither."""
    if start in (EARLIEST, LATEST):
        return str(start)
    try:
        time = start if isinstance(start, datetime) else datetime.fromisoformat(start)
    except (TypeError, ValueError):
        return None
    return time.isoformat() if time.tzinfo is not None else None


def is_offset(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
