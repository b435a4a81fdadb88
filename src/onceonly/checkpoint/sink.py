"""The interface of a sink. Every sink is a `Sink`; the other classes are optional capabilities.

A sink has a capability if it is a subclass of it: the coordinator checks with `isinstance`, and a missing method fails
when the sink is created. Every method has to be idempotent, and safe if several processes call it at the same time.

    Sink                 two-phase output: seven calls, and five more that most sinks leave as they are
    DecisionTraces       its target shows the last decision
    TargetHistory        its target shows whether it still has what was published to it
    InspectableRows      a gate can read the staged rows
    ReplaceableRows      published rows can be retracted
    VersionedTarget      its target has versions, by which other pipelines read it
    IncrementalSweep     looking for all leftovers takes long; a recovery asks for single ones
    StateBackend         what it publishes is read by the next checkpoint
    TransactionalIdPool  writes under a few transactional ids, which attempts lease
    VerifiableTarget     its target can be compared with all that was published to it (verification.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol, TypedDict

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.offsets import Offsets
from onceonly.errors import ActionNeeded, CannotPublish, Fenced, InvalidPipeline
from onceonly.pipeline.shapes import Count

# What `Sink.rehearse` raises if a person has to act before it can be published
REFUSALS = (ActionNeeded, CannotPublish, InvalidPipeline, Fenced)


@dataclass(frozen=True)
class Publication:
    """A sink's last recorded publication: the last row PUBLISHED of that sink, whichever checkpoint it is of.

    Args:
        proof: what the sink's commit returned as `Outcome.proof`: by which its target can be recognised later.
        absent: a person has accepted that this target no longer exists. The sink may make it again.
        lost: what was published there afterwards, and is recorded as missing. A target that shows any of it is the one
            that was given up, and must not be published to before that is recorded.
    """

    epoch: int
    decision: int
    proof: Mapping[str, Any]
    absent: bool = False
    lost: tuple[Publication, ...] = ()

    @property
    def target(self) -> str:
        """The place that was published to."""
        return str(self.proof["target"])


class Receipts(Protocol):
    """The handle of a sink as the state table has it, for a commit that has to publish by another one.

    A handle is the receipt of what was staged, hence the name.
    """

    def replace(self, old: Handle, new: Handle) -> Handle:
        """Record `new` in place of `old` by compare-and-set, and return the handle that is recorded now.

        It differs from `new` if another process was first. Call it only if `old` will certainly never be published.

        Raises:
            Fenced: the sink is no longer waiting to be published.
        """


class AnyHandle(TypedDict):
    """The keys that every handle has."""

    rows: Count


class Sink(ABC):
    """Two-phase output. `stage` runs in the Spark job; the other methods run in any process."""

    name: str
    handle_shape: ClassVar[Any] = AnyHandle  # see pipeline/shapes.py; other handles are refused

    @abstractmethod
    def check(self) -> list[str]:
        """Return notes for the user, such as how it publishes. Raises InvalidPipeline if it cannot."""

    def list_written_folders(self) -> list[str]:
        """Return the folders that staging and publishing write to, as absolute paths or URIs, missing ones too.

        `onceonly check` tries each of them with a file that it removes again.
        """
        return []

    @abstractmethod
    def stage(self, txn: Transaction, rows: Any) -> Handle:
        """Write `rows` (a DataFrame) durably, invisible to readers, under the name of `txn`.

        Returns:
            The handle, from which any process can finish: plain JSON without secrets, with the number of "rows". People
            are shown these keys, if it has them: "target" (where the rows go), "bytes", "files", and "unit" (what one
            row is called, such as "changed key").
        """

    @abstractmethod
    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        """Do everything that `commit` will do, up to the write that counts. Called just before the decision.

        What it computes may be kept in this object: the commit that follows in the same process is a call of the same
        object, and has to check that it still holds. It never writes what counts as evidence. May be called any number
        of times. If the target shows that this very transaction is published already, that is no error.

        Args:
            decision: the number that the decision will have.
            last: the sink's last recorded publication, which the target has to show.
        Returns:
            The handle to decide on: this one, or one that names copies which the rehearsal has made durable.
        Raises:
            StageAgain: what is staged is damaged, missing or does not fit any more, and staging it again helps.
            ActionNeeded: it cannot be published until a person acts. A missing target is one of these.
            CannotPublish: likewise, when it is a TargetWentBack, a StateBehind or an InDoubt.
            Any other error: no answer, so it is not known whether it can be published.
        """

    @abstractmethod
    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        """Publish, idempotently. Raises InDoubt, CannotPublish or OutcomeUnknown; it never guesses.

        The transaction is already published if the target shows its name. If the target shows another name at this
        decision, or a later decision, the state table is behind the target: raise StateBehind.

        Args:
            last: the sink's last recorded publication; None: there is none. The version of the target that this commit
                builds on has to show it, or this very transaction; else raise TargetWentBack.
        """

    @abstractmethod
    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """Make sure that no process can publish `handle` any more, and only then check whether it was published.

        Idempotent. The rows are kept. A later commit raises Fenced or CannotPublish.

        Returns:
            The outcome if it was published; None if it never will be.
        Raises:
            OutcomeUnknown: the target does not answer, so a process may still publish.
        """

    @abstractmethod
    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        """Remove everything that has `txn`'s name and is not published, so that it never will be.

        Idempotent. `handle` is None if it was never recorded. Called before the decision.
        """

    @abstractmethod
    def leftovers(self, prefix: str) -> list[Transaction]:
        """List the transactions with unpublished output whose names begin with `prefix` and a dash.

        Recovery asks for those of all sinks of a pipeline: "STATE-PIPELINE". `Transaction.prefix` is that of one sink.
        """

    # ---- what most sinks leave as it is

    def stage_small_batch(self, txn: Transaction, rows: Any) -> Handle:
        """Stage rows that are made of few records, see `stage`.

        This process may collect them, which is quicker than Spark's workers. By default, they are staged as any others.
        """
        return self.stage(txn, rows)

    def revoke(self, txn: Transaction) -> None:
        """Make sure that no process can publish `txn` any more, as far as the sink can. The rows are kept. Idempotent.

        For sinks whose staging leaves something that a process could publish without a decision in the state table,
        such as an open transaction. Unlike `discard`, it keeps the rows. Unlike `fence`, it is called before the
        decision, and does not determine the outcome. By default, nothing is open.
        """
        return

    def release(self, txn: Transaction) -> None:
        """Remove what was kept until now, such as staged rows: `txn` was published, and that is recorded. Idempotent.

        Unlike `discard`, it need not check whether the rows are published. It never removes published rows, even if the
        target was rewritten and no longer refers to them. By default, nothing was kept.
        """
        return

    def evidence(self, handle: Handle) -> list[str]:
        """Return the present evidence of the outcome, as lines of text, for a person who has to decide.

        Changes nothing. By default, there is none to show.
        """
        return []

    def resolve_handle(self, handle: Handle, committed: bool) -> Handle:
        """Return the handle with a manual resolution of what is in doubt. It does not override evidence.

        For sinks whose `commit` may raise InDoubt, because no evidence of an outcome is left.
        """
        raise no_doubt_error(self.name)


class IncrementalSweep(ABC):
    """Published output keeps the names of its transactions, so `leftovers` takes longer with every checkpoint.

    A recovery therefore asks for single transactions by name, and for all leftovers once a day.
    """

    @abstractmethod
    def is_leftover(self, txn: Transaction) -> bool:
        """Whether it is one of the `leftovers`, at a cost that does not grow with what is published."""

    @abstractmethod
    def seconds_since_sweep(self, prefix: str) -> float | None:
        """Return the seconds since all leftovers with that prefix were processed; None: not known."""

    @abstractmethod
    def record_sweep(self, prefix: str) -> None:
        """Record that all leftovers with that prefix have been processed now."""


@dataclass(frozen=True)
class Trace:
    """The last decision of a pipeline that a target, or a consumer group, shows.

    Args:
        state_id: of the state table that holds the decision; empty if unknown.
        where: for people, such as "table /lake/flights".
        ends: by topic, the offsets at which the pipeline continues after it, if they are shown.
        epoch: the last one that the target shows. In a target that identifies output by its epoch, no epoch up to this
            one can be published again.
    """

    state_id: str
    decision: int
    where: str
    ends: Mapping[str, Offsets] = field(default_factory=dict)
    epoch: int = field(default=0, compare=False)


class DecisionTraces(ABC):
    """Its target records decisions, so a state table that was restored from an older copy is detected."""

    @abstractmethod
    def traces(self, pipeline: str) -> list[Trace]:
        """Return the last decision of this pipeline and sink, for each state table that has written to the target."""


class Answer(Enum):
    """Whether a target still has what was published to it."""

    SAME = "the same"
    WENT_BACK = "went back, or is another one"
    UNKNOWN = "cannot be known"  # what could tell has expired; never taken for WENT_BACK
    ELSEWHERE = "elsewhere"  # the definition names another target than the one that was published to


@dataclass(frozen=True)
class History:
    """How a target compares with a recorded publication.

    Args:
        why: for people, such as "its log ends at version 3, and version 7 published epoch 12".
        decision: if it went back: the last decision of this sink that the target still shows; 0: none. All later ones
            are missing.
        at_least: it may show later ones as well. The target cannot tell, so each is compared by its own proof.
        remarks: what its owner has done to it since, on purpose, such as a RESTORE; for people.
    """

    answer: Answer
    why: str = ""
    decision: int = 0
    remarks: tuple[str, ...] = ()
    at_least: bool = False


class TargetHistory(ABC):
    """Its target shows whether it still has what was published to it. `commit` returns an `Outcome.proof`."""

    @abstractmethod
    def compare(self, last: Publication) -> History:
        """Compare the target with `last`, and with all that was published before. Changes nothing.

        Args:
            last: the last one in that target; or an earlier one, of which a person asks whether it is there again.
        Raises:
            OutcomeUnknown: the target does not answer.
        """

    @abstractmethod
    def find_current_publication(self, last: Publication) -> Publication | None:
        """Return what the target shows now as the sink's last publication, with a proof of the target as it is.

        Recorded in place of `last` when a person accepts that later publications are missing. `compare` finds it
        SAME as long as the target does not change. None: there is no target.
        """


class ReplaceableRows(ABC):
    """Published rows can be retracted, in the commit that publishes other rows."""

    @abstractmethod
    def check_replace(self, old: Handle) -> None:
        """Raise InvalidPipeline unless the rows of `old` can be replaced by a handle that has it under "replaces"."""

    @abstractmethod
    def retraction(self, txn: Transaction, olds: Sequence[Handle], restored: Handle | None) -> Handle:
        """Return a handle whose publication removes the rows of `olds`, the newest first.

        Args:
            restored: the sink's handle of the checkpoint to which the pipeline goes back, if it has one.
        Raises:
            InvalidPipeline: the rows cannot be removed.
        """


class OverwritingRows(ABC):
    """A publication may take out rows that its handle does not name, whoever wrote them."""

    @abstractmethod
    def list_overwritten(self, handle: Handle) -> list[Transaction]:
        """List the transactions of which it would take out rows, as the target looks now, as far as that is known."""


@dataclass(frozen=True)
class RowLocation:
    """The place of the rows of a published handle, for a source that reads its target by versions.

    Args:
        table_id: of the target table; of a folder of files, its stream of manifests.
        version: the one that published it, of a folder the decision; None: the target's log no longer shows it.
        folder: in which the files with its rows were staged; of a folder of files, the path of the manifest.
        files: how many files.
        is_whole_version: whether that version added its rows and nothing else.
    """

    table_id: str
    version: int | None
    folder: str
    files: int
    is_whole_version: bool = True


class VersionedTarget(ABC):
    """Its target has versions, by which other pipelines read it."""

    @abstractmethod
    def locate_rows(self, handle: Handle, decision: int) -> RowLocation:
        """Return where the rows of a published handle are. Changes nothing.

        Raises:
            OutcomeUnknown: the target does not answer.
        """


class InspectableRows(ABC):
    """A gate can read exactly the rows that would be published. Its config sets `SinkConfig.inspectable`."""

    @abstractmethod
    def read_staged(self, handle: Handle) -> Any:
        """Return the staged rows as a pyarrow RecordBatchReader, in any order; None if only Spark can read them."""

    @abstractmethod
    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        """Return the staged rows as a DataFrame."""

    def columns(self) -> list[str] | None:
        """Return the columns of `staged_frame`, if they are known before rows are staged; otherwise None."""
        return None

    def types(self) -> Mapping[str, Any] | None:
        """Return the schema of `staged_frame` in Spark's JSON form, if it is known before rows are staged."""
        return None

    @property
    def stages_columns_as_returned(self) -> bool:
        """Whether `staged_frame` has the columns that the transform returns, with their types."""
        return True


