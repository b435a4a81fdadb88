"""What the coordinator asks of sinks and sources; nothing here knows a product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from onceonly.checkpoint import Handle, Outcome, Transaction
from onceonly.offsets import TopicLog, TopicRange
from onceonly.pipeline import Pipeline


class Sink(Protocol):
    """Two-phase output. `stage` runs in the Spark job, everything else anywhere."""

    name: str

    def check(self) -> list[str]:
        """Notes for the user (such as which publish path is taken); raises InvalidPipeline."""

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        """Write `rows` (a DataFrame) durably and invisibly; the handle lets any process finish."""

    def commit(self, handle: Handle, decision: int) -> Outcome:
        """Publish, idempotently. Raises CannotPublish or OutcomeUnknown, never guesses."""

    def abort(self, txn: Transaction, handle: Handle | None) -> None:
        """Discard everything that carries `txn`'s name, idempotently; a handle may be lost. Published rows stay."""

    def leftovers(self, prefix: str) -> list[Transaction]:
        """Transactions with that `Transaction.prefix` that hold unpublished output."""


@dataclass(frozen=True)
class Found:
    """First record at or after a time: its offset and timestamp; `at` is None when there is no such record."""

    offset: int
    at: datetime | None


class Source(Protocol):
    """Plans need no JVM; `read` runs in the Spark job."""

    def check(self) -> list[str]: ...

    def log(self) -> TopicLog:
        """What the topic holds now, for a read_committed reader."""

    def offsets_at(self, time: datetime) -> Mapping[int, Found]:
        """Per partition the first committed record at or after `time`, else the last stable offset."""

    def read(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """Exactly the pinned ranges, decoded, as a DataFrame."""

    def verify(self, ranges: tuple[TopicRange, ...]) -> None:
        """Raise SourceLost when a part of the ranges is not in the log (asked before and after reading)."""

    def diagnose(self, error: Exception, spark: Any, ranges: tuple[TopicRange, ...]) -> Exception:
        """The error of a failed read in the user's terms (a BadRecord with partition and offset); else `error`."""


class Parts(Protocol):
    """Makes the live parts of a pipeline from its plain definition."""

    def sink(self, pipeline: Pipeline, name: str) -> Sink: ...

    def source(self, pipeline: Pipeline) -> Source: ...
