"""What the coordinator asks of sinks and sources; nothing here knows a product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from onceonly.checkpoint.model import Checkpoint, Handle, Outcome, Transaction
from onceonly.checkpoint.offsets import Offsets, TopicLog, TopicRange
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline


class Receipts(Protocol):
    """A sink's handle as the state table has it, for a sink that has to change it while publishing."""

    def replace(self, old: Handle, new: Handle) -> Handle:
        """Record `new` in place of `old`, by compare-and-set; returns the handle that is recorded now.

        That is another one than `new` where another process was first. Only for an `old` that will surely never be
        published. Raises Fenced when the sink no longer waits to be published.
        """


@dataclass(frozen=True)
class Pooled:
    """An open transaction under an id of a pool, which does not say whose it is: the state table does, by its slot."""

    pipeline: str
    sink: str
    slot: int
    id: str
    producer: tuple[int, int]  # producer id and epoch


@dataclass(frozen=True)
class Trace:
    """The last decision of a pipeline that a target, or a consumer group, shows.

    Args:
        state_id: of the state table that took it; empty where that is not said.
        where: for people, such as "table /lake/flights".
        ends: by topic, where the pipeline was to go on after it, as far as that is shown.
        epoch: the last one that is shown, where the target names what is published by its epoch: none up to it can be
            published there again.
    """

    state_id: str
    decision: int
    where: str
    ends: Mapping[str, Offsets] = field(default_factory=dict)
    epoch: int = field(default=0, compare=False)


class Sink(Protocol):
    """Two-phase output. `stage` runs in the Spark job, everything else anywhere."""

    name: str

    def check(self) -> list[str]:
        """Notes for the user (such as which publish path is taken); raises InvalidPipeline."""

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        """Write `rows` (a DataFrame) durably and invisibly; the handle lets any process finish."""

    def commit(self, handle: Handle, decision: int, receipts: Receipts) -> Outcome:
        """Publish, idempotently. Raises InDoubt, CannotPublish or OutcomeUnknown, never guesses.

        Published already is what the target shows under the name of this very transaction. Another name at this
        decision, or a later decision, is StateBehind.
        """

    def abort(self, txn: Transaction, handle: Handle | None) -> None:
        """Discard everything that carries `txn`'s name, idempotently; a handle may be lost. Published rows stay."""

    def leftovers(self, prefix: str) -> list[Transaction]:
        """Transactions with that `Transaction.prefix` that hold unpublished output."""

    def release(self, txn: Transaction) -> None:
        """Its outcome is recorded: remove what was kept in case of a loss. Idempotent."""
        return

    def renounce(self, txn: Transaction) -> None:
        """See to it that no process can publish it any more, as far as the sink knows a way; rows are kept."""
        return

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """See to it that no process can publish `handle` any more, and only then look whether it was published.

        Idempotent; rows are kept.

        Returns:
            Its outcome where it was published after all; None: it never will be.
        Raises:
            OutcomeUnknown: the target does not answer, so a process may still publish it.
        """
        raise NotImplementedError

    def traces(self, pipeline: str) -> list[Trace]:
        """What the target shows of this pipeline and sink, one entry for each state table that has written to it."""
        return []

    def check_replace(self, old: Handle) -> None:
        """Refuse, unless a handle with `old` under "replaces" can be published in its place."""
        raise self.cannot_take_back()

    def retraction(self, txn: Transaction, olds: Sequence[Handle], held: Handle | None) -> Handle:
        """A handle whose publication takes out what `olds` brought, the youngest first.

        Args:
            held: its handle of the checkpoint to which the pipeline goes back, where it has one.
        """
        raise self.cannot_take_back()

    def cannot_take_back(self) -> InvalidPipeline:
        return InvalidPipeline(
            f"sink '{self.name}': what is published there cannot be taken back.",
            "Readers may have seen it.",
            "Process again into a target that can be replaced (a Delta table, files), or under a new name. "
            "Nothing was written.",
        )

    def pooled(self, prefix: str) -> list[Pooled]:
        """What is open under its pooled ids, of whatever attempt."""
        return []

    def needs(self, handle: Handle, txn: Pooled) -> bool:
        """Whether a handle that waits to be published names `txn`, or may come to name it."""
        return True

    def end(self, txns: Sequence[Pooled]) -> None:
        """See to it that they are not open, except where the id is in other hands by now."""
        return

    def staged(self, handle: Handle) -> Any:
        """What is staged, as a pyarrow RecordBatchReader: the rows that would be published, in no order.

        None: only Spark can read them.
        """
        raise self.not_looked_at()

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        """The same as a DataFrame."""
        raise self.not_looked_at()

    def not_looked_at(self) -> InvalidPipeline:
        return InvalidPipeline(f"sink '{self.name}': a gate cannot look at it.", todo="Leave it out of the gate.")

    def columns(self) -> list[str] | None:
        """Of the rows that are staged for it, where that is known before any is; `staged_frame` has the same."""
        return None

    def evidence(self, handle: Handle) -> list[str]:
        """What the sink shows about the outcome now, for a person who has to decide."""
        return []

    def judged(self, handle: Handle, committed: bool) -> Handle:
        """The handle with a manual resolution of what is in doubt; what can be seen is not changed by it."""
        raise InvalidPipeline(f"sink '{self.name}' is never in doubt.", todo="Settle it: onceonly recover")


@dataclass(frozen=True)
class Found:
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

    def offsets_at(self, time: datetime) -> Mapping[int, Found]:
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
class Examined:
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

    def examine(self, checkpoint: Checkpoint) -> Examined:
        """Look at what is staged."""

    def forget(self, examined: Examined) -> None:
        """Another verdict was first: remove what was made for this one."""


class Parts(Protocol):
    """Makes the live parts of a pipeline from its plain definition."""

    def sink(self, pipeline: Pipeline, name: str) -> Sink: ...

    def sources(self, pipeline: Pipeline) -> Mapping[str, Source]:
        """By topic."""

    def inspector(self, pipeline: Pipeline) -> Inspector:
        """Of a pipeline that has a gate."""