@dataclass(frozen=True)
class PooledTransaction:
    """An open transaction with an id from a pool. Its owner is the attempt that leases the slot in the state table."""

    pipeline: str
    sink: str
    slot: int
    id: str
    producer: tuple[int, int]  # producer id and epoch


class TransactionalIdPool(ABC):
    """Uses a pool of ids. Each attempt whose outcome is not recorded leases one slot."""

    @abstractmethod
    def list_pooled(self, prefix: str) -> list[PooledTransaction]:
        """List the open transactions with ids from the pool, of any attempt."""

    @abstractmethod
    def is_needed(self, handle: Handle, txn: PooledTransaction) -> bool:
        """Whether a handle that waits to be published contains `txn`, or may contain it later."""

    @abstractmethod
    def discard_pooled(self, txns: Sequence[PooledTransaction]) -> None:
        """Abort them if they are open, unless another producer uses the id by now."""


class StateBackend(ABC):
    """What it publishes is passed to the transform of the next checkpoint. Its config sets `keeps_state`."""

    @abstractmethod
    def read(self, spark: Any, before: Handle | None) -> Any:
        """Return the state after the handle `before`, as a DataFrame; empty for None."""

    def find_missing(self, before: Handle) -> str:
        """Return what is missing of the state after a handle, for people; empty: nothing, as far as is known.

        A repair is computed from an earlier state, of which parts may have been merged and removed since.

        Raises:
            OutcomeUnknown: the storage does not answer.
        """
        return ""

    def forget(self, after: Handle) -> None:
        """Let the next checkpoint remove all that the state was, so that only what it is then can be read.

        Idempotent. A backend that keeps nothing of earlier states has nothing to do.

        Args:
            after: the handle of the last state that was published.
        Raises:
            OutcomeUnknown: the storage does not answer.
        """
        return None


