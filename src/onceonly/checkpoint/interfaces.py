"""What the coordinator asks of sources and gates, and who makes its parts. Nothing here knows a product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import TopicLog, TopicRange
from onceonly.checkpoint.sink import Sink, Trace
from onceonly.pipeline.definition import Pipeline


@dataclass(frozen=True)
class FirstRecord:
    """First record at or after a time: its offset and timestamp; `at` is None when there is no such record.

    Args:
        held: there is none, and a producer's transaction is open from `offset` on: records of any time may be behind.
    """

    offset: int
    at: datetime | None
    held: bool = False


class Source(Protocol):
    """Plans need no JVM; `read` runs in the Spark job."""

    def check(self) -> list[str]: ...

    def log(self) -> TopicLog:
        """What the topic holds now, for a read_committed reader."""

    def offsets_at(self, time: datetime) -> Mapping[int, FirstRecord]:
        """Per partition the first committed record at or after `time`, else the last stable offset.

        That is `held` where the log goes on behind it.
        """

    def read(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """Exactly the pinned ranges, decoded, as a DataFrame."""

    def verify(self, ranges: tuple[TopicRange, ...]) -> None:
        """Raise SourceLost when a part of the ranges is not in the log (asked before and after reading)."""

    def report(self, done: Checkpoint, state_id: str) -> None:
        """Show what is committed where people look for a consumer's lag, and which decision of which state table it is.

        Offsets only move forward, and so does the decision.
        """

    def traces(self, pipeline: str) -> list[Trace]:
        """What the pipeline's consumer group shows of its last committed checkpoint, where it shows one.

        Raises:
            OutcomeUnknown: the group cannot be read. That stops nobody.
        """

    def diagnose(self, error: Exception, spark: Any, ranges: tuple[TopicRange, ...]) -> Exception:
        """The error of a failed read in the user's terms (a BadRecord with partition and offset); else `error`."""


@dataclass(frozen=True)
class Findings:
    """What a gate has seen, for the state table: figures, and no value of any row.

    Args:
        sinks: by name {"rows": int, "path": "in process" | "spark", "checks": [{"what", "ok", "severity": "critical" |
            "warning" | "info", "observed": text}]}.
        docs: address of the Data Docs.
    """

    sinks: Mapping[str, Mapping[str, Any]]
    docs: str | None = None


class Inspector(Protocol):
    """The eyes of a pipeline's gate; they change nothing."""

    def check(self) -> list[str]:
        """Notes for the user; raises InvalidPipeline when the gate could not be asked as it is."""

    def examine(self, checkpoint: Checkpoint) -> Findings:
        """Look at what is staged."""

    def forget(self, examined: Findings) -> None:
        """Another verdict was first: remove what was made for this one."""


class Parts(Protocol):
    """Makes the live parts of a pipeline from its plain definition."""

    def sink(self, pipeline: Pipeline, name: str) -> Sink: ...

    def sources(self, pipeline: Pipeline) -> Mapping[str, Source]:
        """By topic."""

    def inspector(self, pipeline: Pipeline) -> Inspector:
        """Of a pipeline that has a gate."""
