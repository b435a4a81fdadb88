"""The interfaces of sources and gates, and of the factory that makes them. Nothing here depends on a product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from onceonly.checkpoint.boundary_search import FirstRecord as FirstRecord
from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import NO_OFFSETS, Offsets, TopicLog, TopicRange
from onceonly.checkpoint.sink import Sink, Trace
from onceonly.pipeline.definition import Pipeline


class Source(Protocol):
    """A source of records. `read` runs in the Spark job; the other calls need no JVM."""

    def check(self) -> list[str]: ...

    def log(self) -> TopicLog:
        """Return the offsets that a read_committed reader finds now."""

    def offsets_at(
        self, time: datetime, latest: datetime | None = None, floor: Offsets = NO_OFFSETS
    ) -> Mapping[int, FirstRecord]:
        """Return per partition the first committed record at or after `time`; if there is none, the last stable offset.

        The latter is `is_hidden` if the log continues after it.

        Args:
            latest: a record that is dated later is passed over, and counted; None: none is.
            floor: no boundary will lie before these offsets. Behind a record that was passed over, the search may
                continue there.
        Raises:
            InvalidPipeline: the search behind a record that was passed over is too long.
        """

    def add_mark(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """Return the range with a mark, by which the source is recognised later; without one if it has none.

        Args:
            previous: another range that was pinned before; in a chain the one that ends where this one starts.
        Raises:
            SourceLost: it does not contain all of the range, or no longer what `previous` contained.
            InvalidPipeline: the range cannot be read as the definition says.
        """

    def mark_left_out(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """Return the range with its mark, as `add_mark`, whether it can be read or not: a person has left it out."""

    def read_small_batch(self, ranges: tuple[TopicRange, ...]) -> None:
        """Read the ranges without Spark and keep their records, from which other calls answer about these ranges.

        Where this process cannot read them, or they are large, it keeps nothing: Spark reads them, or says why not.
        """

    def read(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """Return exactly the pinned ranges, decoded, as a DataFrame."""

    def verify(self, ranges: tuple[TopicRange, ...]) -> None:
        """Raise SourceLost if the log does not contain all of the ranges. Called before and after reading."""

    def report(self, done: Checkpoint, state_id: str) -> None:
        """Show the committed offsets as those of a consumer group, with their state table and decision.

        Neither the offsets nor the decision ever move back.
        """

    def traces(self, pipeline: str) -> list[Trace]:
        """Return the last committed checkpoint that the pipeline's consumer group shows, if any.

        Raises:
            OutcomeUnknown: the group cannot be read. Callers continue without it.
        """

    def diagnose(self, error: Exception, spark: Any, ranges: tuple[TopicRange, ...]) -> Exception:
        """Return why a read failed, if it can be determined: a BadRecord with partition and offset. Else `error`."""


@dataclass(frozen=True)
class OpenTransaction:
    """A producer's transaction that is open, and behind which nothing can be read.

    Args:
        offset: where it begins, which is the last stable offset.
        hidden_offsets: how many offsets lie there.
        hides_others: records of others, which are committed, lie behind it.
        is_overdue: its brokers should have ended it by now.
        since: when it began; None: not known.
        producer: whose it is, for people: as much as the brokers show.
    """

    partition: int
    offset: int
    hidden_offsets: int
    hides_others: bool
    is_overdue: bool = False
    since: datetime | None = None
    producer: str = ""


@runtime_checkable
class TransactionalLog(Protocol):
    """A source in whose ranges there may be no record, since producers write in transactions: a topic.

    It has offsets of markers, of what was aborted, and of what is still open.
    """

    def has_records(self, range_: TopicRange) -> bool:
        """Whether a reader finds a record in the range. It reads up to the first one."""

    def first_offsets(self, range_: TopicRange) -> Offsets:
        """Return per partition the offset of the first record in the range, else the range's end."""

    def await_transactions(self, log: TopicLog) -> tuple[TopicLog, list[OpenTransaction]]:
        """Wait for a moment for transactions behind which something lies in `log`.

        Returns:
            The log as it is then; and, if it ends where it ended before, the transactions that are still open.
        """


@runtime_checkable
class GroupOffsets(Protocol):
    """A source that consumer groups read: a topic."""

    def read_group(self, group: str) -> Offsets:
        """Return the offsets that a consumer group has committed, by partition; others are left out.

        Raises:
            InvalidPipeline: consumers of the group are at work, so that its offsets move on.
            NotCommitted: the group cannot be read.
        """


@runtime_checkable
class EncodedRecords(Protocol):
    """A source whose records have to be decoded: a topic. Some may be bad, and some may name registered schemas."""

    def read_with_errors(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """Return exactly the pinned ranges as a DataFrame.

        `spark.decode_results` takes the good and the bad records from it.
        """

    def read_undecoded(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """Return the same records as they are in the log."""

    def schemas(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Mapping[str, Any]:
        """Return by which schemas the ranges are decoded in a first attempt: plain JSON; empty: by no registered ones.

        New ones may be registered at any time.
        """

    def pinned_to(self, schemas: Mapping[str, Any]) -> Source:
        """Return the source that decodes by these schemas.

        Raises:
            InvalidPipeline: they are not what they were.
        """


@runtime_checkable
class CountedRecords(Protocol):
    """A source that may have read its records in this process, and then knows how many they are: a topic."""

    def count_read(self, ranges: tuple[TopicRange, ...]) -> Mapping[tuple[str, int], int] | None:
        """Return how many records of the ranges were read here, by topic and partition; None: they were not.

        A partition without a record is left out.
        """


@dataclass(frozen=True)
class Findings:
    """The findings of a gate, for the state table: counts, and never a value of a row.

    Args:
        sinks: by name {"rows": int, "path": "in process" | "spark", "checks": [{"what", "ok", "severity": "critical" |
            "warning" | "info", "observed": text, and "column" where it is about one}]}.
        docs: path or URI of the Data Docs' files.
    """

    sinks: Mapping[str, Mapping[str, Any]]
    docs: str | None = None


class Inspector(Protocol):
    """Examines the rows for a pipeline's gate. Changes nothing."""

    def check(self) -> list[str]:
        """Return notes for the user. Raises InvalidPipeline if the gate's checks cannot run."""

    def examine(self, checkpoint: Checkpoint) -> Findings:
        """Run the gate's checks on the staged rows."""

    def forget(self, examined: Findings) -> None:
        """Delete the Data Docs of an examination: another verdict was recorded first."""


class Parts(Protocol):
    """Makes the parts of a pipeline, which reach services, from its definition, which is plain data."""

    def sink(self, pipeline: Pipeline, name: str) -> Sink: ...

    def sources(self, pipeline: Pipeline) -> Mapping[str, Source]:
        """Make the sources, by topic."""

    def inspector(self, pipeline: Pipeline) -> Inspector:
        """Make the inspector of a pipeline that has a gate."""