@dataclass(frozen=True)
class Changes:
    """The rows that a `StateBackend` stages.

    Args:
        rows: the changes that the transform returned.
        before: the handle of the state that they follow; None: there is none.
    """

    rows: Any
    before: Handle | None


def require_replaceable(sink: Sink) -> ReplaceableRows:
    """Return a sink whose published rows can be retracted. Raises InvalidPipeline if they cannot."""
    if not isinstance(sink, ReplaceableRows):
        raise no_retraction_error(sink.name)
    return sink


def require_inspectable(sink: Sink) -> InspectableRows:
    """Return a sink whose staged rows a gate can read. Raises InvalidPipeline if it cannot."""
    if not isinstance(sink, InspectableRows):
        raise InvalidPipeline(
            f"sink '{sink.name}': a gate cannot read its rows.",
            todo="Remove it from the gate.",
            code="sink-not-inspectable",
        )
    return sink


def replaced_handles(handle: Handle) -> list[Handle]:
    """Return the handles whose rows are removed when this one is published: those that it replaces or retracts."""
    return [handle["replaces"]] if "replaces" in handle else list(handle.get("retracts", []))


def no_retraction_error(sink: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{sink}': published rows cannot be taken back.",
        "Readers may have read them.",
        "Process the records again by a pipeline with a new name and new targets. Nothing was written.",
        code="rows-not-retractable",
    )


def no_doubt_error(sink: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{sink}' is never in doubt.", todo="Settle it: onceonly recover", code="sink-not-in-doubt"
    )
